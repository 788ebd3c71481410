//! ResourceQuotas: defaults, strategy, columns, validation.
//! Enforced by the admission plugin of the same name; the quota controller writes the status.
//! The scopes of a quota never change.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{entries, existing_mut, is_set, items, text, texts},
            checks,
            columns::{age, age_of, name, name_of, plain, string},
            quantities,
        },
        core::pod_spec::resources,
    },
};

#[derive(Default)]
pub struct ResourceQuota;

impl Behavior for ResourceQuota {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = existing_mut(object, "spec") {
            quantities::round_list(spec, "hard");
        }
        if let Some(status) = existing_mut(object, "status") {
            quantities::round_list(status, "hard");
            quantities::round_list(status, "used");
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        validate_amounts(errors, &path, spec, "hard");
        validate_scopes(errors, &path, spec);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        let scopes = |object: &Value| texts(&object["spec"], "scopes").map(str::to_string).collect::<BTreeSet<_>>();
        if scopes(object) != scopes(old) {
            let path = Path::new("spec").child("scopes");
            errors.invalid(&path, object["spec"]["scopes"].clone(), checks::IMMUTABLE);
        }
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        for field in ["hard", "used"] {
            validate_amounts(errors, &Path::new("status"), &object["status"], field);
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Request", "Used and allowed amounts."),
            string("Limit", "Used and allowed amounts of limits."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let status = &object["status"];
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in entries(status, "hard") {
            let used = plain(&status["used"][resource]);
            let used = if used.is_empty() { "0" } else { &used };
            let column = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
            column.push(format!("{resource}: {used}/{}", plain(hard)));
        }
        // Map order is not promised; upstream sorts.
        requests.sort();
        limits.sort();
        vec![name_of(object), json!(requests.join(", ")), json!(limits.join(", ")), age_of(object, now)]
    }
}

fn validate_amounts(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    for (name, value) in entries(owner, field) {
        let path = path.child(field).key(name);
        // `count/deployments.apps` and extended resources have a slash; the rest must be known.
        resources::resource_name(errors, &path, name);
        if !name.contains('/') && !resources::is_quota_resource(name) {
            errors.invalid(&path, name, "must be a standard resource for quota");
        }
        resources::quantity(errors, &path, name, value);
    }
}

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

fn conflicting(scopes: &BTreeSet<&str>) -> bool {
    [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]]
        .iter()
        .any(|pair| pair.iter().all(|scope| scopes.contains(scope)))
}

fn validate_scopes(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let at = path.child("scopes");
    let scopes: BTreeSet<&str> = texts(spec, "scopes").collect();
    for _ in scopes.iter().filter(|scope| !SCOPES.contains(scope)) {
        errors.invalid(&at, spec["scopes"].clone(), "unsupported scope");
    }
    if conflicting(&scopes) {
        errors.invalid(&at, spec["scopes"].clone(), "conflicting scopes");
    }
    let at = path.child("scopeSelector").child("matchExpressions");
    let mut selected = BTreeSet::new();
    for expression in items(&spec["scopeSelector"], "matchExpressions") {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        selected.insert(scope);
        if !SCOPES.contains(&scope) {
            errors.invalid(&at.child("scopeName"), scope, "unsupported scope");
        } else if !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && operator != "Exists" {
            errors.invalid(
                &at.child("operator"),
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                 ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                 ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match (operator, is_set(expression, "values")) {
            ("In" | "NotIn", false) => errors.required(
                &at.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            ("Exists" | "DoesNotExist", true) => errors.invalid(
                &at.child("values"),
                expression["values"].clone(),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            _ => errors.invalid(&at.child("operator"), operator, "not a valid selector operator"),
        }
    }
    if conflicting(&selected) {
        errors.invalid(&at, spec["scopes"].clone(), "conflicting scopes");
    }
}
