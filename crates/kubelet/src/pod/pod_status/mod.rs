//! Turns what runs into the status that the API shows: container states, conditions, phase, addresses.
//! Called by `pod_workers`; the result goes to `status_manager`.
//! Invariant: pure. A phase never leaves Succeeded or Failed, and a condition's transition time moves only when its
//! status does (tidy: `pure_files`).

mod conditions;
mod containers;
mod phase;

pub use conditions::OWNED;

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceRequirements, ResourceStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{pod::pod_spec, resources::resizes::Resizes, runtime::runtime_status::PodRuntimeStatus};

/// Why a container could not be started: what a waiting state shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingReason {
    pub reason: String,
    pub message: String,
}

/// A failure of the whole pod that the node decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFailure {
    pub reason: String,
    pub message: String,
    /// The node did not admit the pod: nothing of it ever ran here.
    pub rejected: bool,
}

/// What probes say of containers, by id.
pub trait Readiness {
    /// The container's startup probe has succeeded, or it has none.
    fn started(&self, container_id: &str) -> bool;
    /// The container's readiness probe succeeds, or it has none.
    fn ready(&self, container_id: &str) -> bool;
}

pub struct Input<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a PodRuntimeStatus,
    /// What was last reported, or what the API has when nothing was.
    pub previous: &'a PodStatus,
    pub readiness: &'a dyn Readiness,
    /// By container name.
    pub reasons: &'a HashMap<String, WaitingReason>,
    /// The resources that a running container was given, by its id.
    pub in_effect: &'a dyn Fn(&str) -> Option<ResourceRequirements>,
    /// How the devices of a container are.
    pub resource_health: &'a dyn Fn(&Container) -> Vec<ResourceStatus>,
    /// How far changes of resources are.
    pub resizes: &'a Resizes,
    /// "containerd", the scheme of container ids.
    pub runtime_name: &'a str,
    pub host_ips: &'a [String],
    /// Whether the runtime can make mounts read-only all the way down.
    pub recursive_read_only: bool,
    /// The pod's work is over: nothing is going to be started again.
    pub terminal: bool,
    /// The pod has failed, whatever its containers do.
    pub failure: Option<&'a PodFailure>,
    pub now: Timestamp,
}

pub fn generate(input: &Input) -> PodStatus {
    let pod = input.pod;
    let shown = |kind| none_if_empty(containers::statuses(input, kind)).filter(|_| !never_began(input));
    let mut status = PodStatus {
        init_container_statuses: shown(pod_spec::Kind::Init),
        container_statuses: shown(pod_spec::Kind::App),
        ephemeral_container_statuses: shown(pod_spec::Kind::Ephemeral),
        start_time: input.previous.start_time.clone().or_else(|| Some(Time(whole_seconds(input.now)))),
        qos_class: Some(pod_spec::qos_class(pod).as_str().into()),
        nominated_node_name: pod.status.as_ref().and_then(|s| s.nominated_node_name.clone()),
        observed_generation: pod.metadata.generation,
        resource_claim_statuses: input.previous.resource_claim_statuses.clone(),
        ..Default::default()
    };
    if input.terminal {
        containers::close(pod, &mut status);
    }
    containers::limit_messages(&mut status);
    let phase = decided_phase(input, &status);
    status.phase = Some(phase.into());
    if let Some(failure) = input.failure.filter(|_| phase == "Failed") {
        status.reason = Some(failure.reason.clone());
        status.message = Some(failure.message.clone());
    } else if input.previous.phase.as_deref() == Some(phase) {
        status.reason = input.previous.reason.clone();
        status.message = input.previous.message.clone();
    }
    addresses(input, &mut status);
    status.conditions = Some(conditions::conditions(input, &status));
    hold_back(input, &mut status);
    status
}

/// A pod that was rejected, here or elsewhere, shows no containers: what they wait for would hide why.
fn never_began(input: &Input) -> bool {
    let api = input.pod.status.as_ref();
    let over = api.and_then(|s| s.phase.as_deref()).is_some_and(is_terminal);
    let unknown = input.previous.container_statuses.is_none() && input.runtime.containers.is_empty();
    input.failure.is_some_and(|failure| failure.rejected) || (over && unknown)
}

fn decided_phase<'a>(input: &'a Input, status: &PodStatus) -> &'a str {
    let terminal = |phase: Option<&'a str>| phase.filter(|phase| is_terminal(phase));
    let api = input.pod.status.as_ref().and_then(|s| s.phase.as_deref());
    terminal(api)
        .or(input.failure.map(|_| "Failed"))
        .or_else(|| terminal(input.previous.phase.as_deref()))
        .unwrap_or_else(|| phase::phase(input, status))
}

/// A pod is over only when nothing of it runs any more: others take over what it holds as soon as they hear of it.
fn hold_back(input: &Input, status: &mut PodStatus) {
    let api = input.pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let known = [api, input.previous.phase.as_deref()].into_iter().flatten().any(is_terminal);
    let ends = status.phase.as_deref().is_some_and(is_terminal) && !known;
    if ends && !input.terminal && input.runtime.running().next().is_some() {
        status.phase = input.previous.phase.clone().or_else(|| Some("Running".into()));
        status.reason = input.previous.reason.clone();
        status.message = input.previous.message.clone();
    }
}

pub fn is_terminal(phase: &str) -> bool {
    phase == "Succeeded" || phase == "Failed"
}

fn addresses(input: &Input, status: &mut PodStatus) {
    status.host_ip = input.host_ips.first().cloned();
    status.host_ips = none_if_empty(input.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    let ips: Vec<String> = if pod_spec::host_network(input.pod) {
        input.host_ips.to_vec()
    } else {
        match input.runtime.sandboxes.first() {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            // A stopped sandbox has lost its address; the pod keeps showing the one it had.
            _ => input.previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect(),
        }
    };
    status.pod_ip = ips.first().cloned();
    status.pod_ips = none_if_empty(ips.into_iter().map(|ip| PodIP { ip }).collect());
}

fn none_if_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Says that the node itself ends the pod, so that it does not count as the pod's own failure.
pub fn mark_disrupted(status: &mut PodStatus, previous: &PodStatus, message: &str, now: Timestamp) {
    // Together with the end that it explains.
    if !status.phase.as_deref().is_some_and(is_terminal) {
        return;
    }
    let kind = "DisruptionTarget";
    let since = condition(previous, kind).and_then(|c| c.last_transition_time.clone());
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != kind);
    conditions.push(PodCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some("TerminationByKubelet".into()),
        message: Some(message.into()),
        last_transition_time: since.or_else(|| Some(Time(whole_seconds(now)))),
        observed_generation: status.observed_generation,
        ..Default::default()
    });
}

/// The API keeps whole seconds; comparing anything finer would find differences that are none.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

pub fn from_nanoseconds(nanoseconds: i64) -> Option<Time> {
    (nanoseconds > 0).then(|| Timestamp::from_second(nanoseconds / 1_000_000_000).ok().map(Time)).flatten()
}

pub fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
