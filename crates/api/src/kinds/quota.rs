//! ResourceQuotas and LimitRanges: defaults, strategy, columns, validation.
//! Neighbours: the admission plugins of the same names, and the quota controller.
//! Invariant: the scopes of a quota never change.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, entries, existing_mut, is_set, items, part_mut, text, texts},
    amount, checks,
    columns::{age, age_of, name, name_of, plain, string},
    pod_spec::resources,
};
use crate::{
    field::{ErrorList, Path},
    names,
};

#[derive(Default)]
pub struct ResourceQuota;

impl Behavior for ResourceQuota {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = existing_mut(object, "spec") {
            amount::round_list(spec, "hard");
        }
        if let Some(status) = existing_mut(object, "status") {
            amount::round_list(status, "hard");
            amount::round_list(status, "used");
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

#[derive(Default)]
pub struct LimitRange;

impl Behavior for LimitRange {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        each(spec, "limits", |limit| {
            for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                amount::round_list(limit, field);
            }
            if text(limit, "type") == "Container" {
                fill(limit, "default", "max");
                fill(limit, "defaultRequest", "default");
                fill(limit, "defaultRequest", "min");
            }
        });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("limits");
        let limits = items(&object["spec"], "limits");
        for (index, limit) in limits.iter().enumerate() {
            let path = path.index(index);
            let kind = text(limit, "type");
            if limits[..index].iter().any(|other| text(other, "type") == kind) {
                errors.duplicate(&path.child("type"), kind);
            }
            validate_limit(errors, &path, limit, kind);
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

/// What `from` names and `field` does not.
fn fill(limit: &mut Value, field: &str, from: &str) {
    let from: Vec<(String, Value)> = entries(limit, from).map(|(k, v)| (k.to_string(), v.clone())).collect();
    if from.is_empty() {
        return;
    }
    if let Some(into) = part_mut(limit, field) {
        for (name, quantity) in from {
            default_to(into, &name, quantity);
        }
    }
}

fn validate_amounts(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    for (name, value) in entries(owner, field) {
        let path = path.child(field).key(name);
        // `count/deployments.apps` and extended resources have a slash; the rest must be known.
        resources::resource_name(errors, &path, name);
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

fn validate_limit(errors: &mut ErrorList, path: &Path, limit: &Value, kind: &str) {
    let found = names::qualified_name(kind);
    if !found.is_empty() {
        checks::complaints(errors, &path.child("type"), kind, found);
    } else if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
        errors.invalid(&path.child("type"), kind, "must be a standard limit type or fully qualified");
    }
    let container = matches!(kind, "Pod" | "Container");
    for field in ["max", "min", "maxLimitRequestRatio"] {
        resources::list(errors, &path.child(field), &limit[field], container);
    }
    for field in ["default", "defaultRequest"] {
        if kind == "Pod" && is_set(limit, field) {
            errors.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
        } else {
            resources::list(errors, &path.child(field), &limit[field], container);
        }
    }
    if kind == "PersistentVolumeClaim" && limit["min"].get("storage").is_none() && limit["max"].get("storage").is_none()
    {
        errors.required(
            &path.child("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
    // field at fault, smaller, its words, larger, its words
    for (field, low, low_words, high, high_words) in [
        ("min", "min", "min", "max", "max"),
        ("defaultRequest", "min", "min", "defaultRequest", "default request"),
        ("defaultRequest", "defaultRequest", "default request", "max", "max"),
        ("defaultRequest", "defaultRequest", "default request", "default", "default limit"),
        ("default", "min", "min", "default", "default"),
        ("default", "default", "default", "max", "max"),
    ] {
        for (name, value) in entries(limit, low) {
            let (Some(least), Some(most)) = (amount::of(value), limit[high].get(name).and_then(amount::of)) else {
                continue;
            };
            if least > most {
                let words = format!(
                    "{low_words} value {} is greater than {high_words} value {}",
                    least.canonical(),
                    most.canonical()
                );
                let shown = plain(&limit[field][name]);
                errors.invalid(&path.child(field).key(name), shown, words);
            }
        }
    }
}
