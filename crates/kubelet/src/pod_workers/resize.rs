//! Gives running containers more or less when their pod's resources are changed in place.
//! Part of `pod_workers`; `allocation` has the pure part.
//! Invariant: a container is restarted for it only where its resizePolicy says so; what the node cannot give is never
//! tried.

use std::{sync::Arc, time::Duration};

use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::Worker;
use crate::{
    admission,
    allocation::{self, Resize},
    container_config::resources::{linux_resources, pod_limits},
    pod_spec::{self, Kind},
    runtime_manager::KillOrder,
    runtime_status::{ContainerStatus, PodRuntimeStatus, State},
};

/// A deferred resize is tried again after this; the room for it is made by other pods.
const DEFERRED_RETRY: Duration = Duration::from_secs(10);
const FAILED_RETRY: Duration = Duration::from_secs(5);

/// What a running container was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    pub linux: LinuxContainerResources,
    pub declared: ResourceRequirements,
}

impl Applied {
    pub fn new(pod: &Pod, container: &Container, kind: Kind, node_memory: i64) -> Self {
        Self {
            linux: linux_resources(pod, container, kind, node_memory),
            declared: container.resources.clone().unwrap_or_default(),
        }
    }

    fn cpu(&self) -> (i64, i64) {
        (self.linux.cpu_quota, self.linux.cpu_shares)
    }

    fn memory(&self) -> i64 {
        self.linux.memory_limit_in_bytes
    }
}

/// A container whose resources are to change.
struct Change<'a> {
    kind: Kind,
    container: &'a Container,
    found: &'a ContainerStatus,
    before: Applied,
    wanted: Applied,
}

impl Change<'_> {
    fn restarts(&self) -> bool {
        (self.before.cpu() != self.wanted.cpu() && must_restart(self.container, "cpu"))
            || (self.before.memory() != self.wanted.memory() && must_restart(self.container, "memory"))
    }
}

impl Worker {
    /// The pod by whose resources everything is done: its own, or those it had where the node cannot give more.
    pub(super) fn allocate(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> Arc<Pod> {
        let asked = allocation::asked(pod);
        let allocated = self.allocated.get_or_insert_with(|| match status.sandboxes.is_empty() {
            true => asked.clone(),
            false => allocation::reported(pod),
        });
        if *allocated == asked {
            self.resize_condition.take_if(|resize| resize.kind == PENDING);
            return pod.clone();
        }
        let others: Vec<Arc<Pod>> =
            self.shared.pods.list().into_iter().filter(|other| pod_spec::uid(other) != self.uid).collect();
        let node = self.shared.node.lock().clone();
        let refusal = match admission::admit(pod, &[], &node) {
            Err(refusal) => Some(("Infeasible", refusal.message.replace("enough resource", "enough capacity"))),
            Ok(()) => admission::admit(pod, &others, &node).err().map(|refusal| ("Deferred", refusal.message)),
        };
        let Some((reason, message)) = refusal else {
            *allocated = asked;
            self.resize_condition = None;
            return pod.clone();
        };
        let granted = Arc::new(allocation::with(pod, allocated));
        let resize = Resize { kind: PENDING, reason, message };
        if self.resize_condition.as_ref() != Some(&resize) {
            let event = format!("Resize{reason}");
            self.shared.recorder.warning(&client::reference(&**pod), &event, resize.message.clone());
            self.resize_condition = Some(resize);
        }
        if reason == "Deferred" {
            self.look_again_in(DEFERRED_RETRY);
        }
        granted
    }

    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) {
        self.applied.retain(|id, _| status.by_id(id).is_some_and(|c| c.state == State::Running));
        let changes = self.changes(pod, status);
        if changes.is_empty() {
            return;
        }
        let (restarts, in_place): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(Change::restarts);
        if let Err(message) = self.change_in_place(pod, &in_place).await {
            self.shared.recorder.warning(&client::reference(&**pod), "ResizeError", message.clone());
            self.resize_condition = Some(Resize { kind: IN_PROGRESS, reason: "Error", message });
            return self.look_again_in(FAILED_RETRY);
        }
        self.resize_condition.take_if(|resize| resize.kind == IN_PROGRESS);
        for change in restarts {
            self.restart_for_resize(pod, &change, status).await;
        }
    }

    fn changes<'a>(&mut self, pod: &'a Pod, status: &'a PodRuntimeStatus) -> Vec<Change<'a>> {
        let memory = self.shared.runtime.node.memory_bytes;
        let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
        let all = pod_spec::containers(pod).iter().map(|c| (Kind::App, c)).chain(sidecars.map(|c| (Kind::Init, c)));
        let mut changes = Vec::new();
        for (kind, container) in all {
            let Some(found) = status.find(&container.name).filter(|c| c.state == State::Running) else { continue };
            let wanted = Applied::new(pod, container, kind, memory);
            // One that ran before we did was given what the runtime says.
            let before = self.applied.entry(found.id.clone()).or_insert_with(|| Applied {
                linux: found.resources.clone().unwrap_or_else(|| wanted.linux.clone()),
                declared: wanted.declared.clone(),
            });
            if before.cpu() != wanted.cpu() || before.memory() != wanted.memory() || before.declared != wanted.declared
            {
                changes.push(Change { kind, container, found, before: before.clone(), wanted });
            }
        }
        changes
    }

    async fn change_in_place(&mut self, pod: &Arc<Pod>, changes: &[Change<'_>]) -> Result<(), String> {
        let shared = self.shared.clone();
        let group_failed = |error: std::io::Error| format!("failed to resize the pod's group: {error}");
        let mut earlier = allocation::asked(pod);
        for change in changes {
            earlier.insert(change.container.name.clone(), change.before.declared.clone());
        }
        let (old, new) = (pod_limits(&allocation::with(pod, &earlier)), pod_limits(pod));
        shared.cgroups.set_limits(pod, allocation::widest(old, new)).map_err(group_failed)?;
        for change in changes {
            if change.before.cpu() != change.wanted.cpu() || change.before.memory() != change.wanted.memory() {
                let result = shared.runtime.update_resources(pod, &change.found.id, change.kind, change.container);
                let name = &change.container.name;
                result.await.map_err(|error| format!("failed to resize container {name}: {error}"))?;
            }
            self.applied.insert(change.found.id.clone(), change.wanted.clone());
        }
        shared.cgroups.set_limits(pod, new).map_err(group_failed)?;
        if !changes.is_empty() {
            let names: Vec<&str> = changes.iter().map(|change| change.container.name.as_str()).collect();
            let message = format!("Pod resize completed for containers {}", names.join(", "));
            shared.recorder.normal(&client::reference(&**pod), "ResizeCompleted", message);
        }
        Ok(())
    }

    async fn restart_for_resize(&mut self, pod: &Arc<Pod>, change: &Change<'_>, status: &PodRuntimeStatus) {
        let order = KillOrder {
            message: format!("Container {} resize requires restart", change.container.name),
            grace_period_seconds: pod_spec::grace_period_seconds(pod),
            ..KillOrder::default()
        };
        if let Err(error) = self.shared.cgroups.update_pod(pod) {
            tracing::warn!(pod = pod_spec::display(pod), %error, "failed to resize the pod's group");
        }
        let container = Some((change.kind, change.container));
        let found = change.found;
        let ips = status.ips(pod, &self.shared.runtime.host_ips);
        self.shared.runtime.kill_container(pod, &found.id, &found.name, container, ips, &order).await;
        self.look_again_in(Duration::ZERO);
    }
}

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

fn must_restart(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}
