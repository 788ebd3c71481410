//! A node asks for certificates only on behalf of the pods that it runs, under their own names and accounts.
//! Part of `node_restriction`; the form of a request is checked by its kind.
//! What the cache may not know yet is answered so that the node tries again.

use serde_json::Value;

use api::{
    ApiError,
    feature_gates::{FeatureGates, POD_CERTIFICATE_REQUEST},
};

use crate::{
    admission::{Attributes, Operation},
    storage::cluster::Cluster,
};

const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

pub async fn check(cluster: &Cluster, gates: &FeatureGates, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    if !gates.enabled(POD_CERTIFICATE_REQUEST) {
        return Err(a.forbidden("PodCertificateRequest feature gate is disabled"));
    }
    if a.operation != Operation::Create {
        return Err(a.forbidden(&format!("unexpected operation {}", a.operation.as_str())));
    }
    if !a.subresource.is_empty() {
        return Err(a.forbidden(&format!("unexpected subresource {}", a.subresource)));
    }
    let spec = &a.object["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let (named, node_uid) = (text("nodeName"), text("nodeUID"));
    if named != node {
        let why = format!("PodCertificateRequest.Spec.NodeName={named:?}, which is not the requesting node {node:?}");
        return Err(a.forbidden(&why));
    }
    let (pod_name, account) = (text("podName"), text("serviceAccountName"));
    let (pod_key, account_key) = (format!("{}/{pod_name}", a.namespace), format!("{}/{account}", a.namespace));
    let found = uid(cluster, "nodes", "", node, ("node", node)).await?.0;
    if found != node_uid {
        return Err(ApiError::internal(format!(
            "PodCertificateRequest for pod {pod_key:?} names node UID {node_uid:?}, inconsistent with the running node \
             ({found:?})"
        )));
    }
    let (found, pod) = uid(cluster, "pods", a.namespace, pod_name, ("pod", &pod_key)).await?;
    if found != text("podUID") {
        let asked = text("podUID");
        return Err(ApiError::internal(format!(
            "PodCertificateRequest for pod {pod_key:?} contains pod UID ({asked:?}) which differs from running pod \
             {found:?}"
        )));
    }
    if pod["spec"]["nodeName"] != node {
        let why = format!("pod {pod_key:?} is not running on node {node:?} named in the PodCertificateRequest");
        return Err(a.forbidden(&why));
    }
    if pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some() {
        return Err(a.forbidden(&format!("pod {pod_key:?} is a mirror pod")));
    }
    let running = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    if running != account {
        return Err(a.forbidden(&format!(
            "PodCertificateRequest for pod {pod_key:?} contains serviceAccountName ({account:?}) that differs from \
             running pod ({running:?})"
        )));
    }
    let found = uid(cluster, "serviceaccounts", a.namespace, account, ("service account", &account_key)).await?.0;
    if found != text("serviceAccountUID") {
        let asked = text("serviceAccountUID");
        return Err(ApiError::internal(format!(
            "PodCertificateRequest for pod {pod_key:?} names service account UID {asked:?}, which differs from the \
             running service account ({found:?})"
        )));
    }
    Ok(())
}

/// The UID of an object that a request names, and the object.
async fn uid(
    cluster: &Cluster,
    plural: &str,
    namespace: &str,
    name: &str,
    shown: (&str, &str),
) -> Result<(String, Value), ApiError> {
    match cluster.fresh_get(plural, namespace, name).await? {
        Some(object) => Ok((object.meta.uid.clone(), object.value())),
        None => {
            let (kind, shown) = shown;
            let why = ApiError::not_found("", plural, name).message.clone();
            Err(ApiError::internal(format!(
                "while retrieving {kind} {shown:?} named in the PodCertificateRequest: {why}"
            )))
        }
    }
}
