//! Decides what to do for one pod: which sandbox to make, which containers to start, which to kill and which to resize.
//! Read by `pod_workers`, carried out by `runtime_manager`.
//! Invariant: pure; the same pod, observation, probe results and actuated resources always give the same actions (tidy:
//! `pure_files`).

mod resize;

use k8s_openapi::api::core::v1::{Container, Pod};

pub use resize::{Actuated, ActuatedResources, ContainerUpdate, resizable_containers};

use crate::{
    pod::{pod_spec, restart},
    runtime::runtime_status::{ContainerStatus, PodRuntimeStatus, State},
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodActions {
    /// Kill everything the pod has, the sandbox included. With `create_sandbox` it starts anew afterwards.
    pub kill_pod: bool,
    pub create_sandbox: bool,
    /// The sandbox to start containers in, when it stays.
    pub sandbox_id: Option<String>,
    /// Of the sandbox that is to be created.
    pub attempt: u32,
    pub kill: Vec<Kill>,
    /// Indices into `initContainers`, in the order of starting.
    pub start_init: Vec<usize>,
    /// Indices into `containers`.
    pub start: Vec<usize>,
    /// Indices into `ephemeralContainers`.
    pub start_ephemeral: Vec<usize>,
    /// Running containers that get other resources in place.
    pub update: Vec<ContainerUpdate>,
    /// The limits of the pod's control group change.
    pub update_pod_limits: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub message: String,
    pub reason: KillReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    LivenessProbe,
    StartupProbe,
    Changed,
    /// Its new resources need a new start.
    Resized,
    Unknown,
}

impl PodActions {
    /// Whether nothing is to be started or killed. A resize in place needs neither.
    pub fn are_none(&self) -> bool {
        !self.kill_pod
            && !self.create_sandbox
            && self.kill.is_empty()
            && self.start_init.is_empty()
            && self.start.is_empty()
            && self.start_ephemeral.is_empty()
    }

    /// Whether some of the pod's resources are not in effect yet.
    pub fn resize(&self) -> bool {
        let restarted = self.kill.iter().any(|kill| kill.reason == KillReason::Resized);
        restarted || !self.update.is_empty() || self.update_pod_limits
    }

    /// Ends a running container and starts it with other resources, whatever its restart policy says.
    fn restart_resized(&mut self, pod: &Pod, name: &str, id: &str) {
        let message = format!("Container {name} resize requires restart");
        self.kill.push(Kill { id: id.into(), name: name.into(), message, reason: KillReason::Resized });
        let lists =
            [(pod_spec::containers(pod), &mut self.start), (pod_spec::init_containers(pod), &mut self.start_init)];
        for (containers, start) in lists {
            start.extend(containers.iter().position(|container| container.name == name));
            start.sort_unstable();
        }
    }
}

/// What a probe last said of a container, by the container's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    Failure,
}

/// The results the decision depends on. `None` means that the probe has not spoken yet (or there is none).
pub trait Probes {
    fn liveness(&self, container_id: &str) -> Option<ProbeResult>;
    fn startup(&self, container_id: &str) -> Option<ProbeResult>;
}

pub fn pod_actions(pod: &Pod, status: &PodRuntimeStatus, probes: &dyn Probes, actuated: &Actuated) -> PodActions {
    let mut actions = container_actions(pod, status, probes);
    resize::resize_actions(pod, status, actuated, &mut actions);
    actions
}

/// Everything but the resize of what runs on.
fn container_actions(pod: &Pod, status: &PodRuntimeStatus, probes: &dyn Probes) -> PodActions {
    let (changed, attempt, sandbox_id) = sandbox_changed(pod, status);
    let mut actions =
        PodActions { kill_pod: changed, create_sandbox: changed, sandbox_id, attempt, ..Default::default() };
    if changed {
        start_anew(pod, status, &mut actions);
        return actions;
    }
    for (index, container) in pod_spec::spec(pod).ephemeral_containers.iter().flatten().enumerate() {
        // Ephemeral containers never run twice.
        if status.find(&container.name).is_none() {
            actions.start_ephemeral.push(index);
        }
    }
    let initialized = init_actions(pod, status, probes, &mut actions);
    if actions.kill_pod || !initialized {
        return actions;
    }
    let mut kept = 0;
    for (index, container) in pod_spec::containers(pod).iter().enumerate() {
        match status.find(&container.name) {
            Some(found) if found.state == State::Running => {
                kept += usize::from(check_running(pod, container, index, found, probes, &mut actions));
            }
            found => {
                if restart::wanted(pod, container, status) {
                    actions.start.push(index);
                    if let Some(found) = found.filter(|c| c.state == State::Unknown) {
                        actions.kill.push(unknown_state(found, "Container"));
                    }
                }
            }
        }
    }
    if kept == 0 && actions.start.is_empty() {
        actions.kill_pod = true;
        // Sidecars must not keep alive a pod whose own work is done.
        actions.start_init.clear();
    }
    actions
}

/// Whether the pod needs a new sandbox, its attempt number, and the one it has.
fn sandbox_changed(pod: &Pod, status: &PodRuntimeStatus) -> (bool, u32, Option<String>) {
    let Some(newest) = status.sandboxes.first() else {
        return (true, 0, None);
    };
    let ready = status.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let wrong_network = newest.host_network != pod_spec::host_network(pod);
    let no_address = !pod_spec::host_network(pod) && newest.ips.is_empty();
    if ready > 1 || !newest.ready || wrong_network || no_address {
        let keep = newest.ready.then(|| newest.id.clone());
        return (true, newest.attempt + 1, keep);
    }
    (false, newest.attempt, Some(newest.id.clone()))
}

fn start_anew(pod: &Pod, status: &PodRuntimeStatus, actions: &mut PodActions) {
    let can_restart = pod_spec::restart_policy(pod) != "Never"
        || pod_spec::containers(pod)
            .iter()
            .chain(pod_spec::init_containers(pod))
            .any(|c| c.restart_policy.as_deref().is_some_and(|p| p != "Never") || c.restart_policy_rules.is_some());
    if !can_restart && actions.attempt != 0 && !status.containers.is_empty() {
        actions.create_sandbox = false;
        return;
    }
    let succeeded = |container: &Container| {
        status.find(&container.name).is_some_and(|c| c.state == State::Exited && c.exit_code == 0)
    };
    let to_start: Vec<usize> = pod_spec::containers(pod)
        .iter()
        .enumerate()
        .filter(|(_, c)| !(restart::policy(pod, c) == "OnFailure" && succeeded(c)))
        .map(|(index, _)| index)
        .collect();
    if to_start.is_empty() && pod_spec::containers(pod).iter().any(|c| status.find(&c.name).is_some()) {
        actions.create_sandbox = false;
        return;
    }
    if pod_spec::init_containers(pod).is_empty() {
        actions.start = to_start;
    } else {
        actions.start_init = vec![0];
    }
}

/// Judges a running app container; true when it stays.
fn check_running(
    pod: &Pod,
    container: &Container,
    index: usize,
    found: &ContainerStatus,
    probes: &dyn Probes,
    actions: &mut PodActions,
) -> bool {
    let name = &container.name;
    let (mut message, reason, restarts) = if found.hash != container_hash(container) {
        // A changed definition is put into effect whatever the policy says.
        (format!("Container {name} definition changed"), KillReason::Changed, true)
    } else {
        let restarts = restart::policy(pod, container) != "Never";
        if probes.liveness(&found.id) == Some(ProbeResult::Failure) {
            (format!("Container {name} failed liveness probe"), KillReason::LivenessProbe, restarts)
        } else if probes.startup(&found.id) == Some(ProbeResult::Failure) {
            (format!("Container {name} failed startup probe"), KillReason::StartupProbe, restarts)
        } else {
            return true;
        }
    };
    if restarts {
        message.push_str(", will be restarted");
        actions.start.push(index);
    }
    actions.kill.push(Kill { id: found.id.clone(), name: name.clone(), message, reason });
    false
}

fn unknown_state(found: &ContainerStatus, what: &str) -> Kill {
    Kill {
        id: found.id.clone(),
        name: found.name.clone(),
        message: format!("{what} is in \"unknown\" state, try killing it before restart"),
        reason: KillReason::Unknown,
    }
}

/// Finds the next init container to start, and the sidecars to bring back. True when initialization is complete.
/// Goes backward, because the runtime may have dropped early ones that completed: only the last one counts.
fn init_actions(pod: &Pod, status: &PodRuntimeStatus, probes: &dyn Probes, actions: &mut PodActions) -> bool {
    let inits = pod_spec::init_containers(pod);
    if inits.is_empty() {
        return true;
    }
    let mut initialized = pod_spec::containers(pod)
        .iter()
        .filter_map(|c| status.find(&c.name))
        .any(|c| matches!(c.state, State::Created | State::Running));
    // Whether the one looked at is known to have been initialized before, because a later one got its turn.
    let mut earlier_done = initialized;
    let mut start: Vec<usize> = Vec::new();
    // What ran in a sandbox that is gone prepared nothing for this one: all of it is done again, in order.
    let here = |found: &&ContainerStatus| actions.sandbox_id.as_ref() == Some(&found.sandbox_id);
    let found: Vec<_> = inits.iter().map(|container| status.find(&container.name).filter(here)).collect();
    for (index, container) in inits.iter().enumerate().rev() {
        let sidecar = pod_spec::is_sidecar(container);
        let Some(found) = found[index] else {
            if earlier_done && sidecar {
                start.push(index);
            }
            continue;
        };
        if earlier_done && !sidecar {
            continue;
        }
        let last = index + 1 == inits.len();
        let mut done = |start: &mut Vec<usize>| {
            if last {
                initialized = true;
            } else if !earlier_done {
                start.push(index + 1);
            }
        };
        match (found.state, sidecar) {
            // Created and not started: the start failed.
            (State::Created, _) => start.push(index),
            (State::Running, false) => {}
            (State::Running, true) => match judge_sidecar(container, found, probes) {
                Sidecar::Starting => {}
                Sidecar::Started => done(&mut start),
                Sidecar::Kill { started, kill } => {
                    if started {
                        done(&mut start);
                    }
                    actions.kill.push(kill);
                    start.push(index);
                }
            },
            (State::Exited, true) => start.push(index),
            (State::Exited, false) if found.exit_code == 0 => done(&mut start),
            (State::Exited, false) => {
                if !restart::wanted(pod, container, status) {
                    actions.kill_pod = true;
                    actions.start_init.clear();
                    return false;
                }
                start.push(index);
            }
            (State::Unknown, _) => {
                if !sidecar && restart::policy(pod, container) == "Never" {
                    actions.kill_pod = true;
                    actions.start_init.clear();
                    return false;
                }
                actions.kill.push(unknown_state(found, "Init container"));
                start.push(index);
            }
        }
        earlier_done = true;
    }
    if !earlier_done {
        start.push(0);
    }
    start.reverse();
    actions.start_init = start;
    initialized
}

enum Sidecar {
    /// Its startup probe has not succeeded yet.
    Starting,
    Started,
    Kill {
        started: bool,
        kill: Kill,
    },
}

fn judge_sidecar(container: &Container, found: &ContainerStatus, probes: &dyn Probes) -> Sidecar {
    let kill = |what: &str, reason, started| Sidecar::Kill {
        started,
        kill: Kill {
            id: found.id.clone(),
            name: container.name.clone(),
            message: format!("Init container {} {what}", container.name),
            reason,
        },
    };
    if container.startup_probe.is_some() {
        match probes.startup(&found.id) {
            None => return Sidecar::Starting,
            Some(ProbeResult::Failure) => return kill("failed startup probe", KillReason::StartupProbe, false),
            Some(ProbeResult::Success) => {}
        }
    }
    if found.hash != container_hash(container) {
        return kill("definition changed", KillReason::Changed, true);
    }
    if container.liveness_probe.is_some() && probes.liveness(&found.id) == Some(ProbeResult::Failure) {
        return kill("failed liveness probe", KillReason::LivenessProbe, true);
    }
    Sidecar::Started
}

/// Identifies a container's definition across restarts of the node, and of upstream's kubelet in our place or the other
/// way round: FNV-1a of what cannot change in place (name and image, as JSON), written out as upstream writes bytes.
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let picked = serde_json::json!({ "image": image, "name": container.name }).to_string();
    let numbers: Vec<String> = picked.bytes().map(|byte| byte.to_string()).collect();
    let written = format!("([]uint8)[{}]", numbers.join(" "));
    let hash = written.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    u64::from(hash)
}

#[cfg(test)]
mod tests;
