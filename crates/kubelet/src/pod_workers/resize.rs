//! Gives running containers more or less when their pod's resources are changed in place.
//! Part of `pod_workers`.
//! Invariant: a container is restarted for it only where its resizePolicy says so.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Worker;
use crate::{
    container_config::resources::linux_resources,
    pod_spec::{self, Kind},
    runtime_manager::KillOrder,
    runtime_status::{ContainerStatus, PodRuntimeStatus, State},
};

impl Worker {
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) {
        let shared = self.shared.clone();
        self.applied.retain(|id, _| status.by_id(id).is_some_and(|c| c.state == State::Running));
        let sidecars =
            pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c)).map(|c| (Kind::Init, c));
        let apps = pod_spec::containers(pod).iter().map(|c| (Kind::App, c));
        for (kind, container) in apps.chain(sidecars) {
            let Some(found) = status.find(&container.name).filter(|c| c.state == State::Running) else { continue };
            let wanted = linux_resources(pod, container, kind, shared.runtime.node.memory_bytes);
            let Some(before) = self.applied.insert(found.id.clone(), wanted.clone()) else { continue };
            if before == wanted {
                continue;
            }
            let changed_cpu = (before.cpu_quota, before.cpu_shares) != (wanted.cpu_quota, wanted.cpu_shares);
            let changed_memory = before.memory_limit_in_bytes != wanted.memory_limit_in_bytes;
            if (changed_cpu && must_restart(container, "cpu")) || (changed_memory && must_restart(container, "memory"))
            {
                self.restart_for_resize(pod, kind, container, found, status).await;
                continue;
            }
            self.apply(pod, kind, container, found, before).await;
        }
    }

    async fn apply(
        &mut self,
        pod: &Arc<Pod>,
        kind: Kind,
        container: &Container,
        found: &ContainerStatus,
        before: cri::v1::LinuxContainerResources,
    ) {
        let shared = self.shared.clone();
        let about = client::reference(&**pod);
        let name = &container.name;
        // The pod's group must not be smaller than what is in it, at any moment: it is widened first and narrowed last.
        let group = shared.cgroups.update_pod(pod);
        let result = shared.runtime.update_resources(pod, &found.id, kind, container).await;
        let again = shared.cgroups.update_pod(pod);
        match (result, group.or(again)) {
            (Ok(()), Ok(())) => {
                shared.recorder.normal(&about, "ResizeCompleted", format!("Pod resize completed for container {name}"));
            }
            (Err(error), _) => {
                shared.recorder.warning(&about, "ResizeError", format!("Failed to resize container {name}: {error}"));
                // So that the next look tries again.
                self.applied.insert(found.id.clone(), before);
                self.look_again_in(std::time::Duration::from_secs(5));
            }
            (Ok(()), Err(error)) => {
                shared.recorder.warning(&about, "ResizeError", format!("Failed to resize the pod: {error}"));
            }
        }
    }

    async fn restart_for_resize(
        &mut self,
        pod: &Arc<Pod>,
        kind: Kind,
        container: &Container,
        found: &ContainerStatus,
        status: &PodRuntimeStatus,
    ) {
        let ips = status.ready_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let order = KillOrder {
            message: format!("Container {} resize requires restart", container.name),
            grace_period_seconds: pod_spec::grace_period_seconds(pod),
        };
        let container = Some((kind, container));
        self.shared.runtime.kill_container(pod, &found.id, &found.name, container, &ips, &order).await;
        self.look_again_in(std::time::Duration::ZERO);
    }
}

fn must_restart(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}
