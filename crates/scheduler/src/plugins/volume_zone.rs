//! A volume that is labelled with zones or regions can be used only on nodes with the same labels.
//! For volumes without node affinity; those with it are `volume_binding`'s.

use serde_json::Value;

use super::volume_binding::claims::volume_name;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, PreFilterPlugin, PreFilterResult,
        QueueingHint, SignPlugin, Status,
    },
    node_info::{NodeInfo, REGION, ZONE},
    pod_info::PendingPod,
};

const REASON: &str = "node(s) had no available volume zone";
const LABELS: [(&str, &str); 2] = [ZONE, REGION];

pub struct VolumeZone;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(VolumeZone).pre_filter().filter().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Zones(Vec<(&'static str, &'static str, Vec<String>)>);

impl PreFilterPlugin for VolumeZone {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        if zones(cluster, pod).is_empty() { PreFilterResult::Skip } else { PreFilterResult::AllNodes }
    }
}

impl FilterPlugin for VolumeZone {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Zones(zones(cluster, pod)))
    }
}

/// Label names, new and old, and the values that the pod's volumes allow.
fn zones(cluster: &Cluster, pod: &PendingPod) -> Vec<(&'static str, &'static str, Vec<String>)> {
    let volumes = pod
        .claims
        .iter()
        .filter_map(|key| volume_name(cluster.claims.get(key)?))
        .filter_map(|name| cluster.volumes.get(name));
    let mut zones = Vec::new();
    for labels in volumes.filter_map(|v| v.metadata.labels.as_ref()) {
        for (new, old) in LABELS {
            if let Some(values) = labels.get(new).or_else(|| labels.get(old)) {
                zones.push((new, old, values.split("__").map(str::to_string).collect()));
            }
        }
    }
    zones
}

impl EnqueueExtensions for VolumeZone {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::Node { change, .. } => change.labels,
            ClusterEvent::Claim(key) => pod.claims.contains(key),
            ClusterEvent::Volume | ClusterEvent::StorageClass => true,
            _ => false,
        })
    }
}

impl SignPlugin for VolumeZone {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.claims();
    }
}

impl<'a> NodeFilter<'a> for Zones {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let has_any = LABELS.iter().any(|(new, old)| node.label(new).is_some() || node.label(old).is_some());
        // A cluster without zones has nothing to compare.
        if !has_any {
            return Ok(());
        }
        let fits = self.0.iter().all(|(new, old, allowed)| {
            node.label(new).or_else(|| node.label(old)).is_some_and(|value| allowed.iter().any(|a| a == value))
        });
        if fits { Ok(()) } else { Err(Status::unresolvable(REASON)) }
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
    use crate::plugins::testing::{built, cluster, labelled, pod, verdicts};

    fn check(volume_zone: &str, node_zone: Option<&str>, accepted: bool) {
        check_labels(ZONE.0, volume_zone, ZONE.0, node_zone, accepted);
    }

    fn check_labels(volume_label: &str, volume_zone: &str, node_label: &str, node_zone: Option<&str>, accepted: bool) {
        let labels: Vec<_> = node_zone.iter().map(|value| (node_label, *value)).collect();
        let mut cluster = cluster(&[labelled("n", &labels)], vec![]);
        let claim = json!({"metadata": {}, "spec": {"volumeName": "pv"}});
        cluster.claims.insert("default/data".into(), Arc::new(serde_json::from_value(claim).unwrap()));
        let volume = json!({"metadata": {"labels": {volume_label: volume_zone}}});
        cluster.volumes.insert("pv".into(), Arc::new(serde_json::from_value(volume).unwrap()));
        let pod = pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}));
        assert_eq!(verdicts(&built(new), &pod, &cluster)[0].is_ok(), accepted);
    }

    #[test]
    fn zones_must_agree() {
        check("1", Some("1"), true);
        check("1", Some("2"), false);
        check("1__2", Some("2"), true);
        check("1", None, true);
    }

    #[test]
    fn old_labels_mean_the_same() {
        let old = "failure-domain.beta.kubernetes.io/zone";
        for (volume, node) in [(old, old), (old, ZONE.0), (ZONE.0, old)] {
            check_labels(volume, "1", node, Some("1"), true);
            check_labels(volume, "1", node, Some("2"), false);
        }
    }
}
