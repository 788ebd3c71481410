//! How a released volume with policy Recycle is emptied: by a pod that deletes everything in it, as upstream's.
//! Used by `reclaim`; only NFS and hostPath volumes can be recycled.
//! Pure. A pod of that name that nobody here has started is never believed.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use serde_json::{Value, json};

use super::matching::capacity;
use crate::common::{meta::Object, pods};

pub const NAMESPACE: &str = "default";
const PREFIX: &str = "recycler-for-";
/// Upstream's; it has a shell and `find`.
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const EMPTY: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
const NFS_SECONDS_MIN: i64 = 300;
const HOST_PATH_SECONDS_MIN: i64 = 60;
const SECONDS_PER_GI: i64 = 30;

pub fn pod_name(volume: &PersistentVolume) -> String {
    format!("{PREFIX}{}", volume.name())
}

/// The volume that a pod is the recycler of, if it is one.
pub fn volume_of(pod: &Pod) -> Option<&str> {
    pod.name().strip_prefix(PREFIX).filter(|_| pod.namespace() == NAMESPACE)
}

/// The pod that empties the volume; `None` where nothing can.
pub fn pod(volume: &PersistentVolume) -> Option<Value> {
    let spec = volume.spec.as_ref()?;
    let (source, seconds_min) = match (&spec.nfs, &spec.host_path) {
        (Some(nfs), _) => (json!({ "nfs": { "server": nfs.server, "path": nfs.path } }), NFS_SECONDS_MIN),
        (None, Some(host)) => (json!({ "hostPath": { "path": host.path } }), HOST_PATH_SECONDS_MIN),
        (None, None) => return None,
    };
    let seconds = ((capacity(volume) >> 30) * SECONDS_PER_GI).max(seconds_min);
    let mut mounted = source;
    mounted["name"] = "vol".into();
    Some(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": pod_name(volume), "namespace": NAMESPACE },
        "spec": {
            "activeDeadlineSeconds": seconds,
            "restartPolicy": "Never",
            "volumes": [mounted],
            "containers": [{
                "name": "pv-recycler", "image": IMAGE, "command": ["/bin/sh"], "args": ["-c", EMPTY],
                "volumeMounts": [{ "name": "vol", "mountPath": "/scrub" }],
            }],
        },
    }))
}

/// What was tried for a volume.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// Of the pod that was started.
    pub pod_uid: Option<String>,
    pub not_before: Duration,
}

#[derive(Debug, PartialEq)]
pub enum Step {
    Start,
    Wait,
    /// It is empty.
    Done,
    /// Somebody else's pod is in the way.
    Replace,
    Retry(String),
}

/// What follows from the recycler pod, given the UID of the one that was started for the volume.
pub fn next(found: Option<&Pod>, started: Option<&str>) -> Step {
    match (found, started) {
        (None, None) => Step::Start,
        (None, Some(_)) => Step::Retry("recycler pod was deleted".into()),
        (Some(pod), _) if started != Some(pod.uid()) => Step::Replace,
        (Some(pod), _) => match pods::phase(pod) {
            "Succeeded" => Step::Done,
            "Failed" => {
                let why = pod.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
                Step::Retry(if why.is_empty() { "pod failed, pod.Status.Message unknown".into() } else { why })
            }
            _ if pod.deleting() => Step::Retry("recycler pod was deleted".into()),
            _ => Step::Wait,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_mounts_the_volume_and_has_time_for_its_size() {
        let check = |source: Value, size: &str, expected: Option<(i64, Value)>| {
            let mut spec = source;
            spec["capacity"] = json!({ "storage": size });
            let volume = serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": spec })).unwrap();
            let found = pod(&volume).map(|pod| {
                assert_eq!(pod["metadata"]["name"], "recycler-for-pv");
                (pod["spec"]["activeDeadlineSeconds"].as_i64().unwrap(), pod["spec"]["volumes"][0].clone())
            });
            assert_eq!(found, expected);
        };
        let nfs = json!({ "nfs": { "server": "s", "path": "/x", "readOnly": true } });
        let mounted = json!({ "name": "vol", "nfs": { "server": "s", "path": "/x" } });
        check(nfs.clone(), "1Gi", Some((300, mounted.clone())));
        check(nfs, "20Gi", Some((600, mounted)));
        let host = json!({ "hostPath": { "path": "/h" } });
        check(host, "3Gi", Some((90, json!({ "name": "vol", "hostPath": { "path": "/h" } }))));
        check(json!({ "csi": { "driver": "d", "volumeHandle": "h" } }), "1Gi", None);
    }

    #[test]
    fn only_the_pod_that_was_started_is_believed() {
        let found = |uid: &str, phase: &str, message: Option<&str>| -> Pod {
            let status = json!({ "phase": phase, "message": message });
            serde_json::from_value(json!({ "metadata": { "name": "p", "uid": uid }, "status": status })).unwrap()
        };
        let check = |pod: Option<Pod>, started: Option<&str>, expected: Step| {
            assert_eq!(next(pod.as_ref(), started), expected);
        };
        check(None, None, Step::Start);
        check(Some(found("a", "Succeeded", None)), None, Step::Replace);
        check(Some(found("a", "Succeeded", None)), Some("b"), Step::Replace);
        check(Some(found("a", "Pending", None)), Some("a"), Step::Wait);
        check(Some(found("a", "Succeeded", None)), Some("a"), Step::Done);
        check(Some(found("a", "Failed", Some("late"))), Some("a"), Step::Retry("late".into()));
        let unknown = Step::Retry("pod failed, pod.Status.Message unknown".into());
        check(Some(found("a", "Failed", None)), Some("a"), unknown);
        check(None, Some("a"), Step::Retry("recycler pod was deleted".into()));
    }
}
