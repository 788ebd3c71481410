//! Topology spread for a class of pods: matching pods per domain, kept as nodes change.
//! The verdicts and scores are those of the plugin itself, by groups of nodes.
//! Hard constraints have two counts each, matching pods and nodes that count; soft ones have one.

use super::{Constraint, HOSTNAME, PodTopologySpread, evenness, has_all_keys, has_own, range};
use crate::{
    cluster::Cluster,
    equivalence_class::{DomainCount, DomainRules, GroupView, Outdated, distinct},
    node_info::NodeInfo,
    node_selector::RequiredNodes,
    pod_info::PendingPod,
};

pub struct TopologyRules {
    pod: PendingPod,
    required: RequiredNodes,
    hard: Vec<Constraint>,
    soft: Vec<Constraint>,
    /// Whether soft constraints leave out nodes that lack a key.
    need_all_keys: bool,
}

impl TopologyRules {
    pub fn new(plugin: &PodTopologySpread, cluster: &Cluster, pod: &PendingPod) -> Result<Self, String> {
        Ok(Self {
            hard: plugin.constraints(cluster, pod, "DoNotSchedule")?,
            soft: plugin.constraints(cluster, pod, "ScheduleAnyway")?,
            need_all_keys: has_own(pod) || !plugin.system,
            required: RequiredNodes::of(pod.spec()),
            pod: pod.clone(),
        })
    }

    /// The soft constraints with the places of their counts.
    fn soft(&self) -> impl Iterator<Item = (usize, &Constraint)> {
        let first = 2 * self.hard.len();
        self.soft.iter().enumerate().map(move |(at, constraint)| (first + at, constraint))
    }
}

impl DomainRules for TopologyRules {
    fn domain_counts(&self) -> Vec<DomainCount> {
        let hard = self.hard.iter().flat_map(|c| [&c.key, &c.key]).map(|key| (key, false));
        let soft = self.soft.iter().map(|c| (&c.key, c.key == HOSTNAME));
        hard.chain(soft).map(|(key, per_node)| DomainCount { key: key.clone(), per_node }).collect()
    }

    fn count_node(&self, _: &Cluster, node: &NodeInfo, amounts: &mut [i64]) -> Result<(), Outdated> {
        if has_all_keys(node, &self.hard) {
            for (at, constraint) in self.hard.iter().enumerate() {
                if constraint.counts(node, &self.required, &self.pod) {
                    amounts[2 * at] = constraint.pods_on(node, self.pod.namespace());
                    amounts[2 * at + 1] = 1;
                }
            }
        }
        let left_out = self.need_all_keys && !has_all_keys(node, &self.soft);
        for (at, constraint) in self.soft() {
            let counts = !left_out && constraint.counts(node, &self.required, &self.pod);
            if constraint.key == HOSTNAME || counts {
                amounts[at] = constraint.pods_on(node, self.pod.namespace());
            }
        }
        Ok(())
    }

    fn filter(&self, groups: &[GroupView<'_>], accepted: &mut [bool]) {
        for (at, constraint) in self.hard.iter().enumerate() {
            let (pods, nodes) = (2 * at, 2 * at + 1);
            let counted = || groups.iter().filter(|group| group.numbers[nodes].is_some_and(|nodes| nodes > 0));
            let lowest = match distinct(counted(), nodes) < constraint.min_domains {
                true => 0,
                false => counted().filter_map(|group| group.numbers[pods]).min().unwrap_or(0),
            };
            let this = i64::from(constraint.selector.matches(self.pod.labels()));
            for (group, accepted) in groups.iter().zip(&mut *accepted) {
                *accepted &= group.numbers[pods].is_some_and(|count| count + this - lowest <= constraint.max_skew);
            }
        }
    }

    fn score(&self, feasible: &[GroupView<'_>]) -> Vec<i64> {
        if self.soft.is_empty() {
            return vec![0; feasible.len()];
        }
        let lacks_a_key = |group: &GroupView<'_>| self.soft().any(|(at, _)| group.numbers[at].is_none());
        let ignored: Vec<bool> = feasible.iter().map(|group| self.need_all_keys && lacks_a_key(group)).collect();
        let considered = || feasible.iter().zip(&ignored).filter(|(_, ignored)| !**ignored).map(|(group, _)| group);
        let mut sums = vec![0.0; feasible.len()];
        for (at, constraint) in self.soft() {
            let size = match constraint.key == HOSTNAME {
                true => considered().map(|group| group.nodes).sum(),
                false => distinct(considered(), at),
            };
            let weight = (size as f64 + 2.0).ln();
            for ((sum, group), ignored) in sums.iter_mut().zip(feasible).zip(&ignored) {
                if let Some(count) = group.numbers[at].filter(|_| !ignored) {
                    *sum += count as f64 * weight + (constraint.max_skew - 1) as f64;
                }
            }
        }
        let sums: Vec<i64> = sums.into_iter().map(|sum: f64| sum.round() as i64).collect();
        let range = range(sums.iter().zip(&ignored).filter(|(_, ignored)| !**ignored).map(|(sum, _)| *sum));
        sums.iter().zip(&ignored).map(|(sum, ignored)| evenness(*sum, *ignored, range)).collect()
    }
}
