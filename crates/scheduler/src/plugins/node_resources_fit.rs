//! The node must have room for what the pod asks; nodes are compared by how full they would be.
//! Shares `Strategy`'s shape with `node_resources_balanced_allocation`; amounts come from `resources`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, Code, EnqueueExtensions, FilterPlugin, MAX_NODE_SCORE, NodeFilter, NodeScorer, Plugin,
        PreFilterPlugin, PreScorePlugin, QueueingHint, ScorePlugin, SignPlugin, Status, accepts,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

/// Scores in a RequestedToCapacityRatio shape go to ten.
const MAX_SHAPE_SCORE: i64 = 10;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceSpec {
    pub name: String,
    #[serde(default)]
    weight: i64,
}

impl ResourceSpec {
    /// None given, or zero, is one.
    pub fn weight(&self) -> i64 {
        self.weight.max(1)
    }
}

pub fn cpu_and_memory() -> Vec<ResourceSpec> {
    ["cpu", "memory"].map(|name| ResourceSpec { name: name.into(), weight: 1 }).to_vec()
}

#[derive(Debug, Clone)]
enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of utilization (percent) and score, ascending.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

pub struct NodeResourcesFit {
    ignored: BTreeSet<String>,
    ignored_groups: BTreeSet<String>,
    strategy: Strategy,
    resources: Vec<ResourceSpec>,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self {
            ignored: BTreeSet::new(),
            ignored_groups: BTreeSet::new(),
            strategy: Strategy::LeastAllocated,
            resources: cpu_and_memory(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Arguments {
    ignored_resources: BTreeSet<String>,
    ignored_resource_groups: BTreeSet<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    shape: Vec<ShapePoint>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let arguments: Arguments = match arguments {
        Value::Null => Arguments::default(),
        given => serde_json::from_value(given.clone()).map_err(|e| format!("scoringStrategy: {e}"))?,
    };
    let mut fit = NodeResourcesFit {
        ignored: arguments.ignored_resources,
        ignored_groups: arguments.ignored_resource_groups,
        ..NodeResourcesFit::default()
    };
    if let Some(scoring) = arguments.scoring_strategy {
        fit.strategy = match (scoring.kind.as_str(), scoring.requested_to_capacity_ratio) {
            ("LeastAllocated", _) => Strategy::LeastAllocated,
            ("MostAllocated", _) => Strategy::MostAllocated,
            ("RequestedToCapacityRatio", Some(ratio)) => {
                let scale = MAX_NODE_SCORE / MAX_SHAPE_SCORE;
                let points = ratio.shape.iter().map(|p| (p.utilization, p.score * scale));
                Strategy::RequestedToCapacityRatio(points.collect())
            }
            (other, _) => return Err(format!("scoringStrategy.type: Unsupported value: {other:?}")),
        };
        if !scoring.resources.is_empty() {
            fit.resources = scoring.resources;
        }
    }
    Ok(Plugin::of(fit).pre_filter().filter().pre_score().score().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Fits<'a> {
    fit: &'a NodeResourcesFit,
    pod: &'a PendingPod,
}

struct Fullness<'a> {
    fit: &'a NodeResourcesFit,
    pod: &'a PendingPod,
}

impl NodeResourcesFit {
    /// Only extended resources can be left to others.
    fn ignores(&self, name: &str) -> bool {
        let Some((group, _)) = name.split_once('/') else { return false };
        self.ignored.contains(name) || self.ignored_groups.contains(group)
    }
}

impl PreFilterPlugin for NodeResourcesFit {}

impl FilterPlugin for NodeResourcesFit {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Fits { fit: self, pod })
    }
}

impl PreScorePlugin for NodeResourcesFit {}

impl ScorePlugin for NodeResourcesFit {
    fn node_scorer<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod, _: &[&'a NodeInfo]) -> Box<dyn NodeScorer + 'a> {
        Box::new(Fullness { fit: self, pod })
    }
}

impl EnqueueExtensions for NodeResourcesFit {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::Node { name, change, .. } => change.allocatable && accepts(self, cluster, pod, name),
            // A pod that went away helps if the room it left is on a node that now has enough.
            ClusterEvent::PodGone(other) | ClusterEvent::PodChanged { now: other, .. } => {
                other.node_name().is_none_or(|name| accepts(self, cluster, pod, name))
            }
            _ => false,
        })
    }
}

impl SignPlugin for NodeResourcesFit {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.requests();
        signature.non_zero_requests();
    }
}

impl<'a> NodeFilter<'a> for Fits<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        let (wanted, used, room) = (&self.pod.requests, &node.requested, &node.allocatable);
        let (mut reasons, mut resolvable) = (Vec::new(), true);
        if node.pods.len() as i64 + 1 > room.pods {
            reasons.push("Too many pods".into());
        }
        let short = |wanted: i64, used: i64, room: i64| wanted > 0 && wanted > room.saturating_sub(used);
        let never = |wanted: i64, room: i64| wanted > room;
        for (name, wanted, used, room) in [
            ("Insufficient cpu", wanted.milli_cpu, used.milli_cpu, room.milli_cpu),
            ("Insufficient memory", wanted.memory, used.memory, room.memory),
            (
                "Insufficient ephemeral-storage",
                wanted.ephemeral_storage,
                used.ephemeral_storage,
                room.ephemeral_storage,
            ),
        ] {
            if short(wanted, used, room) {
                reasons.push(name.into());
                resolvable &= !never(wanted, room);
            }
        }
        for (name, amount) in &wanted.scalars {
            if *amount > 0 && !self.fit.ignores(name) && short(*amount, used.get(name), room.get(name)) {
                reasons.push(format!("Insufficient {name}").into());
                resolvable &= !never(*amount, room.get(name));
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        let code = if resolvable { Code::Unschedulable } else { Code::UnschedulableAndUnresolvable };
        Err(Status { code, reasons })
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl NodeScorer for Fullness<'_> {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let (mut total, mut weights) = (0, 0);
        let ratio = matches!(self.fit.strategy, Strategy::RequestedToCapacityRatio(_));
        for resource in &self.fit.resources {
            let capacity = node.allocatable.get(&resource.name);
            let wanted = self.pod.non_zero_requests.get(&resource.name);
            let is_scalar = !matches!(resource.name.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pods");
            // An extended resource that the pod doesn't ask for says nothing about the node.
            if capacity == 0 || (is_scalar && wanted == 0) {
                continue;
            }
            let requested = node.non_zero_requested.get(&resource.name).saturating_add(wanted);
            let score = self.fit.strategy.score(requested, capacity);
            if ratio && score <= 0 {
                continue;
            }
            total += score * resource.weight();
            weights += resource.weight();
        }
        match (weights, ratio) {
            (0, _) => 0,
            (_, true) => (total as f64 / weights as f64).round() as i64,
            (_, false) => total / weights,
        }
    }
}

impl Strategy {
    fn score(&self, requested: i64, capacity: i64) -> i64 {
        // Wide arithmetic: bytes times a hundred overflow a narrow one on large machines.
        let percent = |part: i64| (i128::from(part) * i128::from(MAX_NODE_SCORE) / i128::from(capacity)) as i64;
        match self {
            Self::LeastAllocated if requested > capacity => 0,
            Self::LeastAllocated => percent(capacity - requested),
            Self::MostAllocated => percent(requested.min(capacity)),
            Self::RequestedToCapacityRatio(points) => {
                broken_line(points, if requested > capacity { 100 } else { percent(requested) })
            }
        }
    }
}

fn broken_line(points: &[(i64, i64)], at: i64) -> i64 {
    let Some(next) = points.iter().position(|(x, _)| at <= *x) else {
        return points.last().map_or(0, |(_, score)| *score);
    };
    if next == 0 {
        return points[0].1;
    }
    let ((x0, y0), (x1, y1)) = (points[next - 1], points[next]);
    y0 + (y1 - y0) * (at - x0) / (x1 - x0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check_among, check_scores_among, pod, requesting, sized};

    #[test]
    fn what_is_missing_is_named() {
        let fit = built(new);
        let requests = json!({"cpu": "100m", "memory": "1Mi", "example.com/gpu": "1"});
        let gpu = pod(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}));
        for (wanted, used, reasons) in [
            (requesting("500m", "1Gi"), "500m", vec![]),
            (requesting("600m", "1Gi"), "500m", vec!["Insufficient cpu"]),
            (requesting("600m", "9Gi"), "500m", vec!["Insufficient cpu", "Insufficient memory"]),
            (pod(json!({})), "1", vec![]),
            (gpu, "500m", vec!["Insufficient example.com/gpu"]),
        ] {
            let verdict = check_among(&fit, &wanted, &[sized("n", "1", "4Gi")], vec![("n", requesting(used, "1Gi"))]);
            let found = verdict[0].as_ref().err().map(|f| f.reasons.clone()).unwrap_or_default();
            assert_eq!(found, reasons);
        }
    }

    #[test]
    fn emptier_nodes_score_higher_unless_packing() {
        let nodes = [sized("a", "1", "1Gi"), sized("b", "1", "1Gi")];
        let used = || vec![("a", requesting("500m", "512Mi"))];
        let wanted = requesting("250m", "256Mi");
        check_scores_among(&built(new), &wanted, &nodes, used(), &[25, 75]);
        let most = new(&json!({"scoringStrategy": {"type": "MostAllocated"}})).unwrap();
        check_scores_among(&most, &wanted, &nodes, used(), &[75, 25]);
        let shape =
            json!([{"utilization": 0, "score": 0}, {"utilization": 50, "score": 10}, {"utilization": 100, "score": 0}]);
        let ratio = new(&json!({"scoringStrategy":
            {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}}}));
        check_scores_among(&ratio.unwrap(), &wanted, &nodes, used(), &[50, 50]);
    }
}
