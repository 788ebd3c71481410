//! Which pods are alike to the scheduler: every part of a pod that one of the profile's plugins reads, as one text.
//! Written by the plugins (`SignPlugin::sign_pod`); compared by `equivalence_class`.
//! Two pods with the same signature get the same verdict and score on every node (`plugins/signature_tests.rs` changes
//! every field of a pod).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    cluster::Cluster, framework::Profile, plugins::default_selector::default_selector, pod_info::PendingPod,
    resources::Resources,
};

/// Labels that controllers give each pod its own value of. They only matter to who selects by them.
const LABELS_OF_EACH_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

/// The parts of a pod that plugins can sign; each is written once, whoever asks.
#[derive(Clone, Copy)]
enum Part {
    Namespace,
    Labels,
    Owner,
    Priority,
    PreemptionPolicy,
    Requests,
    NonZeroRequests,
    HostPorts,
    Images,
    NodeName,
    NodeSelectorAndAffinity,
    Tolerations,
    TopologySpreadConstraints,
    Disks,
}

/// How many parts there are.
#[cfg(test)]
pub const PARTS: u32 = Part::Disks as u32 + 1;

pub struct PodSignature<'a> {
    cluster: &'a Cluster,
    pod: &'a PendingPod,
    /// Of `Part`s, as bits.
    signed: u32,
    text: Vec<u8>,
    unsignable: bool,
}

/// `None` for a pod that must be looked at by itself.
pub fn sign(cluster: &Cluster, profile: &Profile, pod: &PendingPod) -> Option<Vec<u8>> {
    sign_except(cluster, profile, pod, 0)
}

/// As if the plugins had forgotten the parts with these bits; so a test can tell that each part matters.
pub fn sign_except(cluster: &Cluster, profile: &Profile, pod: &PendingPod, forgotten: u32) -> Option<Vec<u8>> {
    let plugins = profile.sign.as_ref()?;
    let text = pod.scheduler_name().as_bytes().to_vec();
    let mut signature = PodSignature { cluster, pod, signed: forgotten, text, unsignable: pod.spec().is_none() };
    for enabled in plugins {
        enabled.plugin.sign_pod(cluster, pod, &mut signature);
        if signature.unsignable {
            return None;
        }
    }
    Some(signature.text)
}

/// Resources without room for pods, which only nodes have.
fn amounts(of: &Resources) -> (i64, i64, i64, &BTreeMap<String, i64>) {
    (of.milli_cpu, of.memory, of.ephemeral_storage, &of.scalars)
}

impl<'a> PodSignature<'a> {
    fn write<T: Serialize>(&mut self, part: Part, value: impl FnOnce(&'a PendingPod) -> T) {
        let bit = 1 << part as u32;
        if self.signed & bit != 0 {
            return;
        }
        self.signed |= bit;
        // JSON has no raw line breaks, so parts can't run into each other.
        self.text.extend([b'\n', part as u8]);
        self.unsignable |= serde_json::to_writer(&mut self.text, &value(self.pod)).is_err();
    }

    /// The pod must be looked at by itself.
    pub fn make_unsignable(&mut self) {
        self.unsignable = true;
    }

    pub fn namespace(&mut self) {
        self.write(Part::Namespace, |pod| pod.namespace());
    }

    /// Those that may matter to somebody's selector.
    pub fn labels(&mut self) {
        let cluster = self.cluster;
        self.write(Part::Labels, |pod| {
            let is_of_each_pod = |key: &String| LABELS_OF_EACH_POD.contains(&key.as_str());
            let leave_out = pod.labels().keys().any(is_of_each_pod) && nobody_selects_by_them(cluster, pod);
            let labels = pod.labels().iter().filter(|(key, _)| !leave_out || !is_of_each_pod(key));
            labels.collect::<BTreeMap<_, _>>()
        });
    }

    /// The controller, whose selector default spreading uses.
    pub fn owner(&mut self) {
        self.write(Part::Owner, |pod| {
            let owners = pod.pod.metadata.owner_references.iter().flatten();
            let mut controllers = owners.filter(|owner| owner.controller == Some(true));
            controllers.next().map(|o| (o.api_version.as_str(), o.kind.as_str(), o.name.as_str()))
        });
    }

    pub fn priority(&mut self) {
        self.write(Part::Priority, |pod| pod.priority);
    }

    pub fn preemption_policy(&mut self) {
        self.write(Part::PreemptionPolicy, |pod| pod.spec().map(|spec| spec.preemption_policy.as_deref()));
    }

    pub fn requests(&mut self) {
        self.write(Part::Requests, |pod| amounts(&pod.requests));
    }

    pub fn non_zero_requests(&mut self) {
        self.write(Part::NonZeroRequests, |pod| amounts(&pod.non_zero_requests));
    }

    pub fn host_ports(&mut self) {
        self.write(Part::HostPorts, |pod| {
            let ports = pod.host_ports.iter().map(|p| (p.address.as_str(), p.protocol.as_str(), p.port));
            ports.collect::<Vec<_>>()
        });
    }

    pub fn images(&mut self) {
        self.write(Part::Images, |pod| {
            let spec = pod.spec().into_iter();
            let containers = spec.flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
            containers.map(|c| c.image.as_deref().unwrap_or_default()).collect::<Vec<_>>()
        });
    }

    pub fn node_name(&mut self) {
        self.write(Part::NodeName, |pod| pod.node_name());
    }

    /// `spec.nodeSelector` and all of `spec.affinity`.
    pub fn node_selector_and_affinity(&mut self) {
        self.write(Part::NodeSelectorAndAffinity, |pod| pod.spec().map(|spec| (&spec.node_selector, &spec.affinity)));
    }

    pub fn tolerations(&mut self) {
        self.write(Part::Tolerations, |pod| pod.tolerations());
    }

    pub fn topology_spread_constraints(&mut self) {
        self.write(Part::TopologySpreadConstraints, |pod| pod.spec().map(|spec| &spec.topology_spread_constraints));
    }

    /// Disks that the pod names itself, without a claim.
    pub fn disks(&mut self) {
        self.write(Part::Disks, |pod| &pod.disks);
    }

    /// Claims are the pod's own: one with claims is looked at by itself.
    pub fn claims(&mut self) {
        self.unsignable |= !self.pod.claims.is_empty();
    }

    /// So are ResourceClaims, whose devices are given one pod at a time.
    pub fn resource_claims(&mut self) {
        self.unsignable |= self.pod.has_resource_claims;
    }
}

/// Neither the pod itself, nor a pod on a node, nor a Service or owner that selects it.
fn nobody_selects_by_them(cluster: &Cluster, pod: &PendingPod) -> bool {
    let selects = pod.affinity.is_some()
        || pod.spec().and_then(|s| s.topology_spread_constraints.as_ref()).is_some_and(|c| !c.is_empty());
    let selector = || default_selector(cluster, pod);
    !selects
        && !cluster.cache.any_affinity()
        && selector().is_none_or(|s| s.requirements().iter().all(|r| !LABELS_OF_EACH_POD.contains(&r.key.as_str())))
}
