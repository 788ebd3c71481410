//! Leases: columns and validation.
//! Neighbours: leader election and node heartbeats.
//! Invariant: an update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::text,
    columns::{age, age_of, name, name_of, string},
};

#[derive(Default)]
pub struct Lease;

impl Behavior for Lease {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Holder", "Who holds it."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(&object["spec"], "holderIdentity")), age_of(object, now)]
    }
}
