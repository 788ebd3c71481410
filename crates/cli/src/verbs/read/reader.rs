//! The objects that `describe`, `why` and `timeline` ask for, over REST.
//! Used by the verbs of those names.
//! Reads only.

use serde_json::Value;

use crate::{
    object_reader::{ObjectReader, Query},
    resource::items_of,
    session::Session,
};

pub struct RestReader<'a> {
    pub session: &'a Session,
}

impl ObjectReader for RestReader<'_> {
    async fn read(&self, query: Query) -> Result<Vec<Value>, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        let answer = rest.get(query.path()).value().await.map_err(|e| e.text())?;
        Ok(match query.name {
            Some(_) => vec![answer],
            None => items_of(answer),
        })
    }

    async fn raw(&self, path: &str) -> Result<Value, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        rest.get(path).value().await.map_err(|e| e.text())
    }
}
