//! Pods as a node may write them: mirrors of its static pods, the status of those bound to it, their eviction.
//! Asked by the plugin in `node_restriction`.
//! A node makes no pod that gives it access to an object of the API.

use serde_json::Value;

use api::ApiError;

use super::api_references;
use crate::{
    admission::{Attributes, Operation},
    storage::cluster::Cluster,
};

const MIRROR: &str = "kubernetes.io/config.mirror";

pub fn check(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    match (a.subresource, a.operation) {
        ("", Operation::Create) => mirror(cluster, node, a),
        ("", Operation::Delete) => match a.old["spec"]["nodeName"] == node {
            true => Ok(()),
            false => Err(a.forbidden(&format!("node {node:?} can only delete pods with spec.nodeName set to itself"))),
        },
        ("", other) => Err(a.forbidden(&format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            other.as_str()
        ))),
        ("status", Operation::Update) => status(node, a),
        ("status", other) => Err(a.forbidden(&format!("unexpected operation {:?}", other.as_str()))),
        ("eviction", Operation::Create) => eviction(cluster, node, a),
        ("eviction", other) => Err(a.forbidden(&format!("unexpected operation {}", other.as_str()))),
        (other, _) => {
            Err(a.forbidden(&format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed")))
        }
    }
}

/// A node makes pods only as the image of those it runs on its own account.
fn mirror(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let pod = &a.object;
    let refuse = |why: String| Err(a.forbidden(&why));
    if !pod["metadata"]["annotations"][MIRROR].is_string() {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owner = match owners {
        [owner] => owner,
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return refuse(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let known = cluster.get("nodes", "", node).ok_or_else(|| ApiError::not_found("", "nodes", node))?;
    let uid = owner["uid"].as_str().unwrap_or_default();
    if uid != known.meta.uid {
        return refuse(format!("node {node} UID mismatch: expected {uid} got {}", known.meta.uid));
    }
    match api_references::first(pod) {
        Err(why) => refuse(format!("error checking mirror pod for API references: {why}")),
        Ok(Some(resource)) => refuse(format!("node {node:?} can not create pods that reference {resource}")),
        Ok(None) => Ok(()),
    }
}

fn status(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let (old, new) = (&a.old, &a.object);
    if old["spec"]["nodeName"] != node {
        let why = format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself");
        return Err(a.forbidden(&why));
    }
    let labels = |pod: &Value| pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return Err(a.forbidden(&format!("node {node:?} cannot update labels through pod status")));
    }
    // The Node authorizer lets a node read the claims that these name.
    if claim_statuses(old) != claim_statuses(new) {
        return Err(a.forbidden(&format!("node {node:?} cannot update resource claim statues")));
    }
    let extended = |pod: &Value| {
        let status = pod["status"]["extendedResourceClaimStatus"].as_object()?;
        let mappings = status.get("requestMappings").and_then(Value::as_array).cloned().unwrap_or_default();
        Some((status.get("resourceClaimName").cloned().unwrap_or_default(), mappings))
    };
    if extended(old) != extended(new) {
        return Err(a.forbidden(&format!("node {node:?} cannot update extended resource claim status")));
    }
    Ok(())
}

fn claim_statuses(pod: &Value) -> Vec<(&Value, &Value)> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
    statuses.map(|status| (&status["name"], &status["resourceClaimName"])).collect()
}

fn eviction(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let named = Some(a.name).filter(|name| !name.is_empty()).or_else(|| a.object["metadata"]["name"].as_str());
    let Some(name) = named.filter(|name| !name.is_empty()) else {
        return Err(a.forbidden("could not determine pod from request data"));
    };
    let pod = cluster.get("pods", a.namespace, name).ok_or_else(|| ApiError::not_found("", "pods", name))?;
    match pod.value()["spec"]["nodeName"] == node {
        true => Ok(()),
        false => Err(a.forbidden(&format!("node {node} can only evict pods with spec.nodeName set to itself"))),
    }
}
