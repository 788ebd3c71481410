//! StorageVersionMigrations: strategy, columns, validation.
//! Acted upon by the storage version migrator among the controllers.
//! The spec never changes, and what has succeeded or failed stays so.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{items, text},
            checks,
            columns::{condition_is_true, name_of, string},
            conditions,
        },
    },
    names,
};

#[derive(Default)]
pub struct StorageVersionMigration;

impl Behavior for StorageVersionMigration {
    fn initial_status(&self) -> Value {
        json!({})
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, wanted) = (Path::new("spec").child("resource"), &object["spec"]["resource"]);
        let (group, resource) = (text(wanted, "group"), text(wanted, "resource"));
        if resource.is_empty() {
            errors.required(&path.child("resource"), "resource is required to be set");
        }
        let checks = [
            ("resource", resource, names::dns1035_label(resource, false)),
            ("group", group, names::dns_subdomain(group, false)),
        ];
        for (field, value, complaints) in checks {
            if !value.is_empty() && !complaints.is_empty() {
                errors.invalid(&path.child(field), value, complaints.join(","));
            }
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::new(""), object, old, "spec");
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let (path, status) = (Path::new("status"), &object["status"]);
        let (version, before) = (text(status, "resourceVersion"), text(&old["status"], "resourceVersion"));
        let at = path.child("resourceVersion");
        if !is_resource_version(version) {
            errors.invalid(&at, version, format!("resource version is not well formed: {version}"));
        }
        conditions::validate(errors, &path.child("conditions"), items(status, "conditions"));
        if !before.is_empty() && before != version {
            errors.invalid(&at, version, "field is immutable");
        }
        let is = |object: &Value, kind: &str| condition_is_true(object, kind);
        let (succeeded, failed) = (is(object, "Succeeded"), is(object, "Failed"));
        let mut refuse = |why: &str| errors.invalid(&path.child("conditions"), status["conditions"].clone(), why);
        if succeeded && failed {
            refuse("Both success and failed conditions cannot be true at the same time");
        }
        if succeeded && is(object, "Running") {
            refuse("Running condition cannot be true when success condition is true");
        }
        if failed && is(object, "Running") {
            refuse("Running condition cannot be true when failed condition is true");
        }
        if is(old, "Succeeded") && !succeeded {
            refuse("Success condition cannot be set to false once it is true");
        }
        if is(old, "Failed") && !failed {
            refuse("Failed condition cannot be set to false once it is true");
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [
            string("Name", "Unique within the cluster."),
            string("Resource", "GroupResource to migrate"),
            string("Status", "Status of the migration"),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let wanted = &object["spec"]["resource"];
        let resource = match (text(wanted, "resource"), text(wanted, "group")) {
            (resource, "") => resource.to_string(),
            (resource, group) => format!("{resource}.{group}"),
        };
        let state = ["Running", "Failed", "Succeeded"].into_iter().rfind(|kind| condition_is_true(object, kind));
        vec![name_of(object), json!(resource), json!(state.unwrap_or("Unknown"))]
    }
}

/// As upstream compares them: digits without a leading zero.
fn is_resource_version(version: &str) -> bool {
    version.bytes().all(|b| b.is_ascii_digit()) && !version.is_empty() && !version.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(errors: &ErrorList, expected: &[&str]) {
        let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
        assert!(fits, "{found:?} {expected:?}");
    }

    #[test]
    fn resources_are_named() {
        let validate = |group: &str, resource: &str, expected: &[&str]| {
            let object = json!({ "spec": { "resource": { "group": group, "resource": resource } } });
            let mut errors = ErrorList::new();
            StorageVersionMigration.validate_create(&object, &mut errors);
            check(&errors, expected);
        };
        validate("", "secrets", &[]);
        validate("apps", "deployments", &[]);
        validate("", "", &["spec.resource.resource: Required value: resource is required to be set"]);
        validate(
            "Apps",
            "Deployments",
            &["spec.resource.resource: Invalid value", "spec.resource.group: Invalid value"],
        );
    }

    #[test]
    fn what_ended_stays_ended() {
        let status = |version: &str, conditions: &[(&str, &str)]| {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(kind, status)| json!({ "type": kind, "status": status, "reason": "R", "lastTransitionTime": "t" }))
                .collect();
            json!({ "status": { "resourceVersion": version, "conditions": conditions } })
        };
        let validate = |new: Value, old: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            StorageVersionMigration.validate_status_update(&new, &old, &mut errors);
            check(&errors, expected);
        };
        let (none, running) = (json!({}), status("7", &[("Running", "True")]));
        validate(running.clone(), none.clone(), &[]);
        validate(status("7", &[("Running", "False"), ("Succeeded", "True")]), running.clone(), &[]);
        validate(status("", &[]), none.clone(), &["resource version is not well formed"]);
        validate(status("8", &[]), running, &["status.resourceVersion: Invalid value: \"8\": field is immutable"]);
        let both = status("7", &[("Failed", "True"), ("Succeeded", "True")]);
        validate(both, none.clone(), &["Both success and failed conditions"]);
        let still = status("7", &[("Running", "True"), ("Succeeded", "True")]);
        validate(still.clone(), none, &["Running condition cannot be true when success"]);
        validate(status("7", &[("Running", "False")]), still, &["Success condition cannot be set to false"]);
    }
}
