//! ServiceAccounts: columns and names.
//! Neighbours: the token subresource, served by the API server.
//! Tokens are asked for, never stored here.

use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::{
    Behavior, Column,
    common::columns::{age, age_of, name, name_of},
};

#[derive(Default)]
pub struct ServiceAccount;

impl Behavior for ServiceAccount {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}
