//! Gives running containers more or less when their pod's resources are changed in place.
//! Part of `pod_workers`; `allocation_manager` decides who gets what.
//! Invariant: a container is restarted for it only where its resizePolicy says so; what the node cannot give is never
//! tried, and no limit is set below what is in use.

use std::{sync::Arc, time::Duration};

use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::Worker;
use crate::{
    node::node_metrics::{DEFERRED_ACCEPTED_RESIZES, INFEASIBLE_RESIZES, RESIZE_DURATION},
    pod::{
        pod_actions::PodActions,
        pod_spec::{self, Kind},
    },
    resources::{allocation, allocation_manager::Verdict, resizes::in_words},
    runtime::{
        container_config::resources::{PodLimits, linux_resources, pod_limits},
        runtime_status::{ContainerStatus, PodRuntimeStatus, State},
    },
};

/// A deferred resize is tried again after this, even if nobody said that there is room.
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

    /// Whether it is the same for the runtime.
    fn runs_as(&self, other: &Self) -> bool {
        self.cpu() == other.cpu() && self.memory() == other.memory()
    }
}

/// A running container whose resources are to change.
pub(super) struct Change<'a> {
    kind: Kind,
    container: &'a Container,
    id: String,
    before: Applied,
    wanted: Applied,
}

impl Change<'_> {
    fn restarts(&self) -> bool {
        let differs = |name: &str| !allocation::same_amount(&self.before.declared, &self.wanted.declared, name);
        ["cpu", "memory"].into_iter().any(|name| differs(name) && must_restart(self.container, name))
    }
}

impl Worker {
    /// The pod by whose resources everything is done: its own, or those it had where the node cannot give more.
    pub(super) fn allocate(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> Arc<Pod> {
        let (shared, about) = (self.shared.clone(), client::reference(&**pod));
        let first = || match status.sandboxes.is_empty() {
            true => allocation::asked(pod),
            false => allocation::reported(pod),
        };
        self.group.get_or_insert_with(|| {
            let mut before = first();
            before.extend(shared.allocations.in_effect(&self.uid));
            pod_limits(&allocation::with(pod, &before))
        });
        let (granted, verdict) = shared.allocations.decide(pod, first);
        let (generation, now) = (pod.metadata.generation, shared.env.now());
        match verdict {
            Verdict::Same => self.resizes.none_pending(),
            Verdict::Begun(trigger) => {
                if self.resizes.is_deferred() {
                    shared.metrics.count(&DEFERRED_ACCEPTED_RESIZES, &[trigger]);
                }
                self.resizes.begin(generation, now);
                shared.recorder.normal(&about, "ResizeStarted", in_words(pod, "started", generation, ""));
            }
            Verdict::Waits { reason, message } => {
                if self.resizes.refuse(reason, message.clone(), generation, now) {
                    let words = in_words(pod, reason, generation, &message);
                    shared.recorder.warning(&about, &format!("Resize{reason}"), words);
                    if reason == "Infeasible" {
                        let why = if pod_spec::is_static(pod) { "static_pod" } else { "insufficient_node_allocatable" };
                        shared.metrics.count(&INFEASIBLE_RESIZES, &[why]);
                    }
                }
                if reason == "Deferred" {
                    self.look_again_in(DEFERRED_RETRY);
                }
            }
        }
        granted
    }

    /// The containers that change while they run. Those that must be restarted for it are added to `actions`.
    pub(super) fn changes<'a>(
        &mut self,
        pod: &'a Arc<Pod>,
        status: &PodRuntimeStatus,
        actions: &mut PodActions,
    ) -> Vec<Change<'a>> {
        self.applied.retain(|id, _| status.by_id(id).is_some_and(|c| c.state == State::Running));
        if actions.kill_pod {
            self.resize_completed(pod);
            return vec![];
        }
        let (restarts, in_place): (Vec<Change>, Vec<Change>) =
            self.differences(pod, status, actions).into_iter().partition(Change::restarts);
        for change in &restarts {
            actions.restart_resized(pod, &change.container.name, &change.id);
        }
        if restarts.is_empty() && in_place.is_empty() && self.group == Some(pod_limits(pod)) {
            self.resize_completed(pod);
        } else {
            self.resizes.go_on(pod.metadata.generation, self.shared.env.now());
        }
        in_place
    }

    fn differences<'a>(&mut self, pod: &'a Pod, status: &PodRuntimeStatus, actions: &PodActions) -> Vec<Change<'a>> {
        let memory = self.shared.runtime.node.memory_bytes;
        let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
        let all = pod_spec::containers(pod).iter().map(|c| (Kind::App, c)).chain(sidecars.map(|c| (Kind::Init, c)));
        let mut changes = Vec::new();
        for (kind, container) in all {
            let ends = |id: &str| actions.kill.iter().any(|kill| kill.id == id);
            let running = status.find(&container.name).filter(|c| c.state == State::Running && !ends(&c.id));
            let Some(found) = running else { continue };
            let wanted = Applied::new(pod, container, kind, memory);
            let entry = self.applied.entry(found.id.clone());
            let before = entry.or_insert_with(|| {
                let known = self.shared.allocations.in_effect(&self.uid).remove(&container.name);
                let known = known.or_else(|| allocation::in_effect(pod).remove(&container.name));
                earlier(pod, container, kind, found, &wanted, known, memory)
            });
            if before.runs_as(&wanted) && allocation::same_resources(&before.declared, &wanted.declared) {
                before.declared = wanted.declared;
            } else {
                changes.push(Change { kind, container, id: found.id.clone(), before: before.clone(), wanted });
            }
        }
        changes
    }

    /// True when what `changes` found is in effect, except in containers that are yet to be started.
    pub(super) async fn resize(&mut self, pod: &Arc<Pod>, changes: &[Change<'_>]) -> bool {
        if !self.resizes.is_in_progress() {
            return false;
        }
        let began = self.shared.env.monotonic();
        let result = self.put_into_effect(pod, changes).await;
        let took = self.shared.env.monotonic().saturating_sub(began).as_millis() as f64;
        let success = if result.is_ok() { "true" } else { "false" };
        self.shared.metrics.observe(&RESIZE_DURATION, &[success], took);
        let Err(message) = result else { return true };
        let (generation, now) = (pod.metadata.generation, self.shared.env.now());
        if let Some(generation) = self.resizes.fail(message.clone(), generation, now) {
            let words = in_words(pod, "error", generation, &message);
            self.shared.recorder.warning(&client::reference(&**pod), "ResizeError", words);
        }
        self.look_again_in(FAILED_RETRY);
        false
    }

    pub(super) fn resize_completed(&mut self, pod: &Pod) {
        if let Some(generation) = self.resizes.complete() {
            let words = in_words(pod, "completed", generation, "");
            self.shared.recorder.normal(&client::reference(pod), "ResizeCompleted", words);
        }
    }

    async fn put_into_effect(&mut self, pod: &Arc<Pod>, changes: &[Change<'_>]) -> Result<(), String> {
        let shared = self.shared.clone();
        let group_failed = |error: std::io::Error| format!("failed to resize the pod's group: {error}");
        let new = pod_limits(pod);
        let old = self.group.unwrap_or(new);
        self.check_memory(pod, changes, old, new).await?;
        let between = allocation::widest(old, new);
        if between != old {
            shared.cgroups.set_limits(pod, between).map_err(group_failed)?;
            self.group = Some(between);
        }
        for change in changes {
            if !change.before.runs_as(&change.wanted) {
                let result = shared.runtime.update_resources(pod, &change.id, change.kind, change.container);
                let name = &change.container.name;
                result.await.map_err(|error| format!("failed to resize container {name}: {error}"))?;
            }
            self.applied.insert(change.id.clone(), change.wanted.clone());
        }
        if between != new {
            shared.cgroups.set_limits(pod, new).map_err(group_failed)?;
            self.group = Some(new);
        }
        let done = changes.iter().map(|change| (&*change.container.name, &change.wanted.declared));
        shared.allocations.put_into_effect(&self.uid, done);
        Ok(())
    }

    /// The kernel ends processes that use more than their new limit, so such limits wait.
    async fn check_memory(
        &self,
        pod: &Pod,
        changes: &[Change<'_>],
        old: PodLimits,
        new: PodLimits,
    ) -> Result<(), String> {
        let mut problems = Vec::new();
        let limit = new.memory_bytes.unwrap_or(0);
        if allocation::is_tighter(old.memory_bytes.unwrap_or(0), limit) {
            match self.shared.cgroups.memory_usage(pod) {
                Some(usage) if usage < limit => {}
                Some(usage) => {
                    problems.push(format!("attempting to set pod memory limit ({limit}) below current usage ({usage})"))
                }
                None => problems.push("missing pod memory usage".into()),
            }
        }
        for change in changes.iter().filter(|c| allocation::is_tighter(c.before.memory(), c.wanted.memory())) {
            let (name, limit) = (&change.container.name, change.wanted.memory());
            let stats = self.shared.runtime.runtime.container_stats(&change.id).await.ok().flatten();
            // Older runtimes tell of the working set only.
            let usage = stats.and_then(|stats| stats.memory).and_then(|m| m.usage_bytes.or(m.working_set_bytes));
            match usage.map(|usage| usage.value) {
                Some(usage) if usage < limit as u64 => {}
                Some(usage) => problems.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current usage ({usage})"
                )),
                None => problems.push(format!("missing container {name:?} memory usage")),
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
        }
    }
}

/// What one that ran before we did was given: what is `known` of it, or what the runtime says, which may count in
/// other units.
fn earlier(
    pod: &Pod,
    container: &Container,
    kind: Kind,
    found: &ContainerStatus,
    wanted: &Applied,
    known: Option<ResourceRequirements>,
    node_memory: i64,
) -> Applied {
    let before = match known {
        Some(known) if allocation::same_resources(&known, &wanted.declared) => return wanted.clone(),
        Some(known) => {
            let container = Container { resources: Some(known), ..container.clone() };
            Applied::new(pod, &container, kind, node_memory)
        }
        None => wanted.clone(),
    };
    Applied { linux: found.resources.clone().unwrap_or(before.linux), declared: before.declared }
}

fn must_restart(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}
