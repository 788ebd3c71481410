//! Has CSI volumes attached to the nodes whose pods need them, and detached from the others: it makes and deletes
//! VolumeAttachments, which a driver's external attacher carries out, and says on each Node what is attached.
//! `plan` is the core; keys are names of nodes.
//! A volume leaves node.status.volumesAttached before its VolumeAttachment is deleted. What others named is left alone.

mod plan;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{ApiError, csi};
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use metrics::Family;
use parking_lot::Mutex;
use plan::{Action, AttachableVolume, Attachment, NodeView};
use serde_json::json;

use super::{
    protection::{USERS, by_claim, claims_of},
    volume_metrics::{AttachmentState, Operation, Operations},
};
use crate::{
    common::{
        indexes,
        meta::{self, Object},
        objects::gone,
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

/// How long a node that does not answer may take to unmount a volume.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(6 * 60);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// VolumeAttachments by node, and by PersistentVolume.
const ATTACHED_TO: &str = "attachment node";
const ATTACHED_VOLUME: &str = "attachment volume";

pub static FORCED_DETACHES: Family = Family::counter(
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    &["reason"],
    "Volumes that were detached although their node had not unmounted them.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (pods, nodes) = (setup.informer::<Pod>(), setup.informer::<Node>());
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    let (attachments, drivers) = (setup.informer::<VolumeAttachment>(), setup.informer::<CSIDriver>());
    by_claim(&pods);
    indexes::by_node(&pods);
    attachments.add_index(ATTACHED_TO, |object| {
        object.value()["spec"]["nodeName"].as_str().map(String::from).into_iter().collect()
    });
    attachments.add_index(ATTACHED_VOLUME, |object| {
        object.value()["spec"]["source"]["persistentVolumeName"].as_str().map(String::from).into_iter().collect()
    });
    let refused: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let forgets = refused.clone();
    setup.on(&pods, move |change, queue| {
        if let Some(gone) = change.old.as_ref().filter(|_| change.new.is_none()) {
            forgets.lock().remove(gone.uid());
        }
        let both = [&change.old, &change.new].into_iter().flatten();
        let concerned = both.filter(|pod| !claims_of(pod).is_empty() && !pods::node_name(pod).is_empty());
        concerned.for_each(|pod| queue.add(pods::node_name(pod).into()));
    });
    setup.on(&nodes, |change, queue| {
        // A heartbeat changes none of it.
        let view = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node_view(node).volumes_in_use);
        let state =
            |node: &Option<Arc<Node>>| node.as_deref().map(|n| (node_view(n).out_of_service, node_view(n).is_healthy));
        if view(&change.old) != view(&change.new) || state(&change.old) != state(&change.new) {
            queue.add(change.key.clone());
        }
    });
    setup.on(&claims, {
        let pods = pods.clone();
        move |change, queue| {
            let users = pods.by_index(USERS, &change.key);
            users.iter().filter(|p| !pods::node_name(p).is_empty()).for_each(|p| queue.add(pods::node_name(p).into()));
        }
    });
    setup.on(&attachments, {
        let attachments = attachments.clone();
        let (pods, volumes) = (pods.clone(), volumes.clone());
        move |change, queue| {
            let Some(changed) = change.new.as_ref().or(change.old.as_ref()) else { return };
            queue.add(changed.spec.node_name.clone());
            let Some(name) = changed.spec.source.persistent_volume_name.as_deref().filter(|_| change.new.is_none())
            else {
                return;
            };
            // Others may have waited for it.
            attachments
                .by_index(ATTACHED_VOLUME, name)
                .iter()
                .for_each(|other| queue.add(other.spec.node_name.clone()));
            let claim = volumes.get(name).and_then(|v| v.spec.as_ref()?.claim_ref.clone());
            let Some(claim) = claim else { return };
            let key = meta::key(&claim.namespace.unwrap_or_default(), &claim.name.unwrap_or_default());
            let users = pods.by_index(USERS, &key);
            users.iter().filter(|p| !pods::node_name(p).is_empty()).for_each(|p| queue.add(pods::node_name(p).into()));
        }
    });
    setup.on(&drivers, {
        let nodes = nodes.clone();
        move |_, queue| nodes.list().iter().for_each(|node| queue.add(node.name().into()))
    });
    let recorder = setup.context.recorder("attachdetach-controller");
    let context = setup.context.clone();
    Arc::new(AttachDetach {
        context,
        pods,
        nodes,
        claims,
        volumes,
        attachments,
        drivers,
        recorder,
        memory: Mutex::default(),
        refused,
        operations: Operations::default(),
    })
}

struct AttachDetach {
    context: Context,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    attachments: Informer<VolumeAttachment>,
    drivers: Informer<CSIDriver>,
    recorder: EventRecorder,
    memory: Mutex<HashMap<String, Memory>>,
    /// What pods were told whose volumes others have, by UID; forgotten with the pod.
    refused: Arc<Mutex<HashMap<String, String>>>,
    operations: Operations,
}

/// What is remembered of a VolumeAttachment, by its name.
#[derive(Debug, Default)]
struct Memory {
    /// Since when its volume is to be detached.
    waiting_since: Option<Duration>,
    /// What pods were last told of it.
    told: Option<String>,
}

fn state(attachment: &VolumeAttachment) -> AttachmentState {
    let Some(status) = &attachment.status else { return AttachmentState::Waiting };
    match attachment.deleting() {
        true if status.detach_error.is_some() => AttachmentState::Failed,
        true => AttachmentState::Waiting,
        false if status.attached => AttachmentState::Attached,
        false if status.attach_error.is_some() => AttachmentState::Failed,
        false => AttachmentState::Waiting,
    }
}

fn node_view(node: &Node) -> NodeView {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let status = node.status.as_ref();
    let ready = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten().find(|c| c.type_ == "Ready");
    NodeView {
        exists: true,
        out_of_service: taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE),
        is_healthy: ready.is_some_and(|condition| condition.status == "True"),
        volumes_in_use: status.and_then(|s| s.volumes_in_use.clone()).unwrap_or_default().into_iter().collect(),
    }
}

#[async_trait]
impl Controller for AttachDetach {
    async fn reconcile(&self, node_name: &str) -> Outcome {
        let node = self.nodes.get(node_name);
        let mut found = self.attachments.by_index(ATTACHED_TO, node_name);
        found.retain(|attachment| plan::is_own(attachment.name()));
        let desired = self.desired(node_name);
        let now = self.context.env.monotonic();
        self.operations.observe(&self.context.config.metrics, node_name, now, |name| {
            let found = found.iter().find(|attachment| attachment.name() == name);
            found.map_or(AttachmentState::Gone, |attachment| state(attachment))
        });
        if found.is_empty() && desired.is_empty() {
            return self.write_attached(node.as_deref(), Vec::new()).await.map(|()| None);
        }
        let attachments: Vec<Attachment> = found.iter().map(|attachment| self.view(attachment)).collect();
        let volumes: BTreeMap<String, AttachableVolume> =
            desired.iter().map(|(name, (volume, _))| (name.clone(), volume.clone())).collect();
        let view = node.as_deref().map(node_view).unwrap_or_default();
        let (actions, waiting) = {
            let memory = self.memory.lock();
            let since = |name: &str| memory.get(name).and_then(|memory| memory.waiting_since);
            let late = |name: &str| since(name).is_some_and(|since| now - since >= UNMOUNT_WAIT_MAX);
            let elsewhere = |volume: &AttachableVolume| self.is_elsewhere(volume, node_name);
            plan::plan(&volumes, &attachments, &view, elsewhere, late)
        };
        self.remember_waiting(&attachments, &waiting, now);
        self.write_attached(node.as_deref(), plan::volumes_attached(&attachments, &actions)).await?;
        for attachment in &found {
            self.tell_outcome(attachment, &desired);
        }
        let mut first_error = None;
        for action in actions {
            if let Err(error) = self.carry_out(action, node_name, &desired).await {
                first_error.get_or_insert(error);
            }
        }
        match first_error {
            Some(error) => Err(error),
            None if waiting.is_empty() || view.is_healthy => Ok(None),
            None => Ok(Some(UNMOUNT_WAIT_MAX)),
        }
    }
}

type Desired = BTreeMap<String, (AttachableVolume, Vec<Arc<Pod>>)>;

impl AttachDetach {
    /// The volumes that pods of the node need, by their unique names, and those pods.
    fn desired(&self, node: &str) -> Desired {
        let mut desired = Desired::new();
        for pod in self.pods.by_index(indexes::NODE, node) {
            // Its volumes are taken down, whatever becomes of the object.
            if pods::finished(&pod) {
                continue;
            }
            for key in claims_of(&pod) {
                let claim = self.claims.get(&key);
                let name = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
                let Some(volume) = name.and_then(|name| self.volumes.get(&name)) else { continue };
                if let Some(volume) = self.attachable(&volume) {
                    desired.entry(volume.unique_name()).or_insert_with(|| (volume, Vec::new())).1.push(pod.clone());
                }
            }
        }
        desired
    }

    fn attachable(&self, volume: &PersistentVolume) -> Option<AttachableVolume> {
        let spec = volume.spec.as_ref()?;
        let source = spec.csi.as_ref()?;
        let driver = self.drivers.get(&source.driver);
        let attaches = driver.is_none_or(|driver| driver.spec.attach_required != Some(false));
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        let is_shared = modes.is_empty() || modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany");
        attaches.then(|| AttachableVolume {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            persistent_volume: volume.name().into(),
            is_shared,
        })
    }

    fn view(&self, attachment: &VolumeAttachment) -> Attachment {
        let volume = attachment.spec.source.persistent_volume_name.as_deref().and_then(|name| self.volumes.get(name));
        let source = volume.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
        Attachment {
            name: attachment.name().into(),
            unique_name: source.map(|source| csi::unique_volume_name(&source.driver, &source.volume_handle)),
            is_attached: attachment.status.as_ref().is_some_and(|status| status.attached),
            is_deleting: attachment.deleting(),
        }
    }

    fn is_elsewhere(&self, volume: &AttachableVolume, node: &str) -> bool {
        let all = self.attachments.by_index(ATTACHED_VOLUME, &volume.persistent_volume);
        all.iter().any(|attachment| attachment.spec.node_name != node && plan::is_own(attachment.name()))
    }

    fn remember_waiting(&self, attachments: &[Attachment], waiting: &[String], now: Duration) {
        let mut memory = self.memory.lock();
        for attachment in attachments {
            let entry = memory.entry(attachment.name.clone()).or_default();
            entry.waiting_since = waiting.contains(&attachment.name).then(|| entry.waiting_since.unwrap_or(now));
        }
    }

    async fn write_attached(&self, node: Option<&Node>, names: Vec<String>) -> Result<(), ApiError> {
        let Some(node) = node else { return Ok(()) };
        let said = node.status.as_ref().and_then(|s| s.volumes_attached.as_ref());
        if said.into_iter().flatten().map(|volume| &volume.name).eq(names.iter()) {
            return Ok(());
        }
        let list: Vec<_> = names.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
        let patch = json!({ "metadata": { "uid": node.uid() }, "status": { "volumesAttached": list } });
        gone(self.context.client.api::<Node>().patch_status(node.name(), &Patch::Merge(patch)).await.map(drop))
    }

    /// Pods hear of it once when their volume is attached, and of each way in which it fails.
    fn tell_outcome(&self, attachment: &VolumeAttachment, desired: &Desired) {
        let Some(status) = &attachment.status else { return };
        let unique_name = self.view(attachment).unique_name.unwrap_or_default();
        let Some((volume, pods)) = desired.get(&unique_name) else { return };
        let name = &volume.persistent_volume;
        let failure = status.attach_error.as_ref().filter(|_| !status.attached);
        let failure = failure.map(|error| error.message.clone().unwrap_or_default());
        let said = failure.clone().unwrap_or_else(|| if status.attached { "attached".into() } else { String::new() });
        {
            let mut memory = self.memory.lock();
            let entry = memory.entry(attachment.name().into()).or_default();
            if said.is_empty() || entry.told.as_deref() == Some(said.as_str()) {
                return;
            }
            // One that was attached before this process began is no news.
            let first = entry.told.replace(said).is_none();
            if first && failure.is_none() && pods.iter().all(|pod| pods::phase(pod) == "Running") {
                return;
            }
        }
        for pod in pods {
            match &failure {
                Some(why) => {
                    let message = format!("AttachVolume.Attach failed for volume {name:?} : {why}");
                    self.recorder.warning(&reference(&**pod), "FailedAttachVolume", message);
                }
                None => {
                    let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
                    self.recorder.normal(&reference(&**pod), "SuccessfulAttachVolume", message);
                }
            }
        }
    }

    async fn carry_out(&self, action: Action, node: &str, desired: &Desired) -> Result<(), ApiError> {
        let api = self.context.client.api::<VolumeAttachment>();
        match action {
            Action::Attach(volume) => {
                let name = api::csi::attachment_name(&volume.handle, &volume.driver, node);
                let object = json!({
                    "metadata": { "name": name },
                    "spec": { "attacher": volume.driver, "nodeName": node,
                        "source": { "persistentVolumeName": volume.persistent_volume } },
                });
                let object = serde_json::from_value(object).map_err(|error| ApiError::internal(error.to_string()))?;
                match api.create(&object).await {
                    Ok(_) => {
                        let now = self.context.env.monotonic();
                        self.operations.begin(Operation::Attach, &name, node, &volume.driver, now);
                        Ok(())
                    }
                    Err(error) if !error.is_already_exists() => Err(error),
                    Err(_) => Ok(()),
                }
            }
            Action::MultiAttach(volume) => {
                self.tell_multi_attach(&volume, node, desired);
                Ok(())
            }
            Action::Detach { attachment, forced } => {
                let Some(found) = self.attachments.get(&attachment) else { return Ok(()) };
                if let Some(reason) = forced {
                    tracing::warn!(attachment, node, reason, "detaching a volume that its node has not unmounted");
                    self.context.config.metrics.count(&FORCED_DETACHES, &[reason]);
                }
                gone(api.delete(&attachment, &meta::delete_options(found.uid())).await)?;
                let now = self.context.env.monotonic();
                self.operations.begin(Operation::Detach, &attachment, node, &found.spec.attacher, now);
                self.memory.lock().remove(&attachment);
                Ok(())
            }
        }
    }

    fn tell_multi_attach(&self, volume: &AttachableVolume, node: &str, desired: &Desired) {
        let Some((_, pods)) = desired.get(&volume.unique_name()) else { return };
        let claim = self.volumes.get(&volume.persistent_volume).and_then(|v| v.spec.as_ref()?.claim_ref.clone());
        let key = claim.map(|c| meta::key(&c.namespace.unwrap_or_default(), &c.name.unwrap_or_default()));
        let users = key.map(|key| self.pods.by_index(USERS, &key)).unwrap_or_default();
        let elsewhere = users.iter().filter(|p| !pods::node_name(p).is_empty() && pods::node_name(p) != node);
        let elsewhere: Vec<(String, String)> =
            elsewhere.filter(|p| !pods::finished(p)).map(|p| (p.namespace().into(), p.name().into())).collect();
        for pod in pods {
            let message = plan::multi_attach_message(&volume.persistent_volume, pod.namespace(), &elsewhere);
            // Each pod hears of it once, and again when others have it.
            let told = self.refused.lock().insert(pod.uid().into(), message.clone());
            if told.as_ref() != Some(&message) {
                self.recorder.warning(&reference(&**pod), "FailedAttachVolume", message);
            }
        }
    }
}
