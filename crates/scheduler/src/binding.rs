//! Carries out a decision: claims first, then POST to `pods/NAME/binding`.
//! Started by `scheduler`, one task per pod; the outcome goes back to it.
//! Invariant: never decides; a refusal by the server is reported, and only an answer that was lost is asked for again.

use std::time::Duration;

use api::ApiError;
use client::{Client, Patch, may_have_happened};
use env::{Backoff, Env};
use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    pod_info::PodInfo,
    volumes::{SELECTED_NODE, Step},
};

/// A request that prepares a claim for the node.
pub enum ClaimRequest {
    Volume { name: String, patch: Value },
    Claim { namespace: String, name: String, patch: Value },
}

/// The requests for the steps, as things stand. What already stands needs none.
pub fn claim_requests(cluster: &Cluster, steps: &[Step], node: &str) -> Vec<ClaimRequest> {
    steps.iter().filter_map(|step| claim_request(cluster, step, node)).collect()
}

fn claim_request(cluster: &Cluster, step: &Step, node: &str) -> Option<ClaimRequest> {
    match step {
        Step::Bind { claim, volume } => {
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
        Step::Provision { claim: key } => {
            let claim = cluster.claims.get(key)?;
            if crate::volumes::selected_node(claim) == Some(node) {
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

pub async fn prepare_claims(client: &Client, requests: Vec<ClaimRequest>) -> Result<(), ApiError> {
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

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Binds, and asks until there is an answer: with a lost one the pod may be on its node, where it needs its room.
pub async fn bind(client: &Client, env: &Env, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
    let (mut backoff, mut doubtful) = (RETRY_BACKOFF, false);
    loop {
        match attempt(client, pod, node).await {
            Err(error) if may_have_happened(&error) => doubtful = true,
            Err(error) if error.is_conflict() && doubtful => match is_on(client, pod, node).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(error),
                Err(_) => {}
            },
            answer => return answer,
        }
        env.sleep(backoff.next_delay().mul_f64(0.5 + env.random_fraction())).await;
    }
}

async fn is_on(client: &Client, pod: &PodInfo, node: &str) -> Result<bool, ApiError> {
    let found = client.namespaced::<Pod>(pod.namespace()).find(pod.name()).await?;
    Ok(found.is_some_and(|found| {
        found.metadata.uid.as_deref() == Some(pod.uid())
            && found.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node)
    }))
}

async fn attempt(client: &Client, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(pod.name().into()),
            namespace: Some(pod.namespace().into()),
            // The server refuses when another pod has taken the name.
            uid: Some(pod.uid().into()),
            ..ObjectMeta::default()
        },
        target: ObjectReference { kind: Some("Node".into()), name: Some(node.into()), ..ObjectReference::default() },
    };
    let pods = client.namespaced::<Pod>(pod.namespace());
    pods.create_subresource::<_, Value>(pod.name(), "binding", &binding).await.map(drop)
}
