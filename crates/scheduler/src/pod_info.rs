//! A pod with everything the plugins ask about worked out once: requests, ports, affinity terms, claims.
//! Made by `scheduler` for each version of a pod; shared by `queue`, `cache` and plugins.
//! Never changes after it is made. Of a pod that has its node there is only `PodInfo`: there may be a hundred thousand,
//! and nobody asks for the rest of them. One that waits is a `PendingPod`, which has it all.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use api::{
    placement::{HostPort, host_ports},
    selectors::{LabelSelector, Operator, Requirement},
    volume_claims,
};
use client::{ObjectRef, reference};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Affinity, Pod, PodAffinityTerm, PodCondition, PodSchedulingGate, PodSpec, Toleration, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::apis::meta::v1 as meta,
};

use crate::{
    cluster::Cluster,
    plugins::volume_restrictions::Disk,
    resources::{Resources, pod_requests},
};

const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// One pod affinity or anti-affinity term.
#[derive(Debug, Clone, PartialEq)]
pub struct AffinityTerm {
    pub namespaces: BTreeSet<String>,
    /// Namespaces by their labels, beside those named.
    pub namespace_selector: Option<LabelSelector>,
    pub selector: LabelSelector,
    pub topology_key: String,
    /// Zero for required terms.
    pub weight: i64,
}

impl AffinityTerm {
    /// Whether `pod` is one that this term speaks of.
    pub fn matches(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        let namespace = pod.namespace();
        let here = self.namespaces.contains(namespace)
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|selector| selector.matches(cluster.namespace_labels(namespace)));
        here && self.selector.matches(pod.labels())
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct AffinityTerms {
    pub required: Vec<AffinityTerm>,
    pub preferred: Vec<AffinityTerm>,
    pub required_anti: Vec<AffinityTerm>,
    pub preferred_anti: Vec<AffinityTerm>,
}

/// A pod that has no node yet.
#[derive(Debug, Clone)]
pub struct PendingPod {
    pub pod: Arc<Pod>,
    info: Arc<PodInfo>,
}

impl Deref for PendingPod {
    type Target = PodInfo;

    fn deref(&self) -> &PodInfo {
        &self.info
    }
}

impl PendingPod {
    pub fn new(pod: Arc<Pod>) -> Self {
        Self { info: Arc::new(PodInfo::new(&pod)), pod }
    }

    /// What is left of it once it has a node.
    pub fn info(&self) -> Arc<PodInfo> {
        self.info.clone()
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub fn tolerations(&self) -> &[Toleration] {
        self.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
    }

    pub fn scheduling_gates(&self) -> &[PodSchedulingGate] {
        self.spec().and_then(|s| s.scheduling_gates.as_deref()).unwrap_or_default()
    }

    pub fn nominated_node_name(&self) -> Option<&str> {
        let status = self.pod.status.as_ref()?;
        status.nominated_node_name.as_deref().filter(|n| !n.is_empty())
    }
}

/// What plugins ask about pods wherever they are.
#[derive(Debug)]
pub struct PodInfo {
    /// `namespace/name`.
    pub key: String,
    uid: String,
    resource_version: Option<String>,
    pub generation: Option<i64>,
    labels: BTreeMap<String, String>,
    scheduler_name: Cow<'static, str>,
    node_name: Option<String>,
    is_terminating: bool,
    is_finished: bool,
    /// Marked by a scheduler as leaving to make room.
    pub is_preempted: bool,
    pub started: Option<Timestamp>,
    pub priority: i32,
    pub requests: Resources,
    /// With defaults for containers that ask for nothing; compared, never filtered on.
    pub non_zero_requests: Resources,
    pub host_ports: Vec<HostPort>,
    pub affinity: Option<Box<AffinityTerms>>,
    /// `namespace/name` of the claims it mounts, ephemeral ones by their generated names.
    pub claims: Vec<String>,
    pub disks: Vec<Disk>,
    pub has_resource_claims: bool,
    /// Why the pod's terms can't be read, if they can't.
    pub error: Option<String>,
}

impl PodInfo {
    pub fn new(pod: &Pod) -> Self {
        let (requests, non_zero_requests) = pod_requests(pod);
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let text = |text: Option<&String>| text.filter(|t| !t.is_empty()).cloned();
        let terms = spec
            .and_then(|s| s.affinity.as_ref())
            .filter(|a| a.pod_affinity.is_some() || a.pod_anti_affinity.is_some())
            .map(|a| affinity_terms(a, &namespace, &labels))
            .transpose();
        let (affinity, error) = match terms {
            Ok(terms) => (terms.map(Box::new), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            key: format!("{namespace}/{name}"),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            resource_version: pod.metadata.resource_version.clone(),
            generation: pod.metadata.generation,
            scheduler_name: match text(spec.and_then(|s| s.scheduler_name.as_ref())) {
                Some(name) if name != DEFAULT_SCHEDULER => Cow::Owned(name),
                _ => Cow::Borrowed(DEFAULT_SCHEDULER),
            },
            node_name: text(spec.and_then(|s| s.node_name.as_ref())),
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
            is_finished: matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed")),
            is_preempted: status.and_then(|s| s.conditions.as_ref()).into_iter().flatten().any(says_preempted),
            started: status.and_then(|s| s.start_time.as_ref()).map(|time| time.0),
            has_resource_claims: spec.and_then(|s| s.resource_claims.as_ref()).is_some_and(|claims| !claims.is_empty()),
            disks: spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten().filter_map(Disk::of).collect(),
            labels,
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            requests,
            non_zero_requests,
            host_ports: spec.map(host_ports).unwrap_or_default(),
            affinity,
            claims: spec.map(|s| claims(pod, s, &namespace)).unwrap_or_default(),
            error,
        }
    }

    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or("", |(_, name)| name)
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// For events about it.
    pub fn reference(&self) -> ObjectRef {
        let metadata = meta::ObjectMeta {
            name: Some(self.name().into()),
            namespace: Some(self.namespace().into()),
            uid: Some(self.uid.clone()),
            resource_version: self.resource_version.clone(),
            ..meta::ObjectMeta::default()
        };
        reference(&Pod { metadata, ..Pod::default() })
    }

    /// The node it is bound to.
    pub fn node_name(&self) -> Option<&str> {
        self.node_name.as_deref()
    }

    pub fn scheduler_name(&self) -> &str {
        &self.scheduler_name
    }

    pub fn is_terminating(&self) -> bool {
        self.is_terminating
    }

    /// Succeeded or failed: it holds nothing any more.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether this and `other`, a version of the same pod on the same node, are alike to all that plugins ask about it.
    pub fn counts_as(&self, other: &Self) -> bool {
        self.labels == other.labels
            && self.is_terminating == other.is_terminating
            && self.priority == other.priority
            && self.requests == other.requests
            && self.non_zero_requests == other.non_zero_requests
            && self.host_ports == other.host_ports
            && self.claims == other.claims
            && self.disks == other.disks
            && self.affinity == other.affinity
    }

    pub fn has_required_anti_affinity(&self) -> bool {
        self.affinity.as_ref().is_some_and(|a| !a.required_anti.is_empty())
    }
}

fn says_preempted(condition: &PodCondition) -> bool {
    condition.type_ == "DisruptionTarget"
        && condition.status == "True"
        && condition.reason.as_deref() == Some("PreemptionByScheduler")
}

fn claims(pod: &Pod, spec: &PodSpec, namespace: &str) -> Vec<String> {
    let names = spec.volumes.iter().flatten().filter_map(|volume| volume_claims::claim_name(pod, volume));
    names.map(|name| format!("{namespace}/{name}")).collect()
}

fn affinity_terms(
    affinity: &Affinity,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<AffinityTerms, String> {
    let required = |terms: Option<&Vec<PodAffinityTerm>>| -> Result<Vec<_>, String> {
        terms.into_iter().flatten().map(|t| affinity_term(t, 0, namespace, labels)).collect()
    };
    let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>| -> Result<Vec<_>, String> {
        let terms = terms.into_iter().flatten();
        terms.map(|t| affinity_term(&t.pod_affinity_term, t.weight.into(), namespace, labels)).collect()
    };
    let (with, anti) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    Ok(AffinityTerms {
        required: required(with.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()))?,
        preferred: preferred(with.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()))?,
        required_anti: required(anti.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()))?,
        preferred_anti: preferred(anti.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()))?,
    })
}

fn affinity_term(
    term: &PodAffinityTerm,
    weight: i64,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<AffinityTerm, String> {
    let mut selector = with_label_keys(term.label_selector.as_ref(), term.match_label_keys.as_deref(), labels, false)?;
    // Without a selector the term matches nothing, whatever the keys.
    if let Some(keys) = term.mismatch_label_keys.as_deref().filter(|_| term.label_selector.is_some()) {
        selector = extend(selector, keys, labels, true)?;
    }
    let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.insert(namespace.to_string());
    }
    Ok(AffinityTerm {
        namespaces,
        namespace_selector: match &term.namespace_selector {
            Some(selector) => Some(LabelSelector::from_meta(Some(selector))?),
            None => None,
        },
        selector,
        topology_key: term.topology_key.clone(),
        weight,
    })
}

/// A selector narrowed to the values that the pod itself has for `keys` (`matchLabelKeys`).
pub fn with_label_keys(
    selector: Option<&meta::LabelSelector>,
    keys: Option<&[String]>,
    labels: &BTreeMap<String, String>,
    negated: bool,
) -> Result<LabelSelector, String> {
    let parsed = LabelSelector::from_meta(selector)?;
    // The server may already have written the keys into the selector; saying it twice changes nothing.
    match keys {
        Some(keys) if selector.is_some() => extend(parsed, keys, labels, negated),
        _ => Ok(parsed),
    }
}

fn extend(
    selector: LabelSelector,
    keys: &[String],
    labels: &BTreeMap<String, String>,
    negated: bool,
) -> Result<LabelSelector, String> {
    let operator = if negated { Operator::NotIn } else { Operator::In };
    let mut requirements = selector.requirements().to_vec();
    for key in keys {
        if let Some(value) = labels.get(key) {
            requirements.push(Requirement::new(key, operator, vec![value.clone()])?);
        }
    }
    Ok(LabelSelector::from_requirements(requirements))
}
