//! A CSI driver can attach only so many volumes to a node.
//! Limits come from CSINode objects; volumes in use from the pods that `node_info` holds.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared},
    node_info::NodeInfo,
    pod_info::WaitingPod,
    volumes::{class, volume_name},
};

const REASON: &str = "node(s) exceed max volume count";

pub struct NodeVolumeLimits;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(NodeVolumeLimits))
}

/// The driver of a claim's volume and a name for the volume that is the same for all its users.
fn attachment<'a>(cluster: &'a Cluster, key: &'a str) -> Option<(&'a str, &'a str)> {
    let claim = cluster.claims.get(key)?;
    match volume_name(claim).and_then(|name| cluster.volumes.get(name)) {
        Some(volume) => {
            let csi = volume.spec.as_ref()?.csi.as_ref()?;
            Some((&csi.driver, &csi.volume_handle))
        }
        // Not made yet: it will be one of its class's.
        None => class(cluster, claim).map(|class| (class.provisioner.as_str(), key)),
    }
}

#[derive(Clone)]
struct Limits<'a> {
    cluster: &'a Cluster,
    wanted: Vec<(&'a str, &'a str)>,
}

impl Plugin for NodeVolumeLimits {
    fn filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        let wanted: Vec<_> = pod.claims.iter().filter_map(|key| attachment(cluster, key)).collect();
        if wanted.is_empty() { Prepared::Skip } else { Prepared::Filter(Box::new(Limits { cluster, wanted })) }
    }

    fn helps(&self, _: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::PodGone(gone) => !gone.claims.is_empty(),
            ClusterEvent::CsiNode | ClusterEvent::Volume => true,
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Node { change, .. } => change.added,
            _ => false,
        }
    }
}

impl<'a> Filter<'a> for Limits<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        let Some(csi_node) = self.cluster.csi_nodes.get(&*node.name) else { return Ok(()) };
        let limits: HashMap<&str, i32> = csi_node
            .spec
            .drivers
            .iter()
            .filter_map(|driver| Some((driver.name.as_str(), driver.allocatable.as_ref()?.count?)))
            .collect();
        if !self.wanted.iter().any(|(driver, _)| limits.contains_key(driver)) {
            return Ok(());
        }
        let used: HashSet<(&str, &str)> = node.claims.keys().filter_map(|key| attachment(self.cluster, key)).collect();
        let all: HashSet<(&str, &str)> = used.iter().copied().chain(self.wanted.iter().copied()).collect();
        let over = |driver: &str, limit: i32| {
            let is_new = self.wanted.iter().any(|w| w.0 == driver && !used.contains(w));
            is_new && all.iter().filter(|(of, _)| *of == driver).count() as i64 > i64::from(limit)
        };
        match limits.iter().any(|(driver, limit)| over(driver, *limit)) {
            true => Err(Failure::resolvable(REASON)),
            false => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{cluster, node, pod, verdicts};

    fn check(limit: i32, used: &[&str], wanted: &str, accepted: bool) {
        let with =
            |claim: &str| pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}));
        let mut cluster = cluster(&[node("n")], used.iter().map(|claim| ("n", with(claim))).collect());
        for name in used.iter().chain([&wanted]) {
            let claim = json!({"metadata": {}, "spec": {"volumeName": name}});
            cluster.claims.insert(format!("default/{name}"), Arc::new(serde_json::from_value(claim).unwrap()));
            let volume = json!({"metadata": {}, "spec": {"csi": {"driver": "d", "volumeHandle": name}}});
            cluster.volumes.insert(name.to_string(), Arc::new(serde_json::from_value(volume).unwrap()));
        }
        let drivers = json!([{"name": "d", "nodeID": "n", "allocatable": {"count": limit}}]);
        let csi_node = json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
        cluster.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi_node).unwrap()));
        assert_eq!(verdicts(&NodeVolumeLimits, &with(wanted), &cluster)[0].is_ok(), accepted);
    }

    #[test]
    fn volumes_are_counted_once_each() {
        check(2, &["a"], "b", true);
        check(2, &["a", "b"], "c", false);
        check(2, &["a", "b"], "b", true);
    }
}
