//! Roles and ClusterRoles: validation.
//! Read by the RBAC authorizer, and by the escalation check in the API server.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior,
        common::{
            access::{is_set, items},
            checks,
        },
    },
    names,
};

/// Roles, of a namespace or of the cluster.
#[derive(Default)]
pub struct Role<const NAMESPACED: bool>;

impl<const NAMESPACED: bool> Behavior for Role<NAMESPACED> {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        for (index, rule) in items(object, "rules").iter().enumerate() {
            validate_rule(errors, &Path::new("rules").index(index), rule, NAMESPACED);
        }
        if !object["aggregationRule"].is_object() || NAMESPACED {
            return;
        }
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        let selectors = items(&object["aggregationRule"], "clusterRoleSelectors");
        if selectors.is_empty() {
            errors.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (index, selector) in selectors.iter().enumerate() {
            checks::label_selector(errors, &path.index(index), selector);
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }
}

fn validate_rule(errors: &mut ErrorList, path: &Path, rule: &Value, namespaced: bool) {
    if !is_set(rule, "verbs") {
        errors.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    if is_set(rule, "nonResourceURLs") {
        let at = path.child("nonResourceURLs");
        let shown = || rule["nonResourceURLs"].clone();
        if namespaced {
            errors.invalid(&at, shown(), "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| is_set(rule, field)) {
            errors.invalid(&at, shown(), "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if !is_set(rule, "apiGroups") {
        errors.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if !is_set(rule, "resources") {
        errors.required(&path.child("resources"), "resource rules must supply at least one resource");
    }
}
