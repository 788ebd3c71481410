//! ResourceQuotas and LimitRanges: defaults, strategy, columns, validation.
//! Neighbours: the admission plugins of the same names, and the quota controller.
//! Invariant: the scopes of a quota never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, entries, existing_mut, part_mut, text},
    amount,
    columns::{age, age_of, name, name_of, plain, string},
};

#[derive(Default)]
pub struct ResourceQuota;

impl Behavior for ResourceQuota {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = existing_mut(object, "spec") {
            amount::round_list(spec, "hard");
        }
        if let Some(status) = existing_mut(object, "status") {
            amount::round_list(status, "hard");
            amount::round_list(status, "used");
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Request", "Used and allowed amounts."),
            string("Limit", "Used and allowed amounts of limits."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let status = &object["status"];
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in entries(status, "hard") {
            let used = plain(&status["used"][resource]);
            let used = if used.is_empty() { "0" } else { &used };
            let column = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
            column.push(format!("{resource}: {used}/{}", plain(hard)));
        }
        // Map order is not promised; upstream sorts.
        requests.sort();
        limits.sort();
        vec![name_of(object), json!(requests.join(", ")), json!(limits.join(", ")), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct LimitRange;

impl Behavior for LimitRange {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        each(spec, "limits", |limit| {
            for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                amount::round_list(limit, field);
            }
            if text(limit, "type") == "Container" {
                fill(limit, "default", "max");
                fill(limit, "defaultRequest", "default");
                fill(limit, "defaultRequest", "min");
            }
        });
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

/// What `from` names and `field` does not.
fn fill(limit: &mut Value, field: &str, from: &str) {
    let from: Vec<(String, Value)> = entries(limit, from).map(|(k, v)| (k.to_string(), v.clone())).collect();
    if from.is_empty() {
        return;
    }
    if let Some(into) = part_mut(limit, field) {
        for (name, quantity) in from {
            default_to(into, &name, quantity);
        }
    }
}
