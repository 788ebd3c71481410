//! MutatingAdmissionPolicyBindings: defaults, columns, validation.
//! Read by the admission plugin MutatingAdmissionPolicy.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    admission_policy::{BINDING_COLUMNS, binding_cells, default_binding, validate_binding},
    mutating_admission_policy::validate_operations,
};
use crate::{
    field::{ErrorList, Path},
    kinds::{Behavior, Column, common::access::part},
};

/// Both versions have the same fields and rules; objects are stored in the beta version.
#[derive(Default)]
pub struct MutatingAdmissionPolicyBinding<const BETA: bool>;

impl<const BETA: bool> Behavior for MutatingAdmissionPolicyBinding<BETA> {
    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_binding(errors, &path, spec);
        if let Some(resources) = part(spec, "matchResources") {
            validate_operations(errors, &path.child("matchResources"), resources);
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        (!BETA).then_some(("admissionregistration.k8s.io", "v1beta1"))
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
