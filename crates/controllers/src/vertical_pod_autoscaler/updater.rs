//! Which running pods get what is recommended now, and how: in place where that can be, else by eviction.
//! Asked by `mod` once a minute; what a new pod gets is `api::vertical_pod_autoscaler`'s (admission).
//! Invariant: pure (tidy: `pure_files`). Never takes so many pods at once that fewer than half are left.

use std::{sync::Arc, time::Duration};

use api::{
    pod_resources::{
        amounts_from_value,
        qos::{QosClass, qos_class},
    },
    vertical_pod_autoscaler::{UpdateMode, recommended, update_mode, updated_resources},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::common::{
    meta::Object,
    pods::{active, condition, phase},
};

/// Within its bounds a pod is changed only after it has lived so long, and only for so much.
const LIFETIME_MIN: Duration = Duration::from_secs(12 * 3600);
const CHANGE_MIN: f64 = 0.1;
/// Of targets with fewer pods than this none is evicted, unless the autoscaler says otherwise.
const MIN_REPLICAS: i64 = 2;
/// How long a node may put a resize off, or take for it.
const DEFERRED_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const IN_PROGRESS_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The body of a patch of the pod's `resize`.
    Resize {
        pod: String,
        patch: Value,
    },
    Evict {
        pod: String,
    },
}

/// `replicas` is how many the target should have.
pub fn plan(autoscaler: &Value, pods: &[Arc<Pod>], replicas: i64, now: Timestamp) -> Vec<Action> {
    let mode = update_mode(autoscaler);
    if !matches!(mode, UpdateMode::Recreate | UpdateMode::InPlaceOrRecreate) {
        return Vec::new();
    }
    let running: Vec<&Arc<Pod>> = pods.iter().filter(|pod| active(pod)).collect();
    let mut due: Vec<(f64, &Arc<Pod>)> =
        running.iter().filter_map(|pod| Some((urgency(autoscaler, pod, now)?, *pod))).collect();
    // The one that is furthest off goes first.
    due.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.name().cmp(other.name())));
    let mut evictions = evictions(autoscaler, running.len() as i64, replicas);
    let mut actions = Vec::new();
    for (_, pod) in due {
        // The class of a pod never changes, so one that asks for nothing can't be resized to ask for something.
        let resizable = phase(pod) == "Running" && qos_class(pod) != QosClass::BestEffort;
        if mode == UpdateMode::InPlaceOrRecreate && resizable {
            match resize_state(pod, now) {
                Resize::Wait => continue,
                Resize::Possible => {
                    if let Some(patch) = resize_patch(autoscaler, pod) {
                        actions.push(Action::Resize { pod: pod.name().into(), patch });
                    }
                    continue;
                }
                Resize::Impossible => {}
            }
        }
        if evictions > 0 {
            evictions -= 1;
            actions.push(Action::Evict { pod: pod.name().into() });
        }
    }
    actions
}

/// How many pods may be evicted now.
fn evictions(autoscaler: &Value, running: i64, replicas: i64) -> i64 {
    let least = autoscaler["spec"]["updatePolicy"]["minReplicas"].as_i64().unwrap_or(MIN_REPLICAS);
    if running < least {
        return 0;
    }
    let spare = replicas / 2;
    match spare {
        // A single pod may go when it is there.
        0 => i64::from(running >= replicas && replicas > 0),
        _ => (running - (replicas - spare)).max(0),
    }
}

/// How far the pod is from what is recommended; `None` when it is near enough.
fn urgency(autoscaler: &Value, pod: &Pod, now: Timestamp) -> Option<f64> {
    let (mut outside, mut change, mut requested, mut wanted) = (false, false, 0.0, 0.0);
    let value = serde_json::to_value(pod.spec.as_ref()?).ok()?;
    for container in value["containers"].as_array()? {
        let name = container["name"].as_str().unwrap_or_default();
        let Some(target) = recommended(autoscaler, name, "target") else { continue };
        let requests = amounts_from_value(&container["resources"]["requests"]);
        let bound = |which: &str| recommended(autoscaler, name, which).unwrap_or_default();
        let (lower, upper) = (bound("lowerBound"), bound("upperBound"));
        for (resource, target) in &target {
            let Some(request) = requests.get(resource) else {
                (outside, change) = (true, true);
                wanted += 1.0;
                continue;
            };
            outside |= lower.get(resource).is_some_and(|lower| request < lower)
                || upper.get(resource).is_some_and(|upper| request > upper);
            change |= request != target;
            // Each resource by its own measure.
            let unit = request.as_f64().max(f64::MIN_POSITIVE);
            requested += 1.0;
            wanted += target.as_f64() / unit;
        }
    }
    let difference: f64 = if requested > 0.0 { (wanted - requested).abs() / requested } else { wanted };
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let old = started.is_some_and(|started| started + LIFETIME_MIN <= now);
    (change && (outside || (old && difference >= CHANGE_MIN))).then_some(difference)
}

enum Resize {
    Possible,
    Wait,
    Impossible,
}

/// What the node says of a resize that was asked for before.
fn resize_state(pod: &Pod, now: Timestamp) -> Resize {
    let since = |kind: &str| condition(pod, kind).filter(|condition| condition.status == "True");
    let over = |condition: &k8s_openapi::api::core::v1::PodCondition, limit: Duration| {
        condition.last_transition_time.as_ref().is_some_and(|time| time.0 + limit <= now)
    };
    if let Some(pending) = since("PodResizePending") {
        let infeasible = pending.reason.as_deref() == Some("Infeasible");
        return if infeasible || over(pending, DEFERRED_TIMEOUT) { Resize::Impossible } else { Resize::Wait };
    }
    match since("PodResizeInProgress") {
        Some(running) if over(running, IN_PROGRESS_TIMEOUT) => Resize::Impossible,
        Some(_) => Resize::Wait,
        None => Resize::Possible,
    }
}

fn resize_patch(autoscaler: &Value, pod: &Pod) -> Option<Value> {
    let value = serde_json::to_value(pod.spec.as_ref()?).ok()?;
    let containers = value["containers"].as_array()?.iter().filter_map(|container| {
        let resources = updated_resources(autoscaler, container)?;
        Some(json!({ "name": container["name"], "resources": resources }))
    });
    let containers: Vec<Value> = containers.collect();
    (!containers.is_empty()).then(|| json!({ "metadata": { "uid": pod.uid() }, "spec": { "containers": containers } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T00:00:00Z";

    fn autoscaler(mode: &str) -> Value {
        json!({
            "spec": { "updatePolicy": { "updateMode": mode } },
            "status": { "recommendation": { "containerRecommendations": [{ "containerName": "c",
                "target": { "cpu": "200m" }, "lowerBound": { "cpu": "100m" }, "upperBound": { "cpu": "400m" } }] } },
        })
    }

    fn pod(name: &str, cpu: &str, started: &str, conditions: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            "status": { "phase": "Running", "startTime": started, "conditions": conditions },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn check(autoscaler: &Value, pods: &[Arc<Pod>], replicas: i64, expected: &[&str]) {
        let found = plan(autoscaler, pods, replicas, NOW.parse().unwrap());
        let found: Vec<String> = found
            .iter()
            .map(|action| match action {
                Action::Resize { pod, .. } => format!("~{pod}"),
                Action::Evict { pod } => format!("-{pod}"),
            })
            .collect();
        assert_eq!(found, expected, "{autoscaler}");
    }

    #[test]
    fn pods_outside_of_their_bounds_are_changed() {
        let young = |name: &str, cpu: &str| pod(name, cpu, "2026-01-01T23:00:00Z", json!([]));
        let pods = [young("low", "50m"), young("near", "150m"), young("right", "200m"), young("high", "900m")];
        for mode in ["Off", "Initial"] {
            check(&autoscaler(mode), &pods, 4, &[]);
        }
        for mode in ["Auto", "InPlaceOrRecreate"] {
            check(&autoscaler(mode), &pods, 4, &["~low", "~high"]);
        }
        check(&autoscaler("Recreate"), &pods, 4, &["-low", "-high"]);
        check(&autoscaler("Recreate"), &pods[..2], 4, &[]);
        let old = [pod("old", "150m", "2026-01-01T01:00:00Z", json!([])), young("right", "200m")];
        check(&autoscaler("Recreate"), &old, 2, &["-old"]);
        check(&autoscaler("Recreate"), &[young("low", "50m")], 1, &[]);
        let mut single = autoscaler("Recreate");
        single["spec"]["updatePolicy"]["minReplicas"] = json!(1);
        check(&single, &[young("low", "50m")], 1, &["-low"]);
    }

    #[test]
    fn what_can_not_be_resized_is_evicted() {
        let resized = |reason: &str, kind: &str, since: &str| {
            let condition = json!([{ "type": kind, "status": "True", "reason": reason, "lastTransitionTime": since }]);
            [pod("p", "50m", "2026-01-01T23:00:00Z", condition), pod("q", "200m", "2026-01-01T23:00:00Z", json!([]))]
        };
        let recent = "2026-01-01T23:59:00Z";
        let auto = autoscaler("Auto");
        check(&auto, &resized("Infeasible", "PodResizePending", recent), 2, &["-p"]);
        check(&auto, &resized("Deferred", "PodResizePending", recent), 2, &[]);
        check(&auto, &resized("Deferred", "PodResizePending", "2026-01-01T23:00:00Z"), 2, &["-p"]);
        check(&auto, &resized("", "PodResizeInProgress", recent), 2, &[]);
    }
}
