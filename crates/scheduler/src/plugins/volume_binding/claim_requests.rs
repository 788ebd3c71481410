//! The requests that bind a pod's claims, or have volumes provisioned for them, on the node that was chosen.
//! Used by `VolumeBinding` at Reserve (to make them) and at PreBind (to send them).
//! Each carries the version it was decided on, so that the server refuses what somebody else was faster with.

use api::ApiError;
use client::{Client, Patch};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::claims::{ClaimBinding, SELECTED_NODE, selected_node};
use crate::cluster::Cluster;

/// A request that prepares a claim for the node.
#[derive(Clone)]
pub enum ClaimRequest {
    Volume { name: String, patch: Value },
    Claim { namespace: String, name: String, patch: Value },
}

/// The requests for the bindings, as things stand. What already stands needs none.
pub fn claim_requests(cluster: &Cluster, bindings: &[ClaimBinding], node: &str) -> Vec<ClaimRequest> {
    bindings.iter().filter_map(|binding| claim_request(cluster, binding, node)).collect()
}

fn claim_request(cluster: &Cluster, binding: &ClaimBinding, node: &str) -> Option<ClaimRequest> {
    match binding {
        ClaimBinding::Static { claim, volume } => {
            let claim = cluster.claims.get(claim)?;
            let found = cluster.volumes.get(volume)?;
            let reference = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
                "name": claim.metadata.name, "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
            });
            // The version makes it a refusal, not an overwrite, when somebody else was faster.
            let patch = json!({
                "metadata": {
                    "resourceVersion": found.metadata.resource_version,
                    "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
                },
                "spec": {"claimRef": reference},
            });
            Some(ClaimRequest::Volume { name: volume.clone(), patch })
        }
        ClaimBinding::Provision { claim: key } => {
            let claim = cluster.claims.get(key)?;
            if selected_node(claim) == Some(node) {
                return None;
            }
            let patch = json!({"metadata": {
                "resourceVersion": claim.metadata.resource_version,
                "annotations": {SELECTED_NODE: node},
            }});
            let (namespace, name) = key.split_once('/')?;
            Some(ClaimRequest::Claim { namespace: namespace.into(), name: name.into(), patch })
        }
    }
}

pub async fn send(client: &Client, requests: Vec<ClaimRequest>) -> Result<(), ApiError> {
    for request in requests {
        match request {
            ClaimRequest::Volume { name, patch } => {
                client.api::<PersistentVolume>().patch(&name, &Patch::Merge(patch)).await?;
            }
            ClaimRequest::Claim { namespace, name, patch } => {
                client.namespaced::<PersistentVolumeClaim>(&namespace).patch(&name, &Patch::Merge(patch)).await?;
            }
        }
    }
    Ok(())
}
