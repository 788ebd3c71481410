//! Evicts pods from nodes with NoExecute taints that they do not tolerate, or no longer.
//! `lifecycle` (and people) write the taints; workload controllers replace the pods.
//! A pod's deadline counts from when the taint was added; a taint that does not say so was added when it was first
//! seen.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use api::placement::tolerates;
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use metrics::Family;
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    common::{
        indexes,
        meta::{Object, delete_options, time},
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

static DELETIONS: Family =
    Family::counter("taint_eviction_controller_pod_deletions_total", &[], "Pods that were deleted because of a taint.");
static DELETION_SECONDS: Family = Family::histogram(
    "taint_eviction_controller_pod_deletion_duration_seconds",
    &[],
    &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0],
    "How long after they had to go pods were deleted.",
);

/// By node, then by key and value: when a taint without a date was first seen. People rarely give one.
#[derive(Clone, Default)]
struct FirstSeen(Arc<Mutex<HashMap<String, Dates>>>);

type Dates = HashMap<(String, Option<String>), Timestamp>;

impl FirstSeen {
    /// Forgets taints that are gone.
    fn retain(&self, node: &str, taints: &[Taint]) {
        let mut nodes = self.0.lock();
        if let Some(seen) = nodes.get_mut(node) {
            seen.retain(|(key, value), _| taints.iter().any(|t| t.key == *key && t.value == *value));
            if seen.is_empty() {
                nodes.remove(node);
            }
        }
    }

    /// The same taints, each with a date.
    fn date(&self, node: &str, mut taints: Vec<Taint>, now: Timestamp) -> Vec<Taint> {
        for taint in taints.iter_mut().filter(|t| t.time_added.is_none()) {
            let id = (taint.key.clone(), taint.value.clone());
            let since = *self.0.lock().entry(node.to_string()).or_default().entry(id).or_insert(now);
            taint.time_added = Some(Time(since));
        }
        taints
    }
}

/// Pods that wait for their deadline, so that it can be said when they need not go any more.
#[derive(Clone, Default)]
struct PodsToEvict(Arc<Mutex<HashSet<String>>>);

impl PodsToEvict {
    fn spare(&self, recorder: &EventRecorder, pod: &Pod) {
        if self.0.lock().remove(&pod.key()) {
            let message = format!("Cancelling deletion of Pod {}", pod.key());
            recorder.normal(&reference(pod), "TaintManagerEviction", message);
        }
    }
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (nodes, pods) = (setup.informer::<Node>(), setup.informer::<Pod>());
    indexes::by_node(&pods);
    let seen = FirstSeen::default();
    setup.on(&nodes, {
        let (pods, seen) = (pods.clone(), seen.clone());
        move |change, queue| {
            let taints = |node: &Option<Arc<Node>>| node.as_ref().map(|n| no_execute(n)).unwrap_or_default();
            if taints(&change.old) == taints(&change.new) {
                return;
            }
            seen.retain(&change.key, &taints(&change.new));
            for pod in pods.by_index(indexes::NODE, &change.key) {
                queue.add(pod.key());
            }
        }
    });
    let recorder = setup.context.recorder("taint-eviction-controller");
    let condemned = PodsToEvict::default();
    setup.on(&pods, {
        let (nodes, condemned, recorder) = (nodes.clone(), condemned.clone(), recorder.clone());
        move |change, queue| {
            if let (Some(gone), None) = (&change.old, &change.new) {
                condemned.spare(&recorder, gone);
            }
            let Some(pod) = change.new.as_ref().filter(|p| !p.deleting()) else { return };
            if nodes.get(pods::node_name(pod)).is_some_and(|node| !no_execute(&node).is_empty()) {
                queue.add(change.key.clone());
            }
        }
    });
    Arc::new(TaintEviction { context: setup.context.clone(), nodes, pods, seen, condemned, recorder })
}

fn no_execute(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().filter(|t| t.effect == "NoExecute").cloned().collect()
}

/// When the pod has to go: `None` is never.
fn deadline(pod: &Pod, taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.clone()).unwrap_or_default();
    let created = pod.created().unwrap_or(Timestamp::MIN);
    let mut earliest: Option<Timestamp> = None;
    for taint in taints {
        let matching: Vec<_> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if matching.is_empty() {
            return Some(now);
        }
        let seconds = matching.iter().filter_map(|t| t.toleration_seconds).min();
        if let Some(seconds) = seconds {
            let since = taint.time_added.as_ref().map_or(now, |t| t.0).max(created);
            let at = pods::seconds_after(since, seconds);
            earliest = Some(earliest.map_or(at, |other| other.min(at)));
        }
    }
    earliest
}

struct TaintEviction {
    context: Context,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    seen: FirstSeen,
    condemned: PodsToEvict,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for TaintEviction {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|p| !p.deleting() && !pods::finished(p)) else { return Ok(None) };
        let Some(node) = self.nodes.get(pods::node_name(&pod)) else { return Ok(None) };
        let now = self.context.env.now();
        let taints = self.seen.date(node.name(), no_execute(&node), now);
        let Some(at) = deadline(&pod, &taints, now) else {
            self.condemned.spare(&self.recorder, &pod);
            return Ok(None);
        };
        let left = pods::until(now, at);
        if !left.is_zero() {
            self.condemned.0.lock().insert(key.to_string());
            return Ok(Some(left));
        }
        self.condemned.0.lock().remove(key);
        let message = format!("Marking for deletion Pod {key}");
        self.recorder.normal(&reference(&*pod), "TaintManagerEviction", message);
        let api = self.context.client.namespaced::<Pod>(pod.namespace());
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": time(now),
        });
        let patch = json!({ "metadata": { "uid": pod.uid() }, "status": { "conditions": [condition] } });
        match api.patch_status(pod.name(), &Patch::Strategic(patch)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
            _ => {}
        }
        match api.delete(pod.name(), &delete_options(pod.uid())).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            Err(_) => Ok(None),
            Ok(_) => {
                let late = self.context.env.now().duration_since(at).as_secs_f64();
                self.context.config.metrics.count(&DELETIONS, &[]);
                self.context.config.metrics.observe(&DELETION_SECONDS, &[], late);
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_without_a_date_count_from_when_they_were_seen() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let taint: Taint = serde_json::from_value(json!({ "key": "k", "effect": "NoExecute" })).unwrap();
        let seen = FirstSeen::default();
        let date = |now: &str| seen.date("n", vec![taint.clone()], at(now))[0].time_added.clone().unwrap().0;
        assert_eq!(date("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        assert_eq!(date("2026-01-01T00:00:05Z"), at("2026-01-01T00:00:00Z"));
        seen.retain("n", std::slice::from_ref(&taint));
        assert_eq!(date("2026-01-01T00:00:06Z"), at("2026-01-01T00:00:00Z"));
        seen.retain("n", &[]);
        assert_eq!(date("2026-01-01T00:00:09Z"), at("2026-01-01T00:00:09Z"));
    }

    #[test]
    fn deadlines() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let taint: Taint = serde_json::from_value(json!({
            "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        let check = |tolerations: serde_json::Value, expected: Option<i64>| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": { "creationTimestamp": "2025-01-01T00:00:00Z" },
                "spec": { "containers": [], "tolerations": tolerations },
            }))
            .unwrap();
            let left = deadline(&pod, std::slice::from_ref(&taint), now).map(|at| at.as_second() - now.as_second());
            assert_eq!(left, expected);
        };
        let exists = |seconds: Option<i64>| json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }]);
        check(json!([]), Some(0));
        check(exists(None), None);
        check(exists(Some(300)), Some(240));
        check(exists(Some(i64::MAX)), Some(Timestamp::MAX.as_second() - now.as_second()));
        check(json!([{ "operator": "Exists" }]), None);
        check(json!([{ "key": "other", "operator": "Exists" }]), Some(0));
    }
}
