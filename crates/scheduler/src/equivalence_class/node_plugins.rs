//! The plugins that judge one node at a time, ready for a class's pod.
//! Made by `node_groups` for each use, since they borrow the cluster; making them looks at no node.
//! What they say of a node rests on that node, the pod and the class's dependencies only.

use std::hash::{DefaultHasher, Hasher};

use crate::{
    cluster::Cluster,
    framework::{NodeFilter, NodeScorer, PluginSet, PreFilterResult, PreScoreResult, Profile},
    node_info::NodeInfo,
    pod_info::PendingPod,
};

pub struct NodePlugins<'a> {
    filters: Vec<Box<dyn NodeFilter<'a> + 'a>>,
    scorers: Vec<(Box<dyn NodeScorer + 'a>, i64)>,
    /// Those whose scores only mean something beside the other nodes', with their weights.
    pub normalized: Vec<(Box<dyn NodeScorer + 'a>, i64)>,
}

impl<'a> NodePlugins<'a> {
    /// `None` when a plugin refuses the pod before it looks at any node. `spanning` plugins are left out.
    pub fn new(cluster: &'a Cluster, profile: &'a Profile, pod: &'a PendingPod, spanning: PluginSet) -> Option<Self> {
        let mut left_out = spanning;
        for enabled in profile.pre_filter.iter().filter(|enabled| !spanning.contains(enabled.row)) {
            match enabled.plugin.pre_filter(cluster, pod) {
                PreFilterResult::AllNodes => {}
                PreFilterResult::Skip => left_out.insert(enabled.row),
                // The plugin's filter refuses the others as well, if it is on.
                PreFilterResult::Nodes(_) if profile.filter.iter().any(|filter| filter.row == enabled.row) => {}
                PreFilterResult::Nodes(_) | PreFilterResult::Reject(_) => return None,
            }
        }
        let filters = profile.filter.iter().filter(|enabled| !left_out.contains(enabled.row));
        let filters = filters.map(|enabled| enabled.plugin.node_filter(cluster, pod)).collect();
        let mut plugins = Self { filters, scorers: Vec::new(), normalized: Vec::new() };
        let mut left_out = spanning;
        for enabled in profile.pre_score.iter().filter(|enabled| !spanning.contains(enabled.row)) {
            if enabled.plugin.pre_score(cluster, pod, &[]) == PreScoreResult::Skip {
                left_out.insert(enabled.row);
            }
        }
        for (enabled, weight) in profile.score.iter().filter(|(enabled, _)| !left_out.contains(enabled.row)) {
            let scorer = enabled.plugin.node_scorer(cluster, pod, &[]);
            let list = if scorer.normalizes() { &mut plugins.normalized } else { &mut plugins.scorers };
            list.push((scorer, *weight));
        }
        Some(plugins)
    }

    pub fn accepts(&self, node: &NodeInfo) -> bool {
        self.filters.iter().all(|filter| filter.filter(node).is_ok())
    }

    pub fn score(&self, node: &NodeInfo) -> i64 {
        self.scorers.iter().map(|(scorer, weight)| scorer.score(0, node) * weight).sum()
    }
}

/// Stands for everything beside nodes that the plugins' answers rest on.
pub fn hash_dependencies(cluster: &Cluster, profile: &Profile, pod: &PendingPod) -> u64 {
    let mut hasher = DefaultHasher::new();
    for enabled in profile.sign.iter().flatten() {
        enabled.plugin.hash_dependencies(cluster, pod, &mut hasher);
    }
    hasher.finish()
}
