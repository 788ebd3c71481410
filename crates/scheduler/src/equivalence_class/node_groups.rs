//! What an equivalence class of pods knows of the nodes: each node in one group of nodes that differ in nothing but how
//! they score by themselves, best last.
//! Kept by `equivalence_class`; brought up to date from `cache`'s list of changed nodes; numbers by domain are in
//! `topology_counts`.
//! Choosing looks at each group, never at each node.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::Arc,
};

use env::Env;

use super::{
    node_plugins::{NodePlugins, hash_dependencies},
    topology_counts::TopologyCounts,
    topology_rules::{DomainRules, GroupView, Outdated, Scope},
};
use crate::{cluster::Cluster, framework::PluginSet, framework::Profile, node_info::NodeInfo, pod_info::PendingPod};

/// A plugin that looks at domains, with its part of the counts.
struct TopologyPlugin {
    rules: Box<dyn DomainRules>,
    counts: Range<usize>,
    filters: bool,
    /// Of its score, if it scores.
    weight: Option<i64>,
}

struct Group {
    /// Whether the plugins that look at one node accept it, their relative scores, then what `topology` says.
    description: Vec<i64>,
    nodes: usize,
    /// Nodes by the score that they have by themselves.
    by_score: BTreeMap<i64, Vec<u32>>,
}

#[derive(Clone, Copy)]
struct Slot {
    group: u32,
    score: i64,
    /// Place in the group's list for the score.
    at: u32,
}

pub struct EquivalenceClass {
    pod: Arc<PendingPod>,
    across: Vec<TopologyPlugin>,
    /// Rows of the plugins in `across`.
    spanning: PluginSet,
    topology: TopologyCounts,
    /// In the order of the cache. `None` until the node has been looked at.
    slots: Vec<Option<Slot>>,
    groups: Vec<Group>,
    free_groups: Vec<u32>,
    group_ids: HashMap<Vec<i64>, u32>,
    /// Up to where the cache's changes are known.
    seen: u64,
    dependencies: u64,
}

/// A group whose nodes will do, and what they score beside their own.
struct Feasible {
    group: u32,
    score: i64,
}

impl EquivalenceClass {
    /// `None` when a plugin must look at such pods one by one.
    pub fn new(cluster: &Cluster, profile: &Profile, pod: Arc<PendingPod>) -> Option<Self> {
        let (mut across, mut spanning) = (Vec::new(), PluginSet::default());
        let mut counts = Vec::new();
        for enabled in profile.sign.as_ref()? {
            let rules = match enabled.plugin.scope(cluster, &pod) {
                Scope::Node => continue,
                Scope::Alone => return None,
                Scope::Domains(rules) => rules,
            };
            spanning.insert(enabled.row);
            let first = counts.len();
            counts.extend(rules.domain_counts());
            let score = profile.score.iter().find(|(score, _)| score.row == enabled.row);
            across.push(TopologyPlugin {
                rules,
                counts: first..counts.len(),
                filters: profile.filter.iter().any(|filter| filter.row == enabled.row),
                weight: score.map(|(_, weight)| *weight),
            });
        }
        let mut class = Self {
            dependencies: hash_dependencies(cluster, profile, &pod),
            pod,
            across,
            spanning,
            topology: TopologyCounts::new(counts.into_iter(), cluster.cache.nodes()),
            slots: Vec::new(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            group_ids: HashMap::new(),
            seen: cluster.cache.generation(),
        };
        let pod = class.pod.clone();
        let node_plugins = NodePlugins::new(cluster, profile, &pod, spanning)?;
        class.resize(cluster.cache.len());
        for (at, node) in cluster.cache.nodes().iter().enumerate() {
            class.refresh(cluster, &node_plugins, at, node).ok()?;
        }
        Some(class)
    }

    /// The position of a best node; each of equals is as likely. `None` when none will do.
    pub fn best(&mut self, cluster: &Cluster, profile: &Profile, env: &Env) -> Result<Option<u32>, Outdated> {
        let pod = self.pod.clone();
        let node_plugins = self.catch_up(cluster, profile, &pod)?;
        let feasible = self.feasible(&node_plugins);
        let total = |of: &Feasible| of.score + self.best_of(of.group).0;
        let Some(highest) = feasible.iter().map(total).max() else { return Ok(None) };
        let best: Vec<&[u32]> =
            feasible.iter().filter(|of| total(of) == highest).map(|of| self.best_of(of.group).1).collect();
        let count: usize = best.iter().map(|nodes| nodes.len()).sum();
        let drawn = (env.random_u64() % count.max(1) as u64) as usize;
        Ok(best.into_iter().flatten().nth(drawn).copied())
    }

    /// Every feasible node and its score, as `best` sees them.
    #[cfg(test)]
    pub fn all(&mut self, cluster: &Cluster, profile: &Profile) -> Result<BTreeMap<u32, i64>, Outdated> {
        let pod = self.pod.clone();
        let node_plugins = self.catch_up(cluster, profile, &pod)?;
        let nodes = self.feasible(&node_plugins).into_iter().flat_map(|of| {
            let lists = self.groups[of.group as usize].by_score.iter();
            lists.flat_map(move |(score, nodes)| nodes.iter().map(move |at| (*at, of.score + score)))
        });
        Ok(nodes.collect())
    }

    #[cfg(test)]
    pub fn groups(&self) -> usize {
        self.group_ids.len()
    }

    fn best_of(&self, group: u32) -> (i64, &[u32]) {
        let best = self.groups[group as usize].by_score.last_key_value();
        best.map_or((0, &[][..]), |(score, nodes)| (*score, nodes.as_slice()))
    }

    /// Looks again at the nodes that have changed.
    fn catch_up<'a>(
        &mut self,
        cluster: &'a Cluster,
        profile: &'a Profile,
        pod: &'a PendingPod,
    ) -> Result<NodePlugins<'a>, Outdated> {
        if hash_dependencies(cluster, profile, pod) != self.dependencies {
            return Err(Outdated);
        }
        let node_plugins = NodePlugins::new(cluster, profile, pod, self.spanning).ok_or(Outdated)?;
        let changed = cluster.cache.changed_since(self.seen).ok_or(Outdated)?;
        self.resize(cluster.cache.len());
        for at in changed {
            if let Some(node) = cluster.cache.nodes().get(at as usize) {
                self.refresh(cluster, &node_plugins, at as usize, node)?;
            }
        }
        self.seen = cluster.cache.generation();
        Ok(node_plugins)
    }

    fn resize(&mut self, nodes: usize) {
        for at in nodes..self.slots.len() {
            self.leave(at);
        }
        self.slots.resize(nodes, None);
        self.topology.resize(nodes);
    }

    fn refresh(
        &mut self,
        cluster: &Cluster,
        node_plugins: &NodePlugins<'_>,
        at: usize,
        node: &NodeInfo,
    ) -> Result<(), Outdated> {
        let mut amounts = vec![0; self.topology.counts()].into_boxed_slice();
        for of in &self.across {
            of.rules.count_node(cluster, node, &mut amounts[of.counts.clone()])?;
        }
        self.leave(at);
        self.topology.set(at, node, amounts)?;
        let accepted = node_plugins.accepts(node);
        let mut description = vec![i64::from(accepted)];
        description
            .extend(node_plugins.normalized.iter().map(|(score, _)| if accepted { score.score(0, node) } else { 0 }));
        self.topology.describe(at, &mut description);
        let score = if accepted { node_plugins.score(node) } else { 0 };
        self.join(at, description, score);
        Ok(())
    }

    fn leave(&mut self, at: usize) {
        let Some(slot) = self.slots[at].take() else { return };
        let group = &mut self.groups[slot.group as usize];
        group.nodes -= 1;
        if let Some(nodes) = group.by_score.get_mut(&slot.score) {
            nodes.swap_remove(slot.at as usize);
            match nodes.get(slot.at as usize) {
                Some(moved) => {
                    if let Some(moved) = &mut self.slots[*moved as usize] {
                        moved.at = slot.at;
                    }
                }
                None if nodes.is_empty() => drop(group.by_score.remove(&slot.score)),
                None => {}
            }
        }
        if group.nodes == 0 {
            self.group_ids.remove(&group.description);
            self.free_groups.push(slot.group);
        }
    }

    fn join(&mut self, at: usize, description: Vec<i64>, score: i64) {
        let id = match self.group_ids.get(&description) {
            Some(id) => *id,
            None => {
                let group = Group { description: description.clone(), nodes: 0, by_score: BTreeMap::new() };
                let id = match self.free_groups.pop() {
                    Some(id) => {
                        self.groups[id as usize] = group;
                        id
                    }
                    None => {
                        self.groups.push(group);
                        self.groups.len() as u32 - 1
                    }
                };
                self.group_ids.insert(description, id);
                id
            }
        };
        let group = &mut self.groups[id as usize];
        group.nodes += 1;
        let nodes = group.by_score.entry(score).or_default();
        nodes.push(at as u32);
        self.slots[at] = Some(Slot { group: id, score, at: nodes.len() as u32 - 1 });
    }

    /// The groups that every plugin accepts, with what the plugins that compare nodes make of them.
    fn feasible(&self, node_plugins: &NodePlugins<'_>) -> Vec<Feasible> {
        let relative = node_plugins.normalized.len();
        let mut groups: Vec<u32> = (0..self.groups.len() as u32).collect();
        groups.retain(|id| self.groups[*id as usize].nodes > 0);
        let of = |id: u32| &self.groups[id as usize];
        let mut accepted: Vec<bool> = groups.iter().map(|id| of(*id).description[0] != 0).collect();
        let counts = self.topology.counts();
        let (mut numbers, mut domains) = (Vec::new(), Vec::new());
        for id in &groups {
            self.topology.read(&of(*id).description[1 + relative..], &mut numbers, &mut domains);
        }
        let view = |at: usize, part: &Range<usize>| {
            let part = at * counts + part.start..at * counts + part.end;
            GroupView { nodes: of(groups[at]).nodes, numbers: &numbers[part.clone()], domains: &domains[part] }
        };
        for across in self.across.iter().filter(|a| a.filters) {
            let views: Vec<GroupView<'_>> = (0..groups.len()).map(|at| view(at, &across.counts)).collect();
            across.rules.filter(&views, &mut accepted);
        }
        let kept: Vec<usize> = (0..groups.len()).filter(|at| accepted[*at]).collect();
        let mut feasible: Vec<Feasible> = kept.iter().map(|at| Feasible { group: groups[*at], score: 0 }).collect();
        let mut add = |scores: &[i64], weight: i64| {
            for (of, score) in feasible.iter_mut().zip(scores) {
                of.score += score * weight;
            }
        };
        for (at, (score, weight)) in node_plugins.normalized.iter().enumerate() {
            let mut scores: Vec<i64> = kept.iter().map(|kept| of(groups[*kept]).description[1 + at]).collect();
            score.normalize_score(&mut scores);
            add(&scores, *weight);
        }
        for across in &self.across {
            let Some(weight) = across.weight else { continue };
            let views: Vec<GroupView<'_>> = kept.iter().map(|at| view(*at, &across.counts)).collect();
            add(&across.rules.score(&views), weight);
        }
        feasible
    }
}
