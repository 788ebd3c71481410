//! ResourceSlices: columns, selectable fields, validation.
//! Published by the drivers of devices, read by the scheduler.
//! Driver, node and pool of a slice never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::text,
            checks,
            columns::{age, age_of, name, name_of, string},
        },
        resource::{disabled_fields, validation::slice_spec},
    },
};

#[derive(Default)]
pub struct ResourceSlice;

impl Behavior for ResourceSlice {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::slice_spec(part, &Value::Null);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::slice_spec(part, &old["spec"]);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        slice_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        for field in ["driver", "nodeName"] {
            checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], field);
        }
        let pool = Path::new("spec").child("pool");
        checks::immutable(errors, &pool, &object["spec"]["pool"], &old["spec"]["pool"], "name");
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            name(),
            string("Node", "Where the devices are."),
            string("Driver", "Who manages them."),
            string("Pool", "Which pool they are of."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(spec, "nodeName")),
            json!(text(spec, "driver")),
            json!(text(&spec["pool"], "name")),
            age_of(object, now),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let spec = &object["spec"];
        ["nodeName", "driver"].map(|field| (format!("spec.{field}"), text(spec, field).to_string())).into()
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.nodeName".into(), "spec.driver".into()]
    }
}
