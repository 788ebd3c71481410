//! Local storage: claims of its StorageClasses become directories of the node that the scheduler chose.
//! `plan` is the core. The node makes the directory at the first mount and removes it after the PersistentVolume is
//! deleted (`kubelet::volumes::local_storage`), which it confirms by taking the finalizer off.
//! No volume that its reclaim policy keeps is deleted; none is promised beyond what the node has.

mod plan;

use std::{collections::HashMap, sync::Arc};

use api::{
    ApiError,
    local_storage::{CLASS, FINALIZER, NODE_LABEL, PROVISIONER},
    quantity,
};
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    binder::{DEFAULT_CLASS, SELECTED_NODE},
    matching::{capacity, class_of_claim, request},
};
use crate::{
    common::{
        meta::{self, Object},
        objects::gone,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const CLAIM_KEY: &str = "claim:";
const VOLUME_KEY: &str = "volume:";
const NODE_KEY: &str = "node:";
const CLASS_KEY: &str = "class";
const CAPACITY_NAMESPACE: &str = "kube-system";

/// Whether claims can be had without any driver installed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LocalStorage {
    /// Not known to this controller manager, which leaves everything as it is.
    #[default]
    Unknown,
    /// By directories of the nodes.
    Nodes,
    /// Only by drivers: our StorageClass is taken away; volumes that are there stay as their policy says.
    None,
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    let (classes, nodes) = (setup.informer::<StorageClass>(), setup.informer::<Node>());
    let capacities = setup.informer::<CSIStorageCapacity>();
    setup.on(&claims, |change, queue| {
        if change.new.is_some() {
            queue.add(format!("{CLAIM_KEY}{}", change.key));
        }
    });
    setup.on(&volumes, |change, queue| {
        let Some(volume) = change.new.as_ref().or(change.old.as_ref()).filter(|v| plan::is_ours(v)) else { return };
        queue.add(format!("{VOLUME_KEY}{}", change.key));
        queue.add(format!("{NODE_KEY}{}", volume.label(NODE_LABEL).unwrap_or_default()));
    });
    setup.on(&nodes, {
        let volumes = volumes.clone();
        move |change, queue| {
            // A node's heartbeat changes its object all the time, but not this.
            let offer = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|n| (n.uid().to_string(), plan::storage_of(n), n.labels().clone()))
            };
            if offer(&change.old) == offer(&change.new) {
                return;
            }
            queue.add(format!("{NODE_KEY}{}", change.key));
            if change.new.is_none() {
                let lost = volumes.list().into_iter().filter(|v| v.label(NODE_LABEL) == Some(&change.key));
                lost.for_each(|volume| queue.add(format!("{VOLUME_KEY}{}", volume.name())));
            }
        }
    });
    setup.on(&classes, {
        let nodes = nodes.clone();
        move |_, queue| {
            nodes.list().iter().for_each(|node| queue.add(format!("{NODE_KEY}{}", node.name())));
        }
    });
    setup.queue.add(CLASS_KEY.into());
    let recorder = setup.context.recorder(PROVISIONER);
    let context = setup.context.clone();
    Arc::new(Provisioner { context, claims, volumes, classes, nodes, capacities, recorder, created: Mutex::default() })
}

struct Provisioner {
    context: Context,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    capacities: Informer<CSIStorageCapacity>,
    recorder: EventRecorder,
    /// Volumes that the cache may not show yet, by name.
    created: Mutex<HashMap<String, Arc<PersistentVolume>>>,
}

#[async_trait]
impl Controller for Provisioner {
    async fn reconcile(&self, key: &str) -> Outcome {
        let setting = self.context.config.local_storage;
        if setting == LocalStorage::Unknown {
            return Ok(None);
        }
        if let Some(name) = key.strip_prefix(VOLUME_KEY) {
            if let Some(volume) = self.volumes.get(name).filter(|volume| plan::is_ours(volume)) {
                self.reclaim(&volume).await?;
            }
        } else if let Some(name) = key.strip_prefix(NODE_KEY) {
            self.publish_capacity(name, setting).await?;
        } else if let Some(key) = key.strip_prefix(CLAIM_KEY) {
            if let Some(claim) = self.claims.get(key).filter(|claim| !claim.deleting()) {
                self.look_at_claim(&claim, setting).await?;
            }
        } else if setting == LocalStorage::Nodes {
            self.create_class().await?;
        } else {
            self.remove_class().await?;
        }
        Ok(None)
    }
}

impl Provisioner {
    /// Only where there is none: an administrator may have changed it.
    async fn create_class(&self) -> Result<(), ApiError> {
        let driver = json!({ "metadata": { "name": PROVISIONER }, "spec": { "attachRequired": false,
            "podInfoOnMount": false, "storageCapacity": true, "volumeLifecycleModes": ["Persistent"] } });
        create(&self.context.client.api::<CSIDriver>(), PROVISIONER, driver).await?;
        // Another default that is there already stays the default.
        let others = self.classes.list();
        let is_default = !others.iter().any(|c| c.name() != CLASS && c.annotation(DEFAULT_CLASS) == Some("true"));
        let class = json!({
            "metadata": { "name": CLASS, "annotations": { DEFAULT_CLASS: is_default.to_string() } },
            "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
            "allowVolumeExpansion": true,
        });
        create(&self.context.client.api::<StorageClass>(), CLASS, class).await
    }

    async fn remove_class(&self) -> Result<(), ApiError> {
        let Some(class) = self.classes.get(CLASS).filter(|class| class.provisioner == PROVISIONER) else {
            return Ok(());
        };
        gone(self.context.client.api::<StorageClass>().delete(CLASS, &meta::delete_options(class.uid())).await)
    }

    async fn look_at_claim(&self, claim: &PersistentVolumeClaim, setting: LocalStorage) -> Result<(), ApiError> {
        let named = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|name| !name.is_empty());
        if let Some(name) = named {
            return match self.volumes.get(name).filter(|volume| plan::is_ours(volume)) {
                Some(volume) => self.expand(claim, &volume).await,
                None => Ok(()),
            };
        }
        let class = self.classes.get(&class_of_claim(claim)).filter(|class| class.provisioner == PROVISIONER);
        let Some(class) = class.filter(|_| setting == LocalStorage::Nodes) else { return Ok(()) };
        let failed = |why: &str| {
            let message = format!("failed to provision volume with StorageClass {:?}: {why}", class.name());
            self.recorder.warning(&reference(claim), "ProvisioningFailed", message);
        };
        if let Some(why) = plan::refusal(claim, &class) {
            failed(&why);
            return Ok(());
        }
        let Some(node_name) = claim.annotation(SELECTED_NODE).filter(|node| !node.is_empty()) else { return Ok(()) };
        match self.provision(claim, &class, node_name).await? {
            Ok(volume) => {
                let message = format!("Successfully provisioned volume {}", volume.name());
                self.recorder.normal(&reference(claim), "ProvisioningSucceeded", message);
                if volume.annotation(api::local_storage::SIZE_ENFORCED) == Some("false") {
                    let message = format!(
                        "The file system of node {node_name} has no project quotas: pods are not held to the size of \
                         volume {}",
                        volume.name()
                    );
                    self.recorder.normal(&reference(claim), "SizeNotEnforced", message);
                }
                Ok(())
            }
            Err(why) => {
                failed(&why);
                self.give_node_back(claim).await
            }
        }
    }

    /// The volume, or why this node can't have it.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        node_name: &str,
    ) -> Result<Result<PersistentVolume, String>, ApiError> {
        let Some(node) = self.nodes.get(node_name) else { return Ok(Err(format!("node {node_name:?} not found"))) };
        let storage = match plan::storage_of(&node) {
            Ok(storage) => storage,
            Err(why) => return Ok(Err(why)),
        };
        let (wanted, left) = (request(claim), self.available_bytes(&node));
        if wanted > left {
            return Ok(Err(format!(
                "not enough local storage on node {node_name}: {wanted} bytes wanted, {left} left"
            )));
        }
        let volume = plan::persistent_volume(claim, class, &node, &storage);
        let volume = serde_json::from_value(volume).map_err(|error| ApiError::internal(error.to_string()))?;
        let api = self.context.client.api::<PersistentVolume>();
        let made = match api.create(&volume).await {
            // Made by an earlier attempt whose answer was lost; the UID in its name makes it this claim's.
            Err(error) if error.is_already_exists() => api.get(&plan::volume_name(claim)).await?,
            other => other?,
        };
        self.created.lock().insert(made.name().to_string(), Arc::new(made.clone()));
        Ok(Ok(made))
    }

    fn available_bytes(&self, node: &Node) -> i64 {
        let Ok(storage) = plan::storage_of(node) else { return 0 };
        let known = self.volumes.list();
        let mut created = self.created.lock();
        created.retain(|name, _| self.volumes.get(name).is_none());
        plan::available_bytes(&storage, node.name(), known.iter().chain(created.values()).map(|volume| &**volume))
    }

    /// So that the scheduler looks for another.
    async fn give_node_back(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let meta = json!({ "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version,
            "annotations": { SELECTED_NODE: null } });
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        gone(api.patch(claim.name(), &Patch::Merge(json!({ "metadata": meta }))).await.map(drop))
    }

    /// A directory has room for more as soon as its node promises it; where sizes are enforced the node follows the
    /// volume's capacity.
    async fn expand(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), ApiError> {
        let status = claim.status.as_ref();
        let has = status.and_then(|s| quantity::value(s.capacity.as_ref()?.get("storage")?));
        let (wanted, size) = (request(claim), capacity(volume));
        if status.and_then(|s| s.phase.as_deref()) != Some("Bound") || has.is_none_or(|has| wanted <= has) {
            return Ok(());
        }
        let text = json!({ "storage": claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage")) });
        if wanted > size {
            let node = volume.label(NODE_LABEL).and_then(|node| self.nodes.get(node));
            let left = node.map_or(0, |node| self.available_bytes(&node));
            if wanted - size > left {
                let message = format!(
                    "not enough local storage for volume {}: {} bytes more wanted, {left} left",
                    volume.name(),
                    wanted - size
                );
                self.recorder.warning(&reference(claim), "VolumeResizeFailed", message);
                return Ok(());
            }
            let meta = json!({ "uid": volume.uid(), "resourceVersion": volume.metadata.resource_version });
            let patch = json!({ "metadata": meta, "spec": { "capacity": text } });
            self.context.client.api::<PersistentVolume>().patch(volume.name(), &Patch::Merge(patch)).await?;
        }
        let patch = json!({ "metadata": { "uid": claim.uid() }, "status": { "capacity": text, "conditions": null } });
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        gone(api.patch_status(claim.name(), &Patch::Merge(patch)).await.map(drop))?;
        self.recorder.normal(&reference(claim), "VolumeResizeSuccessful", "Resize volume succeeded");
        Ok(())
    }

    async fn reclaim(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let spec = volume.spec.as_ref();
        let deletes = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let api = self.context.client.api::<PersistentVolume>();
        if !volume.deleting() {
            if !deletes || phase != Some("Released") {
                return Ok(());
            }
            // In the very version that was released, so that nobody claims it or changes its policy meanwhile.
            let options = DeleteOptions {
                preconditions: Some(Preconditions {
                    uid: Some(volume.uid().into()),
                    resource_version: volume.metadata.resource_version.clone(),
                }),
                ..DeleteOptions::default()
            };
            return gone(api.delete(volume.name(), &options).await);
        }
        let held = volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        let Some(node) = volume.label(NODE_LABEL).filter(|_| held && phase != Some("Bound")) else { return Ok(()) };
        if self.nodes.get(node).is_some() || self.context.client.api::<Node>().find(node).await?.is_some() {
            return Ok(());
        }
        // Nobody is left to remove the directory, or to say that it is gone.
        let kept: Vec<&String> = volume.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        let meta =
            json!({ "uid": volume.uid(), "resourceVersion": volume.metadata.resource_version, "finalizers": kept });
        gone(api.patch(volume.name(), &Patch::Merge(json!({ "metadata": meta }))).await.map(drop))?;
        let message = format!("node {node} is gone; what volume {} held is left there", volume.name());
        self.recorder.warning(&reference(volume), "VolumeFailedDelete", message);
        Ok(())
    }

    async fn publish_capacity(&self, node_name: &str, setting: LocalStorage) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<CSIStorageCapacity>(CAPACITY_NAMESPACE);
        let node =
            self.nodes.get(node_name).filter(|node| setting == LocalStorage::Nodes && plan::storage_of(node).is_ok());
        for class in self.classes.list().iter().filter(|class| class.provisioner == PROVISIONER) {
            let name = plan::capacity_name(class.name(), node_name);
            let found = self.capacities.get(&meta::key(CAPACITY_NAMESPACE, &name));
            let Some(node) = &node else {
                if let Some(found) = found {
                    gone(api.delete(&name, &meta::delete_options(found.uid())).await)?;
                }
                continue;
            };
            let left = self.available_bytes(node).max(0);
            let config = plan::capacity_object(class.name(), node, left);
            let same = found.is_some_and(|found| {
                let topology = json!(found.node_topology);
                found.capacity.as_ref().and_then(quantity::value) == Some(left) && topology == config["nodeTopology"]
            });
            if !same {
                let patch = Patch::Apply { manager: PROVISIONER.into(), force: true, config };
                api.patch(&name, &patch).await?;
            }
        }
        Ok(())
    }
}

async fn create<K>(api: &client::Api<K>, name: &str, object: Value) -> Result<(), ApiError>
where
    K: k8s_openapi::Resource + serde::Serialize + serde::de::DeserializeOwned,
{
    if api.find(name).await?.is_some() {
        return Ok(());
    }
    let object = serde_json::from_value(object).map_err(|error| ApiError::internal(error.to_string()))?;
    match api.create(&object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
