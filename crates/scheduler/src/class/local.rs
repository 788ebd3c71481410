//! The plugins that judge one node at a time, ready for a class's pod.
//! Made by `table` for each use, since they borrow the cluster; making them looks at no node.
//! Invariant: what they say of a node rests on that node, the pod and the class's `basis` only.

use std::hash::{DefaultHasher, Hasher};

use crate::{
    cluster::Cluster,
    framework::{Enabled, Filter, PluginSet, Prepared, Profile, Score},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

pub struct Local<'a> {
    filters: Vec<Box<dyn Filter<'a> + 'a>>,
    scores: Vec<(Box<dyn Score + 'a>, i64)>,
    /// Those whose scores only mean something beside the other nodes', with their weights.
    pub relative: Vec<(Box<dyn Score + 'a>, i64)>,
}

impl<'a> Local<'a> {
    /// `None` when a plugin refuses the pod before it looks at any node. `spanning` plugins are left out.
    pub fn new(cluster: &'a Cluster, profile: &'a Profile, pod: &'a WaitingPod, spanning: PluginSet) -> Option<Self> {
        let mut local = Self { filters: Vec::new(), scores: Vec::new(), relative: Vec::new() };
        let by_node = |enabled: &&Enabled| !spanning.contains(enabled.row);
        for enabled in profile.filters.iter().filter(by_node) {
            match enabled.plugin.filter(cluster, pod) {
                Prepared::Skip => {}
                Prepared::Filter(filter) | Prepared::Only(_, filter) => local.filters.push(filter),
                Prepared::Reject(_) => return None,
            }
        }
        for enabled in profile.scores.iter().filter(by_node) {
            if let Some(score) = enabled.plugin.score(cluster, pod, &[]) {
                let list = if score.is_relative() { &mut local.relative } else { &mut local.scores };
                list.push((score, enabled.weight));
            }
        }
        Some(local)
    }

    pub fn accepts(&self, node: &NodeInfo) -> bool {
        self.filters.iter().all(|filter| filter.check(node).is_ok())
    }

    pub fn score(&self, node: &NodeInfo) -> i64 {
        self.scores.iter().map(|(score, weight)| score.score(0, node) * weight).sum()
    }
}

/// Stands for everything beside nodes that the plugins' answers rest on.
pub fn basis(cluster: &Cluster, profile: &Profile, pod: &WaitingPod) -> u64 {
    let mut hasher = DefaultHasher::new();
    let scores_only = profile.scores.iter().filter(|s| !profile.filters.iter().any(|f| f.row == s.row));
    for enabled in profile.filters.iter().chain(scores_only) {
        enabled.plugin.rests_on(cluster, pod, &mut hasher);
    }
    hasher.finish()
}
