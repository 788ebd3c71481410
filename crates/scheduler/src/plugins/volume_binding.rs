//! A pod's claims must be usable on its node: bound volumes reachable, unbound ones satisfiable.
//! The matching is in `volumes`; carrying it out is `scheduler`'s and `binding`'s.

use std::sync::Arc;

use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared},
    node_info::NodeInfo,
    pod_info::WaitingPod,
    volumes::{self, is_bound, reachable, volume_name, waits_for_node},
};

const NOT_FOUND: &str = "node(s) didn't find available persistent volumes to bind";
const UNREACHABLE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";

pub struct VolumeBinding;

pub fn build(arguments: &Value) -> Built {
    if !arguments["shape"].is_null() {
        return Err("shape: Forbidden: volumes are not scored by their capacity".into());
    }
    Ok(Arc::new(VolumeBinding))
}

#[derive(Clone)]
struct Usable<'a> {
    cluster: &'a Cluster,
    pod: &'a WaitingPod,
    waiting: bool,
}

/// Why the pod can't be scheduled anywhere yet.
fn obstacle(cluster: &Cluster, pod: &WaitingPod) -> Option<String> {
    for key in &pod.claims {
        let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
        let Some(claim) = cluster.claims.get(key) else {
            let named = pod.spec().and_then(|s| s.volumes.as_ref()).into_iter().flatten();
            let is_named = named.filter_map(|v| v.persistent_volume_claim.as_ref()).any(|c| c.claim_name == name);
            return Some(match is_named {
                true => format!("persistentvolumeclaim {name:?} not found"),
                false => {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                }
            });
        };
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
            let volume = volume_name(claim).unwrap_or_default();
            return Some(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if !is_bound(claim) && (volume_name(claim).is_some() || !waits_for_node(cluster, claim)) {
            return Some(IMMEDIATE.into());
        }
    }
    None
}

impl Plugin for VolumeBinding {
    fn filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        if pod.claims.is_empty() {
            return Prepared::Skip;
        }
        if let Some(reason) = obstacle(cluster, pod) {
            return Prepared::Reject(Failure::unresolvable(reason));
        }
        let waiting = !volumes::all_bound(cluster, pod);
        Prepared::Filter(Box::new(Usable { cluster, pod, waiting }))
    }

    fn helps(&self, _: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Volume | ClusterEvent::StorageClass => true,
            ClusterEvent::Node { change, .. } => change.labels,
            _ => false,
        }
    }
}

impl<'a> Filter<'a> for Usable<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        let mut reasons = Vec::new();
        for claim in self.pod.claims.iter().filter_map(|key| self.cluster.claims.get(key)).filter(|c| is_bound(c)) {
            match volume_name(claim).and_then(|name| self.cluster.volumes.get(name)) {
                None => reasons.push(NO_VOLUME),
                Some(volume) if !reachable(volume, node) => reasons.push(UNREACHABLE),
                Some(_) => {}
            }
        }
        if self.waiting && volumes::steps(self.cluster, self.pod, node).is_none() {
            reasons.push(NOT_FOUND);
        }
        reasons.dedup();
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Failure { reasons: reasons.into_iter().map(Into::into).collect(), resolvable: false })
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{cluster, labelled, pod, verdicts};

    /// On node n in zone 1: the claim's spec and annotations, the class's mode and provisioner, the volume's zone.
    fn check(claim: Option<Value>, class: (&str, &str), volume_zone: Option<&str>, wanted: Result<(), &str>) {
        let mut cluster = cluster(&[labelled("n", &[("zone", "1")])], vec![]);
        if let Some(mut claim) = claim {
            claim["spec"]["storageClassName"] = json!("fast");
            claim["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
            claim["metadata"]["namespace"] = json!("default");
            cluster.claims.insert("default/data".into(), Arc::new(serde_json::from_value(claim).unwrap()));
        }
        let class = json!({"metadata": {}, "volumeBindingMode": class.0, "provisioner": class.1});
        cluster.storage_classes.insert("fast".into(), Arc::new(serde_json::from_value(class).unwrap()));
        if let Some(zone) = volume_zone {
            let volume = json!({"metadata": {}, "spec": {"storageClassName": "fast", "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"], "nodeAffinity": {"required": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}}}});
            cluster.volumes.insert("pv".into(), Arc::new(serde_json::from_value(volume).unwrap()));
        }
        let pod = pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}));
        let found = verdicts(&VolumeBinding, &pod, &cluster).pop().unwrap();
        assert_eq!(found.map_err(|f| f.reasons.join(", ")), wanted.map_err(str::to_string));
    }

    #[test]
    fn claims_decide_where_a_pod_can_run() {
        let late = ("WaitForFirstConsumer", "kubernetes.io/no-provisioner");
        let dynamic = ("WaitForFirstConsumer", "example.com/disk");
        let open = || Some(json!({"metadata": {"name": "data"}, "spec": {}}));
        let bound = || {
            let annotations = json!({"pv.kubernetes.io/bind-completed": "yes"});
            Some(json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": "pv"}}))
        };
        let elsewhere = Some(json!({"metadata": {"annotations": {SELECTED_NODE: "m"}}, "spec": {}}));
        check(None, late, None, Err("persistentvolumeclaim \"data\" not found"));
        check(open(), ("Immediate", "example.com/disk"), None, Err(IMMEDIATE));
        check(open(), late, None, Err(NOT_FOUND));
        check(open(), late, Some("1"), Ok(()));
        check(open(), late, Some("2"), Err(NOT_FOUND));
        check(open(), dynamic, None, Ok(()));
        check(elsewhere, dynamic, None, Err(NOT_FOUND));
        check(bound(), late, Some("1"), Ok(()));
        check(bound(), late, Some("2"), Err(UNREACHABLE));
        check(bound(), late, None, Err(NO_VOLUME));
    }

    use volumes::SELECTED_NODE;
}
