//! PriorityClasses: defaults, columns, validation.
//! Read by the Priority admission plugin, which copies value and preemption policy into pods.
//! The value and the preemption policy of a class never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, default_to, flag, int_at, text, text_at},
            checks,
            columns::{age, age_of, boolean, integer, name, name_of, string},
        },
    },
};

const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

#[derive(Default)]
pub struct PriorityClass;

impl Behavior for PriorityClass {
    fn default(&self, object: &mut Value) {
        default_absent(object, "preemptionPolicy", "PreemptLowerPriority");
        default_to(object, "value", 0);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (name, value) = (text_at(object, "metadata.name"), int_at(object, "value"));
        if name.starts_with("system-") {
            if !SYSTEM_CLASSES.contains(&(name, value)) || flag(object, "globalDefault") {
                errors.forbidden(
                    &Path::new("metadata").child("name"),
                    format!(
                        "priority class names with 'system-' prefix are reserved for system use only. error: {name} is \
                         not a known system priority class"
                    ),
                );
            }
        } else if value > HIGHEST_USER_PRIORITY {
            errors.forbidden(
                &Path::new("value"),
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"),
            );
        }
        let policies = ["PreemptLowerPriority", "Never"];
        checks::optional_one_of(errors, &Path::default(), object, "preemptionPolicy", &policies);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        if int_at(object, "value") != int_at(old, "value") {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        checks::immutable(errors, &Path::default(), object, old, "preemptionPolicy");
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn generation_grows(&self) -> bool {
        false
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
