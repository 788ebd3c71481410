//! Rules, matchResources and matchConditions, which webhooks and policies share.
//! Called by the kinds beside it.

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{default_absent, default_to, each, items, text, texts},
        checks,
    },
    names,
};

pub fn default_rules(owner: &mut Value, field: &str) {
    each(owner, field, |rule| default_absent(rule, "scope", "*"));
}

pub fn default_match(resources: &mut Value) {
    default_absent(resources, "matchPolicy", "Equivalent");
    default_to(resources, "namespaceSelector", json!({}));
    default_to(resources, "objectSelector", json!({}));
    default_rules(resources, "resourceRules");
    default_rules(resources, "excludeResourceRules");
}

pub fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &Value) {
    const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    validate_list(errors, path, rule, "operations", "operations");
    for (index, operation) in texts(rule, "operations").enumerate().filter(|(_, o)| !OPERATIONS.contains(o)) {
        errors.not_supported(&path.child("operations").index(index), operation, &OPERATIONS);
    }
    validate_list(errors, path, rule, "apiGroups", "API groups");
    validate_list(errors, path, rule, "apiVersions", "API versions");
    for (index, _) in texts(rule, "apiVersions").enumerate().filter(|(_, version)| version.is_empty()) {
        errors.required(&path.child("apiVersions").index(index), "");
    }
    let resources: Vec<&str> = texts(rule, "resources").collect();
    let at = path.child("resources");
    if resources.is_empty() {
        errors.required(&at, "");
    }
    for (index, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.required(&at.index(index), "");
        }
    }
    if resources.contains(&"*/*") && resources.len() > 1 {
        let words = "if '*/*' is present, must not specify other resources";
        errors.invalid(&at, rule["resources"].clone(), words);
    }
    checks::optional_one_of(errors, path, rule, "scope", &["*", "Cluster", "Namespaced"]);
}

/// There is something in it, and nothing beside a `*`.
fn validate_list(errors: &mut ErrorList, path: &Path, rule: &Value, field: &str, called: &str) {
    let values: Vec<&str> = texts(rule, field).collect();
    if values.is_empty() {
        errors.required(&path.child(field), "");
    }
    if values.len() > 1 && values.contains(&"*") {
        let words = format!("if '*' is present, must not specify other {called}");
        errors.invalid(&path.child(field), rule[field].clone(), words);
    }
}

pub fn validate_match(errors: &mut ErrorList, path: &Path, resources: &Value) {
    checks::optional_one_of(errors, path, resources, "matchPolicy", &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"] {
        checks::label_selector(errors, &path.child(selector), &resources[selector]);
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(resources, field).iter().enumerate() {
            validate_rule(errors, &path.child(field).index(index), rule);
        }
    }
}

const MATCH_CONDITIONS_MAX: usize = 64;

pub fn validate_conditions(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let conditions = items(owner, "matchConditions");
    if conditions.len() > MATCH_CONDITIONS_MAX {
        errors.too_many(path, conditions.len(), MATCH_CONDITIONS_MAX);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if text(condition, "expression").trim().is_empty() {
            errors.required(&path.child("expression"), "");
        }
        errors.expression(&path.child("expression"));
        let name = text(condition, "name");
        checks::required_name(errors, &path, condition, "name", names::qualified_name);
        if !name.is_empty() && conditions[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}
