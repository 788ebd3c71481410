//! Keeps claims that pods use, volumes that claims use, and attribute classes that either names from vanishing.
//! The finalizers are added here too, for objects that came without them.
//! Invariant: a finalizer goes only when the object is being deleted and nothing uses it.

use std::sync::Arc;

use api::ApiError;
use async_trait::async_trait;
use client::{Informer, Patch};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttributesClass,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    meta::{self, Object},
    pods,
    shell::{Context, Controller, Outcome, Setup},
};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const CLASS: &str = "kubernetes.io/vac-protection";
/// Pods by the claims that they mount.
pub(super) const USERS: &str = "claim users";
const NAMED: &str = "attributes class";

/// Names of the claims that a pod mounts, generic ephemeral ones too.
pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let name = |volume: &k8s_openapi::api::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name(), volume.name)),
        _ => None,
    };
    volumes.into_iter().flatten().filter_map(name).map(|name| meta::key(pod.namespace(), &name)).collect()
}

pub(super) fn by_claim(pods: &Informer<Pod>) {
    pods.add_index(USERS, |object| object.typed::<Pod>().map(|pod| claims_of(&pod)).unwrap_or_default());
}

pub fn make_claims(setup: &mut Setup) -> Arc<dyn Controller> {
    let (claims, pods) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<Pod>());
    by_claim(&pods);
    setup.on_keys(&claims);
    setup.on(&pods, |change, queue| {
        let free = change.new.as_ref().is_none_or(|pod| pods::finished(pod));
        if let Some(pod) = change.old.as_ref().or(change.new.as_ref()).filter(|_| free) {
            claims_of(pod).into_iter().for_each(|claim| queue.add(claim));
        }
    });
    Arc::new(Claims { context: setup.context.clone(), claims, pods })
}

struct Claims {
    context: Context,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

#[async_trait]
impl Controller for Claims {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(claim) = self.claims.get(key) else { return Ok(None) };
        // A pod that has finished but still exists on a node may have the volume mounted; upstream lets it go too.
        let used = || self.pods.by_index(USERS, key).iter().any(|p| !pods::finished(p));
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        protect(&api, &*claim, CLAIM, used).await.map(|()| None)
    }
}

pub fn make_volumes(setup: &mut Setup) -> Arc<dyn Controller> {
    let volumes = setup.informer::<PersistentVolume>();
    setup.on_keys(&volumes);
    Arc::new(Volumes { context: setup.context.clone(), volumes })
}

struct Volumes {
    context: Context,
    volumes: Informer<PersistentVolume>,
}

#[async_trait]
impl Controller for Volumes {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(volume) = self.volumes.get(key) else { return Ok(None) };
        let bound = || volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let api = self.context.client.api::<PersistentVolume>();
        protect(&api, &*volume, VOLUME, bound).await.map(|()| None)
    }
}

/// The classes that a claim has, had last, or is on its way to.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let names = [
        claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone()),
        status.and_then(|s| s.current_volume_attributes_class_name.clone()),
        status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone()),
    ];
    names.into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    name.into_iter().filter(|name| !name.is_empty()).collect()
}

pub fn make_classes(setup: &mut Setup) -> Arc<dyn Controller> {
    let classes = setup.informer::<VolumeAttributesClass>();
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    claims.add_index(NAMED, |object| object.typed().map(|claim| classes_of_claim(&claim)).unwrap_or_default());
    volumes.add_index(NAMED, |object| object.typed().map(|volume| classes_of_volume(&volume)).unwrap_or_default());
    setup.on_keys(&classes);
    setup.on(&claims, |change, queue| {
        let named = |claim: &Option<Arc<_>>| claim.as_deref().map(classes_of_claim).unwrap_or_default();
        let now = named(&change.new);
        named(&change.old).into_iter().filter(|name| !now.contains(name)).for_each(|name| queue.add(name));
    });
    setup.on(&volumes, |change, queue| {
        let named = |volume: &Option<Arc<_>>| volume.as_deref().map(classes_of_volume).unwrap_or_default();
        let now = named(&change.new);
        named(&change.old).into_iter().filter(|name| !now.contains(name)).for_each(|name| queue.add(name));
    });
    Arc::new(Classes { context: setup.context.clone(), classes, claims, volumes })
}

struct Classes {
    context: Context,
    classes: Informer<VolumeAttributesClass>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

#[async_trait]
impl Controller for Classes {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(class) = self.classes.get(key) else { return Ok(None) };
        let used = || {
            let (claims, volumes) = (self.claims.objects(), self.volumes.objects());
            !claims.by_index(NAMED, key).is_empty() || !volumes.by_index(NAMED, key).is_empty()
        };
        protect(&self.context.client.api::<VolumeAttributesClass>(), &*class, CLASS, used).await.map(|()| None)
    }
}

async fn protect<K: Object + Serialize + DeserializeOwned>(
    api: &client::Api<K>,
    object: &K,
    finalizer: &str,
    used: impl Fn() -> bool,
) -> Result<(), ApiError> {
    let held = object.finalizers().iter().any(|f| f == finalizer);
    let mut finalizers = object.finalizers().to_vec();
    match (object.deleting(), held) {
        (false, false) => finalizers.push(finalizer.to_string()),
        (true, true) if !used() => finalizers.retain(|f| f != finalizer),
        _ => return Ok(()),
    }
    let meta =
        json!({ "uid": object.uid(), "resourceVersion": object.meta().resource_version, "finalizers": finalizers });
    match api.patch(object.name(), &Patch::Merge(json!({ "metadata": meta }))).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
