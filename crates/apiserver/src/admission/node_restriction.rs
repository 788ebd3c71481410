//! A kubelet changes its own node and the pods bound to it, and nothing about them that others rely on.
//! A row of the table in `admission`; the Node authorizer decides what it may read.
//! Invariant: binds only members of `system:nodes`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use api::ApiError;

use super::{Attributes, Operation, Plugin, token_audience};
use crate::{
    authz::{self, node_identity},
    cluster::Cluster,
};

pub struct NodeRestriction {
    pub cluster: Arc<Cluster>,
    pub authorizer: Arc<authz::Chain>,
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let Some(node) = node_identity(a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(a.forbidden(&format!("could not determine node from user {:?}", a.user.name)));
        }
        match (a.resource.group.as_str(), a.resource.plural.as_str()) {
            ("", "pods") => self.pod(node, a),
            ("", "nodes") => own_node(node, a),
            ("", "serviceaccounts") if a.subresource == "token" => self.token(node, a).await,
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            _ => Ok(()),
        }
    }
}

impl NodeRestriction {
    fn pod(&self, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
        match (a.subresource, a.operation) {
            ("", Operation::Create) => mirror_pod(node, a),
            ("" | "status", Operation::Delete | Operation::Update) => {
                if a.subresource.is_empty() && a.operation == Operation::Update {
                    return Err(a.forbidden(&format!("unexpected operation {:?}", a.operation.as_str())));
                }
                if a.old["spec"]["nodeName"] != node {
                    let verb =
                        if a.operation == Operation::Delete { "delete pods" } else { "update pod status for pods" };
                    return Err(a.forbidden(&format!("node {node:?} can only {verb} with spec.nodeName set to itself")));
                }
                if a.operation == Operation::Update && a.old["metadata"]["labels"] != a.object["metadata"]["labels"] {
                    return Err(a.forbidden(&format!("node {node:?} cannot update labels through pod status")));
                }
                Ok(())
            }
            ("eviction", Operation::Create) => {
                let pod = self.cluster.get("pods", a.namespace, a.name);
                let bound = pod.is_none_or(|p| p.value()["spec"]["nodeName"] == node);
                let why = format!("node {node:?} can only evict pods with spec.nodeName set to itself");
                if bound { Ok(()) } else { Err(a.forbidden(&why)) }
            }
            _ => Ok(()),
        }
    }
}

impl NodeRestriction {
    /// A node asks for tokens only on behalf of the pods that it runs, for audiences that they have to do with.
    async fn token(&self, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
        let bound = &a.object["spec"]["boundObjectRef"];
        let text = |field: &str| bound[field].as_str().unwrap_or_default();
        let (name, uid) = (text("name"), text("uid"));
        if (text("apiVersion"), text("kind")) != ("v1", "Pod") || name.is_empty() {
            return Err(a.forbidden("node requested token not bound to a pod"));
        }
        if uid.is_empty() {
            return Err(a.forbidden("node requested token with a pod binding without a uid"));
        }
        let pod = self.cluster.get("pods", a.namespace, name).ok_or_else(|| ApiError::not_found("", "pods", name))?;
        if pod.meta.uid != uid {
            return Err(a.forbidden(&format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            )));
        }
        let pod = pod.value();
        if pod["spec"]["nodeName"] != node {
            return Err(a.forbidden("node requested token bound to a pod scheduled on a different node"));
        }
        let asked = token_audience::check(&self.cluster, &self.authorizer, a, &pod).await;
        asked.map_err(|why| a.forbidden(&why))
    }
}

/// A node makes pods only as the image of those it runs on its own account.
fn mirror_pod(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let pod = &a.object;
    let refuse = |why: String| Err(a.forbidden(&why));
    if !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string() {
        return refuse(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    match owners.as_slice() {
        [owner] if owner["kind"] == "Node" && owner["name"] == node => {}
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    }
    if pod["spec"]["serviceAccountName"].as_str().is_some_and(|n| !n.is_empty()) {
        return refuse(format!("node {node:?} can not create pods that reference a service account"));
    }
    let names_objects = |v: &Value| {
        ["secret", "configMap", "persistentVolumeClaim"].iter().any(|k| !v[*k].is_null())
            || v["projected"]["sources"].as_array().is_some_and(|s| {
                s.iter().any(|s| ["secret", "configMap", "serviceAccountToken"].iter().any(|k| !s[*k].is_null()))
            })
    };
    if pod["spec"]["volumes"].as_array().is_some_and(|v| v.iter().any(names_objects)) {
        return refuse(format!("node {node:?} can not create pods that reference API objects"));
    }
    Ok(())
}

/// Labels in Kubernetes' own name space a kubelet may set on its node.
const LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/windows-build",
];

fn own_node(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let name = match a.operation {
        Operation::Create => a.object["metadata"]["name"].as_str().unwrap_or_default(),
        _ => a.name,
    };
    if name != node {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify node {name:?}")));
    }
    if !a.object.is_object() {
        return Ok(());
    }
    if a.operation == Operation::Create {
        let forbidden = changed_labels(&a.object, &Value::Null);
        if !forbidden.is_empty() {
            let why = format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", "));
            return Err(a.forbidden(&why));
        }
        if !a.object["spec"]["configSource"].is_null() {
            return Err(
                a.forbidden(&format!("node {node:?} is not allowed to create pods with a non-nil configSource"))
            );
        }
    }
    if a.operation == Operation::Update {
        let taints = |o: &Value| o["spec"]["taints"].as_array().cloned().unwrap_or_default();
        if taints(&a.object) != taints(&a.old) {
            return Err(a.forbidden(&format!("node {node:?} is not allowed to modify taints")));
        }
        let forbidden = changed_labels(&a.object, &a.old);
        if !forbidden.is_empty() {
            let why = format!("is not allowed to modify labels: {}", forbidden.join(", "));
            return Err(a.forbidden(&why));
        }
        let owners = |o: &Value| o["metadata"]["ownerReferences"].clone();
        if owners(&a.object) != owners(&a.old) {
            return Err(a.forbidden(&format!("node {node:?} is not allowed to modify ownerReferences")));
        }
    }
    Ok(())
}

/// Labels that were changed and that a kubelet may not change.
fn changed_labels(new: &Value, old: &Value) -> Vec<String> {
    let labels = |o: &Value| o["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (new, old) = (labels(new), labels(old));
    let keys = new.keys().chain(old.keys().filter(|k| !new.contains_key(*k)));
    let mut forbidden: Vec<String> =
        keys.filter(|k| new.get(*k) != old.get(*k)).filter(|k| is_reserved(k)).cloned().collect();
    forbidden.sort();
    forbidden
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let below = |root: &str| domain == root || domain.ends_with(&format!(".{root}"));
    if below("node-restriction.kubernetes.io") {
        return true;
    }
    let own = below("kubernetes.io") || below("k8s.io");
    own && !LABELS.contains(&key) && !below("node.kubernetes.io") && !below("kubelet.kubernetes.io")
}

fn lease(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    if a.namespace != "kube-node-lease" {
        return Err(a.forbidden("can only access leases in the \"kube-node-lease\" system namespace"));
    }
    let name = match a.operation {
        Operation::Create => a.object["metadata"]["name"].as_str().unwrap_or_default(),
        _ => a.name,
    };
    if name != node {
        return Err(a.forbidden("can only access node lease with the same name as the requesting node"));
    }
    Ok(())
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let name = match a.operation {
        Operation::Create => a.object["metadata"]["name"].as_str().unwrap_or_default(),
        _ => a.name,
    };
    if name != node {
        return Err(a.forbidden("can only access CSINode with the same name as the requesting node"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_labels_are_for_others() {
        for (key, reserved) in [
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("app", false),
            ("example.com/x", false),
            ("node-restriction.kubernetes.io/x", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("foo.k8s.io/x", true),
        ] {
            assert_eq!(is_reserved(key), reserved, "{key}");
        }
    }
}
