//! Making room for a pod by removing others of lower priority.

use serde::Deserialize;
use serde_json::Value;

/// How many nodes are tried.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Arguments {
    pub min_candidate_nodes_percentage: usize,
    pub min_candidate_nodes_absolute: usize,
}

impl Default for Arguments {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

impl Arguments {
    pub fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Null => Ok(Self::default()),
            given => serde_json::from_value(given.clone()).map_err(|e| format!("DefaultPreemption: {e}")),
        }
    }
}
