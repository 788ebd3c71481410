//! ValidatingAdmissionPolicyBindings: defaults, columns, validation.
//! Read by the admission plugin ValidatingAdmissionPolicy.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::Value;

use super::admission_policy::{BINDING_COLUMNS, binding_cells, default_binding, validate_binding};
use crate::{
    field::{ErrorList, Path},
    kinds::{Behavior, Column, common::access::texts},
};

#[derive(Default)]
pub struct ValidatingAdmissionPolicyBinding;

impl Behavior for ValidatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_binding(errors, &path, spec);
        let actions: Vec<&str> = texts(spec, "validationActions").collect();
        let at = path.child("validationActions");
        if actions.is_empty() {
            errors.required(&at, "at least one validation action is required");
        }
        for (index, action) in actions.iter().enumerate() {
            if !matches!(*action, "Audit" | "Deny" | "Warn") {
                errors.not_supported(&at.index(index), *action, &["Audit", "Deny", "Warn"]);
            }
            if actions[..index].contains(action) {
                errors.duplicate(&at.index(index), *action);
            }
        }
        if actions.contains(&"Deny") && actions.contains(&"Warn") {
            errors.invalid(
                &at,
                spec["validationActions"].clone(),
                "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                 response and headers serves no purpose)",
            );
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        &BINDING_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
