//! Roles that collect other roles by label are given their rules.
//! Started by `crate::bootstrap`; woken by every change of a ClusterRole.
//! Invariant: `wanted` is pure; a lost race is settled by the next change.

use std::sync::{Arc, Weak};

use http::{Method, Request, header};
use serde_json::{Value, json};

use api::{Object, selectors::LabelSelector};

use crate::{authn::User, request::body, server::pipeline::ApiServer};

pub async fn follow(server: Weak<ApiServer>) {
    let Some(cache) = server.upgrade().map(|s| s.cluster.resource("clusterroles")) else { return };
    loop {
        let (snapshot, mut position) = cache.list_and_subscribe("", 0, |_| true);
        let roles: Vec<_> = snapshot.entries.into_iter().map(|e| e.object.clone()).collect();
        for object in wanted(&roles) {
            let Some(server) = server.upgrade() else { return };
            write(&server, &object).await;
        }
        position.changed().await;
        if server.strong_count() == 0 {
            return;
        }
    }
}

/// The collecting roles whose rules are not what they should be, with the rules they should have.
fn wanted(roles: &[Arc<Object>]) -> Vec<Value> {
    let mut changed = Vec::new();
    // Most roles collect nothing, which their bytes tell without parsing them.
    let mentions = |o: &&Arc<Object>| o.json().windows(17).any(|w| w == b"\"aggregationRule\"");
    for role in roles.iter().filter(mentions) {
        let mut value = role.value();
        let selectors = value["aggregationRule"]["clusterRoleSelectors"].as_array().cloned().unwrap_or_default();
        if selectors.is_empty() {
            continue;
        }
        let mut rules: Vec<Value> = Vec::new();
        for selector in selectors.iter().filter_map(|s| LabelSelector::from_value(s).ok()) {
            let fits = |o: &&Arc<Object>| o.meta.name != role.meta.name && selector.matches(&o.meta.labels);
            for other in roles.iter().filter(fits) {
                let other = other.value();
                for rule in other["rules"].as_array().into_iter().flatten() {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        let same = match value["rules"].as_array() {
            Some(found) => found.len() == rules.len() && rules.iter().all(|r| found.contains(r)),
            None => rules.is_empty(),
        };
        if !same {
            value["rules"] = json!(rules);
            changed.push(value);
        }
    }
    changed
}

async fn write(server: &Arc<ApiServer>, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let uri = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}");
    let request = Request::builder()
        .method(Method::PUT)
        .uri(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, "clusterrole-aggregation-controller")
        .body(body::full(object.to_string()));
    let Ok(request) = request else { return };
    let user = User::new(
        "system:serviceaccount:kube-system:clusterrole-aggregation-controller",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    );
    let response = server.handle(ApiServer::in_process_request(user, request)).await;
    if !response.status().is_success() {
        tracing::debug!(
            status = response.status().as_u16(),
            "a collecting role was not written; it will be tried again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_collected_by_label() {
        let role = |value: Value| Arc::new(Object::from_value(&value).unwrap());
        let part = |name: &str, verb: &str| {
            role(json!({
                "metadata": { "name": name, "labels": { "to": "all" } },
                "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }],
            }))
        };
        let whole = role(json!({
            "metadata": { "name": "all" }, "rules": null,
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { "to": "all" } }] },
        }));
        let found = wanted(&[whole, part("a", "get"), part("b", "list"), part("c", "get")]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["rules"].as_array().map(Vec::len), Some(2));
        assert!(wanted(&[role(found[0].clone()), part("a", "get"), part("b", "list")]).is_empty());
    }
}
