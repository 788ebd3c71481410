//! Volumes that only one pod, or one node, may use at a time.
//! Claims in use are kept by `node_info`; inline disks are compared pod by pod.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Volume;
use serde::Serialize;
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, PreFilterPlugin, PreFilterResult,
        QueueingHint, SignPlugin, Status,
    },
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
};

const DISK: &str = "node(s) had no available disk";
const ONE_POD: &str =
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

pub struct VolumeRestrictions;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(VolumeRestrictions).pre_filter().filter().enqueue_extensions().sign().build())
}

/// A disk that a pod names itself, without a claim.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disk {
    id: String,
    /// Who keeps it, where the same name elsewhere is another disk. Clusters that share one are the same.
    monitors: Vec<String>,
    read_only: bool,
}

impl Disk {
    pub fn of(volume: &Volume) -> Option<Self> {
        let (id, read_only) = if let Some(disk) = &volume.gce_persistent_disk {
            (format!("gce/{}", disk.pd_name), disk.read_only)
        } else if let Some(disk) = &volume.aws_elastic_block_store {
            // Never shared, not even to read.
            (format!("aws/{}", disk.volume_id), None)
        } else if let Some(disk) = &volume.iscsi {
            (format!("iscsi/{}", disk.iqn), disk.read_only)
        } else {
            let disk = volume.rbd.as_ref()?;
            let pool = disk.pool.as_deref().unwrap_or("rbd");
            (format!("rbd/{pool}/{}", disk.image), disk.read_only)
        };
        let monitors = volume.rbd.as_ref().map(|disk| disk.monitors.clone()).unwrap_or_default();
        Some(Self { id, monitors, read_only: read_only.unwrap_or(false) })
    }

    fn clashes_with(&self, other: &Self) -> bool {
        let shared = self.monitors.iter().any(|monitor| other.monitors.contains(monitor));
        let same_place = shared || (self.monitors.is_empty() && other.monitors.is_empty());
        self.id == other.id && same_place && !(self.read_only && other.read_only)
    }
}

#[derive(Clone)]
struct Restricted<'a> {
    disks: &'a [Disk],
    exclusive: HashSet<&'a str>,
    /// How many uses of the exclusive claims there are.
    uses: i64,
}

/// Claims that only one pod may use at a time.
fn exclusive_claims<'a>(cluster: &'a Cluster, pod: &'a PendingPod) -> impl Iterator<Item = &'a str> {
    let is_exclusive = |key: &&String| {
        let modes = cluster.claims.get(*key).and_then(|c| c.spec.as_ref()?.access_modes.as_ref());
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
    };
    pod.claims.iter().filter(is_exclusive).map(String::as_str)
}

impl PreFilterPlugin for VolumeRestrictions {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        let restricted = !pod.disks.is_empty() || exclusive_claims(cluster, pod).next().is_some();
        if restricted { PreFilterResult::AllNodes } else { PreFilterResult::Skip }
    }
}

impl FilterPlugin for VolumeRestrictions {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let exclusive: HashSet<&str> = exclusive_claims(cluster, pod).collect();
        let used = |node: &NodeInfo| -> i64 {
            exclusive.iter().filter_map(|claim| node.claims.get(*claim)).map(|count| i64::from(*count)).sum()
        };
        let uses = if exclusive.is_empty() { 0 } else { cluster.cache.nodes().iter().map(used).sum() };
        Box::new(Restricted { disks: &pod.disks, exclusive, uses })
    }
}

impl EnqueueExtensions for VolumeRestrictions {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::PodGone(gone) => {
                let clash = |disk: &Disk| gone.disks.iter().any(|other| disk.clashes_with(other));
                gone.claims.iter().any(|claim| pod.claims.contains(claim)) || pod.disks.iter().any(clash)
            }
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Node { change, .. } => change.added,
            _ => false,
        })
    }
}

impl SignPlugin for VolumeRestrictions {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.claims();
        signature.disks();
    }
}

impl<'a> NodeFilter<'a> for Restricted<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if !self.disks.is_empty() {
            let mut used = node.pods.iter().flat_map(|pod| &pod.disks);
            if used.any(|disk| self.disks.iter().any(|wanted| wanted.clashes_with(disk))) {
                return Err(Status::unschedulable(DISK));
            }
        }
        if self.uses > 0 { Err(Status::unschedulable(ONE_POD)) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }

    fn add_pod(&mut self, pod: &PodInfo, _: &NodeInfo) {
        self.uses += self.uses_by(pod);
    }

    fn remove_pod(&mut self, pod: &PodInfo, _: &NodeInfo) {
        self.uses -= self.uses_by(pod);
    }
}

impl Restricted<'_> {
    fn uses_by(&self, pod: &PodInfo) -> i64 {
        pod.claims.iter().filter(|claim| self.exclusive.contains(claim.as_str())).count() as i64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, cluster, node, pod, verdicts};

    fn check(volume: Value, mode: &str, used: Option<Value>, wanted: Result<(), &str>) {
        let with = |volume: Value| pod(json!({"volumes": [volume]}));
        let pods = used.into_iter().map(|volume| ("n", with(volume))).collect();
        let mut cluster = cluster(&[node("n")], pods);
        let claim = json!({"metadata": {}, "spec": {"accessModes": [mode]}});
        cluster.claims.insert("default/data".into(), Arc::new(serde_json::from_value(claim).unwrap()));
        let found = verdicts(&built(new), &with(volume), &cluster).pop().unwrap();
        assert_eq!(found.map_err(|f| f.message()), wanted.map_err(str::to_string));
    }

    #[test]
    fn some_volumes_are_not_shared() {
        let claim = || json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
        let disk = |read_only: bool| json!({"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": read_only}});
        check(claim(), "ReadWriteOncePod", None, Ok(()));
        check(claim(), "ReadWriteOncePod", Some(claim()), Err(ONE_POD));
        check(claim(), "ReadWriteOnce", Some(claim()), Ok(()));
        check(disk(false), "", Some(disk(true)), Err(DISK));
        check(disk(true), "", Some(disk(true)), Ok(()));
    }

    #[test]
    fn block_devices_are_the_same_where_one_monitor_is() {
        let rbd = |monitors: &[&str], pool: Option<&str>, image: &str, read_only: bool| {
            let mut rbd = json!({"monitors": monitors, "image": image, "readOnly": read_only});
            if let Some(pool) = pool {
                rbd["pool"] = json!(pool);
            }
            json!({"name": "v", "rbd": rbd})
        };
        let used = || Some(rbd(&["a", "b"], None, "i", false));
        check(rbd(&["b", "c"], Some("rbd"), "i", true), "", used(), Err(DISK));
        check(rbd(&["b", "a"], None, "i", false), "", used(), Err(DISK));
        check(rbd(&["c"], None, "i", false), "", used(), Ok(()));
        check(rbd(&["a"], Some("other"), "i", false), "", used(), Ok(()));
        check(rbd(&["a"], None, "other", false), "", used(), Ok(()));
        check(rbd(&["a"], None, "i", true), "", Some(rbd(&["a"], None, "i", true)), Ok(()));
    }
}
