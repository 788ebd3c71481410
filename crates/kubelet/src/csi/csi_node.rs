//! What the cluster is told of this node's drivers: its CSINode object, and topology labels and IDs on its Node.
//! Called by `registration` when a driver comes or goes.
//! A topology label that has another value already is never overwritten.

use std::collections::BTreeMap;

use api::ApiError;
use client::{Client, Patch};
use k8s_openapi::api::{core::v1::Node, storage::v1::CSINode};
use serde_json::{Value, json};

use super::messages::NodeGetInfoResponse;

const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";
const CONFLICTS_MAX: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum CsiNodeError {
    #[error("{0}")]
    Refused(String),
    #[error("error updating CSINode: {0}")]
    CsiNode(ApiError),
    #[error("error updating Node: {0}")]
    Node(ApiError),
}

/// Makes the CSINode object if there is none.
pub async fn ensure(client: &Client, node_name: &str) -> Result<(), CsiNodeError> {
    edit(client, node_name, |_| {}).await
}

pub async fn install(
    client: &Client,
    node_name: &str,
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Result<(), CsiNodeError> {
    if info.node_id.is_empty() {
        return Err(CsiNodeError::Refused("error adding CSI driver node info: driverNodeID must not be empty".into()));
    }
    let segments = info.accessible_topology.as_ref().map(|topology| topology.segments.clone()).unwrap_or_default();
    label_node(client, node_name, driver, &info.node_id, &segments).await?;
    let entry = driver_entry(driver, info, segments.keys());
    edit(client, node_name, |drivers| {
        // Its place is kept, so that what is told again changes nothing.
        match drivers.iter_mut().find(|other| other["name"] == driver) {
            Some(known) => *known = entry.clone(),
            None => drivers.push(entry.clone()),
        }
    })
    .await
}

/// Tells how many volumes a driver that is installed can have here by now.
pub async fn update(
    client: &Client,
    node_name: &str,
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Result<(), CsiNodeError> {
    let allocatable = driver_entry(driver, info, std::iter::empty())["allocatable"].take();
    edit(client, node_name, |drivers| {
        let known = drivers.iter_mut().find(|other| other["name"] == driver);
        match known.and_then(Value::as_object_mut) {
            Some(known) if allocatable.is_null() => drop(known.remove("allocatable")),
            Some(known) => drop(known.insert("allocatable".into(), allocatable.clone())),
            None => {}
        }
    })
    .await
}

/// Labels stay: volumes that were made for them are still here.
pub async fn uninstall(client: &Client, node_name: &str, driver: &str) -> Result<(), CsiNodeError> {
    edit(client, node_name, |drivers| drivers.retain(|other| other["name"] != driver)).await
}

fn driver_entry<'a>(
    driver: &str,
    info: &NodeGetInfoResponse,
    topology_keys: impl Iterator<Item = &'a String>,
) -> Value {
    let mut entry =
        json!({ "name": driver, "nodeID": info.node_id, "topologyKeys": topology_keys.collect::<Vec<_>>() });
    // None, or nonsense, is no limit.
    if info.max_volumes_per_node > 0 {
        entry["allocatable"] = json!({ "count": info.max_volumes_per_node.min(i64::from(i32::MAX)) });
    }
    entry
}

async fn edit(client: &Client, node_name: &str, change: impl Fn(&mut Vec<Value>)) -> Result<(), CsiNodeError> {
    let api = client.api::<CSINode>();
    let mut conflicts = 0;
    loop {
        let attempt = async {
            let Some(found) = api.find(node_name).await? else {
                let owner = client.api::<Node>().get(node_name).await?;
                let mut drivers = Vec::new();
                change(&mut drivers);
                let object = json!({
                    "metadata": { "name": node_name, "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Node", "name": node_name, "uid": owner.metadata.uid }] },
                    "spec": { "drivers": drivers },
                });
                return api.create(&read(object)?).await.map(drop);
            };
            let mut object = json!(found);
            let before = object["spec"]["drivers"].as_array().cloned().unwrap_or_default();
            let mut drivers = before.clone();
            change(&mut drivers);
            if drivers == before {
                return Ok(());
            }
            object["spec"]["drivers"] = Value::Array(drivers);
            api.replace(node_name, &read(object)?).await.map(drop)
        };
        match attempt.await {
            Err(error) if (error.is_conflict() || error.is_already_exists()) && conflicts < CONFLICTS_MAX => {
                conflicts += 1
            }
            other => return other.map_err(CsiNodeError::CsiNode),
        }
    }
}

fn read(object: Value) -> Result<CSINode, ApiError> {
    serde_json::from_value(object).map_err(|error| ApiError::internal(error.to_string()))
}

async fn label_node(
    client: &Client,
    node_name: &str,
    driver: &str,
    node_id: &str,
    segments: &BTreeMap<String, String>,
) -> Result<(), CsiNodeError> {
    let api = client.api::<Node>();
    let node = api.get(node_name).await.map_err(CsiNodeError::Node)?;
    let labels = node.metadata.labels.unwrap_or_default();
    for (key, value) in segments {
        if let Some(existing) = labels.get(key).filter(|existing| *existing != value) {
            return Err(CsiNodeError::Refused(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                 {key:?}:{existing:?}"
            )));
        }
    }
    let known = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID_ANNOTATION));
    let mut ids: BTreeMap<String, String> = known.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let same = ids.insert(driver.into(), node_id.into()).as_deref() == Some(node_id);
    if same && segments.keys().all(|key| labels.contains_key(key)) {
        return Ok(());
    }
    let meta = json!({ "labels": segments, "annotations": { NODE_ID_ANNOTATION: json!(ids).to_string() } });
    let patch = Patch::Merge(json!({ "metadata": meta }));
    api.patch(node_name, &patch).await.map(drop).map_err(CsiNodeError::Node)
}
