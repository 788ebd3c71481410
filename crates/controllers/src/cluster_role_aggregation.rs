//! Fills ClusterRoles that have an aggregation rule with the rules of the roles they select.
//! `admin`, `edit` and `view` are made this way.
//! Rules keep the order of the roles' names, each once.

use std::sync::Arc;

use api::selectors::LabelSelector;
use async_trait::async_trait;
use client::{Informer, Patch};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::json;

use crate::{
    common::meta::{Object, labels},
    runner::{Context, Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let roles = setup.informer::<ClusterRole>();
    setup.on(&roles, {
        let roles = roles.clone();
        move |change, queue| {
            let view = |r: &Option<Arc<ClusterRole>>| r.as_ref().map(|r| (r.metadata.labels.clone(), r.rules.clone()));
            if change.new.as_ref().is_some_and(|r| r.aggregation_rule.is_some()) {
                queue.add(change.key.clone());
            }
            if view(&change.old) == view(&change.new) {
                return;
            }
            for role in roles.list().iter().filter(|r| r.aggregation_rule.is_some()) {
                if change.old.iter().chain(&change.new).any(|changed| selects(role, changed)) {
                    queue.add(role.name().to_string());
                }
            }
        }
    });
    Arc::new(Aggregation { context: setup.context.clone(), roles })
}

fn selects(role: &ClusterRole, other: &ClusterRole) -> bool {
    let selectors = role.aggregation_rule.as_ref().and_then(|a| a.cluster_role_selectors.as_ref());
    role.name() != other.name()
        && (selectors.into_iter().flatten())
            .any(|s| LabelSelector::from_meta(Some(s)).is_ok_and(|selector| selector.matches(labels(other.meta()))))
}

/// The rules that `role` should have.
fn aggregated(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Vec<PolicyRule> {
    let mut selected: Vec<_> = all.iter().filter(|other| selects(role, other)).collect();
    selected.sort_by_key(|r| r.name().to_string());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for rule in selected.iter().flat_map(|r| r.rules.iter().flatten()) {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    rules
}

struct Aggregation {
    context: Context,
    roles: Informer<ClusterRole>,
}

#[async_trait]
impl Controller for Aggregation {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(role) = self.roles.get(key).filter(|r| r.aggregation_rule.is_some()) else { return Ok(None) };
        let rules = aggregated(&role, &self.roles.list());
        if role.rules.as_deref().unwrap_or_default() == rules {
            return Ok(None);
        }
        let meta = json!({ "uid": role.metadata.uid, "resourceVersion": role.metadata.resource_version });
        let patch = Patch::Merge(json!({ "metadata": meta, "rules": rules }));
        match self.context.client.api::<ClusterRole>().patch(key, &patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_selected_roles() {
        let role = |name: &str, label: &str, verbs: &[&str]| {
            let rules: Vec<_> = verbs.iter().map(|v| json!({ "verbs": [v] })).collect();
            let role = json!({ "metadata": { "name": name, "labels": { "to": label } }, "rules": rules });
            Arc::new(serde_json::from_value::<ClusterRole>(role).unwrap())
        };
        let admin: ClusterRole =
            serde_json::from_value(json!({ "metadata": { "name": "admin", "labels": { "to": "admin" } },
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { "to": "admin" } }] } }))
            .unwrap();
        let all = [
            role("b", "admin", &["list", "get"]),
            role("a", "admin", &["get"]),
            role("c", "other", &["delete"]),
            Arc::new(admin.clone()),
        ];
        let verbs: Vec<_> = aggregated(&admin, &all).into_iter().flat_map(|r| r.verbs).collect();
        assert_eq!(verbs, ["get", "list"]);
    }
}
