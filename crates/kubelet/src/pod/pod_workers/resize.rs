//! Gives running containers more or less when their pod's resources are changed in place.
//! Part of `pod_workers`; `allocation_manager` decides who gets what, and `pod_actions` what is to be done for it.
//! What the node cannot give is never tried, and no limit is set below what is in use.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::{
    error::{MemoryLimitError, ResizeError},
    worker::Worker,
};
use crate::{
    node::node_metrics::{DEFERRED_ACCEPTED_RESIZES, INFEASIBLE_RESIZES, RESIZE_DURATION},
    pod::{
        pod_actions::{ActuatedResources, ContainerUpdate, PodActions, resizable_containers},
        pod_spec::{self, Kind},
    },
    resources::{allocation, allocation_manager::ResizeVerdict, resizes::event_message},
    runtime::{
        container_config::resources::{PodLimits, pod_limits},
        runtime_status::{ContainerStatus, PodRuntimeStatus, State},
    },
};

/// A deferred resize is tried again after this, even if nobody said that there is room.
const DEFERRED_RETRY_INTERVAL: Duration = Duration::from_secs(10);
const FAILED_RETRY_INTERVAL: Duration = Duration::from_secs(5);

impl Worker {
    /// The pod by whose resources everything is done: its own, or those it had where the node cannot give more.
    pub(super) fn allocate(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> Arc<Pod> {
        let (shared, about) = (self.shared.clone(), client::reference(&**pod));
        let first = || match status.sandboxes.is_empty() {
            true => allocation::asked(pod),
            false => allocation::reported(pod),
        };
        self.pod_limits.get_or_insert_with(|| {
            let mut before = first();
            before.extend(shared.allocations.in_effect(&self.uid));
            pod_limits(&allocation::with(pod, &before))
        });
        let (granted, verdict) = shared.allocations.decide(pod, first);
        let (generation, now) = (pod.metadata.generation, shared.env.now());
        match verdict {
            ResizeVerdict::Unchanged => self.resizes.none_pending(),
            ResizeVerdict::Started(trigger) => {
                if self.resizes.is_deferred() {
                    shared.metrics.count(&DEFERRED_ACCEPTED_RESIZES, &[trigger]);
                }
                self.resizes.begin(generation, now);
                shared.recorder.normal(&about, "ResizeStarted", event_message(pod, "started", generation, ""));
            }
            ResizeVerdict::Pending { reason, message } => {
                if self.resizes.refuse(reason, message.clone(), generation, now) {
                    let told = event_message(pod, reason, generation, &message);
                    shared.recorder.warning(&about, &format!("Resize{reason}"), told);
                    if reason == "Infeasible" {
                        let why = infeasible_detail(pod, &message);
                        shared.metrics.count(&INFEASIBLE_RESIZES, &[why]);
                    }
                }
                if reason == "Deferred" {
                    self.sync_again_in(DEFERRED_RETRY_INTERVAL);
                }
            }
        }
        granted
    }

    /// Learns what running containers were given. Other spellings of the same amounts are taken over.
    pub(super) fn observe_actuated(&mut self, pod: &Pod, status: &PodRuntimeStatus) {
        let node_memory_bytes = self.shared.runtime.node.memory_bytes;
        self.actuated.retain(|id, _| status.by_id(id).is_some_and(|c| c.state == State::Running));
        for (kind, container) in resizable_containers(pod) {
            let running = status.find(&container.name).filter(|c| c.state == State::Running);
            let Some(found) = running else { continue };
            let wanted = ActuatedResources::wanted(pod, container, kind, node_memory_bytes);
            let before = self.actuated.entry(found.id.clone()).or_insert_with(|| {
                let known = self.shared.allocations.in_effect(&self.uid).remove(&container.name);
                let known = known.or_else(|| allocation::in_effect(pod).remove(&container.name));
                earlier(pod, container, kind, found, &wanted, known, node_memory_bytes)
            });
            if before.satisfies(&wanted) {
                before.declared = wanted.declared;
            }
        }
    }

    /// Notes whether a resize goes on or is complete.
    pub(super) fn observe_resize(&mut self, pod: &Pod, actions: &PodActions) {
        if actions.resize() {
            self.resizes.go_on(pod.metadata.generation, self.shared.env.now());
        } else {
            self.resize_completed(pod);
        }
    }

    /// Resizes in place. True when all is in effect, except in containers that are yet to be started.
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, actions: &PodActions) -> bool {
        if !self.resizes.is_in_progress() {
            return false;
        }
        let began = self.shared.env.monotonic();
        let result = self.actuate(pod, &actions.update).await;
        let took = self.shared.env.monotonic().saturating_sub(began).as_millis() as f64;
        let success = if result.is_ok() { "true" } else { "false" };
        self.shared.metrics.observe(&RESIZE_DURATION, &[success], took);
        let Err(error) = result else { return true };
        let message = error.to_string();
        let (generation, now) = (pod.metadata.generation, self.shared.env.now());
        if let Some(generation) = self.resizes.fail(message.clone(), generation, now) {
            let message = event_message(pod, "error", generation, &message);
            self.shared.recorder.warning(&client::reference(&**pod), error.event_reason(), message);
        }
        self.sync_again_in(FAILED_RETRY_INTERVAL);
        false
    }

    pub(super) fn resize_completed(&mut self, pod: &Pod) {
        if let Some(generation) = self.resizes.complete() {
            let message = event_message(pod, "completed", generation, "");
            self.shared.recorder.normal(&client::reference(pod), "ResizeCompleted", message);
        }
    }

    async fn actuate(&mut self, pod: &Arc<Pod>, updates: &[ContainerUpdate]) -> Result<(), ResizeError> {
        let shared = self.shared.clone();
        let new = pod_limits(pod);
        let old = self.pod_limits.unwrap_or(new);
        self.check_memory(pod, updates, old, new).await?;
        let between = allocation::widest(old, new);
        if between != old {
            shared.cgroups.set_limits(pod, between).map_err(ResizeError::Cgroup)?;
            self.pod_limits = Some(between);
        }
        for update in updates {
            if !update.before.runs_as(&update.wanted) {
                let result =
                    shared.runtime.update_resources(pod, &update.name, &update.id, update.wanted.linux.clone()).await;
                result.map_err(|error| ResizeError::Container { name: update.name.clone(), error })?;
            }
            self.actuated.insert(update.id.clone(), update.wanted.clone());
        }
        if between != new {
            shared.cgroups.set_limits(pod, new).map_err(ResizeError::Cgroup)?;
            self.pod_limits = Some(new);
        }
        let done = updates.iter().map(|update| (&*update.name, &update.wanted.declared));
        shared.allocations.put_into_effect(&self.uid, done);
        Ok(())
    }

    /// The kernel ends processes that use more than their new limit, so such limits wait.
    async fn check_memory(
        &self,
        pod: &Pod,
        updates: &[ContainerUpdate],
        old: PodLimits,
        new: PodLimits,
    ) -> Result<(), ResizeError> {
        let mut problems = Vec::new();
        let limit_bytes = new.memory_bytes.unwrap_or(0);
        if allocation::is_tighter(old.memory_bytes.unwrap_or(0), limit_bytes) {
            match self.shared.cgroups.memory_usage(pod) {
                Some(usage_bytes) if usage_bytes < limit_bytes => {}
                Some(usage_bytes) => problems.push(MemoryLimitError::PodUsage { limit_bytes, usage_bytes }),
                None => problems.push(MemoryLimitError::PodUsageUnknown),
            }
        }
        for update in updates {
            let limit_bytes = update.wanted.memory_limit_bytes();
            if !allocation::is_tighter(update.before.memory_limit_bytes(), limit_bytes) {
                continue;
            }
            let name = update.name.clone();
            let stats = self.shared.runtime.runtime.container_stats(&update.id).await.ok().flatten();
            // Older runtimes tell of the working set only.
            let usage = stats.and_then(|stats| stats.memory).and_then(|m| m.usage_bytes.or(m.working_set_bytes));
            match usage.map(|usage| usage.value) {
                Some(usage_bytes) if usage_bytes < limit_bytes as u64 => {}
                Some(usage_bytes) => {
                    problems.push(MemoryLimitError::ContainerUsage { name, limit_bytes, usage_bytes });
                }
                None => problems.push(MemoryLimitError::ContainerUsageUnknown { name }),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(ResizeError::MemoryLimit(problems)) }
    }
}

/// Why a resize can never be, in the words of the metrics.
fn infeasible_detail(pod: &Pod, message: &str) -> &'static str {
    match message {
        _ if pod_spec::is_static(pod) => "static_pod",
        _ if message.contains("CPU Manager policy") => "guaranteed_pod_cpu_manager_static_policy",
        _ if message.contains("Memory Manager policy") => "guaranteed_pod_memory_manager_static_policy",
        _ if message.contains("containers with swap") => "swap_limitation",
        _ => "insufficient_node_allocatable",
    }
}

/// What one that ran before we did was given: what is `known` of it, or what the runtime says, which may count in
/// other units.
fn earlier(
    pod: &Pod,
    container: &Container,
    kind: Kind,
    found: &ContainerStatus,
    wanted: &ActuatedResources,
    known: Option<ResourceRequirements>,
    node_memory_bytes: i64,
) -> ActuatedResources {
    let before = match known {
        Some(known) if allocation::same_resources(&known, &wanted.declared) => return wanted.clone(),
        Some(known) => {
            let container = Container { resources: Some(known), ..container.clone() };
            ActuatedResources::wanted(pod, &container, kind, node_memory_bytes)
        }
        None => wanted.clone(),
    };
    ActuatedResources { linux: found.resources.clone().unwrap_or(before.linux), declared: before.declared }
}
