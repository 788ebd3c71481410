//! The objects that `describe`, `why` and `timeline` ask for, over REST.
//! Used by the verbs of those names.
//! Reads only.

use serde_json::Value;

use crate::{
    object_reader::{ObjectReader, Query},
    resource::items_of,
    session::Session,
};

/// Objects of one answer, where no flag says how many.
const CHUNK_SIZE: i64 = 500;

pub struct RestReader<'a> {
    session: &'a Session,
    chunk_size: i64,
}

impl<'a> RestReader<'a> {
    pub fn new(session: &'a Session) -> Self {
        Self::in_chunks_of(session, CHUNK_SIZE)
    }

    /// All at once, if that is 0.
    pub fn in_chunks_of(session: &'a Session, chunk_size: i64) -> Self {
        Self { session, chunk_size }
    }
}

impl ObjectReader for RestReader<'_> {
    async fn read(&self, query: Query) -> Result<Vec<Value>, String> {
        let rest = self.session.rest().await.map_err(|e| e.text())?;
        if query.name.is_some() {
            return Ok(vec![rest.get(query.path()).value().await.map_err(|e| e.text())?]);
        }
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let mut call = rest.get(query.path());
            if self.chunk_size > 0 {
                call = call.query("limit", self.chunk_size.to_string());
            }
            call = call.query_opt("continue", &next);
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
