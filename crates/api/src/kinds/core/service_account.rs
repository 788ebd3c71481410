//! ServiceAccounts: columns and names.
//! Neighbours: the token subresource, served by the API server.
//! Tokens are asked for, never stored here.

use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::{
    Behavior, Column,
    common::columns::{age, age_of, name, name_of},
};

const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

#[derive(Default)]
pub struct ServiceAccount;

impl Behavior for ServiceAccount {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let is_set = |of: &Value| of["metadata"]["annotations"].get(MOUNTABLE_SECRETS).is_some();
        match is_set(object) && !old.is_some_and(is_set) {
            true => vec![format!(
                "metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate \
                 access to mounted secrets"
            )],
            false => Vec::new(),
        }
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}
