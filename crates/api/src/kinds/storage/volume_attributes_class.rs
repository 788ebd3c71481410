//! VolumeAttributesClasses: columns and validation.
//! Named by claims.
//! Driver and parameters of a class never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{is_set, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct VolumeAttributesClass;

impl Behavior for VolumeAttributesClass {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::default();
        match text(object, "driverName").to_lowercase() {
            name if name.is_empty() => errors.required(&path.child("driverName"), ""),
            // Shown as it is checked.
            name => checks::complaints(errors, &path.child("driverName"), &name, names::qualified_name(&name)),
        }
        if !is_set(object, "parameters") {
            errors.required(&path.child("parameters"), "must contain at least one key/value pair");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        for field in ["driverName", "parameters"] {
            if !checks::same(&object[field], &old[field]) {
                errors.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
            }
        }
        self.validate_create(object, errors);
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("DriverName", "The driver."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "driverName")), age_of(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_named_as_a_provisioner_is() {
        let check = |name: &str, good: bool| {
            let mut errors = ErrorList::default();
            let class = json!({ "driverName": name, "parameters": { "iops": "1" } });
            VolumeAttributesClass.validate_create(&class, &mut errors);
            assert_eq!(errors.is_empty(), good, "{name}");
        };
        check("csi.example.com", true);
        check("example.com/Driver", true);
        check("a/b/c", false);
        check("", false);
    }
}
