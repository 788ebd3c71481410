//! DeviceClasses: columns and validation.
//! Named by the requests of a ResourceClaim.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::columns::{age, age_of, name, name_of},
        resource::{disabled_fields, validation::class_spec},
    },
};

#[derive(Default)]
pub struct DeviceClass;

impl Behavior for DeviceClass {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::class_spec(part, &Value::Null);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::class_spec(part, &old["spec"]);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        class_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
    }

    fn validates_generate_name(&self) -> bool {
        false
    }

    fn has_generation(&self) -> bool {
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
