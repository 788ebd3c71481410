//! The objects that `describe`, `why` and `timeline` ask for, over REST.
//! Used by the verbs of those names.
//! Reads only.

use serde_json::Value;

use crate::{
    object_reader::{ObjectReader, Query},
    resource::items_of,
    session::Session,
};

/// Objects of one answer.
const CHUNK: &str = "500";

pub struct RestReader<'a> {
    pub session: &'a Session,
}

impl ObjectReader for RestReader<'_> {
    async fn read(&self, query: Query) -> Result<Vec<Value>, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        if query.name.is_some() {
            return Ok(vec![rest.get(query.path()).value().await.map_err(|e| e.text())?]);
        }
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let call = rest.get(query.path()).query("limit", CHUNK).query_opt("continue", &next);
            let answer = call.value().await.map_err(|e| e.text())?;
            next = answer["metadata"]["continue"].as_str().unwrap_or_default().to_string();
            found.extend(items_of(answer));
            if next.is_empty() {
                return Ok(found);
            }
        }
    }

    async fn raw(&self, path: &str) -> Result<Value, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        rest.get(path).value().await.map_err(|e| e.text())
    }

    async fn text(&self, path: &str) -> Result<String, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        let bytes = rest.get(path).bytes().await.map_err(|e| e.text())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
