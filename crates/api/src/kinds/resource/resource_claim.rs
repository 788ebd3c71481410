//! ResourceClaims: defaults, strategy, columns, validation.
//! The scheduler allocates claims; `resource_claim_template` has the same spec.
//! The spec of a claim never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::{keep_field, reset_to_old},
        common::{
            access::{default_to, each, existing_mut, int_at, is_set, part, part_mut, text},
            checks,
            columns::{age, age_of, deleting, name, name_of, string},
        },
        resource::{
            disabled_fields,
            validation::{claim_spec, claim_status},
        },
    },
};

pub(super) fn default_request(request: &mut Value) {
    default_to(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" && int_at(request, "count") == 0 {
        request["count"] = json!(1);
    }
}

pub fn default_claim_spec(spec: &mut Value) {
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
    fn returns_deleted(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_claim_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::claim_spec(part, &Value::Null);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        if let Some(part) = object.pointer_mut("/spec") {
            disabled_fields::claim_spec(part, &old["spec"]);
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        reset_to_old(object, old, self.status_update_resets());
        if let Some(part) = object.pointer_mut("/status") {
            disabled_fields::claim_status(part, &old["status"]);
        }
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
