//! The states of a pod's containers as the API shows them.
//! Part of `pod_status`.
//! One status per container of the spec: of init containers in its order, of others by their names.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus as ApiStatus, ContainerUser, LinuxContainerUser, Pod, PodStatus, VolumeMountStatus,
};

use super::{Input, from_nanoseconds};
use crate::{
    pod::{
        pod_spec::{self, Kind},
        restart,
    },
    runtime::{
        container_config::mounts::recursively,
        runtime_status::{ContainerStatus, State},
    },
};

/// Bytes of the last words of all containers of a pod together.
const MESSAGE_BYTES_MAX: usize = 12 * 1024;

pub fn statuses(input: &Input, kind: Kind) -> Vec<ApiStatus> {
    let ephemeral;
    let (containers, previous): (&[Container], _) = match kind {
        Kind::Init => (pod_spec::init_containers(input.pod), &input.previous.init_container_statuses),
        Kind::App => (pod_spec::containers(input.pod), &input.previous.container_statuses),
        Kind::Ephemeral => {
            ephemeral = pod_spec::ephemeral_containers(input.pod);
            (&ephemeral, &input.previous.ephemeral_container_statuses)
        }
    };
    let shown = containers.iter().map(|container| {
        let before = previous.iter().flatten().find(|status| status.name == container.name);
        status(input, kind, container, before)
    });
    let mut statuses: Vec<ApiStatus> = shown.collect();
    if kind != Kind::Init {
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
    }
    statuses
}

fn status(input: &Input, kind: Kind, container: &Container, before: Option<&ApiStatus>) -> ApiStatus {
    let mut incarnations = input.runtime.containers.iter().filter(|c| c.name == container.name);
    let mut result = match incarnations.next() {
        Some(newest) => {
            let mut status = observed(input, container, newest, before);
            match incarnations.next() {
                Some(older) => status.last_state = Some(state(input, older)),
                None => status.last_state = before.and_then(|b| carried_over(b, &status)),
            }
            status
        }
        None => unobserved(input, container, before),
    };
    waiting_for_start(input, kind, container, &mut result);
    result.volume_mounts = volume_mounts(container, input.recursive_read_only);
    if kind != Kind::Ephemeral {
        let running = input.runtime.find(&container.name).filter(|c| c.state == State::Running);
        let in_effect = running.and_then(|found| (input.in_effect)(&found.id));
        result.resources = in_effect.or_else(|| Some(container.resources.clone().unwrap_or_default()));
        result.allocated_resources = container.resources.as_ref().and_then(|r| r.requests.clone());
    }
    if kind == Kind::App {
        let health = (input.resource_health)(container);
        result.allocated_resources_status = (!health.is_empty()).then_some(health);
    }
    if result.container_id.is_some() {
        result.stop_signal = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.clone());
    }
    if result.last_state.is_none() {
        // The API shows an empty state rather than none.
        result.last_state = Some(ContainerState::default());
    }
    result
}

/// The last state when the runtime has only one incarnation: the older ones were collected.
fn carried_over(before: &ApiStatus, now: &ApiStatus) -> Option<ContainerState> {
    let terminated = before.state.as_ref().filter(|state| state.terminated.is_some());
    if before.container_id != now.container_id && terminated.is_some() {
        return terminated.cloned();
    }
    before.last_state.clone()
}

fn observed(input: &Input, container: &Container, found: &ContainerStatus, before: Option<&ApiStatus>) -> ApiStatus {
    let running = found.state == State::Running;
    let started = running && input.readiness.started(&found.id);
    let ready = if found.kind == Kind::Init && !pod_spec::is_sidecar(container) {
        // An init container is ready when it has done its work.
        found.state == State::Exited && found.exit_code == 0
    } else {
        started && input.readiness.ready(&found.id)
    };
    let mut state = state(input, found);
    if found.state == State::Unknown && before.and_then(|b| b.state.as_ref()).is_some_and(|s| s.running.is_some()) {
        state = ContainerState {
            terminated: Some(ContainerStateTerminated {
                reason: Some("ContainerStatusUnknown".into()),
                message: Some("The container could not be located when the pod was terminated".into()),
                exit_code: 137,
                ..Default::default()
            }),
            ..Default::default()
        };
    }
    ApiStatus {
        name: container.name.clone(),
        container_id: Some(format!("{}://{}", input.runtime_name, found.id)),
        image: found.image.clone(),
        image_id: found.image_id.clone(),
        restart_count: found.restart_count as i32,
        started: Some(started),
        ready,
        state: Some(state),
        user: found.user.as_ref().map(user),
        ..Default::default()
    }
}

fn user(found: &cri::v1::LinuxContainerUser) -> ContainerUser {
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: found.uid,
            gid: found.gid,
            supplemental_groups: (!found.supplemental_groups.is_empty()).then(|| found.supplemental_groups.clone()),
        }),
    }
}

fn state(input: &Input, found: &ContainerStatus) -> ContainerState {
    match found.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: from_nanoseconds(found.started_at) }),
            ..Default::default()
        },
        State::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(format!("{}://{}", input.runtime_name, found.id)),
                exit_code: found.exit_code,
                reason: Some(found.reason.clone()).filter(|text| !text.is_empty()),
                message: Some(found.message.clone()).filter(|text| !text.is_empty()),
                started_at: from_nanoseconds(found.started_at),
                finished_at: from_nanoseconds(found.finished_at),
                ..Default::default()
            }),
            ..Default::default()
        },
        State::Created | State::Unknown => {
            ContainerState { waiting: Some(ContainerStateWaiting::default()), ..Default::default() }
        }
    }
}

/// A container that the runtime does not have: not created yet, or gone.
fn unobserved(input: &Input, container: &Container, before: Option<&ApiStatus>) -> ApiStatus {
    let reason = if pod_spec::init_containers(input.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = ApiStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        started: Some(false),
        state: Some(waiting(reason, None)),
        ..Default::default()
    };
    let Some(before) = before else { return status };
    status.restart_count = before.restart_count;
    status.last_state = before.last_state.clone();
    let state = before.state.as_ref();
    if state.is_some_and(|s| s.terminated.is_some()) {
        return before.clone();
    }
    let has_ended = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if state.is_some_and(|s| s.running.is_some()) && !has_ended {
        status.last_state = Some(lost(
            "The container could not be located when the pod was deleted.  The container used to be Running",
        ));
        if input.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count += 1;
        }
    }
    status
}

/// However many containers a pod has, what they said at their ends fits into its status.
pub fn limit_messages(status: &mut PodStatus) {
    let lists =
        [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    let all: Vec<&mut ApiStatus> = lists.into_iter().flatten().flatten().collect();
    let most = MESSAGE_BYTES_MAX / all.len().max(1);
    let states = all.into_iter().flat_map(|s| [&mut s.state, &mut s.last_state]).flatten();
    for message in states.filter_map(|s| s.terminated.as_mut()?.message.as_mut()) {
        message.truncate(message.floor_char_boundary(most));
    }
}

/// Nothing of the pod will run any more: whatever may have run and shows no end has come to a bad one.
pub fn close(pod: &Pod, status: &mut PodStatus) {
    let ended = |s: &ApiStatus| s.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    let waits = |s: &ApiStatus| s.state.as_ref().is_none_or(|state| state.waiting.is_some());
    let began = |s: &ApiStatus| !waits(s) || ended(s);
    let lose = |statuses: &mut [ApiStatus]| {
        for status in statuses.iter_mut().filter(|s| s.state.as_ref().is_none_or(|state| state.terminated.is_none())) {
            status.state = Some(lost("The container could not be located when the pod was terminated"));
            (status.ready, status.started) = (false, Some(false));
        }
    };
    let init = status.init_container_statuses.get_or_insert_default();
    let last = init.last().zip(pod_spec::init_containers(pod).last());
    let prepared = last.is_none_or(|(status, container)| match pod_spec::is_sidecar(container) {
        true => status.started == Some(true),
        false => status.state.iter().filter_map(|s| s.terminated.as_ref()).any(|t| t.exit_code == 0),
    });
    // Those after the last one that began never had their turn; the first one did.
    let turns = init.iter().rposition(began).unwrap_or(0) + 1;
    let turns = turns.min(init.len());
    lose(&mut init[..turns]);
    if init.is_empty() {
        status.init_container_statuses = None;
    }
    let apps = status.container_statuses.as_deref_mut().unwrap_or_default();
    if prepared || apps.iter().any(began) {
        lose(apps);
    }
}

fn lost(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some(message.into()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container that is to be started and could not be shows why.
fn waiting_for_start(input: &Input, kind: Kind, container: &Container, status: &mut ApiStatus) {
    let found = input.runtime.find(&container.name);
    let completed = found.is_some_and(|c| c.state == State::Exited && c.exit_code == 0);
    if input.terminal || (kind == Kind::Init && completed && !pod_spec::is_sidecar(container)) {
        return;
    }
    let once = kind == Kind::Ephemeral && found.is_some_and(|c| c.state != State::Created);
    if once || !restart::wanted(input.pod, container, input.runtime) {
        return;
    }
    let Some(reason) = input.reasons.get(&container.name) else {
        return;
    };
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&reason.reason, Some(&reason.message).filter(|text| !text.is_empty())));
    status.ready = false;
    status.started = Some(false);
}

fn waiting(reason: &str, message: Option<&String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message: message.cloned() }),
        ..Default::default()
    }
}

fn volume_mounts(container: &Container, possible: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref()?;
    let statuses: Vec<_> = mounts
        .iter()
        .map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: (mount.read_only == Some(true)).then(|| match recursively(mount, possible) {
                Ok(true) => "Enabled".into(),
                _ => "Disabled".into(),
            }),
        })
        .collect();
    (!statuses.is_empty()).then_some(statuses)
}
