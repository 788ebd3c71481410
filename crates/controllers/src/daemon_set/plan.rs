//! The core: which nodes lack a daemon pod, which pods must go, and what the status says.
//! Called by the controller beside it with claimed pods.
//! Without surge at most one pod per node; a rolling update keeps maxUnavailable.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::placement;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetStatus},
    core::v1::{Node, Pod, PodSpec, Toleration},
};

use crate::common::{
    meta::{Object, count, scaled},
    pods,
    revisions::HASH_LABEL,
};

const BURST_REPLICAS: usize = 250;

pub struct Input<'a> {
    pub set: &'a DaemonSet,
    pub nodes: &'a [Arc<Node>],
    pub pods: &'a [Arc<Pod>],
    /// The present template's hash.
    pub hash: &'a str,
    /// Nodes where pods keep failing, and how long the failed one stays there.
    pub resting: &'a HashMap<String, Duration>,
    pub now: Timestamp,
}

#[derive(Debug, Default)]
pub struct Plan {
    /// Names of nodes that get a pod.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Failed and succeeded pods among those deleted, to be told about.
    pub finished: Vec<Arc<Pod>>,
    /// When the first of the failed pods that stay for now may go.
    pub again: Option<Duration>,
}

/// The template's pod spec as daemon pods have it: they stay on nodes that others must leave.
pub fn daemon_spec(set: &DaemonSet) -> PodSpec {
    let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let mut spec = template.spec.unwrap_or_default();
    let tolerations = spec.tolerations.get_or_insert_default();
    let mut add = |key: &str, effect: &str| {
        let toleration = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    };
    add("node.kubernetes.io/not-ready", "NoExecute");
    add("node.kubernetes.io/unreachable", "NoExecute");
    add("node.kubernetes.io/disk-pressure", "NoSchedule");
    add("node.kubernetes.io/memory-pressure", "NoSchedule");
    add("node.kubernetes.io/pid-pressure", "NoSchedule");
    add("node.kubernetes.io/unschedulable", "NoSchedule");
    if spec.host_network == Some(true) {
        add("node.kubernetes.io/network-unavailable", "NoSchedule");
    }
    spec
}

/// `(should run, may go on running)`: a NoSchedule taint keeps new pods away but does not drive old ones out.
fn wanted_on(spec: &PodSpec, node: &Node) -> (bool, bool) {
    if !placement::matches(spec, node) {
        return (false, false);
    }
    let stays = placement::tolerated(spec, node, |t| t.effect == "NoExecute");
    (stays && placement::tolerated(spec, node, |t| t.effect == "NoSchedule"), stays)
}

/// The node a daemon pod is for, whether or not it has been bound already.
pub fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(name);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let mut fields = terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    let field = fields.find(|f| f.key == "metadata.name" && f.operator == "In")?;
    field.values.as_ref()?.first().map(String::as_str)
}

fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<&str, Vec<&Arc<Pod>>> {
    let mut map: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    // One that has ended and is being deleted holds no place any more.
    for pod in pods.iter().filter(|p| !(p.deleting() && pods::finished(p))) {
        if let Some(node) = target(pod) {
            map.entry(node).or_default().push(pod);
        }
    }
    map
}

fn min_ready(set: &DaemonSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
}

fn surge_and_unavailable(set: &DaemonSet, desired: i32) -> (i32, i32) {
    let update = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()?.rolling_update.clone()).unwrap_or_default();
    let surge = update.max_surge.and_then(|v| scaled(&v, desired, true)).unwrap_or(0);
    let unavailable = match update.max_unavailable {
        Some(value) => scaled(&value, desired, true).unwrap_or(0),
        None => i32::from(surge == 0),
    };
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

pub fn rolling(set: &DaemonSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    strategy.and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

fn current(pod: &Pod, hash: &str) -> bool {
    pod.label(HASH_LABEL) == Some(hash)
}

pub fn plan(input: &Input) -> Plan {
    let mut plan = Plan::default();
    let spec = daemon_spec(input.set);
    let by_node = by_node(input.pods);
    let desired = input.nodes.iter().filter(|node| wanted_on(&spec, node).0).count() as i32;
    let (surge, _) = surge_and_unavailable(input.set, desired);
    let surging = surge > 0 && rolling(input.set);
    for node in input.nodes {
        let pods = by_node.get(node.name()).map(Vec::as_slice).unwrap_or_default();
        on_node(input, &mut plan, node.name(), pods, wanted_on(&spec, node), surging);
    }
    // A pod for a node that is gone will never be bound there.
    let known: BTreeSet<&str> = input.nodes.iter().map(|n| n.name()).collect();
    for pod in input.pods.iter().filter(|p| pods::node_name(p).is_empty() && !p.deleting()) {
        if target(pod).is_some_and(|node| !known.contains(node)) {
            plan.delete.push(pod.clone());
        }
    }
    if plan.create.is_empty() && plan.delete.is_empty() && rolling(input.set) {
        update(input, &mut plan, &spec, &by_node, desired);
    }
    plan.create.truncate(BURST_REPLICAS);
    plan.delete.truncate(BURST_REPLICAS);
    plan
}

fn on_node(input: &Input, plan: &mut Plan, name: &str, on: &[&Arc<Pod>], wanted: (bool, bool), surging: bool) {
    let (should_run, stays) = wanted;
    if !stays {
        plan.delete.extend(on.iter().filter(|p| !p.deleting()).map(|p| (*p).clone()));
        return;
    }
    if on.is_empty() {
        if should_run {
            plan.create.push(name.to_string());
        }
        return;
    }
    let mut running: Vec<&Arc<Pod>> = Vec::new();
    let mut resting = None;
    for pod in on.iter().filter(|p| !p.deleting()) {
        match input.resting.get(name).filter(|_| pods::phase(pod) == "Failed") {
            Some(left) => resting = Some(*left),
            None if pods::finished(pod) => {
                plan.finished.push((*pod).clone());
                plan.delete.push((*pod).clone());
            }
            None => running.push(*pod),
        }
    }
    plan.again = [plan.again, resting].into_iter().flatten().min();
    running.sort_by_key(|p| (p.created(), p.name().to_string()));
    if !surging {
        plan.delete.extend(running.iter().skip(1).map(|p| (*p).clone()));
        return;
    }
    // Surging means that somebody is always there: the place of one that goes is taken at once. Where pods keep
    // failing it is not, or they would pile up.
    if running.is_empty() && resting.is_none() && should_run {
        plan.create.push(name.to_string());
    }
    // The oldest pod of each template may stay, the old one while it serves and the new one is not available.
    let (new, old): (Vec<_>, Vec<_>) = running.into_iter().partition(|p| current(p, input.hash));
    let up = |pod: &Pod| pods::available(pod, min_ready(input.set), input.now);
    let replaced = match (new.first(), old.first()) {
        (Some(new), Some(old)) => up(new) || !pods::ready(old),
        _ => false,
    };
    let keep_old = usize::from(!replaced);
    plan.delete.extend(new.iter().skip(1).chain(old.iter().skip(keep_old)).map(|p| (*p).clone()));
}

/// One step of a rolling update.
fn update(input: &Input, plan: &mut Plan, spec: &PodSpec, by_node: &BTreeMap<&str, Vec<&Arc<Pod>>>, desired: i32) {
    let (surge, max_unavailable) = surge_and_unavailable(input.set, desired);
    let up = |pod: &Pod| pods::available(pod, min_ready(input.set), input.now);
    let (mut unavailable, mut surging) = (0, 0);
    let (mut candidates, mut down) = (Vec::new(), Vec::new());
    let mut surge_nodes = Vec::new();
    for node in input.nodes.iter().filter(|node| wanted_on(spec, node).0) {
        let pods = by_node.get(node.name()).map(Vec::as_slice).unwrap_or_default();
        let new = pods.iter().find(|p| current(p, input.hash) && !p.deleting());
        let old = pods.iter().find(|p| !current(p, input.hash) && !p.deleting());
        match (new, old) {
            (_, Some(old)) if surge > 0 => match new {
                Some(_) => surging += 1,
                None if up(old) => surge_nodes.push(node.name().to_string()),
                // It serves nobody, so its successor is no surge.
                None => plan.create.push(node.name().to_string()),
            },
            (Some(new), _) if up(new) => {}
            (Some(_), _) | (None, None) => unavailable += 1,
            (None, Some(old)) if up(old) => candidates.push((*old).clone()),
            (None, Some(old)) => {
                unavailable += 1;
                down.push((*old).clone());
            }
        }
    }
    if surge > 0 {
        plan.create.extend(surge_nodes.into_iter().take((surge - surging).max(0) as usize));
        return;
    }
    plan.delete.extend(down);
    plan.delete.extend(candidates.into_iter().take((max_unavailable - unavailable).max(0) as usize));
}

/// The new status where it differs, and when a ready pod becomes available.
pub fn status(input: &Input) -> (Option<DaemonSetStatus>, Option<Duration>) {
    let spec = daemon_spec(input.set);
    let by_node = by_node(input.pods);
    let old = input.set.status.clone().unwrap_or_default();
    let mut new = DaemonSetStatus {
        observed_generation: input.set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
        ..DaemonSetStatus::default()
    };
    let (mut updated, mut available, mut again) = (0, 0, None::<Duration>);
    for node in input.nodes {
        let (should_run, _) = wanted_on(&spec, node);
        let pods = by_node.get(node.name()).map(Vec::as_slice).unwrap_or_default();
        new.desired_number_scheduled += i32::from(should_run);
        if pods.is_empty() {
            continue;
        }
        if !should_run {
            new.number_misscheduled += 1;
            continue;
        }
        new.current_number_scheduled += 1;
        // The oldest speaks for the node, a ready one before others.
        let mut pods = pods.to_vec();
        pods.sort_by_key(|p| (!pods::ready(p), p.created()));
        let pod = pods[0];
        updated += usize::from(current(pod, input.hash));
        if let Some(left) = pods::available_in(pod, min_ready(input.set), input.now) {
            new.number_ready += 1;
            available += usize::from(left.is_zero());
            if !left.is_zero() {
                again = Some(again.map_or(left, |a| a.min(left)));
            }
        }
    }
    new.updated_number_scheduled = count(updated);
    new.number_available = count(available);
    new.number_unavailable = count((new.desired_number_scheduled.max(0) as usize).saturating_sub(available));
    (Some(new).filter(|new| *new != old), again)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn set(strategy: serde_json::Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": { "name": "d", "namespace": "n", "uid": "d" },
            "spec": { "selector": {}, "updateStrategy": strategy, "template": { "spec": { "containers": [] } } },
        }))
        .unwrap()
    }

    fn nodes(count: usize, taint: Option<(&str, &str)>) -> Vec<Arc<Node>> {
        let taints: Vec<_> = taint.map(|(key, effect)| json!({ "key": key, "effect": effect })).into_iter().collect();
        let node = |i| json!({ "metadata": { "name": format!("n{i}") }, "spec": { "taints": taints } });
        (0..count).map(|i| Arc::new(serde_json::from_value(node(i)).unwrap())).collect()
    }

    fn pod(name: &str, node: usize, hash: &str, ready: bool) -> Arc<Pod> {
        let mut pod = crate::common::pods::testing::pod(name, ready.then_some("2026-01-01T00:00:00Z"));
        pod.spec.as_mut().unwrap().node_name = Some(format!("n{node}"));
        pod.metadata.labels = Some([(HASH_LABEL.to_string(), hash.to_string())].into());
        Arc::new(pod)
    }

    fn check(set: DaemonSet, nodes: Vec<Arc<Node>>, pods: Vec<Arc<Pod>>, create: &[&str], delete: &[&str]) {
        check_resting(&[], set, nodes, pods, create, delete);
    }

    fn check_resting(
        resting: &[&str],
        set: DaemonSet,
        nodes: Vec<Arc<Node>>,
        pods: Vec<Arc<Pod>>,
        create: &[&str],
        delete: &[&str],
    ) {
        let left = Duration::from_secs(7);
        let resting: HashMap<_, _> = resting.iter().map(|node| (node.to_string(), left)).collect();
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: "new", resting: &resting, now: now() };
        let plan = plan(&input);
        let deleted: Vec<_> = plan.delete.iter().map(|p| p.name().to_string()).collect();
        assert_eq!(
            (plan.create.iter().map(String::as_str).collect::<Vec<_>>(), deleted),
            (create.to_vec(), delete.iter().map(|d| d.to_string()).collect())
        );
        assert_eq!(plan.again, resting.values().next().copied());
    }

    fn failed(name: &str, node: usize, hash: &str) -> Arc<Pod> {
        let mut pod = (*pod(name, node, hash, false)).clone();
        pod.status.as_mut().unwrap().phase = Some("Failed".into());
        Arc::new(pod)
    }

    fn surge_and_spare(surge: i32, unavailable: i32) -> DaemonSet {
        set(json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } }))
    }

    #[test]
    fn one_pod_per_node() {
        let any = || set(json!(null));
        check(any(), nodes(2, None), vec![], &["n0", "n1"], &[]);
        check(any(), nodes(2, None), vec![pod("a", 0, "new", true)], &["n1"], &[]);
        check(any(), nodes(1, None), vec![pod("a", 0, "new", true), pod("b", 0, "new", true)], &[], &["b"]);
        check(any(), nodes(1, Some(("gpu", "NoSchedule"))), vec![], &[], &[]);
        check(any(), nodes(1, Some(("gpu", "NoSchedule"))), vec![pod("a", 0, "new", true)], &[], &[]);
        check(any(), nodes(1, Some(("gpu", "NoExecute"))), vec![pod("a", 0, "new", true)], &[], &["a"]);
        check(any(), nodes(1, Some(("node.kubernetes.io/unschedulable", "NoSchedule"))), vec![], &["n0"], &[]);
        check(any(), nodes(1, None), vec![failed("a", 0, "new")], &[], &["a"]);
    }

    /// A pod that fails again and again waits longer and longer; the update goes on around it.
    #[test]
    fn a_failed_pod_that_rests_stops_nothing_else() {
        let pods = || vec![failed("a", 0, "new"), pod("b", 1, "old", true), pod("c", 2, "old", true)];
        check_resting(&["n0"], surge_and_spare(0, 2), nodes(3, None), pods(), &[], &["b"]);
        check_resting(&["n0"], surge_and_spare(0, 1), nodes(3, None), pods(), &[], &[]);
        check_resting(&["n0"], surge_and_spare(1, 0), nodes(3, None), pods(), &["n1"], &[]);
        check(surge_and_spare(0, 2), nodes(3, None), pods(), &[], &["a"]);
    }

    #[test]
    fn rolling_updates() {
        let rolling = surge_and_spare;
        let old = || vec![pod("a", 0, "old", true), pod("b", 1, "old", true), pod("c", 2, "old", true)];
        check(rolling(0, 1), nodes(3, None), old(), &[], &["a"]);
        check(rolling(0, 2), nodes(3, None), old(), &[], &["a", "b"]);
        let half = vec![pod("a", 0, "new", false), pod("b", 1, "old", true), pod("c", 2, "old", true)];
        check(rolling(0, 1), nodes(3, None), half, &[], &[]);
        let broken = vec![pod("a", 0, "old", false), pod("b", 1, "old", true), pod("c", 2, "old", true)];
        check(rolling(0, 1), nodes(3, None), broken, &[], &["a"]);
        check(set(json!({ "type": "OnDelete" })), nodes(3, None), old(), &[], &[]);
        check(rolling(1, 0), nodes(3, None), old(), &["n0"], &[]);
        let surged = [old(), vec![pod("a2", 0, "new", false)]].concat();
        check(rolling(1, 0), nodes(3, None), surged, &[], &[]);
        let surged = [old(), vec![pod("a2", 0, "new", true)]].concat();
        check(rolling(1, 0), nodes(3, None), surged, &[], &["a"]);
    }

    #[test]
    fn surging_leaves_no_node_without_a_pod_and_keeps_none_that_is_down() {
        let surge = || surge_and_spare(1, 0);
        let going = |pod: Arc<Pod>| {
            let mut pod = (*pod).clone();
            pod.metadata.deletion_timestamp = Some(now().into());
            Arc::new(pod)
        };
        let leaving = || vec![going(pod("a", 0, "new", true)), pod("b", 1, "new", true)];
        check(surge(), nodes(2, None), leaving(), &["n0"], &[]);
        check(surge_and_spare(0, 1), nodes(2, None), leaving(), &[], &[]);
        // Ended and going: nothing of it is left to wait for, surging or not.
        let ended = vec![going(failed("a", 0, "new")), pod("b", 1, "new", true)];
        check(surge_and_spare(0, 1), nodes(2, None), ended, &["n0"], &[]);
        check(surge(), nodes(1, None), vec![failed("a", 0, "new")], &["n0"], &["a"]);
        check_resting(&["n0"], surge(), nodes(1, None), vec![failed("a", 0, "new")], &[], &[]);
        check(surge(), nodes(1, None), vec![pod("a", 0, "old", false), pod("a2", 0, "new", false)], &[], &["a"]);
        check(surge(), nodes(1, None), vec![pod("a", 0, "old", true), pod("a2", 0, "new", false)], &[], &[]);
        // Two that are down are replaced, and one that serves gets its successor as well.
        let down = vec![pod("a", 0, "old", false), pod("b", 1, "old", false), pod("c", 2, "old", true)];
        check(surge(), nodes(3, None), down, &["n0", "n1", "n2"], &[]);
    }

    #[test]
    fn counters() {
        let (set, nodes) = (set(json!(null)), nodes(3, None));
        let pods = vec![pod("a", 0, "new", true), pod("b", 1, "old", false)];
        let resting = HashMap::new();
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: "new", resting: &resting, now: now() };
        let (status, _) = status(&input);
        let s = status.unwrap();
        assert_eq!((s.desired_number_scheduled, s.current_number_scheduled, s.number_ready), (3, 2, 1));
        assert_eq!((s.updated_number_scheduled, s.number_available, s.number_unavailable), (Some(1), Some(1), Some(2)));
    }
}
