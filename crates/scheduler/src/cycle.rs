//! One pod, one decision: filter the nodes, score those that will do, pick the best.
//! Driven by `scheduler`; asks the profile's plugins from PreFilter to Score.
//! Changes nothing; the caller assumes and binds.

use std::{collections::HashSet, sync::Arc};

use env::Env;

use crate::{
    cluster::Cluster,
    diagnosis::Diagnosis,
    framework::{
        Candidate, Code, FailedAttempt, NodeFilter, PluginSet, PostFilterPlugin, PostFilterResult, PostFilterWork,
        PreFilterResult, Profile, Refusal,
    },
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
    scheduler_metrics::{PointTimer, success},
};

/// Below this many nodes all are looked at, and at least this many must be found feasible before stopping.
const MIN_FEASIBLE_NODES: usize = 100;
const MIN_FEASIBLE_NODES_PERCENTAGE: usize = 5;

/// A plugin's filter for the pod at hand.
struct ActiveFilter<'a> {
    row: usize,
    name: &'static str,
    filter: Box<dyn NodeFilter<'a> + 'a>,
}

/// Every filter that has something to say about the pod, and the nodes that PreFilter leaves.
#[derive(Default)]
pub struct Filters<'a> {
    active: Vec<ActiveFilter<'a>>,
    only: Option<HashSet<String>>,
    /// Rows and names of the plugins that left only those.
    only_by: Vec<(usize, &'static str)>,
}

/// Asks every PreFilter plugin about the pod, and the Filter plugins for their filters.
pub fn run_pre_filter<'a>(
    cluster: &'a Cluster,
    profile: &'a Profile,
    pod: &'a PendingPod,
) -> Result<Filters<'a>, Box<Diagnosis>> {
    let (mut only, mut only_by): (Option<HashSet<String>>, _) = (None, Vec::new());
    let mut skipped = PluginSet::default();
    for enabled in &profile.pre_filter {
        match enabled.plugin.pre_filter(cluster, pod) {
            PreFilterResult::AllNodes => {}
            PreFilterResult::Skip => skipped.insert(enabled.row),
            PreFilterResult::Nodes(names) => {
                only = Some(match only {
                    Some(before) => before.intersection(&names).cloned().collect(),
                    None => names,
                });
                only_by.push((enabled.row, enabled.name));
            }
            PreFilterResult::Reject(status) => {
                let mut diagnosis = Diagnosis::new(cluster.cache.len());
                if status.code == Code::Error {
                    diagnosis.error =
                        Some(format!("running PreFilter plugin {:?}: {}", enabled.name, status.message()));
                }
                diagnosis.pre_filter_message = Some(status.message());
                diagnosis.unschedulable_plugins.insert(enabled.row);
                return Err(Box::new(diagnosis));
            }
        }
    }
    let filters = profile.filter.iter().filter(|enabled| !skipped.contains(enabled.row));
    let active = filters.map(|enabled| ActiveFilter {
        row: enabled.row,
        name: enabled.name,
        filter: enabled.plugin.node_filter(cluster, pod),
    });
    Ok(Filters { active: active.collect(), only, only_by })
}

impl<'a> Filters<'a> {
    /// The first refusal of `node`.
    pub fn run(&self, node: &NodeInfo) -> Result<(), Refusal> {
        for active in &self.active {
            active.filter.filter(node).map_err(|status| (active.row, active.name, status))?;
        }
        Ok(())
    }

    /// As `run`, and also with the pods in place for which preemption is making room here.
    pub fn run_with_nominated_pods(&self, cluster: &Cluster, node: &NodeInfo, pod: &PendingPod) -> Result<(), Refusal> {
        let counts = |other: &&Arc<PodInfo>| other.priority >= pod.priority && other.key != pod.key;
        let mut nominated = cluster.cache.nominated_on(&node.name).iter().filter(counts).peekable();
        if nominated.peek().is_some() {
            let (mut with, mut filters) = (node.clone(), self.fork());
            for other in nominated {
                with.add_pod(other.clone());
                filters.add_pod(other, &with);
            }
            filters.run(&with)?;
        }
        // They may never arrive, so what depends on them (affinity to them, say) must hold without them too.
        self.run(node)
    }

    pub fn fork(&self) -> Self {
        let copy = |a: &ActiveFilter<'a>| ActiveFilter { row: a.row, name: a.name, filter: a.filter.fork() };
        Self { active: self.active.iter().map(copy).collect(), only: None, only_by: Vec::new() }
    }

    pub fn add_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.active.iter_mut().for_each(|active| active.filter.add_pod(pod, node));
    }

    pub fn remove_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.active.iter_mut().for_each(|active| active.filter.remove_pod(pod, node));
    }
}

/// How many feasible nodes are enough.
pub fn num_feasible_nodes_to_find(all: usize, percentage: u32) -> usize {
    if all < MIN_FEASIBLE_NODES {
        return all;
    }
    let percentage = match percentage as usize {
        0 => 50usize.saturating_sub(all / 125).max(MIN_FEASIBLE_NODES_PERCENTAGE),
        given => given,
    };
    if percentage >= 100 { all } else { (all * percentage / 100).max(MIN_FEASIBLE_NODES) }
}

/// Positions of feasible nodes in the cache, or why there are none. `start` rotates so that all nodes get their turn.
pub fn find_nodes_that_fit(
    cluster: &Cluster,
    profile: &Profile,
    pod: &PendingPod,
    filters: &Filters<'_>,
    start: &mut usize,
) -> Result<Vec<u32>, Box<Diagnosis>> {
    let (nodes, order) = (cluster.cache.nodes(), cluster.cache.order());
    let mut diagnosis = Diagnosis::new(nodes.len());
    // False when something went wrong: then the pod may not go anywhere, though other nodes would do.
    let mut look = |at: u32, found: &mut Vec<u32>| {
        let node = &nodes[at as usize];
        match filters.run_with_nominated_pods(cluster, node, pod) {
            Ok(()) => found.push(at),
            Err((_, name, status)) if status.code == Code::Error => {
                diagnosis.error = Some(format!("running {name:?} filter plugin: {}", status.message()));
                return false;
            }
            Err((row, name, status)) => diagnosis.reject_node(row, name, node.name.clone(), status),
        }
        true
    };
    let mut found = Vec::new();
    // The node that preemption made room on comes first; if it will do, no other is needed.
    if let Some(at) = nominated_position(cluster, pod)
        && filters.only.is_none()
        && filters.run_with_nominated_pods(cluster, &nodes[at], pod).is_ok()
    {
        return Ok(vec![at as u32]);
    }
    if let Some(only) = &filters.only {
        let positions: Vec<_> = only.iter().filter_map(|name| cluster.cache.position(name)).collect();
        for at in &positions {
            if !look(*at as u32, &mut found) {
                break;
            }
        }
        diagnosis.left_out = nodes.len() - positions.len();
        diagnosis.left_out_by = filters.only_by.iter().map(|(_, name)| *name).collect();
        if positions.is_empty() {
            filters.only_by.iter().for_each(|(row, _)| diagnosis.unschedulable_plugins.insert(*row));
        }
    } else if !order.is_empty() {
        let enough = num_feasible_nodes_to_find(order.len(), profile.percentage_of_nodes_to_score);
        let first = *start % order.len();
        let mut looked = 0;
        for at in order[first..].iter().chain(&order[..first]) {
            looked += 1;
            if !look(*at, &mut found) || found.len() >= enough {
                break;
            }
        }
        *start = (first + looked) % order.len();
    }
    if found.is_empty() || diagnosis.error.is_some() { Err(Box::new(diagnosis)) } else { Ok(found) }
}

fn nominated_position(cluster: &Cluster, pod: &PendingPod) -> Option<usize> {
    cluster.cache.position(cluster.cache.nominated_node(pod)?)
}

/// The weighted sum of the plugins' scores, one per feasible node.
pub fn prioritize_nodes(
    cluster: &Cluster,
    profile: &Profile,
    pod: &PendingPod,
    feasible: &[u32],
    timer: &PointTimer<'_>,
) -> Vec<i64> {
    let nodes: Vec<&NodeInfo> = feasible.iter().map(|at| &cluster.cache.nodes()[*at as usize]).collect();
    let skipped = timer.run("PreScore", || profile.run_pre_score(cluster, pod, &nodes), success);
    timer.run("Score", || run_score(cluster, profile, pod, &nodes, skipped), success)
}

fn run_score(
    cluster: &Cluster,
    profile: &Profile,
    pod: &PendingPod,
    nodes: &[&NodeInfo],
    skipped: PluginSet,
) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    let mut scores = Vec::with_capacity(nodes.len());
    for (enabled, weight) in profile.score.iter().filter(|(enabled, _)| !skipped.contains(enabled.row)) {
        let scorer = enabled.plugin.node_scorer(cluster, pod, nodes);
        scores.clear();
        scores.extend(nodes.iter().enumerate().map(|(at, node)| scorer.score(at, node)));
        scorer.normalize_score(&mut scores);
        for (total, score) in totals.iter_mut().zip(&scores) {
            *total += score * weight;
        }
    }
    totals
}

/// The position of a highest score; each of equals is as likely.
pub fn select_host(scores: &[i64], env: &Env) -> usize {
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
    pod: &PendingPod,
    feasible: &[u32],
    extra: &[i64],
    timer: &PointTimer<'_>,
) -> Arc<str> {
    let at = match feasible {
        [only] => *only,
        several => {
            let mut scores = prioritize_nodes(cluster, profile, pod, several, timer);
            for (score, more) in scores.iter_mut().zip(extra) {
                *score += more;
            }
            several[select_host(&scores, timer.env)]
        }
    };
    cluster.cache.nodes()[at as usize].name.clone()
}

/// What the PostFilter plugins make of a pod that no node will take.
pub enum Remedy {
    /// Room is made on a node, by this plugin.
    Nominate(Arc<dyn PostFilterPlugin>, Candidate),
    Nothing {
        message: String,
        clear_nomination: bool,
        /// What is done meanwhile that may help.
        works: Vec<PostFilterWork>,
    },
}

/// What filtering made of a pod.
pub enum Fit {
    Feasible(Vec<u32>),
    Unschedulable(Box<Diagnosis>, Remedy),
    /// Nobody knows: something went wrong.
    Failed(String),
}

pub fn find_fit(
    cluster: &Cluster,
    profile: &Profile,
    pod: &PendingPod,
    start: &mut usize,
    timer: &PointTimer<'_>,
) -> Fit {
    let prepared = timer.run(
        "PreFilter",
        || run_pre_filter(cluster, profile, pod),
        |prepared| match prepared {
            Ok(_) => "Success",
            Err(_) => "Unschedulable",
        },
    );
    let (filters, diagnosis) = match prepared {
        // That no node will do is no failure of the filters.
        Ok(filters) => {
            match timer.run("Filter", || find_nodes_that_fit(cluster, profile, pod, &filters, start), success) {
                Ok(feasible) => return Fit::Feasible(feasible),
                Err(diagnosis) => (Some(filters), diagnosis),
            }
        }
        Err(diagnosis) => (None, diagnosis),
    };
    if let Some(error) = diagnosis.error {
        return Fit::Failed(error);
    }
    let filters = filters.as_ref();
    let attempt = FailedAttempt { cluster, pod, filters, diagnosis: &diagnosis, offset: timer.env.random_u64() };
    let remedy = timer.run(
        "PostFilter",
        || run_post_filter(profile, &attempt),
        |remedy| match remedy {
            Remedy::Nominate(..) => "Success",
            Remedy::Nothing { .. } => "Unschedulable",
        },
    );
    Fit::Unschedulable(diagnosis, remedy)
}

/// Until a plugin makes room. What the others say is told together.
fn run_post_filter(profile: &Profile, attempt: &FailedAttempt<'_, '_>) -> Remedy {
    let (mut messages, mut works, mut clear) = (Vec::new(), Vec::new(), false);
    let plugins = if attempt.cluster.cache.is_empty() { &[] } else { profile.post_filter.as_slice() };
    for enabled in plugins {
        match enabled.plugin.post_filter(attempt) {
            PostFilterResult::Nominate(candidate) => return Remedy::Nominate(enabled.plugin.clone(), candidate),
            PostFilterResult::Unschedulable { message, clear_nomination } => {
                messages.push(message);
                clear |= clear_nomination;
            }
            PostFilterResult::Act { message, work } => {
                messages.push(message);
                works.push(work);
            }
        }
    }
    Remedy::Nothing { message: messages.join(", "), clear_nomination: clear, works }
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
            assert_eq!(num_feasible_nodes_to_find(all, percentage), wanted, "{percentage}% of {all}");
        }
    }

    #[test]
    fn equals_are_picked_evenly() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 3);
        let mut picked = [0; 4];
        for _ in 0..3000 {
            picked[select_host(&[7, 9, 9, 9], &env)] += 1;
        }
        assert_eq!(picked[0], 0);
        assert!(picked[1..].iter().all(|count| (800..1200).contains(count)), "{picked:?}");
    }
}
