//! MutatingAdmissionPolicies: defaults, columns, validation.
//! Read by the admission plugin of the same name, which compiles the CEL expressions; served where that plugin is on.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        admissionregistration::match_resources::{default_match, validate_conditions, validate_match},
        common::{
            access::{default_absent, existing_mut, is_set, items, part, part_mut, text, texts},
            checks,
            columns::{age, age_of, integer, name, name_of, string},
        },
    },
    names,
};

const OPERATIONS: [&str; 3] = ["*", "CREATE", "UPDATE"];

#[derive(Default)]
pub struct MutatingAdmissionPolicy;

impl Behavior for MutatingAdmissionPolicy {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_absent(spec, "failurePolicy", "Fail");
        if let Some(constraints) = existing_mut(spec, "matchConstraints") {
            default_match(constraints);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::optional_one_of(errors, &path, spec, "failurePolicy", &["Fail", "Ignore"]);
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
                validate_operations(errors, &constraints, resources);
            }
        }
        validate_conditions(errors, &path.child("matchConditions"), spec);
        let variables = items(spec, "variables");
        for (index, variable) in variables.iter().enumerate() {
            let path = path.child("variables").index(index);
            checks::required_name(errors, &path, variable, "name", names::c_identifier);
            if text(variable, "expression").trim().is_empty() {
                errors.required(&path.child("expression"), "expression is not specified");
            }
        }
        if !is_set(spec, "mutations") {
            errors.required(&path.child("mutations"), "mutations must contain at least one item");
        }
        for (index, mutation) in items(spec, "mutations").iter().enumerate() {
            validate_mutation(errors, &path.child("mutations").index(index), mutation);
        }
        checks::one_of(errors, &path, spec, "reinvocationPolicy", &["IfNeeded", "Never"]);
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
            integer("Mutations", "How many changes it makes."),
            string("ParamKind", "What its parameters are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let kind = part(spec, "paramKind").map(|p| format!("{}/{}", text(p, "apiVersion"), text(p, "kind")));
        vec![
            name_of(object),
            json!(items(spec, "mutations").len()),
            json!(kind.as_deref().unwrap_or("<unset>")),
            age_of(object, now),
        ]
    }
}

/// What is deleted or connected to can't be changed.
pub fn validate_operations(errors: &mut ErrorList, path: &Path, resources: &Value) {
    for rule in items(resources, "resourceRules") {
        for operation in texts(rule, "operations").filter(|operation| !OPERATIONS.contains(operation)) {
            errors.not_supported(&path.child("resourceRules").child("operations"), operation, &OPERATIONS);
        }
    }
}

fn validate_mutation(errors: &mut ErrorList, path: &Path, mutation: &Value) {
    let (wanted, other) = match text(mutation, "patchType") {
        "" => return errors.required(&path.child("patchType"), ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        found => {
            return errors.not_supported(&path.child("patchType"), found, &["ApplyConfiguration", "JSONPatch"]);
        }
    };
    let kind = text(mutation, "patchType");
    match part(mutation, wanted) {
        None => errors.required(&path.child(wanted), &format!("must be specified when patchType is {kind}")),
        Some(patch) if text(patch, "expression").trim().is_empty() => {
            errors.required(&path.child(wanted).child("expression"), "");
        }
        Some(_) => {}
    }
    if part(mutation, other).is_some() {
        let detail = format!("must not be specified when patchType is {kind}");
        errors.invalid(&path.child(other), format!("{{{other}}}"), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_checked() {
        let rule = |operation: &str| json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": [operation] });
        let check = |operation: &str, mutations: Value, reinvocation: &str, expected: &[&str]| {
            let mut object = json!({ "metadata": { "name": "p" }, "spec": {
                "matchConstraints": { "resourceRules": [rule(operation)] }, "mutations": mutations,
                "reinvocationPolicy": reinvocation,
            } });
            MutatingAdmissionPolicy.default(&mut object);
            let mut errors = ErrorList::new();
            MutatingAdmissionPolicy.validate_create(&object, &mut errors);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(f, e)| f.contains(e)), "{found:?} {expected:?}");
        };
        let apply = json!([{ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": "Object{}" } }]);
        check("CREATE", apply.clone(), "Never", &[]);
        check(
            "DELETE",
            apply.clone(),
            "Never",
            &["spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\""],
        );
        check("CREATE", apply, "Often", &["spec.reinvocationPolicy: Unsupported value: \"Often\""]);
        check(
            "CREATE",
            json!([]),
            "Never",
            &["spec.mutations: Required value: mutations must contain at least one item"],
        );
        let both = json!([{ "patchType": "JSONPatch", "jsonPatch": { "expression": " " }, "applyConfiguration": {} }]);
        check(
            "CREATE",
            both,
            "IfNeeded",
            &["mutations[0].jsonPatch.expression: Required", "applyConfiguration: Invalid value"],
        );
        check("CREATE", json!([{ "patchType": "Merge" }]), "IfNeeded", &["patchType: Unsupported value: \"Merge\""]);
    }
}
