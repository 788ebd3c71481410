//! MutatingAdmissionPolicyBindings: defaults, columns, validation.
//! Read by the admission plugin MutatingAdmissionPolicy.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::mutating_admission_policy::validate_operations;
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        admissionregistration::match_resources::{default_match, validate_match},
        common::{
            access::{existing_mut, is_set, part, part_mut, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct MutatingAdmissionPolicyBinding;

impl Behavior for MutatingAdmissionPolicyBinding {
    fn default(&self, object: &mut Value) {
        if let Some(resources) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "matchResources")) {
            default_match(resources);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::required_name(errors, &path, spec, "policyName", |name| names::dns_subdomain(name, false));
        if let Some(parameters) = part(spec, "paramRef") {
            let path = path.child("paramRef");
            match (is_set(parameters, "name"), part(parameters, "selector")) {
                (true, Some(_)) => {
                    errors.forbidden(&path.child("name"), "name and selector are mutually exclusive");
                }
                (false, None) => errors.required(&path, "one of name or selector must be specified"),
                _ => {}
            }
            checks::one_of(errors, &path, parameters, "parameterNotFoundAction", &["Allow", "Deny"]);
        }
        if let Some(resources) = part(spec, "matchResources") {
            validate_match(errors, &path.child("matchResources"), resources);
            validate_operations(errors, &path.child("matchResources"), resources);
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("PolicyName", "The policy that is bound."),
            string("ParamRef", "Where its parameters are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let reference = part(spec, "paramRef").map(|reference| match text(reference, "namespace") {
            "" => format!("*/{}", text(reference, "name")),
            namespace => format!("{namespace}/{}", text(reference, "name")),
        });
        let reference = reference.as_deref().unwrap_or("<unset>");
        vec![name_of(object), json!(text(spec, "policyName")), json!(reference), age_of(object, now)]
    }
}
