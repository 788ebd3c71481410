//! The core: how many pods a budget lets go.
//! Called by the controller beside it; the eviction API takes from `disruptionsAllowed`.
//! An eviction that was granted counts as gone until it is seen or two minutes have passed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Pod, PodCondition},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
};

use crate::common::{
    meta::{Object, scaled, time},
    pods,
};

const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// `(expected, desired healthy)`; `scale` is what the pods' controllers want in sum.
pub fn expected(budget: &PodDisruptionBudget, pods: usize, scale: Result<i32, String>) -> Result<(i32, i32), String> {
    let spec = budget.spec.clone().unwrap_or_default();
    let bad = || "a value is neither a number nor a percentage".to_string();
    if let Some(max) = &spec.max_unavailable {
        let expected = scale?;
        let unavailable = scaled(max, expected, true).ok_or_else(bad)?;
        return Ok((expected, (expected - unavailable).max(0)));
    }
    match &spec.min_available {
        Some(IntOrString::Int(number)) => Ok((pods as i32, *number)),
        Some(percent) => {
            let expected = scale?;
            Ok((expected, scaled(percent, expected, true).ok_or_else(bad)?))
        }
        None => Ok((pods as i32, 0)),
    }
}

/// Whether the budget depends on what the pods' controllers want.
pub fn follows_scale(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    spec.is_some_and(|s| s.max_unavailable.is_some() || matches!(s.min_available, Some(IntOrString::String(_))))
}

/// Pods whose eviction was granted and that are still there when that is forgotten.
pub fn not_deleted<'a>(budget: &PodDisruptionBudget, pods: &'a [Arc<Pod>], now: Timestamp) -> Vec<&'a Arc<Pod>> {
    let granted = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
    let overdue = |pod: &&Arc<Pod>| {
        let at = granted.and_then(|map| map.get(pod.name()));
        !pod.deleting() && at.is_some_and(|at| pods::until(now, pods::after(at.0, DELETION_TIMEOUT)).is_zero())
    };
    pods.iter().filter(overdue).collect()
}

/// When a pod that was to be disrupted, and is not going after all, may say so; `None` when it says nothing of the sort.
pub fn stale_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let condition = pods::condition(pod, "DisruptionTarget").filter(|c| c.status == "True")?;
    // A kubelet takes as long as it takes.
    let by_kubelet = condition.reason.as_deref() == Some("TerminationByKubelet");
    if by_kubelet || pod.deleting() || pods::finished(pod) {
        return None;
    }
    let since = condition.last_transition_time.as_ref();
    Some(since.map_or(Duration::ZERO, |at| pods::until(now, pods::after(at.0, DELETION_TIMEOUT))))
}

/// The pod with its stale condition taken back.
pub fn without_disruption(pod: &Pod, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let generation = pod.metadata.generation;
    let conditions = pod.status.as_mut().and_then(|s| s.conditions.as_mut());
    for condition in conditions.into_iter().flatten().filter(|c| c.type_ == "DisruptionTarget") {
        *condition = PodCondition {
            type_: "DisruptionTarget".into(),
            status: "False".into(),
            last_transition_time: Some(time(now)),
            observed_generation: generation,
            ..PodCondition::default()
        };
    }
    pod
}

/// The new status where it differs, and when a granted eviction is to be forgotten.
pub fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    (expected, desired): (i32, i32),
    now: Timestamp,
) -> (Option<PodDisruptionBudgetStatus>, Option<Duration>) {
    let old = budget.status.clone().unwrap_or_default();
    let mut again: Option<Duration> = None;
    let mut disrupted: BTreeMap<String, Time> = BTreeMap::new();
    for pod in pods.iter().filter(|p| !p.deleting()) {
        let Some(at) = old.disrupted_pods.as_ref().and_then(|map| map.get(pod.name())) else { continue };
        let left = pods::until(now, pods::after(at.0, DELETION_TIMEOUT));
        if !left.is_zero() {
            disrupted.insert(pod.name().to_string(), at.clone());
            again = Some(again.map_or(left, |a| a.min(left)));
        }
    }
    let healthy = pods.iter().filter(|p| !p.deleting() && pods::ready(p) && !disrupted.contains_key(p.name()));
    let healthy = healthy.count() as i32;
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let (state, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let generation = budget.metadata.generation;
    let new = PodDisruptionBudgetStatus {
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        disruptions_allowed: allowed,
        disrupted_pods: Some(disrupted).filter(|map| !map.is_empty()),
        observed_generation: generation,
        conditions: Some(condition(&old, state, reason, "", generation, now)),
    };
    (Some(new).filter(|new| *new != old), again)
}

/// The status when the pods' controllers can't be asked: nothing may go.
pub fn failed(budget: &PodDisruptionBudget, error: &str, now: Timestamp) -> Option<PodDisruptionBudgetStatus> {
    let old = budget.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.disruptions_allowed = 0;
    new.observed_generation = budget.metadata.generation;
    new.conditions = Some(condition(&old, "False", "SyncFailed", error, budget.metadata.generation, now));
    Some(new).filter(|new| *new != old)
}

fn condition(
    old: &PodDisruptionBudgetStatus,
    state: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let known = conditions.iter().find(|c| c.type_ == "DisruptionAllowed" && c.status == state);
    let since = known.map_or_else(|| time(now), |c| c.last_transition_time.clone());
    conditions.retain(|c| c.type_ != "DisruptionAllowed");
    conditions.push(Condition {
        type_: "DisruptionAllowed".into(),
        status: state.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since,
    });
    conditions
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn budgets() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let check = |spec: serde_json::Value,
                     ready: usize,
                     unready: usize,
                     scale: i32,
                     allowed: i32,
                     disrupted: usize| {
            let mut map = json!({});
            (0..disrupted).for_each(|i| map[format!("r{i}")] = "2026-01-01T00:59:00Z".into());
            let budget: PodDisruptionBudget = serde_json::from_value(json!({
                "spec": spec,
                "status": { "disruptedPods": map, "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0 },
            }))
            .unwrap();
            let pod = |name: String, ready: bool| {
                Arc::new(crate::common::pods::testing::pod(&name, ready.then_some("2026-01-01T00:00:00Z")))
            };
            let pods: Vec<_> = (0..ready)
                .map(|i| pod(format!("r{i}"), true))
                .chain((0..unready).map(|i| pod(format!("u{i}"), false)))
                .collect();
            let numbers = expected(&budget, pods.len(), Ok(scale)).unwrap();
            assert!(not_deleted(&budget, &pods, now).is_empty());
            let later = not_deleted(&budget, &pods, now + Duration::from_secs(61));
            assert_eq!(later.len(), disrupted);
            let (status, again) = status(&budget, &pods, numbers, now);
            assert_eq!(status.unwrap().disruptions_allowed, allowed, "{spec}");
            assert_eq!(again, (disrupted > 0).then_some(Duration::from_secs(60)));
        };
        check(json!({ "minAvailable": 2 }), 3, 0, 3, 1, 0);
        check(json!({ "minAvailable": 2 }), 2, 1, 3, 0, 0);
        check(json!({ "minAvailable": "50%" }), 3, 0, 3, 1, 0);
        check(json!({ "maxUnavailable": 1 }), 3, 0, 3, 1, 0);
        check(json!({ "maxUnavailable": "34%" }), 3, 0, 3, 2, 0);
        check(json!({ "maxUnavailable": 1 }), 2, 0, 3, 0, 0);
        check(json!({ "minAvailable": 1 }), 3, 0, 3, 1, 1);
        check(json!({ "minAvailable": 0 }), 0, 0, 0, 0, 0);
    }

    #[test]
    fn disruptions_that_did_not_happen() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let check = |change: serde_json::Value, expected: Option<u64>| {
            let mut pod = json!({ "metadata": { "generation": 3 }, "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "True" }, { "type": "DisruptionTarget", "status": "True",
                    "reason": "PreemptionByScheduler", "lastTransitionTime": "2026-01-01T00:59:00Z" }] } });
            for (path, value) in change.as_object().unwrap() {
                *pod.pointer_mut(path).unwrap() = value.clone();
            }
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(stale_in(&pod, now).map(|left| left.as_secs()), expected, "{change}");
            let cleared = without_disruption(&pod, now);
            assert_eq!((stale_in(&cleared, now), pods::ready(&cleared)), (None, true));
            let condition = pods::condition(&cleared, "DisruptionTarget").unwrap();
            assert_eq!((condition.status.as_str(), &condition.reason), ("False", &None));
        };
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:59:30Z" });
        check(json!({}), Some(60));
        check(json!({ "/status/conditions/1/lastTransitionTime": "2026-01-01T00:58:00Z" }), Some(0));
        check(json!({ "/status/conditions/1/status": "False" }), None);
        check(json!({ "/status/conditions/1/reason": "TerminationByKubelet" }), None);
        check(json!({ "/status/phase": "Failed" }), None);
        check(json!({ "/metadata": deleted }), None);
    }
}
