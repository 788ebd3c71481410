//! What a plugin that looks beyond the node at hand tells a class of pods: what to count by topology, and what follows
//! from the counts.
//! Implemented by `pod_topology_spread` and `inter_pod_affinity`; driven by `node_groups`.
//! Nodes with equal views are equal to the plugin.

use crate::{cluster::Cluster, node_info::NodeInfo};

/// Something has come up that the class was not made for; it must be begun anew.
#[derive(Debug, PartialEq, Eq)]
pub struct Outdated;

/// How far a plugin looks to judge one node.
pub enum Scope {
    /// At the pod and the node only: `filter` and `score` are asked for each node.
    Node,
    /// At the node's topology domains.
    Domains(Box<dyn DomainRules>),
    /// Pods like this one must be looked at one by one.
    Alone,
}

/// A number kept for each domain of a topology key: the sum of what its nodes add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainCount {
    pub key: String,
    /// The node's own number counts, whoever shares its value of the key.
    pub per_node: bool,
}

/// Nodes that are alike to the rules at hand.
pub struct GroupView<'a> {
    /// How many they are.
    pub nodes: usize,
    /// Each count's number; `None` where the nodes lack its key.
    pub numbers: &'a [Option<i64>],
    /// Each count's domain; `None` where each node has its own, or none.
    pub domains: &'a [Option<u32>],
}

pub trait DomainRules: Send {
    fn domain_counts(&self) -> Vec<DomainCount>;

    /// What a node, with the pods on it, adds to each count.
    fn count_node(&self, cluster: &Cluster, node: &NodeInfo, amounts: &mut [i64]) -> Result<(), Outdated>;

    /// Takes out of `accepted` the groups that the filter refuses. `groups` are all nodes there are.
    fn filter(&self, groups: &[GroupView<'_>], accepted: &mut [bool]);

    /// Scores in 0..=100, one for each group of feasible nodes.
    fn score(&self, feasible: &[GroupView<'_>]) -> Vec<i64>;
}

/// How many domains of a count these nodes are in; those without the key are in one.
pub fn distinct<'a>(groups: impl Iterator<Item = &'a GroupView<'a>>, count: usize) -> usize {
    let (mut shared, mut own, mut without) = (std::collections::HashSet::new(), 0, false);
    for group in groups {
        match (group.numbers[count], group.domains[count]) {
            (None, _) => without = true,
            (Some(_), Some(domain)) => drop(shared.insert(domain)),
            (Some(_), None) => own += group.nodes,
        }
    }
    shared.len() + own + usize::from(without)
}
