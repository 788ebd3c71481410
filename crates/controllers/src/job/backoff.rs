//! How long a job waits after failures before it makes another pod: 10 s, 20 s, 40 s …, until one succeeds.
//! Moved forward by the job core, kept by the controller: pods that were deleted can't be counted any more.
//! A pod counts once.

use std::{collections::BTreeSet, time::Duration};

use api::pod_resources::is_sidecar;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::common::{meta::Object, pods};

const FAILURE_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backoff {
    /// Since the last success.
    failures: u32,
    last: Option<Timestamp>,
    /// Pods that were counted and have not been let go yet.
    counted: BTreeSet<String>,
}

impl Backoff {
    /// With what has ended since.
    pub fn record(&self, succeeded: &[&Pod], failed: &[&Pod]) -> Self {
        let mut new = self.clone();
        let fresh = |pod: &&&Pod| !self.counted.contains(pod.uid());
        let success = succeeded.iter().filter(fresh).map(|p| finished_at(p)).max();
        if success.is_some() {
            (new.failures, new.last) = (0, None);
        }
        for at in failed.iter().filter(fresh).map(|p| finished_at(p)).filter(|at| Some(*at) > success) {
            new.failures = new.failures.saturating_add(1);
            new.last = new.last.max(at);
        }
        new.counted = succeeded.iter().chain(failed).map(|p| p.uid().to_string()).collect();
        new
    }

    /// How long to wait yet.
    pub fn left(&self, now: Timestamp) -> Option<Duration> {
        wait(self.failures, self.last?, now)
    }
}

/// How long to wait yet after so many failures in a row, the last of them at that time.
pub fn wait(failures: u32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    Some(pods::until(now, pods::after(last, FAILURE_BACKOFF.delay_after(failures))))
        .filter(|left| failures > 0 && !left.is_zero())
}

/// The end of the last container where all have ended, else when the pod was no longer ready, else its deletion.
pub fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let lost_readiness = || {
        let ready = pods::condition(pod, "Ready").filter(|c| c.status == "False")?;
        ready.last_transition_time.as_ref().map(|t| t.0)
    };
    let deleted = || {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
        let by = pod.metadata.deletion_timestamp.as_ref()?.0;
        by.checked_sub(jiff::SignedDuration::from_secs(grace)).ok()
    };
    containers_ended(pod).or_else(lost_readiness).or_else(deleted).or(pod.created())
}

fn containers_ended(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let inits = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref());
    let sidecar = |status: &&ContainerStatus| {
        let container = inits.into_iter().flatten().find(|c| c.name == status.name);
        container.is_some_and(is_sidecar)
    };
    let sidecars = status.init_container_statuses.iter().flatten().filter(sidecar);
    let all = status.container_statuses.iter().flatten().chain(sidecars);
    let ends = all.map(|c| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0));
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn waits() {
        let start = Timestamp::UNIX_EPOCH;
        let pod = |name: &str, second: i64| -> Pod {
            let at = start + jiff::SignedDuration::from_secs(second);
            serde_json::from_value(json!({ "metadata": { "uid": name, "creationTimestamp": at } })).unwrap()
        };
        let check = |backoff: &Backoff, second: i64| backoff.left(start + jiff::SignedDuration::from_secs(second));
        let seconds = |n: u64| Some(Duration::from_secs(n));
        let (a, b, c) = (pod("a", 0), pod("b", 15), pod("c", 40));
        let one = Backoff::default().record(&[], &[&a]);
        assert_eq!((check(&one, 0), check(&one, 4), check(&one, 10)), (seconds(10), seconds(6), None));
        assert_eq!(one.record(&[], &[&a]), one, "seen again");
        let two = one.record(&[], &[&a, &b]);
        assert_eq!(check(&two, 15), seconds(20));
        // It is gone, and remembered.
        let three = two.record(&[], &[]).record(&[], &[&c]);
        assert_eq!(check(&three, 40), seconds(40));
        assert_eq!(check(&three.record(&[&pod("d", 41)], &[]), 41), None);
        let after = three.record(&[&pod("d", 41)], &[&pod("e", 39), &pod("f", 42)]);
        assert_eq!(check(&after, 42), seconds(10), "only what came after the success");
    }

    #[test]
    fn ends() {
        let at = |second: i64| format!("2026-01-01T00:00:{second:02}Z");
        let check = |meta: serde_json::Value, status: serde_json::Value, second: i64| {
            let mut meta = meta;
            meta["creationTimestamp"] = at(0).into();
            let init = json!([{ "name": "side", "restartPolicy": "Always" }, { "name": "init" }]);
            let spec = json!({ "initContainers": init, "containers": [] });
            let pod = serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap();
            assert_eq!(finished_at(&pod), Some(at(second).parse().unwrap()));
        };
        let ended = |name: &str, second: i64| {
            json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": 1, "finishedAt": at(second) } } })
        };
        let running = json!({ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": {} } });
        let ready = |status: &str| json!([{ "type": "Ready", "status": status, "lastTransitionTime": at(5) }]);
        let deleted = || json!({ "deletionTimestamp": at(40), "deletionGracePeriodSeconds": 30 });
        check(json!({}), json!({}), 0);
        check(json!({}), json!({ "containerStatuses": [ended("c", 3), ended("d", 2)] }), 3);
        check(json!({}), json!({ "containerStatuses": [ended("c", 3), running] }), 0);
        check(json!({}), json!({ "containerStatuses": [running], "conditions": ready("False") }), 5);
        check(deleted(), json!({ "containerStatuses": [running], "conditions": ready("True") }), 10);
        let inits = json!([ended("side", 8), ended("init", 9)]);
        check(json!({}), json!({ "containerStatuses": [ended("c", 3)], "initContainerStatuses": inits }), 8);
    }
}
