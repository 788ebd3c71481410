//! PriorityClasses and RuntimeClasses: defaults, columns, validation.
//! Neighbours: the admission plugins that copy them into pods.
//! Invariant: the value, policy and handler of a class never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, existing_mut, flag, int_at, text},
    amount,
    columns::{age, age_of, boolean, integer, name, name_of, string},
};

#[derive(Default)]
pub struct PriorityClass;

impl Behavior for PriorityClass {
    fn default(&self, object: &mut Value) {
        default_to(object, "preemptionPolicy", "PreemptLowerPriority");
        default_to(object, "value", 0);
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            name(),
            integer("Value", "The priority."),
            boolean("Global-Default", "Whether pods get it by default."),
            age(),
            string("PreemptionPolicy", "Whether it pushes others out."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name_of(object),
            json!(int_at(object, "value")),
            json!(flag(object, "globalDefault")),
            age_of(object, now),
            json!(text(object, "preemptionPolicy")),
        ]
    }
}

#[derive(Default)]
pub struct RuntimeClass;

impl Behavior for RuntimeClass {
    fn default(&self, object: &mut Value) {
        if let Some(overhead) = existing_mut(object, "overhead") {
            amount::round_list(overhead, "podFixed");
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Handler", "What the container runtime calls it."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "handler")), age_of(object, now)]
    }
}
