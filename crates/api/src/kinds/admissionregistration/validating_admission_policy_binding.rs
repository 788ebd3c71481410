//! ValidatingAdmissionPolicyBindings: defaults, columns, validation.
//! Read by the admission plugin ValidatingAdmissionPolicy.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        admissionregistration::match_resources::{default_match, validate_match},
        common::{
            access::{existing_mut, is_set, part, part_mut, text, texts},
            checks,
            columns::{age, age_of, name, name_of, selector_text, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct ValidatingAdmissionPolicyBinding;

impl Behavior for ValidatingAdmissionPolicyBinding {
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
            const EXCLUSIVE: &str = "name and selector are mutually exclusive";
            let selector = part(parameters, "selector");
            let both = is_set(parameters, "name") && selector.is_some();
            checks::optional_name(errors, &path, parameters, "name", |name| names::path_segment(name, false));
            if both {
                errors.forbidden(&path.child("name"), EXCLUSIVE);
            }
            if let Some(selector) = selector {
                checks::label_selector(errors, &path.child("selector"), selector);
            }
            if both {
                errors.forbidden(&path.child("selector"), EXCLUSIVE);
            }
            if !is_set(parameters, "name") && selector.is_none() {
                errors.required(&path, "one of name or selector must be specified");
            }
            match text(parameters, "parameterNotFoundAction") {
                "Allow" | "Deny" => {}
                "" => errors.required(&path.child("parameterNotFoundAction"), ""),
                other => {
                    let at = path.child("parameterNotFoundAction");
                    errors.not_supported_as_listed(&at, other, &["Deny", "Allow"]);
                }
            }
        }
        if let Some(resources) = part(spec, "matchResources") {
            validate_match(errors, &path.child("matchResources"), resources);
        }
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
        let parameters = part(spec, "paramRef").and_then(|p| match (text(p, "namespace"), text(p, "name")) {
            (_, "") => part(p, "selector").map(selector_text),
            ("", name) => Some(format!("*/{name}")),
            (namespace, name) => Some(format!("{namespace}/{name}")),
        });
        vec![
            name_of(object),
            json!(text(spec, "policyName")),
            json!(parameters.as_deref().unwrap_or("<unset>")),
            age_of(object, now),
        ]
    }
}
