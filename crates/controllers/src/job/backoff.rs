//! When a pod came to its end, as the waiting after failures counts it.
//! Used by the job core; pure.
//! Invariant: every pod that counts as ended has such a time.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::{meta::Object, pods};

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
        container.is_some_and(|c| c.restart_policy.as_deref() == Some("Always"))
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
