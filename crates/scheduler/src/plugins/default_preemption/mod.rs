//! Makes room for a pod by removing others of lower priority: which node, and which pods on it.
//! Asked by `cycle` when no node will do; `evict` carries it out.
//! Decides on copies; prefers not to break disruption budgets, and takes as few and as unimportant pods as will do.

mod evict;

use std::{cmp::Reverse, sync::Arc};

use api::{ApiError, selectors::LabelSelector};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    cluster::Cluster,
    cycle::Filters,
    diagnosis::{Diagnosis, histogram},
    equivalence_class::PodSignature,
    framework::{Candidate, FailedAttempt, Handle, Plugin, PostFilterPlugin, PostFilterResult, SignPlugin},
    node_info::NodeInfo,
    pod_info::{PendingPod, PodInfo},
};

const WAITS_FOR_VICTIMS: &str = "not eligible due to a terminating pod on the nominated node.";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// How many nodes are tried.
#[derive(Debug, Clone, Copy)]
pub struct DefaultPreemption {
    min_candidate_nodes_percentage: usize,
    min_candidate_nodes_absolute: usize,
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(DefaultPreemption::from_arguments(arguments)?).post_filter().sign().build())
}

impl PostFilterPlugin for DefaultPreemption {
    fn post_filter(&self, attempt: &FailedAttempt<'_, '_>) -> PostFilterResult {
        let FailedAttempt { cluster, pod, filters, diagnosis, offset } = *attempt;
        let found = match filters {
            Some(filters) => find(cluster, *self, pod, filters, diagnosis, offset),
            None => {
                let nodes = cluster.cache.len();
                let message = format!("0/{nodes} nodes are available: {nodes} {NOT_HELPFUL}.");
                PostFilterResult::Unschedulable { message, clear_nomination: true }
            }
        };
        match found {
            PostFilterResult::Unschedulable { message, clear_nomination } => {
                PostFilterResult::Unschedulable { message: format!("preemption: {message}"), clear_nomination }
            }
            other => other,
        }
    }

    fn prepare_candidate(
        &self,
        handle: &Handle,
        pod: Arc<PendingPod>,
        candidate: Candidate,
    ) -> BoxFuture<'static, Result<(), ApiError>> {
        let reports = handle.reports.clone();
        async move {
            let Candidate { node, victims, .. } = candidate;
            let gone = victims.iter().map(|victim| evict::evict(&reports, victim, &pod, &node));
            futures::future::try_join_all(gone).await.map(drop)
        }
        .boxed()
    }
}

impl SignPlugin for DefaultPreemption {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.priority();
        signature.preemption_policy();
    }
}

impl Default for DefaultPreemption {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

impl DefaultPreemption {
    fn from_arguments(arguments: &Value) -> Result<Self, String> {
        let number = |name: &str, default: usize, most: u64| match &arguments[name] {
            Value::Null => Ok(default),
            given => match given.as_u64().filter(|number| *number <= most) {
                Some(number) => Ok(number as usize),
                None => Err(format!("{name}: {given} is not in valid range [0, {most}]")),
            },
        };
        let defaults = Self::default();
        let percentage = number("minCandidateNodesPercentage", defaults.min_candidate_nodes_percentage, 100)?;
        let absolute = number("minCandidateNodesAbsolute", defaults.min_candidate_nodes_absolute, i32::MAX as u64)?;
        if percentage == 0 && absolute == 0 {
            return Err(
                "minCandidateNodesPercentage: cannot be zero at the same time as minCandidateNodesAbsolute".into()
            );
        }
        Ok(Self { min_candidate_nodes_percentage: percentage, min_candidate_nodes_absolute: absolute })
    }

    fn candidates(&self, nodes: usize) -> usize {
        (nodes * self.min_candidate_nodes_percentage / 100).max(self.min_candidate_nodes_absolute).min(nodes)
    }
}

/// `offset` is where among the possible nodes to begin, drawn by the caller.
fn find(
    cluster: &Cluster,
    plugin: DefaultPreemption,
    pod: &PendingPod,
    filters: &Filters<'_>,
    diagnosis: &Diagnosis,
    offset: u64,
) -> PostFilterResult {
    if let Err(why) = eligible(cluster, pod, diagnosis) {
        return PostFilterResult::Unschedulable { message: why.into(), clear_nomination: false };
    }
    let possible: Vec<&NodeInfo> = diagnosis
        .groups
        .iter()
        .filter(|group| group.resolvable)
        .flat_map(|group| group.nodes.iter().filter_map(|name| cluster.cache.node(name)))
        .collect();
    let wanted = plugin.candidates(possible.len());
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut refusals: Vec<(String, usize)> = Vec::new();
    let mut unbroken = 0;
    let first = if possible.is_empty() { 0 } else { (offset % possible.len() as u64) as usize };
    for node in possible[first..].iter().chain(&possible[..first]) {
        match victims_on(cluster, pod, node, filters) {
            Ok(candidate) => {
                unbroken += usize::from(candidate.violations == 0);
                candidates.push(candidate);
                // One that breaks no budget is worth looking a little further for.
                if candidates.len() >= wanted && unbroken > 0 {
                    break;
                }
            }
            Err(reasons) => refusals.extend(reasons.into_iter().map(|reason| (reason, 1))),
        }
    }
    candidates.sort_by_cached_key(preference);
    let mut candidates = candidates.into_iter();
    match candidates.next() {
        Some(best) => PostFilterResult::Nominate(Candidate { alternatives: candidates.collect(), ..best }),
        None => {
            let others = cluster.cache.len() - possible.len();
            if others > 0 {
                refusals.push((NOT_HELPFUL.into(), others));
            }
            let counts = histogram(refusals.into_iter()).unwrap_or_default();
            let message = format!("0/{} nodes are available: {counts}.", cluster.cache.len());
            PostFilterResult::Unschedulable { message, clear_nomination: true }
        }
    }
}

fn eligible(cluster: &Cluster, pod: &PendingPod, diagnosis: &Diagnosis) -> Result<(), &'static str> {
    if pod.spec().and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    // Those that are to go for it have not all been told.
    if cluster.preempting.contains(&pod.key) {
        return Err(WAITS_FOR_VICTIMS);
    }
    let Some(name) = cluster.cache.nominated_node(pod) else { return Ok(()) };
    if diagnosis.verdict(name).is_some_and(|group| !group.resolvable) {
        return Ok(());
    }
    let waits = cluster.cache.node(name).is_some_and(|node| {
        node.pods.iter().any(|other| other.priority < pod.priority && is_leaving_for_another(other))
    });
    if waits { Err(WAITS_FOR_VICTIMS) } else { Ok(()) }
}

fn is_leaving_for_another(pod: &PodInfo) -> bool {
    pod.is_terminating() && pod.is_preempted
}

fn started(pod: &PodInfo) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// The fewest and least important pods whose removal lets `pod` in, or why none will do.
fn victims_on(
    cluster: &Cluster,
    pod: &PendingPod,
    node: &NodeInfo,
    filters: &Filters<'_>,
) -> Result<Candidate, Vec<String>> {
    let mut lower: Vec<Arc<PodInfo>> = node.pods.iter().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(vec!["No preemption victims found for incoming pod".into()]);
    }
    let (mut without, mut filters) = (node.clone(), filters.fork());
    for victim in &lower {
        without.remove_pod(&victim.key);
        filters.remove_pod(victim, &without);
    }
    if let Err((.., status)) = filters.run_with_nominated_pods(cluster, &without, pod) {
        return Err(status.reasons.iter().map(ToString::to_string).collect());
    }
    lower.sort_by_key(|p| (Reverse(p.priority), started(p)));
    let (protected, free) = split_by_budgets(cluster, lower);
    let (mut victims, mut violations) = (Vec::new(), 0);
    // The protected and the important are let stay first.
    for (other, is_protected) in protected.into_iter().map(|p| (p, true)).chain(free.into_iter().map(|p| (p, false))) {
        without.add_pod(other.clone());
        filters.add_pod(&other, &without);
        if filters.run_with_nominated_pods(cluster, &without, pod).is_err() {
            without.remove_pod(&other.key);
            filters.remove_pod(&other, &without);
            victims.push(other);
            violations += usize::from(is_protected);
        }
    }
    victims.sort_by_key(|p| (Reverse(p.priority), started(p)));
    Ok(Candidate { node: node.name.clone(), victims, violations, alternatives: Vec::new() })
}

/// Pods whose removal would break a budget, and the others; the order within each stays.
fn split_by_budgets(cluster: &Cluster, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut budgets: Vec<_> = cluster
        .disruption_budgets
        .values()
        .filter_map(|budget| {
            let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
            let selector = LabelSelector::from_meta(selector).ok().filter(|s| !s.is_empty())?;
            let status = budget.status.as_ref();
            Some((budget, selector, status.map_or(0, |s| s.disruptions_allowed)))
        })
        .collect();
    pods.into_iter().partition(|pod| {
        let mut broken = false;
        for (budget, selector, allowed) in &mut budgets {
            let same_namespace = budget.metadata.namespace.as_deref() == Some(pod.namespace());
            if !same_namespace || pod.labels().is_empty() || !selector.matches(pod.labels()) {
                continue;
            }
            let disrupted = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
            if disrupted.is_some_and(|pods| pods.contains_key(pod.name())) {
                continue;
            }
            *allowed -= 1;
            broken |= *allowed < 0;
        }
        broken
    })
}

/// Smaller is better: budgets kept, then unimportant victims, then few, then those that started last.
fn preference(candidate: &Candidate) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
    let highest = candidate.victims.first().map_or(i32::MIN, |v| v.priority);
    // Shifted so that more victims never look better by having negative priorities.
    let sum = candidate.victims.iter().map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1).sum();
    let earliest = candidate.victims.iter().filter(|v| v.priority == highest).map(|v| started(v)).min();
    (candidate.violations, highest, sum, candidate.victims.len(), Reverse(earliest.unwrap_or(Timestamp::MAX)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        Config, cycle,
        plugins::testing::{cluster, named_pod, sized},
    };

    fn pod(name: &str, priority: i32, cpu: &str) -> PendingPod {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        named_pod("default", name, json!({"app": name}), json!({"priority": priority, "containers": [container]}))
    }

    /// On nodes a and b of one CPU each: `node: victims`, or the message.
    fn check(incoming: PendingPod, pods: Vec<(&str, PendingPod)>, budget_for: Option<&str>, wanted: &str) {
        let mut cluster = cluster(&[sized("a", "1", "4Gi"), sized("b", "1", "4Gi")], pods);
        if let Some(app) = budget_for {
            let budget = json!({"metadata": {"namespace": "default", "name": "b"},
                "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": 0,
                "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
            cluster.disruption_budgets.insert("default/b".into(), Arc::new(serde_json::from_value(budget).unwrap()));
        }
        let profiles = Config::default().profiles().unwrap();
        let profile = &profiles["default-scheduler"];
        let Ok(filters) = cycle::run_pre_filter(&cluster, profile, &incoming) else { panic!("rejected") };
        let diagnosis = cycle::find_nodes_that_fit(&cluster, profile, &incoming, &filters, &mut 0).unwrap_err();
        let found = match find(&cluster, DefaultPreemption::default(), &incoming, &filters, &diagnosis, 0) {
            PostFilterResult::Nominate(c) => {
                let names: Vec<_> = c.victims.iter().map(|v| v.name()).collect();
                format!("{}: {}", c.node, names.join(" "))
            }
            PostFilterResult::Unschedulable { message, .. } | PostFilterResult::Act { message, .. } => message,
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_least_important_pods_give_way() {
        let on = |node, name, priority, cpu| (node, pod(name, priority, cpu));
        let high = || pod("high", 100, "600m");
        check(high(), vec![on("a", "x", 10, "800m"), on("b", "y", 5, "800m")], None, "b: y");
        check(high(), vec![on("a", "x", 10, "800m"), on("b", "y", 5, "800m")], Some("y"), "a: x");
        check(
            high(),
            vec![on("a", "x", 5, "300m"), on("a", "y", 5, "300m"), on("a", "z", 6, "300m"), on("b", "w", 5, "800m")],
            None,
            "b: w",
        );
        check(
            high(),
            vec![on("a", "small", 1, "300m"), on("a", "big", 2, "400m"), on("b", "w", 50, "1")],
            None,
            "a: small",
        );
        check(
            high(),
            vec![on("a", "x", 100, "800m"), on("b", "y", 200, "800m")],
            None,
            "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        );
        check(
            pod("huge", 100, "2"),
            vec![on("a", "x", 1, "800m")],
            None,
            "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        );
    }

    #[test]
    fn some_pods_never_preempt() {
        let mut never = json!({"priority": 100, "preemptionPolicy": "Never"});
        never["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
        let never = named_pod("default", "never", json!({}), never);
        let pods = vec![("a", pod("x", 1, "500m")), ("b", pod("y", 1, "500m"))];
        check(never, pods, None, "not eligible due to preemptionPolicy=Never.");
    }

    #[test]
    fn a_pod_waits_for_its_victims_and_for_no_others() {
        let mut going = (*pod("x", 1, "1").pod).clone();
        going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::MIN));
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"});
        going.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
        let pods = vec![("a", PendingPod::new(Arc::new(going)))];
        let mut incoming = (*pod("high", 100, "1").pod).clone();
        incoming.status = serde_json::from_value(json!({"nominatedNodeName": "a"})).unwrap();
        let incoming = PendingPod::new(Arc::new(incoming));
        let mut cluster = cluster(&[sized("a", "1", "4Gi"), sized("b", "1", "4Gi")], pods);
        let mut check = |change: &dyn Fn(&mut Cluster), expected: Result<(), &'static str>| {
            change(&mut cluster);
            assert_eq!(eligible(&cluster, &incoming, &Diagnosis::new(2)), expected);
        };
        check(&|_| {}, Err(WAITS_FOR_VICTIMS));
        // Another took the place: its status says so no longer once the server has been told.
        check(&|cluster| cluster.cache.clear_nomination(&incoming), Ok(()));
        check(&|cluster| cluster.preempting.extend(["default/high".to_string()]), Err(WAITS_FOR_VICTIMS));
    }
}
