//! What must hold of a cluster that was left alone long enough, whatever happened before.
//! Called by `tests/seeds.rs` after each run; knows nothing of the workload.
//! Invariant: looks through the API only.

use std::collections::BTreeMap;

use api::ApiError;
use client::{Client, ListParams};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};

#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub String);

pub async fn violations(client: &Client) -> Result<Vec<Violation>, ApiError> {
    let everything = ListParams::default();
    let deployments = client.api::<Deployment>().list(&everything).await?.items;
    let sets = client.api::<ReplicaSet>().list(&everything).await?.items;
    let pods = client.api::<Pod>().list(&everything).await?.items;
    let mut found = Vec::new();
    let mut fail = |text: String| found.push(Violation(text));

    for deployment in &deployments {
        let name = deployment.metadata.name.clone().unwrap_or_default();
        let wanted = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        let status = deployment.status.clone().unwrap_or_default();
        let (ready, updated) = (status.ready_replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
        if (ready, updated) != (wanted, wanted) {
            fail(format!("deployment {name} wants {wanted} replicas, has {ready} ready and {updated} up to date"));
        }
        if status.observed_generation != deployment.metadata.generation {
            fail(format!("deployment {name} was not looked at since its last change"));
        }
    }
    let mut owned: BTreeMap<&str, i32> = BTreeMap::new();
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        match owner {
            Some(owner) => *owned.entry(&owner.uid).or_default() += 1,
            None => fail(format!("pod {name} has no owner")),
        }
        if pod.spec.as_ref().and_then(|s| s.node_name.as_ref()).is_none() {
            fail(format!("pod {name} was never bound"));
        }
        if pod.metadata.deletion_timestamp.is_some() {
            fail(format!("pod {name} is still terminating"));
        }
    }
    for set in &sets {
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let wanted = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        let there = owned.remove(uid).unwrap_or(0);
        if there != wanted {
            fail(format!("replica set {:?} wants {wanted} pods and has {there}", set.metadata.name));
        }
    }
    for (uid, count) in owned {
        fail(format!("{count} pods belong to {uid}, which is gone"));
    }
    Ok(found)
}
