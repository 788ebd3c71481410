//! The extension points, one small trait each, under upstream's names and in the order in which a pod meets them.
//! Implemented by `plugins`; driven by `cycle` (PreFilter to Score) and `scheduler` (the others).
//! Only Reserve changes the scheduler's picture of the cluster (the others get it shared), and only the futures of
//! PostFilter, PreBind and Bind act on the cluster itself.

use std::{collections::HashSet, hash::Hasher, sync::Arc, time::Duration};

use api::ApiError;
use futures::future::BoxFuture;

use super::{ClusterEvent, CycleState, Handle, QueueingHint, Status, WaitingPods};
use crate::{
    cluster::Cluster,
    cycle::Filters,
    diagnosis::Diagnosis,
    equivalence_class::{PodSignature, Scope},
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
};

/// PreEnqueue: whether the pod may be tried at all. Asked again when the pod changes; a pod that a plugin with
/// `EnqueueExtensions` turns down is tried after an event that helps it.
pub trait PreEnqueuePlugin: Send + Sync {
    fn pre_enqueue(&self, cluster: &Cluster, pod: &PendingPod) -> Result<(), Status>;
}

/// The place of a pod in the active queue: smaller goes first, then the order of arrival.
pub type QueueSortKey = (i64, Duration);

/// QueueSort: which pod is tried first. A key instead of upstream's `Less`, since the queue is kept sorted.
pub trait QueueSortPlugin: Send + Sync {
    /// `since` is when the pod was put into the queue.
    fn sort_key(&self, pod: &PendingPod, since: Duration) -> QueueSortKey;
}

/// Which events bring back a pod that the plugin turned down. For a plugin without it, every event does.
pub trait EnqueueExtensions: Send + Sync {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint;
}

/// A plugin's answer before any node is looked at.
pub enum PreFilterResult {
    AllNodes,
    /// No other nodes need be looked at.
    Nodes(HashSet<String>),
    /// The plugin's Filter has nothing to say about this pod.
    Skip,
    Reject(Status),
}

/// PreFilter: looks at the pod once.
pub trait PreFilterPlugin: Send + Sync {
    fn pre_filter(&self, _: &Cluster, _: &PendingPod) -> PreFilterResult {
        PreFilterResult::AllNodes
    }
}

/// Filter: refuses nodes. What is worked out once per pod is in the `NodeFilter`.
pub trait FilterPlugin: Send + Sync {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a>;
}

/// The verdict on one node at a time, for one pod.
pub trait NodeFilter<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status>;

    /// A copy that can be told of changes without disturbing this one.
    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a>;

    /// As if `pod` had come to `node` (PreFilterExtensions).
    fn add_pod(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}

    /// As if `pod` had gone from `node`.
    fn remove_pod(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}
}

/// A pod for which no node will do, as PostFilter sees it.
pub struct FailedAttempt<'a, 'f> {
    pub cluster: &'a Cluster,
    pub pod: &'a PendingPod,
    /// None when PreFilter turned the pod down.
    pub filters: Option<&'a Filters<'f>>,
    pub diagnosis: &'a Diagnosis,
    /// A random number: among nodes that may do, where to begin.
    pub offset: u64,
}

/// A node, and the pods whose removal makes room on it, most important first.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub node: Arc<str>,
    pub victims: Vec<Arc<PodInfo>>,
    /// Victims that a PodDisruptionBudget protects.
    pub violations: usize,
    /// The other nodes that would do, best first: an extender may not agree to this one.
    pub alternatives: Vec<Candidate>,
}

pub enum PostFilterResult {
    Nominate(Candidate),
    /// Nothing to gain. The message follows the verdict; a nomination that no longer holds is cleared.
    Unschedulable {
        message: String,
        clear_nomination: bool,
    },
    /// Something is done in the cluster, after which the pod may do better. The other plugins are asked too.
    Act {
        message: String,
        work: PostFilterWork,
    },
}

pub type PostFilterWork = Box<dyn FnOnce(&Handle) -> BoxFuture<'static, Result<(), ApiError>> + Send>;

/// PostFilter: what to do about a pod that no node will take.
pub trait PostFilterPlugin: Send + Sync {
    fn post_filter(&self, attempt: &FailedAttempt<'_, '_>) -> PostFilterResult;

    /// Carries a nomination out.
    fn prepare_candidate(
        &self,
        handle: &Handle,
        pod: Arc<PendingPod>,
        candidate: Candidate,
    ) -> BoxFuture<'static, Result<(), ApiError>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreScoreResult {
    Continue,
    /// The plugin's Score makes no difference between these nodes.
    Skip,
}

/// PreScore: looks at the pod and the feasible nodes once. A plugin that judges each node by itself must not look at
/// the nodes: for an equivalence class it gets none.
pub trait PreScorePlugin: Send + Sync {
    fn pre_score(&self, _: &Cluster, _: &PendingPod, _feasible: &[&NodeInfo]) -> PreScoreResult {
        PreScoreResult::Continue
    }
}

/// Score: ranks feasible nodes. What is worked out once per pod is in the `NodeScorer`.
pub trait ScorePlugin: Send + Sync {
    fn node_scorer<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a PendingPod,
        feasible: &[&'a NodeInfo],
    ) -> Box<dyn NodeScorer + 'a>;
}

/// How good each feasible node is, for one pod.
pub trait NodeScorer {
    /// `at` is the node's position among the feasible ones.
    fn score(&self, at: usize, node: &NodeInfo) -> i64;

    /// Whether a score only means something beside those of the other feasible nodes: then `normalize_score` decides.
    fn normalizes(&self) -> bool {
        false
    }

    /// Brings raw scores into 0..=100. Rests on the lowest and the highest only, not on how many there are.
    fn normalize_score(&self, _scores: &mut [i64]) {}
}

/// Reserve: holds what the pod will need on its node, in the scheduler's picture of the cluster.
pub trait ReservePlugin: Send + Sync {
    fn reserve(
        &self,
        state: &mut CycleState,
        cluster: &mut Cluster,
        pod: &PendingPod,
        node: &str,
    ) -> Result<(), Status>;

    /// Gives it back when the pod does not get to its node; also after a `reserve` that failed or never ran.
    fn unreserve(&self, state: &mut CycleState, cluster: &mut Cluster, pod: &PendingPod, node: &str);
}

pub enum PermitResult {
    Allow,
    /// Until the plugin allows or rejects the pod through `WaitingPods`; after this long it is rejected.
    Wait(Duration),
    Reject(Status),
}

/// Permit: lets a decided pod go on, holds it back, or turns it down.
pub trait PermitPlugin: Send + Sync {
    fn permit(&self, waiting: &WaitingPods, cluster: &Cluster, pod: &PendingPod, node: &str) -> PermitResult;
}

/// PreBind: what must be done in the cluster before the pod is bound.
pub trait PreBindPlugin: Send + Sync {
    /// Whether there is anything to do (upstream's PreBindPreFlight). If so, the pod's nominatedNodeName is set first.
    fn has_pre_bind_work(&self, state: &CycleState, pod: &PendingPod, node: &str) -> bool;

    /// Called on the scheduler's task; the future runs in the binding cycle.
    fn pre_bind(
        &self,
        handle: &Handle,
        state: &CycleState,
        cluster: &Cluster,
        pod: &Arc<PendingPod>,
        node: &str,
    ) -> BoxFuture<'static, Result<(), Status>>;

    /// Something happened that a pod in PreBind may wait for.
    fn cluster_changed(&self, _: &Cluster, _: &ClusterEvent) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindResult {
    Bound,
    /// Not a pod for this plugin; the next one is asked.
    Skip,
}

/// Bind: binds the pod to its node.
pub trait BindPlugin: Send + Sync {
    fn bind(
        &self,
        handle: &Handle,
        pod: &Arc<PendingPod>,
        node: &Arc<str>,
    ) -> BoxFuture<'static, Result<BindResult, Status>>;
}

/// PostBind: told of pods that have been bound.
pub trait PostBindPlugin: Send + Sync {
    fn post_bind(&self, cluster: &Cluster, pod: &PodInfo, node: &str);
}

/// Says what a plugin's PreFilter, Filter, PostFilter, PreScore and Score read, so that pods that are alike to all of
/// them share one verdict (`equivalence_class`). With a plugin that lacks it, every pod is looked at by itself.
pub trait SignPlugin: Send + Sync {
    /// Every part of the pod that the plugin reads (`plugins/signature_tests.rs` finds a forgotten one).
    fn sign_pod(&self, cluster: &Cluster, pod: &PendingPod, signature: &mut PodSignature<'_>);

    /// How far the plugin looks to judge one node for this pod.
    fn scope(&self, _: &Cluster, _: &PendingPod) -> Scope {
        Scope::Node
    }

    /// What beside the pod and the nodes its answers rest on.
    fn hash_dependencies(&self, _: &Cluster, _: &PendingPod, _: &mut dyn Hasher) {}
}
