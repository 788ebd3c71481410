//! One pod, one decision: filter the nodes, score those that will do, pick the best.
//! Driven by `scheduler`; asks the profile's plugins; `preemption` follows a refusal.
//! Invariant: changes nothing; the caller assumes and binds.

use std::sync::Arc;

use env::Env;

use crate::{
    cluster::Cluster,
    diagnosis::Diagnosis,
    framework::{Failure, Filter, Prepared, Profile},
    node_info::NodeInfo,
    pod_info::{PodInfo, WaitingPod},
    preemption::{self, Preemption},
};

/// Below this many nodes all are looked at, and at least this many must be found feasible before stopping.
const MIN_FEASIBLE: usize = 100;
const MIN_PERCENTAGE: usize = 5;

/// A plugin's filter for the pod at hand.
pub struct Active<'a> {
    pub row: usize,
    pub name: &'static str,
    pub filter: Box<dyn Filter<'a> + 'a>,
}

/// Every filter that has something to say about the pod.
pub struct Filters<'a> {
    pub active: Vec<Active<'a>>,
    only: Option<std::collections::HashSet<String>>,
    only_by: Vec<&'static str>,
}

/// Asks every plugin about the pod alone.
pub fn prepare<'a>(
    cluster: &'a Cluster,
    profile: &'a Profile,
    pod: &'a WaitingPod,
) -> Result<Filters<'a>, Box<Diagnosis>> {
    let mut filters = Filters { active: Vec::new(), only: None, only_by: Vec::new() };
    for enabled in &profile.filters {
        let filter = match enabled.plugin.filter(cluster, pod) {
            Prepared::Skip => continue,
            Prepared::Filter(filter) => filter,
            Prepared::Only(names, filter) => {
                filters.only = Some(match filters.only.take() {
                    Some(before) => before.intersection(&names).cloned().collect(),
                    None => names,
                });
                filters.only_by.push(enabled.name);
                filter
            }
            Prepared::Reject(failure) => {
                let mut diagnosis = Diagnosis::new(cluster.cache.len());
                diagnosis.rejection = Some(failure.reasons.join(", "));
                diagnosis.rejected_by.insert(enabled.row);
                return Err(Box::new(diagnosis));
            }
        };
        filters.active.push(Active { row: enabled.row, name: enabled.name, filter });
    }
    Ok(filters)
}

/// The first complaint about `node`, with the row and name of the plugin that has it.
type Verdict = Result<(), (usize, &'static str, Failure)>;

impl<'a> Filters<'a> {
    pub fn check(&self, node: &NodeInfo) -> Verdict {
        for active in &self.active {
            active.filter.check(node).map_err(|failure| (active.row, active.name, failure))?;
        }
        Ok(())
    }

    /// As `check`, and also with the pods in place for which preemption is making room here.
    pub fn check_with_nominated(&self, cluster: &Cluster, node: &NodeInfo, pod: &WaitingPod) -> Verdict {
        let counts = |other: &&Arc<PodInfo>| other.priority >= pod.priority && other.key != pod.key;
        let mut nominated = cluster.cache.nominated_on(&node.name).iter().filter(counts).peekable();
        if nominated.peek().is_some() {
            let (mut with, mut filters) = (node.clone(), self.fork());
            for other in nominated {
                with.add_pod(other.clone());
                filters.pod_changed(other, &with, true);
            }
            filters.check(&with)?;
        }
        // They may never arrive, so what depends on them (affinity to them, say) must hold without them too.
        self.check(node)
    }

    pub fn fork(&self) -> Self {
        let copy = |a: &Active<'a>| Active { row: a.row, name: a.name, filter: a.filter.fork() };
        Self { active: self.active.iter().map(copy).collect(), only: None, only_by: Vec::new() }
    }

    pub fn pod_changed(&mut self, pod: &PodInfo, node: &NodeInfo, added: bool) {
        for active in &mut self.active {
            active.filter.pod_changed(pod, node, added);
        }
    }
}

/// How many feasible nodes are enough.
pub fn enough_nodes(all: usize, percentage: u32) -> usize {
    if all < MIN_FEASIBLE {
        return all;
    }
    let percentage = match percentage as usize {
        0 => 50usize.saturating_sub(all / 125).max(MIN_PERCENTAGE),
        given => given,
    };
    if percentage >= 100 { all } else { (all * percentage / 100).max(MIN_FEASIBLE) }
}

/// Positions of feasible nodes in the cache, or why there are none. `start` rotates so that all nodes get their turn.
pub fn feasible(
    cluster: &Cluster,
    profile: &Profile,
    pod: &WaitingPod,
    filters: &Filters<'_>,
    start: &mut usize,
) -> Result<Vec<u32>, Box<Diagnosis>> {
    let (nodes, order) = (cluster.cache.nodes(), cluster.cache.order());
    let mut diagnosis = Diagnosis::new(nodes.len());
    let mut look = |at: u32, found: &mut Vec<u32>| {
        let node = &nodes[at as usize];
        match filters.check_with_nominated(cluster, node, pod) {
            Ok(()) => found.push(at),
            Err((row, name, failure)) => diagnosis.turned_down(row, name, node.name.clone(), failure),
        }
    };
    let mut found = Vec::new();
    // The node that preemption made room on comes first; if it will do, no other is needed.
    if let Some(at) = nominated_position(cluster, pod)
        && filters.only.is_none()
        && filters.check_with_nominated(cluster, &nodes[at], pod).is_ok()
    {
        return Ok(vec![at as u32]);
    }
    if let Some(only) = &filters.only {
        let positions: Vec<_> = only.iter().filter_map(|name| cluster.cache.position(name)).collect();
        for at in &positions {
            look(*at as u32, &mut found);
        }
        diagnosis.left_out = nodes.len() - positions.len();
        diagnosis.left_out_by = filters.only_by.clone();
        if positions.is_empty() {
            for active in filters.active.iter().filter(|a| filters.only_by.contains(&a.name)) {
                diagnosis.rejected_by.insert(active.row);
            }
        }
    } else if !order.is_empty() {
        let enough = enough_nodes(order.len(), profile.percentage_of_nodes_to_score);
        let first = *start % order.len();
        let mut looked = 0;
        for at in order[first..].iter().chain(&order[..first]) {
            looked += 1;
            look(*at, &mut found);
            if found.len() >= enough {
                break;
            }
        }
        *start = (first + looked) % order.len();
    }
    if found.is_empty() { Err(Box::new(diagnosis)) } else { Ok(found) }
}

fn nominated_position(cluster: &Cluster, pod: &WaitingPod) -> Option<usize> {
    let name = pod.nominated_node_name().or_else(|| cluster.cache.nomination(&pod.key))?;
    cluster.cache.position(name)
}

/// The weighted sum of the plugins' scores, one per feasible node.
pub fn score(cluster: &Cluster, profile: &Profile, pod: &WaitingPod, feasible: &[u32]) -> Vec<i64> {
    let nodes: Vec<&NodeInfo> = feasible.iter().map(|at| &cluster.cache.nodes()[*at as usize]).collect();
    let mut totals = vec![0; nodes.len()];
    let mut scores = Vec::with_capacity(nodes.len());
    for enabled in &profile.scores {
        let Some(score) = enabled.plugin.score(cluster, pod, &nodes) else { continue };
        scores.clear();
        scores.extend(nodes.iter().enumerate().map(|(at, node)| score.score(at, node)));
        score.normalize(&mut scores);
        for (total, score) in totals.iter_mut().zip(&scores) {
            *total += score * enabled.weight;
        }
    }
    totals
}

/// The position of a highest score; each of equals is as likely.
pub fn pick(scores: &[i64], env: &Env) -> usize {
    let (mut best, mut equals) = (0, 1u64);
    for (at, score) in scores.iter().enumerate().skip(1) {
        if *score > scores[best] {
            (best, equals) = (at, 1);
        } else if *score == scores[best] {
            equals += 1;
            if env.random_u64().is_multiple_of(equals) {
                best = at;
            }
        }
    }
    best
}

/// The name of the best of the feasible nodes. `extra` is what others add to their scores.
pub fn best(
    cluster: &Cluster,
    profile: &Profile,
    pod: &WaitingPod,
    feasible: &[u32],
    extra: &[i64],
    env: &Env,
) -> Arc<str> {
    let at = match feasible {
        [only] => *only,
        several => {
            let mut scores = score(cluster, profile, pod, several);
            for (score, more) in scores.iter_mut().zip(extra) {
                *score += more;
            }
            several[pick(&scores, env)]
        }
    };
    cluster.cache.nodes()[at as usize].name.clone()
}

/// What filtering made of a pod.
pub enum Candidates {
    Feasible(Vec<u32>),
    /// No node will do; what preemption could change, if it was asked.
    Refused(Box<Diagnosis>, Option<Preemption>),
}

pub fn candidates(cluster: &Cluster, profile: &Profile, pod: &WaitingPod, start: &mut usize, env: &Env) -> Candidates {
    let filters = match prepare(cluster, profile, pod) {
        Ok(filters) => filters,
        Err(diagnosis) => {
            let others = cluster.cache.len();
            let message = format!("0/{others} nodes are available: {others} {}.", preemption::NOT_HELPFUL);
            let pointless = Preemption::Pointless { message, withdraw: true };
            return Candidates::Refused(diagnosis, profile.preemption.filter(|_| others > 0).map(|_| pointless));
        }
    };
    match feasible(cluster, profile, pod, &filters, start) {
        Ok(feasible) => Candidates::Feasible(feasible),
        Err(diagnosis) => {
            let preemption = profile
                .preemption
                .filter(|_| !cluster.cache.is_empty())
                .map(|arguments| preemption::find(cluster, arguments, pod, &filters, &diagnosis, env.random_u64()));
            Candidates::Refused(diagnosis, preemption)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_clusters_are_sampled() {
        for (all, percentage, wanted) in [
            (50, 0, 50),
            (100, 0, 100),
            (1000, 0, 420),
            (5000, 0, 500),
            (6000, 0, 300),
            (1000, 1, 100),
            (1000, 100, 1000),
        ] {
            assert_eq!(enough_nodes(all, percentage), wanted, "{percentage}% of {all}");
        }
    }

    #[test]
    fn equals_are_picked_evenly() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 3);
        let mut picked = [0; 4];
        for _ in 0..3000 {
            picked[pick(&[7, 9, 9, 9], &env)] += 1;
        }
        assert_eq!(picked[0], 0);
        assert!(picked[1..].iter().all(|count| (800..1200).contains(count)), "{picked:?}");
    }
}
