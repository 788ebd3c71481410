//! What validating and mutating admission policies share, and their bindings: defaults, validation, cells.
//! Called by the four kinds beside it; what rules and conditions may say is in `match_resources`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::match_resources::{default_match, validate_match};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Column,
        common::{
            access::{default_absent, existing_mut, is_set, items, part, part_mut, text},
            checks,
            columns::{age, age_of, name, name_of, selector_text, string},
        },
    },
    names,
};

const UNSET: &str = "<unset>";
const EXCLUSIVE: &str = "name and selector are mutually exclusive";

pub fn default_policy(object: &mut Value) {
    let Some(spec) = part_mut(object, "spec") else { return };
    default_absent(spec, "failurePolicy", "Fail");
    if let Some(constraints) = existing_mut(spec, "matchConstraints") {
        default_match(constraints);
    }
}

/// What a failure means, the kind of the parameters, and which requests are looked at.
pub fn validate_constraints(errors: &mut ErrorList, path: &Path, spec: &Value) {
    checks::optional_one_of(errors, path, spec, "failurePolicy", &["Fail", "Ignore"]);
    if let Some(kind) = part(spec, "paramKind") {
        checks::required(errors, &path.child("paramKind"), kind, "apiVersion");
        checks::required(errors, &path.child("paramKind"), kind, "kind");
    }
    let constraints = path.child("matchConstraints");
    match part(spec, "matchConstraints") {
        None => errors.required(&constraints, ""),
        Some(resources) => {
            validate_match(errors, &constraints, resources);
            if !is_set(resources, "resourceRules") {
                errors.required(&constraints.child("resourceRules"), "");
            }
        }
    }
}

/// A name may stand twice, as with upstream.
pub fn validate_variables(errors: &mut ErrorList, path: &Path, spec: &Value) {
    for (index, variable) in items(spec, "variables").iter().enumerate() {
        let path = path.child("variables").index(index);
        match text(variable, "name") {
            name if name.trim().is_empty() => errors.required(&path.child("name"), "name is not specified"),
            name if !names::c_identifier(name).is_empty() => {
                errors.invalid(&path.child("name"), name, "must be a valid CEL identifier");
            }
            _ => {}
        }
        if text(variable, "expression").trim().is_empty() {
            errors.required(&path.child("expression"), "expression is not specified");
        }
        errors.expression(&path.child("expression"));
    }
}

/// The cell `ParamKind` of a policy.
pub fn param_kind(spec: &Value) -> Value {
    let kind = part(spec, "paramKind").map(|kind| format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")));
    json!(kind.as_deref().unwrap_or(UNSET))
}

pub fn default_binding(object: &mut Value) {
    if let Some(resources) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "matchResources")) {
        default_match(resources);
    }
}

pub fn validate_binding(errors: &mut ErrorList, path: &Path, spec: &Value) {
    checks::required_name(errors, path, spec, "policyName", |name| names::dns_subdomain(name, false));
    if let Some(parameters) = part(spec, "paramRef") {
        let path = path.child("paramRef");
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
                errors.not_supported_as_listed(&path.child("parameterNotFoundAction"), other, &["Deny", "Allow"]);
            }
        }
    }
    if let Some(resources) = part(spec, "matchResources") {
        validate_match(errors, &path.child("matchResources"), resources);
    }
}

pub const BINDING_COLUMNS: [Column; 4] =
    [name(), string("PolicyName", "The policy that is bound."), string("ParamRef", "Where its parameters are."), age()];

pub fn binding_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let parameters = part(spec, "paramRef").and_then(|p| match (text(p, "namespace"), text(p, "name")) {
        (_, "") => part(p, "selector").map(selector_text),
        ("", name) => Some(format!("*/{name}")),
        (namespace, name) => Some(format!("{namespace}/{name}")),
    });
    let parameters = parameters.as_deref().unwrap_or(UNSET);
    vec![name_of(object), json!(text(spec, "policyName")), json!(parameters), age_of(object, now)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{
        Behavior,
        admissionregistration::{
            mutating_admission_policy_binding::MutatingAdmissionPolicyBinding,
            validating_admission_policy_binding::ValidatingAdmissionPolicyBinding,
        },
    };

    #[test]
    fn bindings_show_where_their_parameters_are() {
        let check = |reference: Value, expected: &str| {
            let object = json!({ "metadata": { "name": "b" }, "spec": { "policyName": "p", "paramRef": reference } });
            for kind in [&ValidatingAdmissionPolicyBinding as &dyn Behavior, &MutatingAdmissionPolicyBinding::<true>] {
                assert_eq!(kind.cells(&object, Timestamp::UNIX_EPOCH)[2], expected);
            }
        };
        check(Value::Null, "<unset>");
        check(json!({ "name": "n" }), "*/n");
        check(json!({ "name": "n", "namespace": "s" }), "s/n");
        check(json!({ "selector": { "matchLabels": { "a": "b" } } }), "a=b");
    }

    #[test]
    fn the_name_of_a_variable_may_stand_twice() {
        let variable = json!({ "name": "v", "expression": "1" });
        let mut errors = ErrorList::new();
        validate_variables(&mut errors, &Path::new("spec"), &json!({ "variables": [variable, variable] }));
        assert!(errors.is_empty(), "{:?}", errors.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}
