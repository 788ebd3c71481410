//! How long a pod took to start, without what is not the node's doing: image pulls and init containers.
//! `image_manager` notes the pulls; `pod_workers` asks once every container has started.
//! Pulls at the same time count once; what is kept of a pod has one size and goes with it.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};
use parking_lot::Mutex;

use crate::pod::pod_spec;

#[derive(Debug, Default, Clone, Copy)]
struct Pulled {
    total: Duration,
    /// Up to here, in monotonic time, everything is in the total.
    until: Duration,
}

/// Time that pods waited for images, by UID.
#[derive(Default)]
pub struct Pulls(Mutex<HashMap<String, Pulled>>);

impl Pulls {
    pub fn note(&self, pod_uid: &str, began: Duration, ended: Duration) {
        let mut pods = self.0.lock();
        let pulled = pods.entry(pod_uid.to_string()).or_default();
        pulled.total += ended.saturating_sub(began.max(pulled.until));
        pulled.until = pulled.until.max(ended);
    }

    pub fn total(&self, pod_uid: &str) -> Duration {
        self.0.lock().get(pod_uid).map_or(Duration::ZERO, |pulled| pulled.total)
    }

    pub fn forget(&self, pod_uid: &str) {
        self.0.lock().remove(pod_uid);
    }
}

/// Whether every container runs.
pub fn has_started(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let runs = |s: &k8s_openapi::api::core::v1::ContainerStatus| {
        s.state.as_ref().is_some_and(|s| s.running.as_ref().is_some_and(|r| r.started_at.is_some()))
    };
    !containers.is_empty() && containers.iter().all(runs)
}

/// Seconds from creation to `now`, as the indicator of service counts them. `None`: it is not about this pod, because
/// it has volumes whose making is somebody else's work.
pub fn indicator(pod: &Pod, status: &PodStatus, pulling: Duration, now: Timestamp) -> Option<f64> {
    let plain = |v: &Volume| {
        v.secret.is_some()
            || v.config_map.is_some()
            || v.downward_api.is_some()
            || v.empty_dir.is_some()
            || v.projected.is_some()
    };
    if !pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).all(plain) {
        return None;
    }
    let created = pod.metadata.creation_timestamp.as_ref()?.0;
    let age = (now.as_millisecond() - created.as_millisecond()) as f64 / 1000.0;
    Some((age - pulling.as_secs_f64() - initializing(pod, status)).max(0.0))
}

/// What init containers took that had to end before the others could start.
fn initializing(pod: &Pod, status: &PodStatus) -> f64 {
    let sidecar = |name: &str| {
        let containers = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
        containers.into_iter().any(|c| c.name == name && pod_spec::is_sidecar(c))
    };
    let took = |s: &k8s_openapi::api::core::v1::ContainerStatus| {
        let ended = s.state.as_ref()?.terminated.as_ref().filter(|_| !sidecar(&s.name))?;
        let (from, to) = (ended.started_at.as_ref()?.0, ended.finished_at.as_ref()?.0);
        Some((to.as_millisecond() - from.as_millisecond()).max(0) as f64 / 1000.0)
    };
    status.init_container_statuses.iter().flatten().filter_map(took).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pulls_at_the_same_time_count_once() {
        let pulls = Pulls::default();
        let check = |began: u64, ended: u64, total: u64| {
            pulls.note("u", Duration::from_secs(began), Duration::from_secs(ended));
            assert_eq!(pulls.total("u"), Duration::from_secs(total), "{began} to {ended}");
        };
        check(10, 20, 10);
        check(12, 18, 10);
        check(15, 25, 15);
        check(30, 31, 16);
        pulls.forget("u");
        assert_eq!(pulls.total("u"), Duration::ZERO);
    }

    #[test]
    fn pulls_and_init_containers_are_not_the_nodes_doing() {
        let ended = |name: &str| {
            json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "terminated": { "exitCode": 0, "startedAt": "2026-01-01T00:00:05Z",
                    "finishedAt": "2026-01-01T00:00:08Z" } } })
        };
        let status: PodStatus = serde_json::from_value(json!({
            "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-01-01T00:00:19Z" } } }],
            "initContainerStatuses": [ended("init"), ended("side")],
        }))
        .unwrap();
        assert!(has_started(&status) && !has_started(&PodStatus::default()));
        let check = |volumes: Value, pulling: u64, expected: Option<f64>| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "containers": [{ "name": "c" }], "volumes": volumes,
                    "initContainers": [{ "name": "init" }, { "name": "side", "restartPolicy": "Always" }] },
            }))
            .unwrap();
            let now = "2026-01-01T00:00:20Z".parse().unwrap();
            assert_eq!(indicator(&pod, &status, Duration::from_secs(pulling), now), expected, "{volumes}");
        };
        check(json!([]), 0, Some(17.0));
        check(json!([{ "name": "v", "emptyDir": {} }, { "name": "w", "projected": {} }]), 10, Some(7.0));
        check(json!([]), 100, Some(0.0));
        check(json!([{ "name": "v", "hostPath": { "path": "/" } }]), 0, None);
    }
}
