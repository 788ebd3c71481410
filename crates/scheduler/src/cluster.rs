//! Everything the scheduler knows of the cluster: nodes and pods (`cache`) and the objects that plugins consult.
//! Fed by `scheduler` with what the informers report; read by plugins.
//! Invariant: a plain value with no locks and no I/O, so that a test needs no server (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service},
    policy::v1::PodDisruptionBudget,
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};

use crate::{cache::Cache, plugins::dynamic_resources::devices::Devices};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Objects of one kind by `namespace/name` or `name`; ordered, so that those of one namespace are together.
pub type Objects<K> = BTreeMap<String, Arc<K>>;

/// The objects of one namespace.
pub fn in_namespace<'a, K>(objects: &'a Objects<K>, namespace: &str) -> impl Iterator<Item = &'a Arc<K>> {
    let prefix = format!("{namespace}/");
    let all = objects.range(prefix.clone()..);
    all.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(_, object)| object)
}

#[derive(Default)]
pub struct Cluster {
    pub cache: Cache,
    pub namespaces: Objects<Namespace>,
    pub claims: Objects<PersistentVolumeClaim>,
    pub volumes: Objects<PersistentVolume>,
    pub storage_classes: Objects<StorageClass>,
    pub csi_nodes: Objects<CSINode>,
    pub csi_drivers: Objects<CSIDriver>,
    pub csi_storage_capacities: Objects<CSIStorageCapacity>,
    /// By node.
    pub volume_attachments: HashMap<String, Objects<VolumeAttachment>>,
    pub services: Objects<Service>,
    pub replica_sets: Objects<ReplicaSet>,
    pub replication_controllers: Objects<ReplicationController>,
    pub stateful_sets: Objects<StatefulSet>,
    pub disruption_budgets: Objects<PodDisruptionBudget>,
    pub devices: Devices,
    /// Volumes promised to claims of pods that are being bound: volume name to claim key.
    pub reserved_volumes: HashMap<String, String>,
    /// Pods for which others are being sent away right now.
    pub preempting: HashSet<String>,
    /// Grows when the labels of namespaces change.
    pub namespaces_version: u64,
    /// Grows when any object beside nodes and pods changes in a way that a verdict may rest on.
    pub objects_version: u64,
}

impl Cluster {
    /// Grows with every change that a verdict may rest on.
    pub fn version(&self) -> u64 {
        self.cache.version() + self.objects_version
    }

    pub fn namespace_labels(&self, namespace: &str) -> &BTreeMap<String, String> {
        self.namespaces.get(namespace).and_then(|n| n.metadata.labels.as_ref()).unwrap_or(&NO_LABELS)
    }
}

/// Keeps `objects` as the informer has it.
pub fn put<K>(objects: &mut Objects<K>, key: &str, new: Option<Arc<K>>) {
    match new {
        Some(object) => drop(objects.insert(key.to_string(), object)),
        None => drop(objects.remove(key)),
    }
}
