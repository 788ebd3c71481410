//! The pods that belong with a pod: those its services and its controller select.
//! Used by `pod_topology_spread` for pods that state no constraints of their own.

use api::selectors::LabelSelector;

use crate::{
    cluster::{Cluster, in_namespace},
    pod_info::PendingPod,
};

/// `None` when nothing selects the pod.
pub fn default_selector(cluster: &Cluster, pod: &PendingPod) -> Option<LabelSelector> {
    let mut requirements = Vec::new();
    for service in in_namespace(&cluster.services, pod.namespace()) {
        let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else { continue };
        // Most services of a namespace select other pods: that must cost next to nothing.
        if !selector.is_empty() && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value)) {
            requirements.extend_from_slice(LabelSelector::from_labels(selector).requirements());
        }
    }
    let owners = pod.pod.metadata.owner_references.iter().flatten();
    if let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) {
        let key = format!("{}/{}", pod.namespace(), owner.name);
        let selector = match (owner.kind.as_str(), owner.api_version.as_str()) {
            ("ReplicationController", "v1") => {
                let found = cluster.replication_controllers.get(&key);
                found.and_then(|c| c.spec.as_ref()?.selector.as_ref()).map(LabelSelector::from_labels)
            }
            ("ReplicaSet", "apps/v1") => {
                let found = cluster.replica_sets.get(&key).and_then(|c| c.spec.as_ref());
                found.and_then(|spec| LabelSelector::from_meta(Some(&spec.selector)).ok())
            }
            ("StatefulSet", "apps/v1") => {
                let found = cluster.stateful_sets.get(&key).and_then(|c| c.spec.as_ref());
                found.and_then(|spec| LabelSelector::from_meta(Some(&spec.selector)).ok())
            }
            _ => None,
        };
        requirements.extend(selector.iter().flat_map(|s| s.requirements().iter().cloned()));
    }
    requirements.dedup();
    (!requirements.is_empty()).then(|| LabelSelector::from_requirements(requirements))
}
