//! A CSI driver can attach only so many volumes to a node.
//! Limits come from CSINode objects; volumes in use from the pods that `node_info` holds, and from what is attached
//! still or already.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::volume_binding::claims::{class, volume_name};

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, PreFilterPlugin, PreFilterResult,
        QueueingHint, SignPlugin, Status,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const REASON: &str = "node(s) exceed max volume count";

pub struct NodeVolumeLimits;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(NodeVolumeLimits).pre_filter().filter().enqueue_extensions().sign().build())
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

/// What is attached to a node, whether or not a pod is known to use it.
fn attached<'a>(cluster: &'a Cluster, node: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let all = cluster.volume_attachments.get(node).into_iter().flat_map(|of_node| of_node.values());
    all.filter_map(|attachment| {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        let csi = cluster.volumes.get(name)?.spec.as_ref()?.csi.as_ref()?;
        Some((attachment.spec.attacher.as_str(), csi.volume_handle.as_str()))
    })
}

#[derive(Clone)]
struct Limits<'a> {
    cluster: &'a Cluster,
    wanted: Vec<(&'a str, &'a str)>,
}

impl PreFilterPlugin for NodeVolumeLimits {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        let attaches = pod.claims.iter().any(|key| attachment(cluster, key).is_some());
        if attaches { PreFilterResult::AllNodes } else { PreFilterResult::Skip }
    }
}

impl FilterPlugin for NodeVolumeLimits {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let wanted = pod.claims.iter().filter_map(|key| attachment(cluster, key)).collect();
        Box::new(Limits { cluster, wanted })
    }
}

impl EnqueueExtensions for NodeVolumeLimits {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::PodGone(gone) => !gone.claims.is_empty(),
            ClusterEvent::CsiNode | ClusterEvent::Volume | ClusterEvent::VolumeAttachmentGone => true,
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Node { change, .. } => change.added,
            _ => false,
        })
    }
}

impl SignPlugin for NodeVolumeLimits {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.claims();
    }
}

impl<'a> NodeFilter<'a> for Limits<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
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
        let new: HashSet<(&str, &str)> = self.wanted.iter().copied().filter(|wanted| !used.contains(wanted)).collect();
        let attached = attached(self.cluster, &node.name).filter(|volume| !used.contains(volume));
        let taken: Vec<&str> = used.iter().copied().chain(attached).map(|(driver, _)| driver).collect();
        let over = |driver: &str, limit: i32| {
            let added = new.iter().filter(|(of, _)| *of == driver).count();
            let taken = taken.iter().filter(|of| **of == driver).count();
            added > 0 && (added + taken) as i64 > i64::from(limit)
        };
        match limits.iter().any(|(driver, limit)| over(driver, *limit)) {
            true => Err(Status::unschedulable(REASON)),
            false => Ok(()),
        }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, cluster, node, pod, verdicts};

    fn check(limit: i32, used: &[&str], attached: &[&str], wanted: &str, accepted: bool) {
        let with =
            |claim: &str| pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}));
        let mut cluster = cluster(&[node("n")], used.iter().map(|claim| ("n", with(claim))).collect());
        for name in attached {
            let spec = json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": name}});
            let attachment = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
            let of_node = cluster.volume_attachments.entry("n".into()).or_default();
            of_node.insert(name.to_string(), Arc::new(attachment));
        }
        for name in used.iter().chain(attached).chain([&wanted]) {
            let claim = json!({"metadata": {}, "spec": {"volumeName": name}});
            cluster.claims.insert(format!("default/{name}"), Arc::new(serde_json::from_value(claim).unwrap()));
            let volume = json!({"metadata": {}, "spec": {"csi": {"driver": "d", "volumeHandle": name}}});
            cluster.volumes.insert(name.to_string(), Arc::new(serde_json::from_value(volume).unwrap()));
        }
        let drivers = json!([{"name": "d", "nodeID": "n", "allocatable": {"count": limit}}]);
        let csi_node = json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
        cluster.csi_nodes.insert("n".into(), Arc::new(serde_json::from_value(csi_node).unwrap()));
        assert_eq!(verdicts(&built(new), &with(wanted), &cluster)[0].is_ok(), accepted);
    }

    #[test]
    fn volumes_are_counted_once_each() {
        check(2, &["a"], &[], "b", true);
        check(2, &["a", "b"], &[], "c", false);
        check(2, &["a", "b"], &[], "b", true);
        check(2, &["a"], &["a"], "b", true);
        // Its pod is gone, it is not.
        check(2, &["a"], &["gone"], "b", false);
        check(2, &["a"], &["gone"], "a", true);
    }
}
