//! A decided pod on its way to its node: Permit's verdict, PreBind, Bind, PostBind; and what comes of it.
//! Part of `scheduler`; each binding cycle is a task that sends its outcome back.
//! What Reserve held is given back exactly if the pod does not get to its node.

use std::{sync::Arc, time::Duration};

use api::ApiError;
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::{Attempt, Scheduler};
use crate::{
    extender::Extenders,
    framework::{BindResult, ClusterEvent, CycleState, Handle, Profile, Rejection, Status},
    pod_info::{PendingPod, PodInfo},
    queue::QueuedPodInfo,
    scheduler_metrics::{GOROUTINES, PERMIT_WAIT, PointTimer, SLI, TRIES, success},
};
use futures::future::BoxFuture;

/// A pod decided and on its way to its node.
pub(super) struct InFlight {
    pub pod: QueuedPodInfo,
    pub attempt: Attempt,
    pub node: Arc<str>,
    pub state: CycleState,
    /// Whether the server has been told of the node ahead of the binding.
    pub nominated: bool,
    /// When it was decided: from then on it may be held back at Permit.
    pub held_since: Duration,
}

/// What came of a task.
pub(super) enum Outcome {
    /// A binding cycle is over; an error says what users are told.
    Bound { pod: Arc<PodInfo>, node: Arc<str>, attempt: Attempt, result: Result<(), String> },
    /// The victims have been told to go.
    Preempted { pod: Arc<PodInfo>, result: Result<(), ApiError> },
}

/// PreBind work of one plugin.
type PreBind = BoxFuture<'static, Result<(), Status>>;

/// PreBind, then Bind by whoever takes the pod.
async fn binding_cycle(
    profile: &Profile,
    handle: &Handle,
    extenders: &Extenders,
    bindings: &Semaphore,
    (pod, node): (&Arc<PendingPod>, &Arc<str>),
    pre_binds: Vec<PreBind>,
    timer: &PointTimer<'_>,
) -> Result<(), String> {
    let began = handle.env.monotonic();
    for pre_bind in pre_binds {
        if let Err(status) = pre_bind.await {
            timer.observe("PreBind", status.code.as_str(), began);
            return Err(status.message());
        }
    }
    timer.observe("PreBind", "Success", began);
    let began = handle.env.monotonic();
    let bound = bind(profile, handle, extenders, bindings, (pod, node)).await;
    timer.observe("Bind", if bound.is_ok() { "Success" } else { "Error" }, began);
    bound
}

async fn bind(
    profile: &Profile,
    handle: &Handle,
    extenders: &Extenders,
    bindings: &Semaphore,
    (pod, node): (&Arc<PendingPod>, &Arc<str>),
) -> Result<(), String> {
    let Ok(_permit) = bindings.acquire().await else { return Err("the scheduler has stopped".into()) };
    let rejected = |plugin: &str, why: &str| format!("binding rejected: running Bind plugin {plugin:?}: {why}");
    if let Some(result) = extenders.bind(pod, node).await {
        return result.map_err(|error| rejected("DefaultBinder", &ApiError::internal(error).message));
    }
    for enabled in &profile.bind {
        match enabled.plugin.bind(handle, pod, node).await {
            Ok(BindResult::Bound) => return Ok(()),
            Ok(BindResult::Skip) => {}
            Err(status) => return Err(rejected(enabled.name, &status.message())),
        }
    }
    Err("binding rejected: no Bind plugin took the pod".into())
}

impl Scheduler {
    pub(super) fn start_binding_cycle(&mut self, key: &str) {
        let Some(flight) = self.in_flight.get(key) else { return };
        let (pod, node, attempt) = (flight.pod.info.clone(), flight.node.clone(), flight.attempt);
        let Some(profile) = self.profiles.get(pod.scheduler_name()).cloned() else { return };
        let at_work = profile.pre_bind.iter().filter(|p| p.plugin.has_pre_bind_work(&flight.state, &pod, &node));
        let pre_binds: Vec<PreBind> =
            at_work.map(|p| p.plugin.pre_bind(&self.handle, &flight.state, &self.cluster, &pod, &node)).collect();
        let (handle, extenders, bindings) = (self.handle.clone(), self.extenders.clone(), self.bindings.clone());
        let (outcomes, metrics) = (self.outcomes.clone(), self.metrics.clone());
        let span = tracing::info_span!(parent: None, "binding_cycle", pod = pod.key, uid = pod.uid(), node = &*node);
        let cycle = async move {
            let timer = PointTimer { metrics: &metrics, env: &handle.env, profile: &profile.scheduler_name };
            metrics.add(&GOROUTINES, &["binding"], 1.0);
            let result =
                binding_cycle(&profile, &handle, &extenders, &bindings, (&pod, &node), pre_binds, &timer).await;
            metrics.add(&GOROUTINES, &["binding"], -1.0);
            // The scheduler has stopped when nobody listens; then there is nothing left to settle.
            outcomes.send(Outcome::Bound { pod: pod.info(), node, attempt, result }).await.ok();
        };
        self.handle.env.spawn(cycle.instrument(span));
    }

    /// Lets the pods go on that every Permit plugin has allowed, and takes back those that one has rejected.
    pub(super) fn settle_permits(&mut self) {
        let now = self.handle.env.monotonic();
        for (key, verdict) in self.handle.waiting_pods.take_decided(now) {
            if let Some(flight) = self.in_flight.get(&key) {
                let result = if verdict.is_ok() { "Success" } else { "Unschedulable" };
                self.metrics.observe(&PERMIT_WAIT, &[result], now.saturating_sub(flight.held_since).as_secs_f64());
            }
            match verdict {
                Ok(()) => self.start_binding_cycle(&key),
                Err(Rejection { plugin, message }) => {
                    let profile = self.in_flight.get(&key).and_then(|f| self.profiles.get(f.pod.info.scheduler_name()));
                    let row = profile.and_then(|p| p.permit.iter().find(|e| e.name == plugin)).map(|e| e.row);
                    if let Some(row) = row {
                        self.reject_in_flight(&key, (row, plugin, Status::unschedulable(message)));
                    }
                }
            }
        }
    }

    pub(super) fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Preempted { pod, result: Ok(()) } => drop(self.cluster.preempting.remove(&pod.key)),
            Outcome::Preempted { pod, result: Err(error) } => {
                self.cluster.preempting.remove(&pod.key);
                tracing::warn!(pod = pod.key, uid = pod.uid(), %error, "couldn't remove a pod to make room");
                self.queue.activate(&pod.key, self.handle.env.monotonic());
            }
            Outcome::Bound { pod, node, attempt, result } => {
                let flight = self.in_flight.get(&pod.key).filter(|flight| flight.pod.info.uid() == pod.uid());
                match (flight.is_some(), result) {
                    (true, Ok(())) => {
                        self.in_flight.remove(&pod.key);
                        self.bound(&pod, &node, attempt);
                    }
                    (true, Err(why)) => self.give_up(&pod.key, &why),
                    (false, Ok(())) => {
                        // The watch was faster than the answer.
                        let placed = self.cluster.cache.pod(&pod.key).filter(|info| info.uid() == pod.uid()).cloned();
                        if let Some(placed) = placed {
                            self.bound(&placed, &node, attempt);
                        }
                    }
                    (false, Err(_)) => {}
                }
            }
        }
    }

    fn bound(&self, pod: &PodInfo, node: &str, attempt: Attempt) {
        self.count_attempt("scheduled", pod.scheduler_name(), attempt.began);
        self.metrics.observe(&TRIES, &[], attempt.number.into());
        let took = self.handle.env.monotonic().saturating_sub(attempt.first).as_secs_f64();
        self.metrics.observe(&SLI, &[&attempt.label()], took);
        self.handle.reports.scheduled(pod, node);
        if let Some(profile) = self.profiles.get(pod.scheduler_name()) {
            let (metrics, env) = (&self.metrics, &self.handle.env);
            let timer = PointTimer { metrics, env, profile: &profile.scheduler_name };
            let post_bind =
                || profile.post_bind.iter().for_each(|enabled| enabled.plugin.post_bind(&self.cluster, pod, node));
            timer.run("PostBind", post_bind, success);
        }
    }

    /// The pod is on its way no longer, and does not get to its node: what was held for it is free.
    pub(super) fn end_flight(&mut self, key: &str) -> Option<InFlight> {
        let mut flight = self.in_flight.remove(key)?;
        self.handle.waiting_pods.remove(key);
        if let Some(profile) = self.profiles.get(flight.pod.info.scheduler_name()) {
            profile.run_unreserve(&mut flight.state, &mut self.cluster, &flight.pod.info, &flight.node);
        }
        Some(flight)
    }

    /// Takes a decision back: the pod counts on its node no longer.
    pub(super) fn take_back(&mut self, key: &str) -> Option<InFlight> {
        let flight = self.end_flight(key)?;
        let info = &flight.pod.info;
        if self.cluster.cache.forget(key, info.uid()) {
            self.wake(&ClusterEvent::PodGone(info.info()));
        }
        // The nomination made for the binding cycle is not in the version that we know.
        if flight.nominated {
            self.handle.reports.withdraw_nomination(info);
        }
        Some(flight)
    }

    /// Takes a decision back after an error; the pod is tried again later, unless it turns out to be gone or bound
    /// meanwhile.
    pub(super) fn give_up(&mut self, key: &str, why: &str) {
        let Some(flight) = self.take_back(key) else { return };
        let InFlight { pod, attempt, .. } = flight;
        self.count_attempt("error", pod.info.scheduler_name(), attempt.began);
        self.handle.reports.failed(&pod.info, "SchedulerError", why, Some(""));
        self.queue.add_after_error(pod, self.handle.env.monotonic());
    }
}
