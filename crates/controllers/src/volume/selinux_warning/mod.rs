//! Tells pods that share a volume and want it with different SELinux labels: on one node only one of them could have it.
//! `conflicts` is the core; the kubelet mounts with the labels (`csi::mounter`). Keys are pods.
//! Only warns; assumes that every node has SELinux, so it runs only where it is asked for.

mod conflicts;

use std::{collections::BTreeSet, sync::Arc};

use api::{
    csi,
    selinux::{self, RECURSIVE},
    volume_claims,
};
use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use conflicts::{Conflict, Conflicts, PodKey, VolumeUse};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume},
    storage::v1::CSIDriver,
};
use metrics::Family;
use parking_lot::Mutex;

use super::{
    matching::claim_ref,
    protection::{USERS, by_claim},
};
use crate::{
    common::{
        meta::{self, Object},
        pods,
    },
    runner::{Context, Controller, Outcome, Queue, Setup},
};

static CONFLICTS: Family = Family::gauge(
    "selinux_warning_controller_selinux_volume_conflict",
    &["property", "pod1_namespace", "pod1_name", "pod1_value", "pod2_namespace", "pod2_name", "pod2_value"],
    "Pods that want one volume with different SELinux labels.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (pods, drivers) = (setup.informer::<Pod>(), setup.informer::<CSIDriver>());
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    by_claim(&pods);
    setup.on(&pods, |change, queue| {
        // What matters of a living pod never changes.
        let ends =
            |old: &Arc<Pod>, new: &Arc<Pod>| pods::finished(new) != pods::finished(old) || new.uid() != old.uid();
        match (&change.old, &change.new) {
            (Some(old), Some(new)) if !ends(old, new) => {}
            _ => queue.add(change.key.clone()),
        }
    });
    let users = {
        let pods = pods.clone();
        move |claim: &str, queue: &Queue| pods.by_index(USERS, claim).iter().for_each(|pod| queue.add(pod.key()))
    };
    setup.on(&claims, {
        let users = users.clone();
        move |change, queue| {
            let volume = |claim: &Option<Arc<PersistentVolumeClaim>>| {
                claim.as_ref().and_then(|claim| claim.spec.as_ref()?.volume_name.clone())
            };
            if change.new.is_some() && volume(&change.old) != volume(&change.new) {
                users(&change.key, queue);
            }
        }
    });
    setup.on(&volumes, {
        let users = users.clone();
        move |change, queue| {
            let claim = |volume: &Option<Arc<PersistentVolume>>| volume.as_deref().and_then(claim_key);
            if let Some(claim) = claim(&change.new).filter(|now| claim(&change.old).as_ref() != Some(now)) {
                users(&claim, queue);
            }
        }
    });
    let conflicts: Arc<Mutex<Conflicts>> = Arc::default();
    setup.on(&drivers, {
        let (volumes, pods, conflicts) = (volumes.clone(), pods.clone(), conflicts.clone());
        move |change, queue| {
            let mounts = |driver: &Option<Arc<CSIDriver>>| driver.as_ref().and_then(|d| d.spec.se_linux_mount);
            if mounts(&change.old).unwrap_or(false) == mounts(&change.new).unwrap_or(false) {
                return;
            }
            let of_driver = volumes.list().into_iter().filter(|volume| driver_of(volume) == Some(change.key.as_str()));
            let claims: Vec<String> = of_driver.filter_map(|volume| claim_key(&volume)).collect();
            // What all of them wanted before is no conflict with what the first of them wants now.
            for pod in claims.iter().flat_map(|claim| pods.by_index(USERS, claim)) {
                conflicts.lock().remove_pod(&(pod.namespace().into(), pod.name().into()));
            }
            claims.iter().for_each(|claim| users(claim, queue));
        }
    });
    let recorder = setup.context.recorder("selinux_warning");
    let context = setup.context.clone();
    Arc::new(SelinuxWarning { context, pods, claims, volumes, drivers, recorder, conflicts })
}

/// The claim that a volume is bound to for good.
fn claim_key(volume: &PersistentVolume) -> Option<String> {
    let claim = claim_ref(volume).filter(|claim| claim.uid.as_ref().is_some_and(|uid| !uid.is_empty()))?;
    Some(meta::key(claim.namespace.as_deref()?, claim.name.as_deref()?))
}

fn driver_of(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.driver.as_str())
}

struct SelinuxWarning {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    drivers: Informer<CSIDriver>,
    recorder: EventRecorder,
    conflicts: Arc<Mutex<Conflicts>>,
}

/// What several pods may share.
struct SharedVolume {
    unique_name: String,
    /// Whether it can be mounted with a label.
    has_mount_option: bool,
}

#[async_trait]
impl Controller for SelinuxWarning {
    async fn reconcile(&self, key: &str) -> Outcome {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let pod_key = (namespace.to_string(), name.to_string());
        match self.pods.get(key).filter(|pod| !pods::finished(pod)) {
            None => {
                self.conflicts.lock().remove_pod(&pod_key);
                self.show(&BTreeSet::new());
            }
            Some(pod) => self.look_at(&pod, &pod_key),
        }
        Ok(None)
    }
}

impl SelinuxWarning {
    fn look_at(&self, pod: &Pod, key: &PodKey) {
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(shared) = self.shared(pod, volume).filter(|_| selinux::is_mounted(pod, &volume.name)) else {
                continue;
            };
            let options = selinux::options_of_volume(pod, &volume.name);
            let labels: BTreeSet<String> = options.into_iter().map(selinux::label).collect();
            if labels.len() > 1 {
                let name = &volume.name;
                let message = format!("Volume {name:?} is mounted twice with different SELinux labels inside this pod");
                self.recorder.warning(&reference(pod), "MultipleSELinuxLabels", message);
                continue;
            }
            let policy = selinux::change_policy(pod);
            let label = labels.into_iter().next().filter(|_| shared.has_mount_option && policy != RECURSIVE);
            let wanted = match label.filter(|label| !label.is_empty()) {
                Some(label) => VolumeUse { label, policy: policy.into() },
                None => VolumeUse { label: String::new(), policy: RECURSIVE.into() },
            };
            let found = self.conflicts.lock().set(key, &shared.unique_name, wanted);
            self.tell(&found);
            self.show(&found);
        }
    }

    /// What other pods may have too. Not known before a claim is bound.
    fn shared(&self, pod: &Pod, volume: &Volume) -> Option<SharedVolume> {
        let persistent = volume_claims::claim_name(pod, volume).and_then(|name| {
            let claim = self.claims.get(&meta::key(pod.namespace(), &name))?;
            self.volumes.get(claim.spec.as_ref()?.volume_name.as_deref()?)
        });
        if let Some(source) = persistent.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref()) {
            let driver = self.drivers.get(&source.driver);
            return Some(SharedVolume {
                unique_name: csi::unique_volume_name(&source.driver, &source.volume_handle),
                has_mount_option: driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true)),
            });
        }
        let spec = persistent.as_ref().and_then(|volume| volume.spec.as_ref());
        let iscsi = spec.and_then(|spec| spec.iscsi.as_ref());
        let iscsi = iscsi.map(|source| (&source.target_portal, &source.iqn, source.lun));
        let iscsi = iscsi.or(volume.iscsi.as_ref().map(|source| (&source.target_portal, &source.iqn, source.lun)));
        let fc = spec.and_then(|spec| spec.fc.as_ref()).or(volume.fc.as_ref());
        let unique_name = match (iscsi, fc) {
            (Some((portal, iqn, lun)), _) => format!("kubernetes.io/iscsi/{portal}:{iqn}:{lun}"),
            (None, Some(fc)) => match (&fc.target_wwns, &fc.wwids) {
                (Some(names), _) if !names.is_empty() => {
                    format!("kubernetes.io/fc/[{}]:{}", names.join(" "), fc.lun.unwrap_or_default())
                }
                (_, ids) => format!("kubernetes.io/fc/[{}]", ids.as_deref().unwrap_or_default().join(" ")),
            },
            (None, None) => return None,
        };
        Some(SharedVolume { unique_name, has_mount_option: true })
    }

    fn tell(&self, found: &BTreeSet<Conflict>) {
        for conflict in found {
            if let Some(pod) = self.pods.get(&meta::key(&conflict.pod.0, &conflict.pod.1)) {
                self.recorder.normal(&reference(&*pod), &conflict.event_reason(), conflict.message());
            }
        }
    }

    /// Takes away what is no more, and adds what was found.
    fn show(&self, found: &BTreeSet<Conflict>) {
        let metrics = &self.context.config.metrics;
        {
            let conflicts = self.conflicts.lock();
            let current: BTreeSet<[&str; 7]> = conflicts.current().into_iter().map(labels).collect();
            metrics.retain(&CONFLICTS, |shown| {
                let shown: Vec<&str> = shown.iter().map(|label| &**label).collect();
                <[&str; 7]>::try_from(shown).is_ok_and(|shown| current.contains(&shown))
            });
        }
        found.iter().for_each(|conflict| metrics.set(&CONFLICTS, &labels(conflict), 1.0));
    }
}

fn labels(conflict: &Conflict) -> [&str; 7] {
    let (pod, other) = (&conflict.pod, &conflict.other_pod);
    [conflict.property, &pod.0, &pod.1, &conflict.value, &other.0, &other.1, &conflict.other_value]
}
