//! Binds claims to volumes.
//! `matching` is the core; a provisioner outside makes volumes that it then binds; `reclaim` releases unclaimed ones.
//! Volume first, then claim; one worker, so that no volume is promised twice.

use std::{collections::HashMap, sync::Arc};

use api::{ApiError, quantity::Quantity};
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    matching::{best, claim_ref, class_of_claim, mismatch, reserved_for},
    protection::{USERS, by_claim, claims_of},
    recycler::{self, Attempt},
    volume_metrics::{self, Counts},
};
use crate::{
    common::{
        meta::{self, Object},
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Volumes come under this prefix, claims under their own keys.
const VOLUME: &str = "volume:";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    let classes = setup.informer::<StorageClass>();
    let counts = Arc::new(Mutex::new(Counts::new(setup.context.config.metrics.clone())));
    let counted = counts.clone();
    setup.on(&claims, move |change, queue| {
        counted.lock().claim_changed(change);
        queue.add(change.key.clone());
        if let Some(volume) = change.old.as_ref().and_then(|c| c.spec.as_ref()?.volume_name.clone()) {
            queue.add(format!("{VOLUME}{volume}"));
        }
    });
    let wake_pending = {
        let claims = claims.clone();
        move |queue: &crate::runner::Queue| {
            for claim in claims.list().iter().filter(|c| !bound(c)) {
                queue.add(claim.key());
            }
        }
    };
    let recyclers: Arc<Mutex<HashMap<String, Attempt>>> = Arc::default();
    setup.on(&volumes, {
        let (wake_pending, recyclers) = (wake_pending.clone(), recyclers.clone());
        move |change, queue| {
            counts.lock().volume_changed(change);
            if let Some(gone) = change.old.as_ref().filter(|_| change.new.is_none()) {
                recyclers.lock().remove(gone.uid());
            }
            queue.add(format!("{VOLUME}{}", change.key));
            let view = |v: &Option<Arc<PersistentVolume>>| {
                v.as_ref().map(|v| (v.spec.clone(), v.status.as_ref().and_then(|s| s.phase.clone())))
            };
            if view(&change.old) != view(&change.new) {
                wake_pending(queue);
            }
            // A claim whose volume is gone has lost it.
            if let Some(claim) = change.old.as_ref().filter(|_| change.new.is_none()).and_then(|v| claim_ref(v)) {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                queue.add(meta::key(&text(&claim.namespace), &text(&claim.name)));
            }
        }
    });
    setup.on(&classes, move |_, queue| wake_pending(queue));
    let pods = setup.informer::<Pod>();
    by_claim(&pods);
    setup.on(&pods, {
        let (claims, volumes) = (claims.clone(), volumes.clone());
        move |change, queue| {
            if let Some(volume) = change.new.as_ref().or(change.old.as_ref()).and_then(|pod| recycler::volume_of(pod)) {
                queue.add(format!("{VOLUME}{volume}"));
            }
            // A volume whose claim is gone may wait for the last pod that has it.
            let ended = change.new.as_ref().is_none_or(|pod| pods::finished(pod));
            let left = change.old.iter().filter(|_| ended).flat_map(|pod| claims_of(pod));
            let left: Vec<String> = left.filter(|key| claims.get(key).is_none()).collect();
            if !left.is_empty() {
                let text = |t: &Option<String>| t.clone().unwrap_or_default();
                let key = |r: &ObjectReference| meta::key(&text(&r.namespace), &text(&r.name));
                let waits = |v: &&Arc<PersistentVolume>| claim_ref(v).is_some_and(|r| left.contains(&key(r)));
                volumes.list().iter().filter(waits).for_each(|v| queue.add(format!("{VOLUME}{}", v.name())));
            }
            // A claim that waits for its first consumer can now say whom it waits for.
            let Some(pod) = change.new.as_ref().filter(|_| change.old.is_none()) else { return };
            let waits = |key: &String| claims.get(key).is_some_and(|claim| !bound(&claim));
            claims_of(pod).into_iter().filter(waits).for_each(|key| queue.add(key));
        }
    });
    let recorder = setup.context.recorder("persistentvolume-controller");
    Arc::new(Binder { context: setup.context.clone(), claims, volumes, classes, pods, recorder, recyclers })
}

fn bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound")
}

pub(super) struct Binder {
    pub(super) context: Context,
    pub(super) claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    pub(super) pods: Informer<Pod>,
    pub(super) recorder: EventRecorder,
    /// What was tried to empty volumes, by their UIDs.
    pub(super) recyclers: Arc<Mutex<HashMap<String, Attempt>>>,
}

#[async_trait]
impl Controller for Binder {
    async fn reconcile(&self, key: &str) -> Outcome {
        match key.strip_prefix(VOLUME) {
            Some(name) => {
                if let Some(volume) = self.volumes.get(name) {
                    return self.look_at_volume(&volume).await;
                }
            }
            None => match self.claims.get(key) {
                Some(claim) if !claim.deleting() => self.look_at_claim(&claim).await?,
                _ => {}
            },
        }
        Ok(None)
    }
}

impl Binder {
    async fn look_at_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let settled = claim.annotation(BIND_COMPLETED).is_some();
        if let Some(name) = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|n| !n.is_empty()) {
            return match self.volumes.get(&name) {
                Some(volume) if reserved_for(&volume, claim) => self.bind(&volume, claim).await,
                Some(volume) if claim_ref(&volume).is_none() => match mismatch(&volume, claim).filter(|_| !settled) {
                    None => self.bind(&volume, claim).await,
                    Some(why) => {
                        let message = format!("Cannot bind to requested volume {name:?}: {why}");
                        self.recorder.warning(&reference(claim), "VolumeMismatch", message);
                        self.set_claim_phase(claim, "Pending").await
                    }
                },
                Some(_) if settled => {
                    let message = "Two claims are bound to the same volume, this one is bound incorrectly";
                    self.lose(claim, "ClaimMisbound", message).await
                }
                Some(_) => {
                    let message = format!("volume {name:?} already bound to a different claim.");
                    self.recorder.warning(&reference(claim), "FailedBinding", message);
                    self.set_claim_phase(claim, "Pending").await
                }
                None if settled || bound(claim) => {
                    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
                    self.lose(claim, "ClaimLost", message).await
                }
                None => self.set_claim_phase(claim, "Pending").await,
            };
        }
        let class_name = class_of_claim(claim);
        let class = self.classes.get(&class_name);
        let waits = class.as_ref().and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer");
        if let Some(volume) = best(claim, &self.volumes.list(), waits) {
            return self.bind(&volume, claim).await;
        }
        if waits && claim.annotation(SELECTED_NODE).is_none() {
            let (reason, message) = self.awaited(claim);
            self.recorder.normal(&reference(claim), reason, message);
            return self.set_claim_phase(claim, "Pending").await;
        }
        self.say_why_pending(claim, class.as_deref()).await?;
        self.set_claim_phase(claim, "Pending").await
    }

    /// What a claim that waits for its consumer waits for.
    fn awaited(&self, claim: &PersistentVolumeClaim) -> (&'static str, String) {
        let users = self.pods.by_index(USERS, &claim.key());
        let waiting = users.iter().filter(|p| !pods::finished(p) && pods::node_name(p).is_empty());
        let names: Vec<&str> = waiting.map(|p| p.name()).collect();
        match names[..] {
            [] => ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".into()),
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            _ => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", names.join(","))),
        }
    }

    /// Said once: the phase is final.
    async fn lose(&self, claim: &PersistentVolumeClaim, reason: &str, message: &str) -> Result<(), ApiError> {
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Lost") {
            self.recorder.warning(&reference(claim), reason, message);
        }
        self.set_claim_phase(claim, "Lost").await
    }

    async fn say_why_pending(
        &self,
        claim: &PersistentVolumeClaim,
        class: Option<&StorageClass>,
    ) -> Result<(), ApiError> {
        let about = reference(claim);
        let Some(class) = class else {
            let named = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone());
            match named.as_deref() {
                Some("") | None => {
                    if named.is_none() && self.take_default_class(claim).await? {
                        return Ok(());
                    }
                    let message = "no persistent volumes available for this claim and no storage class is set";
                    self.recorder.normal(&about, "FailedBinding", message);
                }
                Some(name) => {
                    let message = format!("storageclass.storage.k8s.io {name:?} not found");
                    self.recorder.warning(&about, "ProvisioningFailed", message);
                }
            }
            return Ok(());
        };
        let provisioner = &class.provisioner;
        if provisioner == "kubernetes.io/no-provisioner" {
            let message = format!("no volume plugin matched name: {provisioner}");
            self.recorder.warning(&about, "ProvisioningFailed", message);
            return Ok(());
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        self.recorder.normal(&about, "ExternalProvisioning", message);
        if claim.annotation(PROVISIONER) != Some(provisioner) {
            let patch = json!({ "metadata": { "uid": claim.uid(), "annotations": {
                PROVISIONER: provisioner, "volume.beta.kubernetes.io/storage-provisioner": provisioner } } });
            let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
            api.patch(claim.name(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    /// A claim that came before there was a default class gets it now.
    async fn take_default_class(&self, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
        let mut defaults = self.classes.list();
        defaults.retain(|c| c.annotation(DEFAULT_CLASS) == Some("true"));
        defaults.sort_by_key(|c| (std::cmp::Reverse(c.created()), c.name().to_string()));
        let Some(class) = defaults.first() else { return Ok(false) };
        let patch = json!({ "metadata": { "uid": claim.uid() }, "spec": { "storageClassName": class.name() } });
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        let written = api.patch(claim.name(), &Patch::Merge(patch)).await;
        volume_metrics::class_assigned(&self.context.config.metrics, written.is_ok());
        written?;
        Ok(true)
    }

    /// Volume's reservation, volume's phase, claim's volume, claim's phase: each step survives a crash before the next.
    async fn bind(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let volumes = self.context.client.api::<PersistentVolume>();
        let known = claim_ref(volume);
        if known.and_then(|r| r.uid.as_deref()) != Some(claim.uid()) {
            let mut annotations = json!({});
            if known.is_none() {
                annotations[BOUND_BY_CONTROLLER] = "yes".into();
            }
            let patch = json!({
                "metadata": { "resourceVersion": volume.metadata.resource_version, "annotations": annotations },
                "spec": { "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                    "name": claim.name(), "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version } },
            });
            volumes.patch(volume.name(), &Patch::Merge(patch)).await?;
        }
        self.set_volume_phase(volume, "Bound").await?;
        let claims = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        let named = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        if named != volume.name() || claim.annotation(BIND_COMPLETED).is_none() {
            let mut annotations = json!({ BIND_COMPLETED: "yes" });
            if named.is_empty() {
                annotations[BOUND_BY_CONTROLLER] = "yes".into();
            }
            let patch = json!({ "metadata": { "uid": claim.uid(), "annotations": annotations },
                "spec": { "volumeName": volume.name() } });
            claims.patch(claim.name(), &Patch::Merge(patch)).await?;
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let mut status = json!({ "phase": "Bound", "accessModes": spec.access_modes });
        // From then on whoever makes the volume grow says how large it is.
        if !bound(claim) {
            status["capacity"] = json!(spec.capacity);
            // Its node has yet to make it as large as it says.
            if let Some(before) = volume.annotation(PRE_RESIZE_CAPACITY).filter(|size| Quantity::parse(size).is_ok()) {
                status["capacity"]["storage"] = before.into();
            }
        }
        let attributes = spec.volume_attributes_class_name.filter(|class| !class.is_empty());
        let known = claim.status.as_ref().and_then(|s| s.current_volume_attributes_class_name.as_ref());
        if let Some(class) = attributes.filter(|_| known.is_none()) {
            status["currentVolumeAttributesClassName"] = class.into();
        }
        self.write_claim_status(claim, status).await
    }

    async fn set_claim_phase(&self, claim: &PersistentVolumeClaim, phase: &str) -> Result<(), ApiError> {
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase) {
            return Ok(());
        }
        self.write_claim_status(claim, json!({ "phase": phase })).await
    }

    async fn write_claim_status(&self, claim: &PersistentVolumeClaim, status: Value) -> Result<(), ApiError> {
        let known = serde_json::to_value(&claim.status).unwrap_or_default();
        if status.as_object().is_some_and(|map| map.iter().all(|(key, value)| known[key] == *value)) {
            return Ok(());
        }
        let patch = json!({ "metadata": { "uid": claim.uid() }, "status": status });
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        match api.patch_status(claim.name(), &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn set_volume_phase(&self, volume: &PersistentVolume, phase: &str) -> Result<(), ApiError> {
        if volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase) {
            return Ok(());
        }
        let api = self.context.client.api::<PersistentVolume>();
        let status = json!({ "phase": phase, "reason": null, "message": null,
            "lastPhaseTransitionTime": meta::time(self.context.env.now()) });
        let patch = json!({ "metadata": { "uid": volume.uid() }, "status": status });
        match api.patch_status(volume.name(), &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
