//! Roles, cluster roles and their bindings: defaults, columns, validation.
//! Neighbours: the RBAC authorizer, and the escalation check in the API server.
//! Invariant: the role of a binding never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, items, part_mut, text},
    columns::{age, age_of, name, name_of, string, wide},
};
use crate::names;

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Roles and cluster roles.
#[derive(Default)]
pub struct Role;

impl Behavior for Role {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }
}

/// Bindings of both scopes.
#[derive(Default)]
pub struct RoleBinding;

impl Behavior for RoleBinding {
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
