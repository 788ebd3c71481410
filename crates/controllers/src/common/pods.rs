//! What controllers ask of pods: are they alive, ready, available, and who goes first.
//! Used by every workload controller and by the endpoint controllers.
//! Invariant: pure readings of one version of a pod (tidy: `pure_files`).

use std::{cmp::Ordering, sync::Arc, time::Duration};

use api::pod_resources::is_sidecar;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::common::meta::Object;

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub fn finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Neither finished nor going away.
pub fn active(pod: &Pod) -> bool {
    !finished(pod) && !pod.deleting()
}

pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

pub fn ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let condition = condition(pod, "Ready").filter(|c| c.status == "True")?;
    condition.last_transition_time.as_ref().map(|t| t.0)
}

/// Ready for at least `min_ready_seconds`.
pub fn available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready_seconds, now).is_some_and(|left| left.is_zero())
}

/// How long until a ready pod counts as available; `None` when it is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !ready(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let at = seconds_after(ready_since(pod)?, min_ready_seconds.into());
    Some(until(now, at))
}

/// The end of a period, of which somebody else may have said the beginning or the length: one that no calendar reaches
/// never comes.
pub fn after(start: Timestamp, period: Duration) -> Timestamp {
    start.checked_add(period).unwrap_or(Timestamp::MAX)
}

pub fn seconds_after(start: Timestamp, seconds: i64) -> Timestamp {
    after(start, Duration::from_secs(seconds.max(0).unsigned_abs()))
}

/// Zero when `at` has passed.
pub fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn deletion_cost(pod: &Pod) -> i32 {
    pod.annotation("controller.kubernetes.io/pod-deletion-cost").and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Of the containers, and among pods that are equal in that, of the sidecars.
fn restarts(pod: &Pod) -> (i32, i32) {
    let most = |statuses: Option<&Vec<ContainerStatus>>, counts: &dyn Fn(&str) -> bool| {
        let counted = statuses.into_iter().flatten().filter(|s| counts(&s.name));
        counted.map(|s| s.restart_count).max().unwrap_or(0)
    };
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let sidecar = |name: &str| init.iter().any(|c| c.name == name && is_sidecar(c));
    let status = pod.status.as_ref();
    (
        most(status.and_then(|s| s.container_statuses.as_ref()), &|_| true),
        most(status.and_then(|s| s.init_container_statuses.as_ref()), &sidecar),
    )
}

/// Pods that should go first come first. `rank` counts the pods of the same family on the pod's node.
pub fn sort_victims(pods: &mut [Arc<Pod>], now: Timestamp, rank: impl Fn(&Pod) -> usize) {
    pods.sort_by(|a, b| victims_first(a, b, now, &rank));
}

fn victims_first(a: &Pod, b: &Pod, now: Timestamp, rank: &impl Fn(&Pod) -> usize) -> Ordering {
    let assigned = |pod: &Pod| !node_name(pod).is_empty();
    let phase_order = |pod: &Pod| match phase(pod) {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    };
    let by_state = (assigned(a), phase_order(a), ready(a), deletion_cost(a)).cmp(&(
        assigned(b),
        phase_order(b),
        ready(b),
        deletion_cost(b),
    ));
    by_state
        .then_with(|| rank(b).cmp(&rank(a)))
        .then_with(|| match (ready(a), ready(b)) {
            (true, true) => younger_first(ready_since(a), ready_since(b), now, a, b),
            _ => Ordering::Equal,
        })
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| younger_first(a.created(), b.created(), now, a, b))
}

/// Compares ages by their order of magnitude, so that pods of about the same age are drawn by chance of their uid.
fn younger_first(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp, pod: &Pod, other: &Pod) -> Ordering {
    let (Some(a), Some(b)) = (a, b) else { return a.is_some().cmp(&b.is_some()) };
    if a == b {
        return Ordering::Equal;
    }
    let magnitude = |at: Timestamp| {
        let age = now.duration_since(at).as_nanos();
        if age <= 0 { -1 } else { age.ilog2() as i32 }
    };
    magnitude(a).cmp(&magnitude(b)).then_with(|| pod.uid().cmp(other.uid()))
}

/// A pod of a controller's template. The name is drawn here so that expectations can name it before it exists.
pub fn from_template(
    template: &PodTemplateSpec,
    namespace: &str,
    prefix: &str,
    suffix: &str,
    owner: OwnerReference,
) -> Pod {
    const NAME_PREFIX_LENGTH_MAX: usize = 58;
    let meta = template.metadata.clone().unwrap_or_default();
    let generate_name = if prefix.is_empty() { prefix.to_string() } else { format!("{prefix}-") };
    let base: String = generate_name.chars().take(NAME_PREFIX_LENGTH_MAX).collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{base}{suffix}")),
            generate_name: Some(generate_name),
            namespace: Some(namespace.to_string()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A running pod on node `n`, ready since `ready` where given.
    pub fn pod(name: &str, ready: Option<&str>) -> Pod {
        let condition = match ready {
            Some(at) => serde_json::json!([{ "type": "Ready", "status": "True", "lastTransitionTime": at }]),
            None => serde_json::json!([{ "type": "Ready", "status": "False" }]),
        };
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": name, "namespace": "d", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": "Running", "conditions": condition },
        }))
        .expect("a pod")
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::pod, *};

    const NOW: &str = "2026-01-01T01:00:00Z";

    #[test]
    fn victims_in_upstreams_order() {
        let now: Timestamp = NOW.parse().unwrap();
        let with = |name: &str, ready: Option<&str>, change: &dyn Fn(&mut Pod)| {
            let mut pod = pod(name, ready);
            change(&mut pod);
            Arc::new(pod)
        };
        let ready = Some("2026-01-01T00:00:00Z");
        let restarted = |name: &str, count: i32| -> Option<Vec<ContainerStatus>> {
            let status = serde_json::json!([{ "name": name, "restartCount": count, "ready": true, "image": "i", "imageID": "" }]);
            serde_json::from_value(status).unwrap()
        };
        let expected = [
            with("unassigned", None, &|p| p.spec.as_mut().unwrap().node_name = None),
            with("pending", None, &|p| p.status.as_mut().unwrap().phase = Some("Pending".into())),
            with("unready", None, &|_| {}),
            with("cheap", ready, &|p| {
                p.metadata.annotations =
                    Some([("controller.kubernetes.io/pod-deletion-cost".to_string(), "-5".to_string())].into());
            }),
            with("crowded", ready, &|p| p.spec.as_mut().unwrap().node_name = Some("crowd".into())),
            with("fresh", Some("2026-01-01T00:59:59Z"), &|_| {}),
            with("restarted", ready, &|p| p.status.as_mut().unwrap().container_statuses = restarted("c", 3)),
            with("restarted sidecar", ready, &|p| {
                let sidecar = serde_json::json!([{ "name": "s", "restartPolicy": "Always" }, { "name": "i" }]);
                p.spec.as_mut().unwrap().init_containers = serde_json::from_value(sidecar).unwrap();
                p.status.as_mut().unwrap().init_container_statuses = restarted("s", 5);
            }),
            with("young", ready, &|p| {
                p.metadata.creation_timestamp = Some("2026-01-01T00:59:00Z".parse::<Timestamp>().unwrap().into())
            }),
            with("old", ready, &|p| {
                p.spec.as_mut().unwrap().init_containers =
                    serde_json::from_value(serde_json::json!([{ "name": "i" }])).unwrap();
                p.status.as_mut().unwrap().init_container_statuses = restarted("i", 9);
            }),
        ];
        let mut pods: Vec<_> = expected.iter().rev().cloned().collect();
        sort_victims(&mut pods, now, |p| if node_name(p) == "crowd" { 2 } else { 1 });
        let names = |pods: &[Arc<Pod>]| pods.iter().map(|p| p.name().to_string()).collect::<Vec<_>>();
        assert_eq!(names(&pods), names(&expected));
    }

    #[test]
    fn availability() {
        let now: Timestamp = NOW.parse().unwrap();
        let check = |ready: Option<&str>, min_ready, expected: Option<u64>| {
            assert_eq!(available_in(&pod("p", ready), min_ready, now).map(|d| d.as_secs()), expected);
        };
        check(None, 0, None);
        check(Some(NOW), 0, Some(0));
        check(Some(NOW), 10, Some(10));
        check(Some("2026-01-01T00:59:55Z"), 10, Some(5));
        check(Some("2026-01-01T00:00:00Z"), 10, Some(0));
        // A node says when: whoever owns the pod goes on all the same.
        let last = (Timestamp::MAX.as_second() - now.as_second()) as u64;
        check(Some("9999-12-30T22:00:00Z"), i32::MAX, Some(last));
    }
}
