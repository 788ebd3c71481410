//! Questions to other parts of this process, answered below `/debug/` like any other path: with authentication and
//! authorization.
//! Asked through `pipeline`; filled in by whoever starts the server, since nothing here knows the other parts.
//! Answers are read, never made to wait for.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use serde_json::Value;

use api::ApiError;

use crate::{handlers::respond::Reply, registry::not_found_path};

/// What is known of whatever the rest of the path names.
pub type Answer = Arc<dyn Fn(&str) -> Option<Value> + Send + Sync>;

/// By the first word after `/debug/`.
#[derive(Default)]
pub struct DebugHandlers(RwLock<BTreeMap<String, Answer>>);

impl DebugHandlers {
    pub fn add(&self, word: &str, answer: Answer) {
        self.0.write().insert(word.to_string(), answer);
    }

    pub(crate) fn serve(&self, path: &str) -> Result<Reply, ApiError> {
        let (word, rest) = path.trim_start_matches("/debug/").split_once('/').unwrap_or_default();
        let answer = self.0.read().get(word).cloned();
        let value = answer.and_then(|answer| answer(rest)).ok_or_else(not_found_path)?;
        Ok(Reply::Value(http::StatusCode::OK, value))
    }
}
