//! A kubelet changes its own node and the pods bound to it, and nothing about them that others rely on.
//! A row of the table in `admission`; the Node authorizer decides what it may read.
//! Binds only members of `system:nodes`; a node never says itself which addresses its pods get.

mod api_references;
mod claim_status;
mod local_volume;
mod node_object;
mod pod_certificate;
mod pods;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use api::{
    ApiError,
    feature_gates::{FeatureGates, SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION},
};

use super::{Attributes, Operation, Plugin, permissions::request_subject, token_audience};
use crate::{
    authz::{self, node_identity},
    storage::cluster::Cluster,
};

pub struct NodeRestriction {
    pub cluster: Arc<Cluster>,
    pub authorizer: Arc<authz::Chain>,
    pub gates: FeatureGates,
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        // As upstream's: what is connected to is for the authorizer alone.
        if a.operation == Operation::Connect {
            return Ok(());
        }
        let Some(node) = node_identity(a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(a.forbidden(&format!("could not determine node from user {:?}", a.user.name)));
        }
        match (a.resource.group.as_str(), a.resource.plural.as_str()) {
            ("", "pods") => pods::check(&self.cluster, node, a),
            ("", "nodes") => node_object::check(&self.cluster, node, a),
            ("", "persistentvolumeclaims") => claim_status::check(node, a),
            ("", "persistentvolumes") => local_volume::check(node, a),
            ("", "serviceaccounts") if a.subresource == "token" => self.token(node, a).await,
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("resource.k8s.io", "resourceslices") => resource_slice(node, a),
            ("certificates.k8s.io", "certificatesigningrequests") => certificate_request(node, a),
            ("certificates.k8s.io", "podcertificaterequests") => {
                pod_certificate::check(&self.cluster, &self.gates, node, a).await
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
        if !self.gates.enabled(SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION) {
            return Ok(());
        }
        let asked = token_audience::check(&self.cluster, &self.authorizer, a, &pod).await;
        asked.map_err(|why| a.forbidden(&why))
    }
}

/// The name of what is written; a creation's is in the object.
fn target<'a>(a: &'a Attributes<'_>) -> &'a str {
    match a.operation {
        Operation::Create => a.object["metadata"]["name"].as_str().unwrap_or_default(),
        _ => a.name,
    }
}

fn lease(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    if a.namespace != "kube-node-lease" {
        return Err(a.forbidden("can only access leases in the \"kube-node-lease\" system namespace"));
    }
    match target(a) == node {
        true => Ok(()),
        false => Err(a.forbidden("can only access node lease with the same name as the requesting node")),
    }
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    match target(a) == node {
        true => Ok(()),
        false => Err(a.forbidden("can only access CSINode with the same name as the requesting node")),
    }
}

/// Updates are for the Node authorizer, which knows whose slice it is; only here is seen what is made, and each of a
/// collection that is deleted.
fn resource_slice(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let (slice, verb) = match a.operation {
        Operation::Create => (&a.object, "create"),
        Operation::Delete => (&a.old, "delete"),
        _ => return Ok(()),
    };
    match slice["spec"]["nodeName"] == node {
        true => Ok(()),
        false => {
            Err(a.forbidden(&format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")))
        }
    }
}

/// The rest of such a request is for its signer to check.
fn certificate_request(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    const SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    let signer = a.object["spec"]["signerName"].as_str().unwrap_or_default();
    if a.operation != Operation::Create || !SIGNERS.contains(&signer) {
        return Ok(());
    }
    let subject = request_subject(&a.object["spec"]["request"]);
    let subject = subject.map_err(|why| a.forbidden(&format!("unable to parse csr: {why}")))?;
    match subject.common_names == [format!("system:node:{node}")] {
        true => Ok(()),
        false => Err(a.forbidden(&format!("can only create a node CSR with CN=system:node:{node}"))),
    }
}
