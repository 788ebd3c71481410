//! Inter-pod affinity for a class of pods: how many pods of each sort are in each domain, kept as nodes change.
//! The verdicts and scores are those of the plugin itself, by groups of nodes.
//! A topology key that comes up for the first time begins the class anew.

use std::sync::Arc;

use super::{InterPodAffinity, matches_all, normalize, required, required_anti};
use crate::{
    cluster::Cluster,
    equivalence_class::{DomainCount, DomainRules, GroupView, Outdated},
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
};

pub struct TopologyRules {
    plugin: InterPodAffinity,
    pod: Arc<PodInfo>,
    /// Keys of the terms of pods on nodes that keep such a pod away, and of all terms that count in its score.
    kept_away: Vec<String>,
    preferred: Vec<String>,
    /// Whether the pod is one that its own affinity terms speak of.
    is_first: bool,
}

impl TopologyRules {
    pub fn new(plugin: &InterPodAffinity, cluster: &Cluster, pod: &PendingPod) -> Self {
        let (hard_weight, ignore_preferred_of_existing) = (plugin.hard_weight, plugin.ignore_preferred_of_existing);
        let mut rules = Self {
            plugin: InterPodAffinity { hard_weight, ignore_preferred_of_existing },
            pod: pod.info(),
            kept_away: Vec::new(),
            preferred: Vec::new(),
            is_first: matches_all(required(pod), pod, cluster),
        };
        let (mut kept_away, mut preferred) = (Vec::new(), Vec::new());
        // The pod's like will soon be on nodes: their terms are counted from the start.
        let placed = cluster.cache.nodes().iter().flat_map(|node| rules.others(node));
        for other in placed.chain([&**pod]) {
            rules.visit(cluster, other, |key| note(&mut kept_away, key), |key, _| note(&mut preferred, key));
        }
        (rules.kept_away, rules.preferred) = (kept_away, preferred);
        rules
    }

    /// The pods on a node that can matter.
    fn others<'n>(&self, node: &'n NodeInfo) -> impl Iterator<Item = &'n PodInfo> {
        let all = self.pod.affinity.is_some();
        let pods = if all || node.pods_with_affinity > 0 { node.pods.as_slice() } else { &[] };
        pods.iter().map(|pod| &**pod).filter(move |pod| all || pod.affinity.is_some())
    }

    fn visit(
        &self,
        cluster: &Cluster,
        other: &PodInfo,
        mut kept_away: impl FnMut(&str),
        preferred: impl FnMut(&str, i64),
    ) {
        for term in required_anti(other).iter().filter(|term| term.matches(&self.pod, cluster)) {
            kept_away(&term.topology_key);
        }
        if self.plugin.prefers(cluster, &self.pod) {
            self.plugin.preferences(cluster, &self.pod, other, preferred);
        }
    }

    /// Where each sort of count begins: near, away, kept away, preferred.
    fn parts(&self) -> [usize; 3] {
        let near = required(&self.pod).len();
        let away = near + required_anti(&self.pod).len();
        [near, away, away + self.kept_away.len()]
    }
}

fn note(keys: &mut Vec<String>, key: &str) {
    if !keys.iter().any(|known| known == key) {
        keys.push(key.to_string());
    }
}

fn add(keys: &[String], amounts: &mut [i64], key: &str, amount: i64) -> Result<(), Outdated> {
    let at = keys.iter().position(|known| known == key).ok_or(Outdated)?;
    amounts[at] += amount;
    Ok(())
}

impl DomainRules for TopologyRules {
    fn domain_counts(&self) -> Vec<DomainCount> {
        let terms = required(&self.pod).iter().chain(required_anti(&self.pod)).map(|term| &term.topology_key);
        let keys = terms.chain(&self.kept_away).chain(&self.preferred);
        keys.map(|key| DomainCount { key: key.clone(), per_node: false }).collect()
    }

    fn count_node(&self, cluster: &Cluster, node: &NodeInfo, amounts: &mut [i64]) -> Result<(), Outdated> {
        let [near, away, kept_away] = self.parts();
        for other in self.others(node) {
            if matches_all(required(&self.pod), other, cluster) {
                amounts[..near].iter_mut().for_each(|amount| *amount += 1);
            }
            for (term, amount) in required_anti(&self.pod).iter().zip(&mut amounts[near..away]) {
                *amount += i64::from(term.matches(other, cluster));
            }
            let (kept, preferred) = amounts[away..].split_at_mut(kept_away - away);
            let (mut known, mut wanted) = (Ok(()), Ok(()));
            self.visit(
                cluster,
                other,
                |key| {
                    if known.is_ok() {
                        known = add(&self.kept_away, kept, key, 1);
                    }
                },
                |key, weight| {
                    if wanted.is_ok() {
                        wanted = add(&self.preferred, preferred, key, weight);
                    }
                },
            );
            known.and(wanted)?;
        }
        Ok(())
    }

    fn filter(&self, groups: &[GroupView<'_>], accepted: &mut [bool]) {
        let [near, _, kept_away] = self.parts();
        let nobody = groups.iter().all(|group| group.numbers[..near].iter().flatten().all(|number| *number == 0));
        for (group, accepted) in groups.iter().zip(accepted) {
            let has_keys = group.numbers[..near].iter().all(Option::is_some);
            let is_near = group.numbers[..near].iter().flatten().all(|number| *number > 0);
            let is_free = group.numbers[near..kept_away].iter().flatten().all(|number| *number <= 0);
            *accepted &= has_keys && (is_near || (nobody && self.is_first)) && is_free;
        }
    }

    fn score(&self, feasible: &[GroupView<'_>]) -> Vec<i64> {
        let [.., preferred] = self.parts();
        let mut scores: Vec<i64> =
            feasible.iter().map(|group| group.numbers[preferred..].iter().flatten().sum()).collect();
        normalize(&mut scores);
        scores
    }
}
