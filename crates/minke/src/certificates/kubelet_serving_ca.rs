//! Who signs for kubelets' servers, told to all nodes: the control plane publishes it, and nodes that join read it.
//! Used by `server` and `join`. Other clients of kubelets, as a Prometheus, find it in the same ConfigMap.
//! Invariant: read over a connection to the API server that the node has checked.

use anyhow::Result;
use client::{Client, Patch};
use k8s_openapi::api::{
    core::v1::ConfigMap,
    rbac::v1::{Role, RoleBinding},
};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "kubelet-serving-ca";
const KEY: &str = "ca.crt";

pub async fn publish(client: &Client, pem: &str) -> Result<()> {
    let apply = |config: Value| Patch::Apply { manager: "minke".into(), force: true, config };
    let metadata = json!({ "name": NAME, "namespace": NAMESPACE });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { KEY: pem } });
    client.namespaced::<ConfigMap>(NAMESPACE).patch(NAME, &apply(map)).await?;
    let group = "rbac.authorization.k8s.io";
    let rule = json!({ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"] });
    let role = json!({ "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule] });
    client.namespaced::<Role>(NAMESPACE).patch(NAME, &apply(role)).await?;
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": group, "kind": "Role", "name": NAME },
        "subjects": [{ "kind": "Group", "apiGroup": group, "name": "system:authenticated" }],
    });
    client.namespaced::<RoleBinding>(NAMESPACE).patch(NAME, &apply(binding)).await?;
    Ok(())
}

/// None where the server is of before, whose cluster authority signs for kubelets too.
pub async fn fetch(client: &Client) -> Result<Option<String>> {
    let found = client.namespaced::<ConfigMap>(NAMESPACE).find(NAME).await;
    let map = match found {
        // Nobody has given us the right to look: the same.
        Err(error) if error.reason == api::Reason::Forbidden => None,
        other => other?,
    };
    Ok(map.and_then(|map| map.data?.remove(KEY)))
}
