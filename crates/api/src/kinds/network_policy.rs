//! NetworkPolicies: defaults, columns, validation.
//! Neighbours: `proxy`, which enforces them.
//! Invariant: every policy names its types.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, is_set, part_mut},
    columns::{age, age_of, name, name_of, selector, string},
};

#[derive(Default)]
pub struct NetworkPolicy;

impl Behavior for NetworkPolicy {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        if !is_set(spec, "policyTypes") {
            let egress = is_set(spec, "egress");
            spec["policyTypes"] = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        }
        for direction in ["ingress", "egress"] {
            each(spec, direction, |rule| each(rule, "ports", |port| default_to(port, "protocol", "TCP")));
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Pod-Selector", "Which pods it holds for."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), selector(&object["spec"], "podSelector"), age_of(object, now)]
    }
}
