//! Keeps claims that pods use, volumes that claims use, and attribute classes that either names from vanishing.
//! The finalizers are added here too, for objects that came without them.
//! A finalizer goes only when the object is being deleted and nothing uses it.

use std::sync::Arc;

use api::{ApiError, volume_claims};
use async_trait::async_trait;
use client::{Informer, ListParams, Patch};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume},
    storage::v1::VolumeAttributesClass,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    common::{
        meta::{self, Object},
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
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
    let names = volumes.into_iter().flatten().filter_map(|volume| volume_claims::claim_name(pod, volume));
    names.map(|name| meta::key(pod.namespace(), &name)).collect()
}

pub(super) fn by_claim(pods: &Informer<Pod>) {
    pods.add_index(USERS, |object| object.typed::<Pod>().map(|pod| claims_of(&pod)).unwrap_or_default());
}

pub fn make_claims(setup: &mut Setup) -> Arc<dyn Controller> {
    let (claims, pods) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<Pod>());
    by_claim(&pods);
    setup.on_keys(&claims);
    setup.on(&pods, |change, queue| {
        let gone = |old: &&Arc<Pod>| change.new.as_ref().is_none_or(|new| new.uid() != old.uid());
        let free = |new: &&Arc<Pod>| pods::node_name(new).is_empty() || shut_down(new);
        let helps = change.old.iter().filter(gone).chain(change.new.iter().filter(free));
        helps.flat_map(|pod| claims_of(pod)).for_each(|claim| queue.add(claim));
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
        let going = claim.deleting() && claim.finalizers().iter().any(|f| f == CLAIM);
        let used = going && self.used(key, &claim).await?;
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(claim.namespace());
        protect(&api, &*claim, CLAIM, || used).await.map(|()| None)
    }
}

impl Claims {
    /// The cache is asked first; but it may not show yet that a pod has got its node, and data is lost for good.
    async fn used(&self, key: &str, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
        if self.pods.by_index(USERS, key).iter().any(|pod| uses(pod, claim)) {
            return Ok(true);
        }
        let api = self.context.client.namespaced::<Pod>(claim.namespace());
        Ok(api.list(&ListParams::default()).await?.items.iter().any(|pod| uses(pod, claim)))
    }
}

/// Whether the pod may have the claim's volume mounted. Before it has a node it can't, and no kubelet starts it with a
/// claim that is being deleted. A finished pod may: its volumes are taken down later.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let named = |volume: &Volume| {
        let is_generated = volume.persistent_volume_claim.is_none();
        volume_claims::claim_name(pod, volume).is_some_and(|name| name == claim.name())
            && (!is_generated || (claim.controlled_by(pod.uid()) && !shut_down(pod)))
    };
    !pods::node_name(pod).is_empty() && volumes.into_iter().flatten().any(named)
}

/// The kubelet is done with the pod, or it was deleted by force; finalizers may still hold it, even for its own claim.
fn shut_down(pod: &Pod) -> bool {
    pod.deleting() && pod.metadata.deletion_grace_period_seconds == Some(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_may_have_a_claim_mounted() {
        // Node, phase, grace period that is left of a deletion; then whether a claim and an ephemeral claim are in use.
        let check = |node: &str, phase: &str, grace: Option<i64>, expected: (bool, bool)| {
            let deleted = grace.map(|_| "2026-01-01T00:00:00Z");
            let pod: Pod = serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "d", "uid": "u", "deletionTimestamp": deleted,
                    "deletionGracePeriodSeconds": grace },
                "spec": { "containers": [], "nodeName": node, "volumes": [{ "name": "own", "ephemeral": {} },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] },
                "status": { "phase": phase },
            }))
            .unwrap();
            let claim = |name: &str, owner: &str| -> PersistentVolumeClaim {
                let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true });
                let meta = json!({ "name": name, "namespace": "d", "ownerReferences": [owner] });
                serde_json::from_value(json!({ "metadata": meta })).unwrap()
            };
            let found = (uses(&pod, &claim("data", "x")), uses(&pod, &claim("p-own", "u")));
            assert_eq!(found, expected, "{node} {phase} {grace:?}");
            assert!(!uses(&pod, &claim("p-own", "x")) && !uses(&pod, &claim("other", "u")));
        };
        check("", "Pending", None, (false, false));
        check("n", "Pending", None, (true, true));
        check("n", "Running", Some(30), (true, true));
        check("n", "Succeeded", None, (true, true));
        check("n", "Failed", Some(0), (true, false));
        check("n", "Running", Some(0), (true, false));
    }
}
