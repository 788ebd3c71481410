//! MutatingAdmissionPolicies: defaults, columns, validation.
//! Read by the admission plugin of the same name, which compiles the CEL expressions; served where that plugin is on.
//! An update names the version it replaces.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admission_policy::{default_policy, param_kind, validate_constraints, validate_variables},
    match_resources::validate_conditions,
};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{is_set, items, part, text, texts},
            checks,
            columns::{age, age_of, integer, name, name_of, string},
        },
    },
};

const OPERATIONS: [&str; 3] = ["*", "CREATE", "UPDATE"];

/// Both versions have the same fields and rules; objects are stored in the beta version.
#[derive(Default)]
pub struct MutatingAdmissionPolicy<const BETA: bool>;

impl<const BETA: bool> Behavior for MutatingAdmissionPolicy<BETA> {
    fn default(&self, object: &mut Value) {
        default_policy(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_constraints(errors, &path, spec);
        if let Some(resources) = part(spec, "matchConstraints") {
            validate_operations(errors, &path.child("matchConstraints"), resources);
        }
        validate_conditions(errors, &path.child("matchConditions"), spec);
        validate_variables(errors, &path, spec);
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

    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        (!BETA).then_some(("admissionregistration.k8s.io", "v1beta1"))
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
        vec![name_of(object), json!(items(spec, "mutations").len()), param_kind(spec), age_of(object, now)]
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
            MutatingAdmissionPolicy::<true>.default(&mut object);
            let mut errors = ErrorList::new();
            MutatingAdmissionPolicy::<true>.validate_create(&object, &mut errors);
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
