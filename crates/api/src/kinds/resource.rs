//! The kinds of dynamic resource allocation: defaults, strategy, columns, validation.
//! Neighbours: the scheduler allocates claims, drivers publish slices.
//! Invariant: the spec of a claim and of a template never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, existing_mut, int_at, is_set, part, part_mut, text},
    checks,
    columns::{age, age_of, deleting, name, name_of, string},
    resource_validation::{claim_spec, claim_status, class_spec, slice_spec},
};
use crate::field::{ErrorList, Path};

fn default_request(request: &mut Value) {
    default_to(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" && int_at(request, "count") == 0 {
        request["count"] = json!(1);
    }
}

fn default_claim_spec(spec: &mut Value) {
    let Some(devices) = existing_mut(spec, "devices") else { return };
    each(devices, "requests", |request| {
        if let Some(exactly) = existing_mut(request, "exactly") {
            default_request(exactly);
        }
        each(request, "firstAvailable", default_request);
    });
}

#[derive(Default)]
pub struct ResourceClaim;

impl Behavior for ResourceClaim {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_claim_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        claim_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        claim_status(errors, object, old);
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("State", "How far it is."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let status = &object["status"];
        let mut states = Vec::new();
        if deleting(object) {
            states.push("deleted");
        }
        if part(status, "allocation").is_some() {
            states.push("allocated");
            if is_set(status, "reservedFor") {
                states.push("reserved");
            }
        } else if !deleting(object) {
            states.push("pending");
        }
        vec![name_of(object), json!(states.join(",")), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct ResourceClaimTemplate;

impl Behavior for ResourceClaimTemplate {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec").and_then(|spec| part_mut(spec, "spec")) {
            default_claim_spec(spec);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        claim_spec(errors, &Path::new("spec").child("spec"), &object["spec"]["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct DeviceClass;

impl Behavior for DeviceClass {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        class_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
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

#[derive(Default)]
pub struct ResourceSlice;

impl Behavior for ResourceSlice {
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
