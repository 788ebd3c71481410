//! RoleBindings and ClusterRoleBindings: defaults, columns, validation.
//! Read by the RBAC authorizer, and by the escalation check in the API server.
//! The role of a binding never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, each, items, part_mut, text},
            checks,
            columns::{age, age_of, name, name_of, string, wide},
        },
    },
    names,
};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Bindings, of a namespace or of the cluster.
#[derive(Default)]
pub struct RoleBinding<const NAMESPACED: bool>;

impl<const NAMESPACED: bool> Behavior for RoleBinding<NAMESPACED> {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, role) = (Path::new("roleRef"), &object["roleRef"]);
        if text(role, "apiGroup") != GROUP {
            errors.not_supported(&path.child("apiGroup"), text(role, "apiGroup"), &[GROUP]);
        }
        let kinds: &[&str] = if NAMESPACED { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        if !kinds.contains(&text(role, "kind")) {
            errors.not_supported_as_listed(&path.child("kind"), text(role, "kind"), kinds);
        }
        checks::required_name(errors, &path, role, "name", |name| names::path_segment(name, false));
        for (index, subject) in items(object, "subjects").iter().enumerate() {
            validate_subject(errors, &Path::new("subjects").index(index), subject, NAMESPACED);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        if !checks::same(&object["roleRef"], &old["roleRef"]) {
            let of = |field: &str| Value::from(text(&object["roleRef"], field));
            let shown = format!("{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}", of("apiGroup"), of("kind"), of("name"));
            errors.invalid_shown(&Path::new("roleRef"), shown, "cannot change roleRef");
        }
    }

    fn default(&self, object: &mut Value) {
        if let Some(role) = part_mut(object, "roleRef") {
            default_to(role, "apiGroup", GROUP);
        }
        each(object, "subjects", |subject| {
            if matches!(text(subject, "kind"), "User" | "Group") {
                default_to(subject, "apiGroup", GROUP);
            }
        });
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("Role", "The role that is bound."),
            age(),
            wide("Users", "Users who have it."),
            wide("Groups", "Groups who have it."),
            wide("ServiceAccounts", "Service accounts that have it."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let role = &object["roleRef"];
        let subjects = |kind: &str| {
            let all: Vec<String> = items(object, "subjects")
                .iter()
                .filter(|subject| text(subject, "kind") == kind)
                .map(|subject| match (kind, text(subject, "namespace")) {
                    ("ServiceAccount", namespace) => format!("{namespace}/{}", text(subject, "name")),
                    _ => text(subject, "name").to_string(),
                })
                .collect();
            json!(all.join(", "))
        };
        vec![
            name_of(object),
            json!(format!("{}/{}", text(role, "kind"), text(role, "name"))),
            age_of(object, now),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }
}

fn validate_subject(errors: &mut ErrorList, path: &Path, subject: &Value, namespaced: bool) {
    checks::required(errors, path, subject, "name");
    let group = text(subject, "apiGroup");
    match text(subject, "kind") {
        "ServiceAccount" => {
            checks::optional_name(errors, path, subject, "name", |name| names::dns_subdomain(name, false));
            if !group.is_empty() {
                errors.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced {
                checks::required(errors, path, subject, "namespace");
            }
        }
        "User" | "Group" if group != GROUP => errors.not_supported(&path.child("apiGroup"), group, &[GROUP]),
        "User" | "Group" => {}
        kind => errors.not_supported_as_listed(&path.child("kind"), kind, &["ServiceAccount", "User", "Group"]),
    }
}
