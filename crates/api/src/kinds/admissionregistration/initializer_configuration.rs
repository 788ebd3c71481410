//! InitializerConfigurations: which initializers new objects wait for.
//! Read by the API server's initializers, behind the feature gate of that name.
//! The order of the configurations' names, and within one that of its list, is the order in which initializers act.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior,
        common::access::{default_to, each, int, items, text, texts},
    },
    names,
};

/// How long an initializer may take before its failure policy applies.
const TIMEOUT_SECONDS: i64 = 30;
const TIMEOUT_SECONDS_MAX: i64 = 3600;

#[derive(Default)]
pub struct InitializerConfiguration;

impl Behavior for InitializerConfiguration {
    fn default(&self, object: &mut Value) {
        each(object, "initializers", |initializer| {
            default_to(initializer, "failurePolicy", "Ignore");
            default_to(initializer, "timeoutSeconds", TIMEOUT_SECONDS);
        });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let initializers = items(object, "initializers");
        for (index, initializer) in initializers.iter().enumerate() {
            let path = Path::new("initializers").index(index);
            let name = text(initializer, "name");
            validate_name(name, &path.child("name"), errors);
            if initializers[..index].iter().any(|other| text(other, "name") == name) {
                errors.duplicate(&path.child("name"), name);
            }
            let policy = text(initializer, "failurePolicy");
            if !["Ignore", "Fail"].contains(&policy) {
                errors.not_supported(&path.child("failurePolicy"), policy, &["Ignore", "Fail"]);
            }
            if !(1..=TIMEOUT_SECONDS_MAX).contains(&int(initializer, "timeoutSeconds").unwrap_or(0)) {
                let detail = format!("must be between 1 and {TIMEOUT_SECONDS_MAX}");
                errors.invalid(&path.child("timeoutSeconds"), initializer["timeoutSeconds"].clone(), detail);
            }
            for (index, rule) in items(initializer, "rules").iter().enumerate() {
                validate_rule(rule, &path.child("rules").index(index), errors);
            }
        }
    }

    fn validate_update(&self, object: &Value, _: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
    }

    fn has_generation(&self) -> bool {
        false
    }
}

fn validate_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    names::dns_subdomain(name, false).into_iter().for_each(|e| errors.invalid(path, name, e));
    if name.split('.').count() < 3 {
        errors.invalid(path, name, "should be a domain with at least three segments separated by dots");
    }
}

fn validate_rule(rule: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["apiGroups", "apiVersions", "resources"] {
        let listed: Vec<&str> = texts(rule, field).collect();
        let path = path.child(field);
        if listed.is_empty() {
            errors.required(&path, "");
        }
        if listed.len() > 1 && listed.contains(&"*") {
            let all: Vec<Value> = listed.iter().map(|text| Value::from(*text)).collect();
            errors.invalid(&path, all, "if '*' is present, must not specify other values");
        }
        for (index, text) in listed.iter().enumerate() {
            if field == "resources" && text.contains('/') {
                errors.invalid(&path.index(index), *text, "must not specify subresources");
            }
        }
    }
}
