//! The conditions that the node owns, and those of others kept as they are.
//! Part of `pod_status`.
//! Never changes a condition of another owner.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Input, condition, whole_seconds};
use crate::pod::pod_spec;

pub const OWNED: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
];

struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn yes() -> Self {
        Self { status: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: impl Into<Option<String>>) -> Self {
        Self { status: false, reason: Some(reason), message: message.into() }
    }
}

pub fn conditions(input: &Input, status: &PodStatus) -> Vec<PodCondition> {
    let foreign = input.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let mut result: Vec<PodCondition> = foreign.filter(|c| !OWNED.contains(&c.type_.as_str())).cloned().collect();
    let containers_ready = containers_ready(input, status);
    let ready = ready(input, status, &result);
    let sandbox = match input.runtime.ready_sandbox() {
        Some(sandbox) if pod_spec::host_network(input.pod) || !sandbox.ips.is_empty() => Verdict::yes(),
        _ => Verdict { status: false, reason: None, message: None },
    };
    result.extend(input.resizes.conditions());
    for (kind, verdict) in [
        ("PodReadyToStartContainers", sandbox),
        ("Initialized", initialized(input, status)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", Verdict::yes()),
    ] {
        result.push(dated(input, kind, verdict));
    }
    result
}

fn dated(input: &Input, kind: &str, verdict: Verdict) -> PodCondition {
    let text = if verdict.status { "True" } else { "False" };
    let before = condition(input.previous, kind);
    let since = before.filter(|b| b.status == text).and_then(|b| b.last_transition_time.clone());
    PodCondition {
        type_: kind.into(),
        status: text.into(),
        reason: verdict.reason.map(String::from),
        message: verdict.message,
        last_transition_time: since.or_else(|| Some(Time(whole_seconds(input.now)))),
        observed_generation: input.pod.metadata.generation,
        ..Default::default()
    }
}

fn initialized(input: &Input, status: &PodStatus) -> Verdict {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    let app_started = input.runtime.containers.iter().any(|c| c.kind == pod_spec::Kind::App && c.started_at > 0);
    for container in pod_spec::init_containers(input.pod) {
        match find(&status.init_container_statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(found) if pod_spec::is_sidecar(container) => {
                if found.started != Some(true) && !app_started {
                    incomplete.push(container.name.as_str());
                }
            }
            Some(found) => {
                if !found.ready {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    match status.phase.as_deref() {
        Some("Succeeded") => Verdict { status: true, reason: Some("PodCompleted"), message: None },
        _ if unknown.is_empty() && incomplete.is_empty() => Verdict::yes(),
        _ if app_started => Verdict::yes(),
        _ => Verdict::no("ContainersNotInitialized", list("incomplete", &unknown, &incomplete)),
    }
}

fn containers_ready(input: &Input, status: &PodStatus) -> Verdict {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = pod_spec::init_containers(input.pod).iter().filter(|c| pod_spec::is_sidecar(c));
    let of_sidecars = sidecars.map(|c| (c, find(&status.init_container_statuses, &c.name)));
    let of_apps = pod_spec::containers(input.pod).iter().map(|c| (c, find(&status.container_statuses, &c.name)));
    for (container, found) in of_sidecars.chain(of_apps) {
        match found {
            None => unknown.push(container.name.as_str()),
            Some(found) if !found.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match status.phase.as_deref() {
        Some("Succeeded") => Verdict::no("PodCompleted", None),
        Some("Failed") => Verdict::no("PodFailed", None),
        _ if unknown.is_empty() && unready.is_empty() => Verdict::yes(),
        _ => Verdict::no("ContainersNotReady", list("unready", &unknown, &unready)),
    }
}

fn ready(input: &Input, status: &PodStatus, foreign: &[PodCondition]) -> Verdict {
    let containers = containers_ready(input, status);
    if !containers.status {
        return containers;
    }
    let unmet: Vec<String> = pod_spec::spec(input.pod)
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match foreign.iter().find(|c| c.type_ == *kind) {
                None => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                Some(c) if c.status != "True" => {
                    Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", c.status))
                }
                Some(_) => None,
            }
        })
        .collect();
    if unmet.is_empty() { Verdict::yes() } else { Verdict::no("ReadinessGatesNotReady", unmet.join(", ")) }
}

fn list(what: &str, unknown: &[&str], incomplete: &[&str]) -> String {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !incomplete.is_empty() {
        parts.push(format!("containers with {what} status: [{}]", incomplete.join(" ")));
    }
    parts.join(", ")
}

fn find<'a>(statuses: &'a Option<Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().flatten().find(|status| status.name == name)
}
