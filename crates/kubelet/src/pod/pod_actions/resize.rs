//! Decides how running containers come to the resources that their pod was granted: in place, or by a restart.
//! Part of `pod_actions`, as upstream's computePodResizeAction is of computePodActions; `pod_workers` carries it out.
//! Invariant: pure. A container is restarted only where its resizePolicy says so, and one that is killed for another
//! reason is not resized (tidy: `pure_files`).

use std::collections::HashMap;

use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::PodActions;
use crate::{
    pod::pod_spec::{self, Kind},
    resources::allocation,
    runtime::{
        container_config::resources::{PodLimits, linux_resources, pod_limits},
        runtime_status::{PodRuntimeStatus, State},
    },
};

/// The resources that a running container was given.
#[derive(Debug, Clone, PartialEq)]
pub struct ActuatedResources {
    pub linux: LinuxContainerResources,
    pub declared: ResourceRequirements,
}

impl ActuatedResources {
    /// What the container is to have by its specification.
    pub fn wanted(pod: &Pod, container: &Container, kind: Kind, node_memory_bytes: i64) -> Self {
        Self {
            linux: linux_resources(pod, container, kind, node_memory_bytes),
            declared: container.resources.clone().unwrap_or_default(),
        }
    }

    pub fn memory_limit_bytes(&self) -> i64 {
        self.linux.memory_limit_in_bytes
    }

    /// Whether it is the same for the runtime.
    pub fn runs_as(&self, other: &Self) -> bool {
        let cpu = |actuated: &Self| (actuated.linux.cpu_quota, actuated.linux.cpu_shares);
        cpu(self) == cpu(other) && self.memory_limit_bytes() == other.memory_limit_bytes()
    }

    /// Whether it is the same in all that can be resized, in whatever words.
    pub fn satisfies(&self, wanted: &Self) -> bool {
        self.runs_as(wanted) && allocation::same_resources(&self.declared, &wanted.declared)
    }
}

/// What is in effect of a pod's resources.
#[derive(Debug, Clone, Copy)]
pub struct Actuated<'a> {
    /// By the ids of running containers.
    pub containers: &'a HashMap<String, ActuatedResources>,
    /// The limits of the pod's control group, once they are known.
    pub pod_limits: Option<PodLimits>,
    pub node_memory_bytes: i64,
}

/// A running container whose resources change in place.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerUpdate {
    pub id: String,
    pub name: String,
    pub before: ActuatedResources,
    pub wanted: ActuatedResources,
}

/// The containers whose resources can change while they run: apps and sidecars.
pub fn resizable_containers(pod: &Pod) -> impl Iterator<Item = (Kind, &Container)> {
    let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
    pod_spec::containers(pod).iter().map(|c| (Kind::App, c)).chain(sidecars.map(|c| (Kind::Init, c)))
}

/// Adds what a resize needs to the actions. Of a pod that is killed everything is made anew anyway.
pub(super) fn resize_actions(pod: &Pod, status: &PodRuntimeStatus, actuated: &Actuated, actions: &mut PodActions) {
    if actions.kill_pod {
        return;
    }
    for (kind, container) in resizable_containers(pod) {
        let is_killed = |id: &str| actions.kill.iter().any(|kill| kill.id == id);
        let running = status.find(&container.name).filter(|c| c.state == State::Running && !is_killed(&c.id));
        let Some(found) = running else { continue };
        let Some(before) = actuated.containers.get(&found.id) else { continue };
        let wanted = ActuatedResources::wanted(pod, container, kind, actuated.node_memory_bytes);
        if before.satisfies(&wanted) {
            continue;
        }
        if requires_restart(container, before, &wanted) {
            actions.restart_resized(pod, &container.name, &found.id);
            continue;
        }
        let (id, name) = (found.id.clone(), container.name.clone());
        actions.update.push(ContainerUpdate { id, name, before: before.clone(), wanted });
    }
    actions.update_pod_limits = actuated.pod_limits.is_some_and(|limits| limits != pod_limits(pod));
}

fn requires_restart(container: &Container, before: &ActuatedResources, wanted: &ActuatedResources) -> bool {
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    ["cpu", "memory"].into_iter().any(|resource| {
        let restarts = |policy: &k8s_openapi::api::core::v1::ContainerResizePolicy| {
            policy.resource_name == resource && policy.restart_policy == "RestartContainer"
        };
        !allocation::same_amount(&before.declared, &wanted.declared, resource) && policies.iter().any(restarts)
    })
}
