//! The phase of a pod, from the states of its containers.
//! Part of `pod_status`.
//! Looks at the statuses that are about to be reported, so that phase and statuses never contradict.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::Input;
use crate::{
    pod::{pod_spec, restart},
    runtime::runtime_status::State,
};

/// How many containers are how far.
#[derive(Default)]
struct Count {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
    pending_init: usize,
    pending_sidecars: usize,
    failed_init: bool,
}

enum Progress {
    Missing,
    Running {
        started: bool,
    },
    Waiting,
    /// Ended, now or before it went on waiting.
    Ended {
        exit_code: i32,
        waits: bool,
    },
}

fn progress(statuses: &Option<Vec<ContainerStatus>>, name: &str) -> Progress {
    let Some(status) = statuses.iter().flatten().find(|status| status.name == name) else {
        return Progress::Missing;
    };
    let state = status.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return Progress::Running { started: status.started == Some(true) };
    }
    if let Some(terminated) = state.terminated {
        return Progress::Ended { exit_code: terminated.exit_code, waits: false };
    }
    match status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
        Some(terminated) => Progress::Ended { exit_code: terminated.exit_code, waits: true },
        None => Progress::Waiting,
    }
}

pub fn phase(input: &Input, status: &PodStatus) -> &'static str {
    let pod = input.pod;
    let mut count = Count::default();
    for container in pod_spec::init_containers(pod) {
        let progress = progress(&status.init_container_statuses, &container.name);
        if pod_spec::is_sidecar(container) {
            match progress {
                Progress::Missing => count.unknown += 1,
                Progress::Running { started } => {
                    count.running += 1;
                    count.pending_sidecars += usize::from(!started);
                }
                Progress::Waiting => {
                    count.waiting += 1;
                    count.pending_sidecars += 1;
                }
                Progress::Ended { .. } => {}
            }
            continue;
        }
        match progress {
            Progress::Missing | Progress::Running { .. } | Progress::Waiting => count.pending_init += 1,
            Progress::Ended { exit_code: 0, .. } => {}
            Progress::Ended { exit_code, .. } => {
                count.failed_init |= !restart::after_exit(pod, container, exit_code);
            }
        }
    }
    for container in pod_spec::containers(pod) {
        match progress(&status.container_statuses, &container.name) {
            Progress::Missing => count.unknown += 1,
            Progress::Running { .. } => count.running += 1,
            Progress::Waiting => count.waiting += 1,
            Progress::Ended { exit_code, waits } => {
                count.stopped += 1;
                count.stopped_for_good += usize::from(!restart::after_exit(pod, container, exit_code));
                count.succeeded += usize::from(exit_code == 0 && !waits);
            }
        }
    }
    let phase = decide(input, &count);
    if input.terminal && !super::is_terminal(phase) && !pod_spec::is_static(pod) {
        // Nothing will be started any more and not everything ran.
        return "Failed";
    }
    phase
}

fn decide(input: &Input, count: &Count) -> &'static str {
    // Once an app container ran, restarting sidecars do not make the pod pending again.
    let has_started = pod_spec::containers(input.pod)
        .iter()
        .filter_map(|c| input.runtime.find(&c.name))
        .any(|c| matches!(c.state, State::Running));
    let ended = if count.stopped == count.succeeded { "Succeeded" } else { "Failed" };
    if count.failed_init {
        return "Failed";
    }
    if count.pending_init > 0 || (count.pending_sidecars > 0 && !has_started) || count.waiting > 0 {
        return "Pending";
    }
    match (count.running, count.stopped, count.unknown) {
        (1.., _, 0) => "Running",
        (0, 1.., 0) if input.terminal && !pod_spec::is_static(input.pod) => ended,
        (0, 1.., 0) if count.stopped != count.stopped_for_good => "Running",
        (0, 1.., 0) => ended,
        _ => "Pending",
    }
}
