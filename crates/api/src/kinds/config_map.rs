//! ConfigMaps: columns and validation.
//! Neighbours: `secret`, which has the same limits.
//! Invariant: an immutable one stays as it is.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::entries,
    columns::{age, age_of, name, name_of, string},
};

#[derive(Default)]
pub struct ConfigMap;

impl Behavior for ConfigMap {
    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Data", "How many keys it holds."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let keys = entries(object, "data").count() + entries(object, "binaryData").count();
        vec![name_of(object), json!(keys), age_of(object, now)]
    }
}
