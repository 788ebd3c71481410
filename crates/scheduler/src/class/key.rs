//! Which pods are alike to the scheduler: everything about a pod that a plugin looks at, as one text.
//! Used by `class`; what plugins read of a pod must be here.
//! Invariant: two pods with the same key get the same verdict and score on every node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use serde::Serialize;

use crate::{
    cluster::Cluster,
    plugins::{default_selector::default_selector, volume_restrictions::Disk},
    pod_info::WaitingPod,
    resources::Resources,
};

/// Labels that controllers give each pod its own value of. They only matter to who selects by them.
const OF_EACH_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

#[derive(Serialize)]
struct Relevant<'a> {
    scheduler: &'a str,
    namespace: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    priority: i32,
    preemption: Option<&'a str>,
    owner: Option<(&'a str, &'a str, &'a str)>,
    requests: Amounts<'a>,
    compared: Amounts<'a>,
    ports: Vec<(&'a str, &'a str, i32)>,
    images: Vec<&'a str>,
    node_selector: Option<&'a BTreeMap<String, String>>,
    affinity: Option<&'a Affinity>,
    tolerations: &'a [Toleration],
    spread: Option<&'a Vec<TopologySpreadConstraint>>,
    disks: &'a [Disk],
}

type Amounts<'a> = (i64, i64, i64, &'a BTreeMap<String, i64>);

fn amounts(of: &Resources) -> Amounts<'_> {
    (of.milli_cpu, of.memory, of.ephemeral_storage, &of.scalars)
}

/// `None` for a pod that can't be written down.
pub fn of(cluster: &Cluster, pod: &WaitingPod) -> Option<String> {
    let spec = pod.spec()?;
    let owners = pod.pod.metadata.owner_references.iter().flatten();
    let mut owner = owners.into_iter().filter(|owner| owner.controller == Some(true));
    let mut labels: BTreeMap<&str, &str> = pod.labels().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    if OF_EACH_POD.iter().any(|key| labels.contains_key(key)) && nobody_selects_by_them(cluster, pod) {
        labels.retain(|key, _| !OF_EACH_POD.contains(key));
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let relevant = Relevant {
        scheduler: pod.scheduler_name(),
        namespace: pod.namespace(),
        labels,
        priority: pod.priority,
        preemption: spec.preemption_policy.as_deref(),
        owner: owner.next().map(|o| (o.api_version.as_str(), o.kind.as_str(), o.name.as_str())),
        requests: amounts(&pod.requests),
        compared: amounts(&pod.compared_requests),
        ports: pod.host_ports.iter().map(|p| (p.address.as_str(), p.protocol.as_str(), p.port)).collect(),
        images: containers.map(|c| c.image.as_deref().unwrap_or_default()).collect(),
        node_selector: spec.node_selector.as_ref(),
        affinity: spec.affinity.as_ref(),
        tolerations: pod.tolerations(),
        spread: spec.topology_spread_constraints.as_ref(),
        disks: &pod.disks,
    };
    serde_json::to_string(&relevant).ok()
}

/// Neither the pod itself, nor a pod on a node, nor a Service or owner that selects it.
fn nobody_selects_by_them(cluster: &Cluster, pod: &WaitingPod) -> bool {
    let selects = pod.affinity.is_some()
        || pod.spec().and_then(|s| s.topology_spread_constraints.as_ref()).is_some_and(|c| !c.is_empty());
    let selector = || default_selector(cluster, pod);
    !selects
        && !cluster.cache.any_affinity()
        && selector().is_none_or(|s| s.requirements().iter().all(|r| !OF_EACH_POD.contains(&r.key.as_str())))
}
