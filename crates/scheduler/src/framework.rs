//! What a plugin is: one small trait per extension point, and the profile that puts plugins together.
//! Implemented by `plugins`; driven by `cycle`, `preemption` and `queue`.
//! Invariant: a plugin only looks; it changes nothing and waits for nothing.

use std::{borrow::Cow, collections::HashSet, hash::Hasher, sync::Arc};

use k8s_openapi::api::core::v1::Node;

use crate::{
    class::Scope,
    cluster::Cluster,
    node_info::NodeInfo,
    pod_info::{PodInfo, WaitingPod},
};

pub const MAX_NODE_SCORE: i64 = 100;

/// Why a node (or the whole cluster) won't do for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether removing other pods could change the answer.
    pub resolvable: bool,
}

impl Failure {
    pub fn resolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reasons: vec![reason.into()], resolvable: true }
    }

    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reasons: vec![reason.into()], resolvable: false }
    }
}

/// A plugin's answer after looking at the pod alone.
pub enum Prepared<'a> {
    /// Nothing on any node matters to this plugin.
    Skip,
    Filter(Box<dyn Filter<'a> + 'a>),
    /// As `Filter`, and no other nodes need be looked at.
    Only(HashSet<String>, Box<dyn Filter<'a> + 'a>),
    /// No node will do.
    Reject(Failure),
}

/// The verdict on one node at a time, for one pod.
pub trait Filter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure>;

    /// A copy that can be told of changes without disturbing this one.
    fn fork(&self) -> Box<dyn Filter<'a> + 'a>;

    /// As if `pod` had come to (or gone from) `node`.
    fn pod_changed(&mut self, _pod: &PodInfo, _node: &NodeInfo, _added: bool) {}
}

/// How good each feasible node is, for one pod.
pub trait Score {
    /// `at` is the node's position among the feasible ones.
    fn score(&self, at: usize, node: &NodeInfo) -> i64;

    /// Whether a score only means something beside those of the other feasible nodes: then `normalize` decides.
    fn is_relative(&self) -> bool {
        false
    }

    /// Brings raw scores into 0..=100. Rests on the lowest and the highest only, not on how many there are.
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// Scaled so that the highest becomes 100.
pub fn normalize_to_highest(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        if highest > 0 {
            *score = MAX_NODE_SCORE * *score / highest;
        }
        if reverse {
            *score = MAX_NODE_SCORE - *score;
        }
    }
}

pub trait Plugin: Send + Sync {
    fn filter<'a>(&'a self, _cluster: &'a Cluster, _pod: &'a WaitingPod) -> Prepared<'a> {
        Prepared::Skip
    }

    fn score<'a>(
        &'a self,
        _cluster: &'a Cluster,
        _pod: &'a WaitingPod,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn Score + 'a>> {
        None
    }

    /// How far the plugin looks to judge one node for this pod; see `class`.
    fn scope(&self, _cluster: &Cluster, _pod: &WaitingPod) -> Scope {
        Scope::Node
    }

    /// Writes down what beside the pod and the nodes its answers rest on, so that a class notices when it changes.
    fn rests_on(&self, _cluster: &Cluster, _pod: &WaitingPod, _basis: &mut dyn Hasher) {}

    /// Whether a pod that this plugin turned down may do better after `event`.
    fn helps(&self, cluster: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool;
}

/// Whether this plugin alone would now accept the node.
pub fn accepts(plugin: &dyn Plugin, cluster: &Cluster, pod: &WaitingPod, node: &str) -> bool {
    let Some(node) = cluster.cache.node(node) else { return false };
    match plugin.filter(cluster, pod) {
        Prepared::Skip => true,
        Prepared::Filter(filter) => filter.check(node).is_ok(),
        Prepared::Only(names, filter) => names.contains(&*node.name) && filter.check(node).is_ok(),
        Prepared::Reject(_) => false,
    }
}

/// What happened in the cluster, as far as waiting pods could care.
#[derive(Debug, Clone)]
pub enum ClusterEvent {
    Node {
        name: String,
        change: NodeChange,
        /// As it was; none for a node that was added.
        was: Option<Arc<Node>>,
    },
    NodeGone(Arc<Node>),
    /// A pod now counts on a node.
    PodPlaced(Arc<PodInfo>),
    /// A pod on a node has other labels or needs less.
    PodChanged {
        was: Arc<PodInfo>,
        now: Arc<PodInfo>,
    },
    /// A pod no longer counts on a node.
    PodGone(Arc<PodInfo>),
    Claim(String),
    Volume,
    StorageClass,
    CsiNode,
    Namespace,
}

/// What brings pods into a part of the queue, in upstream's words: what it is about (nothing for what happens in the
/// queue itself), and what happened to it.
pub type Cause = (&'static str, &'static str);

impl ClusterEvent {
    /// `action` is what happened to an object of which nothing else is known here.
    pub fn cause(&self, action: &'static str) -> Cause {
        match self {
            ClusterEvent::Node { change, .. } => ("Node", change.action()),
            ClusterEvent::NodeGone(_) => ("Node", "Delete"),
            ClusterEvent::PodPlaced(_) => ("AssignedPod", "Add"),
            ClusterEvent::PodChanged { was, now } if was.labels() != now.labels() => ("AssignedPod", "UpdatePodLabel"),
            ClusterEvent::PodChanged { .. } => ("AssignedPod", "UpdatePodScaleDown"),
            ClusterEvent::PodGone(_) => ("AssignedPod", "Delete"),
            ClusterEvent::Claim(_) => ("PersistentVolumeClaim", action),
            ClusterEvent::Volume => ("PersistentVolume", action),
            ClusterEvent::StorageClass => ("storage.k8s.io/StorageClass", action),
            ClusterEvent::CsiNode => ("storage.k8s.io/CSINode", action),
            ClusterEvent::Namespace => ("Namespace", action),
        }
    }
}

pub fn node_label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Which parts of a node are new. All of them for a node that was added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub added: bool,
    pub labels: bool,
    pub taints: bool,
    pub unschedulable: bool,
    pub allocatable: bool,
}

impl NodeChange {
    pub const ADDED: Self = Self { added: true, labels: true, taints: true, unschedulable: true, allocatable: true };

    /// The first of what is new, in the order in which upstream looks.
    fn action(self) -> &'static str {
        match self {
            Self { added: true, .. } => "Add",
            Self { allocatable: true, .. } => "UpdateNodeAllocatable",
            Self { labels: true, .. } => "UpdateNodeLabel",
            _ => "UpdateNodeTaint",
        }
    }

    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Stands for every extender in a `PluginSet`; whoever an extender refused may be helped by anything.
pub const EXTENDER_ROW: usize = 63;

/// Rows of the plugin table, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginSet(u64);

impl PluginSet {
    pub fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }

    pub fn contains(self, row: usize) -> bool {
        self.0 & (1 << row) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A plugin in a profile. `row` is its place in the table.
#[derive(Clone)]
pub struct Enabled {
    pub row: usize,
    pub name: &'static str,
    pub plugin: Arc<dyn Plugin>,
    pub weight: i64,
}

/// One way of scheduling, asked for by `spec.schedulerName`.
pub struct Profile {
    pub scheduler_name: String,
    pub filters: Vec<Enabled>,
    pub scores: Vec<Enabled>,
    /// Whether gates hold pods back and whether lower priorities make room.
    pub gates: bool,
    pub preemption: Option<crate::preemption::Arguments>,
    /// How long the claims of a decided pod may take.
    pub bind_timeout: std::time::Duration,
    /// Zero adapts to the size of the cluster.
    pub percentage_of_nodes_to_score: u32,
}

impl Profile {
    pub fn helps(&self, cluster: &Cluster, pod: &WaitingPod, rejected_by: PluginSet, event: &ClusterEvent) -> bool {
        rejected_by.is_empty()
            || rejected_by.contains(EXTENDER_ROW)
            || self.filters.iter().any(|f| rejected_by.contains(f.row) && f.plugin.helps(cluster, pod, event))
    }
}
