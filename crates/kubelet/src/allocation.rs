//! The resources a pod was granted on this node, against those its specification asks for after an in-place resize.
//! Used by `pod_workers`: a pod is run by what it was granted, and shown with what was put into effect.
//! Invariant: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use crate::{container_config::resources::PodLimits, pod_spec};

/// Resources by container name, of apps and sidecars.
pub type Allocation = BTreeMap<String, ResourceRequirements>;

/// Why a resize waits: a condition of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resize {
    /// "PodResizePending" or "PodResizeInProgress".
    pub kind: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// Whether a container's resources can change while it is there.
fn resizable(container: &Container, init: bool) -> bool {
    !init || pod_spec::is_sidecar(container)
}

/// What the specification asks for.
pub fn asked(pod: &Pod) -> Allocation {
    let apps = pod_spec::containers(pod).iter().map(|c| (c, false));
    let inits = pod_spec::init_containers(pod).iter().map(|c| (c, true));
    let all = apps.chain(inits).filter(|(container, init)| resizable(container, *init));
    all.map(|(c, _)| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
}

/// What a pod that runs already had in effect, as its status in the API tells; else what it asks for.
pub fn reported(pod: &Pod) -> Allocation {
    let mut allocation = asked(pod);
    let status = pod.status.iter();
    let statuses =
        status.flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
    for (name, resources) in statuses.filter_map(|s| Some((&s.name, s.resources.as_ref()?))) {
        if let Some(entry) = allocation.get_mut(name) {
            *entry = resources.clone();
        }
    }
    allocation
}

/// The pod as if it asked for what it was given.
pub fn with(pod: &Pod, allocation: &Allocation) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits.filter(|c| pod_spec::is_sidecar(c))) {
        if let Some(resources) = allocation.get(&container.name) {
            container.resources = Some(resources.clone());
        }
    }
    pod
}

/// Limits that neither the one nor the other exceeds: a group must not be smaller than what is in it, at any moment.
pub fn widest(a: PodLimits, b: PodLimits) -> PodLimits {
    PodLimits {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: if a.cpu_quota == 0 || b.cpu_quota == 0 { 0 } else { a.cpu_quota.max(b.cpu_quota) },
        memory_bytes: a.memory_bytes.zip(b.memory_bytes).map(|(a, b)| a.max(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_runs_by_what_it_was_granted() {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod: Pod = serde_json::from_value(json!({
            "spec": {
                "containers": [{"name": "a", "resources": resources("2")}, {"name": "b"}],
                "initContainers": [{"name": "i", "resources": resources("9")},
                    {"name": "s", "restartPolicy": "Always", "resources": resources("3")}],
            },
            "status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": resources("1")}]},
        }))
        .unwrap();
        let cpu = |allocation: &Allocation, name: &str| {
            let requests = allocation.get(name).and_then(|r| r.requests.clone()).unwrap_or_default();
            requests.get("cpu").map(|q| q.0.clone()).unwrap_or_default()
        };
        let check = |allocation: &Allocation, expected: [&str; 4]| {
            assert_eq!(["a", "b", "i", "s"].map(|name| cpu(allocation, name)), expected);
        };
        check(&asked(&pod), ["2", "", "", "3"]);
        check(&reported(&pod), ["1", "", "", "3"]);
        let granted = with(&pod, &reported(&pod));
        check(&asked(&granted), ["1", "", "", "3"]);
        assert_eq!(granted.spec.unwrap().init_containers, pod.spec.unwrap().init_containers);
    }

    #[test]
    fn groups_are_widened_before_they_are_narrowed() {
        let limits = |cpu_quota, memory_bytes| PodLimits { cpu_shares: 2, cpu_quota, memory_bytes };
        let check = |a, b, expected| assert_eq!(widest(a, b), expected);
        check(limits(10, Some(5)), limits(20, Some(3)), limits(20, Some(5)));
        check(limits(0, None), limits(20, Some(3)), limits(0, None));
    }
}
