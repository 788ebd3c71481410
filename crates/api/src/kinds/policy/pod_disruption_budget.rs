//! PodDisruptionBudgets: strategy, columns, validation.
//! Neighbours: the disruption controller writes the status, the eviction subresource reads it.
//! Either minAvailable or maxUnavailable, never both.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{int_at, is_set, items},
            checks,
            columns::{age, age_of, integer, name, name_of, plain, string},
            conditions,
        },
    },
    names,
};

#[derive(Default)]
pub struct PodDisruptionBudget;

impl Behavior for PodDisruptionBudget {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        if is_set(spec, "minAvailable") && is_set(spec, "maxUnavailable") {
            errors.invalid(&path, spec.clone(), "minAvailable and maxUnavailable cannot be both set");
        }
        for field in ["minAvailable", "maxUnavailable"] {
            checks::int_or_percent(errors, &path.child(field), &spec[field]);
            checks::at_most_100_percent(errors, &path.child(field), &spec[field]);
        }
        checks::label_selector(errors, &path.child("selector"), &spec["selector"]);
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        checks::optional_one_of(errors, &path, spec, "unhealthyPodEvictionPolicy", &policies);
    }

    /// Upstream asks no more of it than that it fits into a path.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let path = Path::new("status").child("conditions");
        conditions::validate(errors, &path, items(&object["status"], "conditions"));
        let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
        checks::not_negative(errors, &Path::new("status"), &object["status"], &counts);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0 })
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            name(),
            string("Min Available", "Pods that must stay."),
            string("Max Unavailable", "Pods that may be away."),
            integer("Allowed Disruptions", "Pods that may go now."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let bound = |field: &str| match object["spec"].get(field) {
            None | Some(Value::Null) => json!("N/A"),
            Some(value) => json!(plain(value)),
        };
        vec![
            name_of(object),
            bound("minAvailable"),
            bound("maxUnavailable"),
            json!(int_at(&object["status"], "disruptionsAllowed")),
            age_of(object, now),
        ]
    }
}
