//! Spreads pods evenly over topology domains: hard constraints filter, soft ones (and the defaults) score.
//! Uses `node_selector` and `taint_toleration` to decide which nodes count; `topology_rules` is the same for equivalence
//! classes.

mod topology_rules;

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use api::selectors::LabelSelector;
use k8s_openapi::api::core::v1::{Node, TopologySpreadConstraint};
use serde_json::Value;

use super::{default_selector::default_selector, taint_toleration::untolerated};
use crate::{
    cluster::Cluster,
    equivalence_class::{PodSignature, Scope},
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, MAX_NODE_SCORE, NodeFilter, NodeScorer, Plugin, PreFilterPlugin,
        PreFilterResult, PreScorePlugin, PreScoreResult, QueueingHint, ScorePlugin, SignPlugin, Status, node_label,
    },
    node_info::NodeInfo,
    node_selector::RequiredNodes,
    pod_info::{PendingPod, PodInfo, with_label_keys},
};

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

pub struct PodTopologySpread {
    defaults: Vec<TopologySpreadConstraint>,
    /// The defaults are the system's own: nodes without a zone still count by hostname.
    system: bool,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        let soft = |key: &str, max_skew: i32| TopologySpreadConstraint {
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            max_skew,
            ..TopologySpreadConstraint::default()
        };
        Self { defaults: vec![soft(HOSTNAME, 3), soft(ZONE, 5)], system: true }
    }
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let list = arguments["defaultingType"].as_str() == Some("List");
    let given = &arguments["defaultConstraints"];
    let plugin = match given {
        _ if !list => PodTopologySpread::default(),
        Value::Null => PodTopologySpread { defaults: Vec::new(), system: false },
        given => {
            let defaults = serde_json::from_value(given.clone()).map_err(|e| format!("defaultConstraints: {e}"))?;
            PodTopologySpread { defaults, system: false }
        }
    };
    Ok(Plugin::of(plugin).pre_filter().filter().pre_score().score().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Constraint {
    key: String,
    max_skew: i64,
    min_domains: usize,
    selector: LabelSelector,
    honor_affinity: bool,
    honor_taints: bool,
}

impl Constraint {
    fn new(constraint: &TopologySpreadConstraint, pod: &PendingPod) -> Result<Self, String> {
        let keys = constraint.match_label_keys.as_deref();
        Ok(Self {
            key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            selector: with_label_keys(constraint.label_selector.as_ref(), keys, pod.labels(), false)?,
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        })
    }

    fn counts(&self, node: &NodeInfo, required: &RequiredNodes, pod: &PendingPod) -> bool {
        (!self.honor_affinity || required.matches(node))
            && (!self.honor_taints || untolerated(node, pod.tolerations()).is_none())
    }

    fn matches(&self, pod: &PodInfo, namespace: &str) -> bool {
        !pod.is_terminating() && pod.namespace() == namespace && self.selector.matches(pod.labels())
    }

    fn pods_on(&self, node: &NodeInfo, namespace: &str) -> i64 {
        if self.selector.is_empty() {
            return 0;
        }
        node.pods.iter().filter(|pod| self.matches(pod, namespace)).count() as i64
    }
}

fn has_all_keys(node: &NodeInfo, constraints: &[Constraint]) -> bool {
    constraints.iter().all(|c| node.label(&c.key).is_some())
}

fn had_all_keys(node: &Node, constraints: &[Constraint]) -> bool {
    constraints.iter().all(|c| node_label(node, &c.key).is_some())
}

/// Whether the pod states constraints of its own.
fn has_own(pod: &PendingPod) -> bool {
    pod.spec().and_then(|s| s.topology_spread_constraints.as_ref()).is_some_and(|c| !c.is_empty())
}

impl PodTopologySpread {
    fn constraints(&self, cluster: &Cluster, pod: &PendingPod, action: &str) -> Result<Vec<Constraint>, String> {
        let own = pod.spec().and_then(|s| s.topology_spread_constraints.as_deref()).unwrap_or_default();
        let of = |list: &[TopologySpreadConstraint]| -> Result<Vec<Constraint>, String> {
            list.iter().filter(|c| c.when_unsatisfiable == action).map(|c| Constraint::new(c, pod)).collect()
        };
        if !own.is_empty() {
            return of(own);
        }
        let mut constraints = of(&self.defaults)?;
        if constraints.is_empty() {
            return Ok(constraints);
        }
        let Some(selector) = default_selector(cluster, pod) else { return Ok(Vec::new()) };
        for constraint in &mut constraints {
            constraint.selector = selector.clone();
        }
        Ok(constraints)
    }
}

/// Matching pods per domain, for each hard constraint.
#[derive(Clone)]
struct Spread<'a> {
    pod: &'a PendingPod,
    required: Arc<RequiredNodes>,
    constraints: Arc<Vec<Constraint>>,
    counts: Vec<HashMap<&'a str, i64>>,
    lowest: Vec<i64>,
}

impl Spread<'_> {
    fn find_lowest(&mut self) {
        let lowest = |counts: &HashMap<&str, i64>| counts.values().copied().min().unwrap_or(i64::from(i32::MAX));
        self.lowest = self.counts.iter().map(lowest).collect();
    }
}

impl PreFilterPlugin for PodTopologySpread {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        match self.constraints(cluster, pod, "DoNotSchedule") {
            Ok(constraints) if constraints.is_empty() => PreFilterResult::Skip,
            Ok(_) => PreFilterResult::AllNodes,
            Err(error) => PreFilterResult::Reject(Status::unresolvable(error)),
        }
    }
}

impl FilterPlugin for PodTopologySpread {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let constraints = self.constraints(cluster, pod, "DoNotSchedule").unwrap_or_default();
        let required = RequiredNodes::of(pod.spec());
        let mut counts: Vec<HashMap<&str, i64>> = vec![HashMap::new(); constraints.len()];
        for node in cluster.cache.nodes().iter().filter(|node| has_all_keys(node, &constraints)) {
            for (constraint, counts) in constraints.iter().zip(&mut counts) {
                if constraint.counts(node, &required, pod) {
                    let value = node.label(&constraint.key).unwrap_or_default();
                    *counts.entry(value).or_default() += constraint.pods_on(node, pod.namespace());
                }
            }
        }
        let (required, constraints) = (Arc::new(required), Arc::new(constraints));
        let mut spread = Spread { pod, required, constraints, counts, lowest: Vec::new() };
        spread.find_lowest();
        Box::new(spread)
    }
}

impl PreScorePlugin for PodTopologySpread {
    fn pre_score(&self, cluster: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        match self.constraints(cluster, pod, "ScheduleAnyway") {
            Ok(constraints) if !constraints.is_empty() => PreScoreResult::Continue,
            _ => PreScoreResult::Skip,
        }
    }
}

impl ScorePlugin for PodTopologySpread {
    fn node_scorer<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a PendingPod,
        feasible: &[&'a NodeInfo],
    ) -> Box<dyn NodeScorer + 'a> {
        let constraints = self.constraints(cluster, pod, "ScheduleAnyway").unwrap_or_default();
        let need_all_keys = has_own(pod) || !self.system;
        let ignored: Vec<bool> = feasible.iter().map(|n| need_all_keys && !has_all_keys(n, &constraints)).collect();
        let mut sums = vec![0.0; feasible.len()];
        let required = RequiredNodes::of(pod.spec());
        for constraint in &constraints {
            let considered = || feasible.iter().zip(&ignored).filter(|(_, ignored)| !**ignored).map(|(node, _)| node);
            // A label that none of them has makes no difference; in a cluster without zones that saves the count.
            if considered().all(|node| node.label(&constraint.key).is_none()) {
                continue;
            }
            let is_host = constraint.key == HOSTNAME;
            let mut domains: HashMap<&str, i64> = HashMap::new();
            if !is_host {
                domains.extend(considered().map(|node| (node.label(&constraint.key).unwrap_or_default(), 0)));
                for node in cluster.cache.nodes() {
                    if (need_all_keys && !has_all_keys(node, &constraints)) || !constraint.counts(node, &required, pod)
                    {
                        continue;
                    }
                    if let Some(count) = domains.get_mut(node.label(&constraint.key).unwrap_or_default()) {
                        *count += constraint.pods_on(node, pod.namespace());
                    }
                }
            }
            let size = if is_host { considered().count() } else { domains.len() };
            let weight = (size as f64 + 2.0).ln();
            for ((sum, node), ignored) in sums.iter_mut().zip(feasible).zip(&ignored) {
                let Some(value) = node.label(&constraint.key).filter(|_| !ignored) else { continue };
                let count = match is_host {
                    true => constraint.pods_on(node, pod.namespace()),
                    false => domains.get(value).copied().unwrap_or(0),
                };
                *sum += count as f64 * weight + (constraint.max_skew - 1) as f64;
            }
        }
        let sums = sums.into_iter().map(|sum: f64| sum.round() as i64).collect();
        Box::new(Evenness { sums, ignored })
    }
}

impl SignPlugin for PodTopologySpread {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.namespace();
        signature.labels();
        signature.owner();
        signature.topology_spread_constraints();
        // Which nodes count rests on these.
        signature.node_selector_and_affinity();
        signature.tolerations();
    }

    fn scope(&self, cluster: &Cluster, pod: &PendingPod) -> Scope {
        match topology_rules::TopologyRules::new(self, cluster, pod) {
            Ok(rules) => Scope::Domains(Box::new(rules)),
            Err(_) => Scope::Alone,
        }
    }

    fn hash_dependencies(&self, cluster: &Cluster, pod: &PendingPod, mut hasher: &mut dyn Hasher) {
        if has_own(pod) || self.defaults.is_empty() {
            return;
        }
        // The defaults spread what a Service or owner selects.
        for requirement in default_selector(cluster, pod).iter().flat_map(|s| s.requirements()) {
            (&requirement.key, requirement.operator as u8, &requirement.values).hash(&mut hasher);
        }
    }
}

impl EnqueueExtensions for PodTopologySpread {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        let Ok(constraints) = self.constraints(cluster, pod, "DoNotSchedule") else { return QueueingHint::Skip };
        QueueingHint::queue_if(match event {
            ClusterEvent::PodPlaced(other) | ClusterEvent::PodGone(other) => {
                other.namespace() == pod.namespace() && constraints.iter().any(|c| c.selector.matches(other.labels()))
            }
            ClusterEvent::PodChanged { was, now } => {
                let differs = |c: &Constraint| c.selector.matches(was.labels()) != c.selector.matches(now.labels());
                now.namespace() == pod.namespace() && constraints.iter().any(differs)
            }
            ClusterEvent::Node { name, change, was } => {
                let counts = cluster.cache.node(name).is_some_and(|node| has_all_keys(node, &constraints));
                // A domain that is no more counts as the emptiest no longer.
                let counted = was.as_ref().is_some_and(|was| had_all_keys(was, &constraints));
                (change.labels || change.taints) && (counts || counted)
            }
            ClusterEvent::NodeGone(was) => had_all_keys(was, &constraints),
            _ => false,
        })
    }
}

impl<'a> NodeFilter<'a> for Spread<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        for ((constraint, counts), lowest) in self.constraints.iter().zip(&self.counts).zip(&self.lowest) {
            let Some(value) = node.label(&constraint.key) else {
                return Err(Status::unresolvable(REASON_LABEL));
            };
            let lowest = if counts.len() < constraint.min_domains { 0 } else { *lowest };
            let this = i64::from(constraint.selector.matches(self.pod.labels()));
            let count = counts.get(value).copied().unwrap_or(0);
            if count + this - lowest > constraint.max_skew {
                return Err(Status::unschedulable(REASON));
            }
        }
        Ok(())
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }

    fn add_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.count(pod, node, 1);
    }

    fn remove_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.count(pod, node, -1);
    }
}

impl Spread<'_> {
    fn count(&mut self, pod: &PodInfo, node: &NodeInfo, amount: i64) {
        if !has_all_keys(node, &self.constraints) || pod.namespace() != self.pod.namespace() {
            return;
        }
        for (constraint, counts) in self.constraints.iter().zip(&mut self.counts) {
            if constraint.selector.matches(pod.labels()) && constraint.counts(node, &self.required, self.pod) {
                let value = node.label(&constraint.key).unwrap_or_default();
                if let Some(count) = counts.get_mut(value) {
                    *count += amount;
                }
            }
        }
        self.find_lowest();
    }
}

struct Evenness {
    sums: Vec<i64>,
    ignored: Vec<bool>,
}

impl NodeScorer for Evenness {
    fn score(&self, at: usize, _: &NodeInfo) -> i64 {
        self.sums[at]
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        let counted = self.sums.iter().zip(&self.ignored).filter(|(_, ignored)| !**ignored).map(|(sum, _)| *sum);
        let range = range(counted);
        for (score, ignored) in scores.iter_mut().zip(&self.ignored) {
            *score = evenness(*score, *ignored, range);
        }
    }
}

/// The lowest and the highest.
fn range(sums: impl Iterator<Item = i64>) -> (i64, i64) {
    let all = sums.fold(None, |range: Option<(i64, i64)>, sum| {
        Some(range.map_or((sum, sum), |(lowest, highest)| (lowest.min(sum), highest.max(sum))))
    });
    all.unwrap_or((0, 0))
}

fn evenness(sum: i64, ignored: bool, (lowest, highest): (i64, i64)) -> i64 {
    match (ignored, highest) {
        (true, _) => 0,
        (false, 0) => MAX_NODE_SCORE,
        (false, _) => MAX_NODE_SCORE * (highest + lowest - sum) / highest,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check_among, check_scores_among, labelled, named_pod};

    fn constraint(action: &str, more: Value) -> Value {
        let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": action,
            "labelSelector": {"matchLabels": {"app": "p"}}});
        for (key, value) in more.as_object().into_iter().flatten() {
            constraint[key] = value.clone();
        }
        constraint
    }

    fn pod_with(constraint: Value, more: Value) -> PendingPod {
        let mut spec = json!({"topologySpreadConstraints": [constraint]});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        named_pod("default", "p", json!({"app": "p", "version": "2"}), spec)
    }

    fn existing(version: &str) -> PendingPod {
        named_pod("default", "e", json!({"app": "p", "version": version}), json!({}))
    }

    fn nodes() -> [Value; 3] {
        [labelled("a", &[("zone", "1")]), labelled("b", &[("zone", "2")]), labelled("c", &[])]
    }

    /// Nodes a (zone 1), b (zone 2) and c (no zone): which accept the pod.
    fn check(pod: PendingPod, on: &[&str], accepted: [bool; 3]) {
        let nodes = nodes();
        let pods = on.iter().map(|node| (*node, existing("1"))).collect();
        let verdicts = check_among(&built(new), &pod, &nodes, pods);
        assert_eq!(verdicts.iter().map(Result::is_ok).collect::<Vec<_>>(), accepted, "{on:?}");
    }

    #[test]
    fn skew_is_bounded() {
        let plain = || pod_with(constraint("DoNotSchedule", json!({})), json!({}));
        check(plain(), &[], [true, true, false]);
        check(plain(), &["a"], [false, true, false]);
        check(plain(), &["a", "b"], [true, true, false]);
        check(pod_with(constraint("DoNotSchedule", json!({"maxSkew": 2})), json!({})), &["a"], [true, true, false]);
        let domains = || pod_with(constraint("DoNotSchedule", json!({"minDomains": 3})), json!({}));
        check(domains(), &["a", "b"], [false, false, false]);
        let keys = json!({"matchLabelKeys": ["version"]});
        check(pod_with(constraint("DoNotSchedule", keys), json!({})), &["a"], [true, true, false]);
    }

    #[test]
    fn policies_decide_which_nodes_count() {
        let only_a = json!({"nodeSelector": {"zone": "1"}});
        check(pod_with(constraint("DoNotSchedule", json!({})), only_a.clone()), &["a"], [true, true, false]);
        let ignore = json!({"nodeAffinityPolicy": "Ignore"});
        check(pod_with(constraint("DoNotSchedule", ignore), only_a), &["a"], [false, true, false]);
        // Node b is tainted: as the emptiest domain it would hold the pod back from a.
        let among = |more: Value, tolerations: Value, accepted: [bool; 3]| {
            let mut nodes = nodes();
            nodes[1]["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
            let pod = pod_with(constraint("DoNotSchedule", more), json!({"tolerations": tolerations}));
            let verdicts = check_among(&built(new), &pod, &nodes, vec![("a", existing("1"))]);
            assert_eq!(verdicts.iter().map(Result::is_ok).collect::<Vec<_>>(), accepted);
        };
        let honor = json!({"nodeTaintsPolicy": "Honor"});
        among(json!({}), json!([]), [false, true, false]);
        among(json!({"nodeTaintsPolicy": "Ignore"}), json!([]), [false, true, false]);
        among(honor.clone(), json!([]), [true, true, false]);
        among(honor, json!([{"key": "k", "operator": "Exists"}]), [false, true, false]);
    }

    #[test]
    fn soft_constraints_prefer_the_emptier_domain() {
        let pod = pod_with(constraint("ScheduleAnyway", json!({})), json!({}));
        let nodes = [labelled("a", &[("zone", "1")]), labelled("b", &[("zone", "2")]), labelled("c", &[])];
        let pods = vec![("a", existing("1")), ("a", existing("1")), ("b", existing("1"))];
        check_scores_among(&built(new), &pod, &nodes, pods, &[33, 100, 0]);
    }
}
