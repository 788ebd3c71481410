//! Probes one container in one way, for as long as it runs.
//! Part of `probe_manager`.
//! A result changes only after as many attempts in a row as the thresholds ask for; one that could not be made is none.

use std::{sync::Arc, time::Duration};

use client::EventRecorder;
use cri::Runtime;
use env::Env;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use metrics::Metrics;

use super::{
    ProbeKind, Results,
    attempt::{self, Found, ProbeError},
    schedule::{Attempt, ProbeSchedule},
};
use crate::{
    node::node_metrics::{PROBE_DURATION, PROBES},
    pod::{
        pod_actions::ProbeResult,
        pod_spec::{self, Kind},
        pod_status::Readiness,
        pod_wakes::PodWakes,
    },
    runtime::runtime_manager::container_reference,
};

pub struct Worker {
    pub runtime: Arc<dyn Runtime>,
    pub env: Env,
    pub recorder: EventRecorder,
    pub results: Arc<Results>,
    pub wakes: PodWakes,
    pub pod: Arc<Pod>,
    pub container: Container,
    pub container_id: String,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
    /// Nobody has told the API server of this incarnation yet.
    pub just_started: bool,
    pub pod_ip: String,
    pub kind: ProbeKind,
    pub metrics: Metrics,
}

/// How often an attempt that could not even be made is repeated before it is given up.
const PROBE_RETRIES_MAX: usize = 3;

/// How many attempts in a row had the same outcome.
#[derive(Default)]
struct Row {
    last: Option<ProbeResult>,
    length: i32,
}

impl Row {
    fn add(&mut self, outcome: ProbeResult) -> i32 {
        self.length = if self.last == Some(outcome) { self.length + 1 } else { 1 };
        self.last = Some(outcome);
        self.length
    }
}

fn threshold(probe: &Probe, outcome: ProbeResult) -> i32 {
    match outcome {
        ProbeResult::Success => probe.success_threshold.unwrap_or(1),
        ProbeResult::Failure => probe.failure_threshold.unwrap_or(3),
    }
}

impl Worker {
    pub async fn run(self) {
        let Some(probe) = self.kind.probe(&self.container).cloned() else { return };
        let seconds = |value: Option<i32>, default: i32| Duration::from_secs(value.unwrap_or(default).max(0) as u64);
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        let timeout = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let age = Duration::from_nanos(
            (self.env.now().as_nanosecond() - i128::from(self.started_at)).clamp(0, i128::from(i64::MAX)) as u64,
        );
        let delay = seconds(probe.initial_delay_seconds, 0).saturating_sub(age);
        if !delay.is_zero() {
            self.env.sleep(delay).await;
        }
        // Nobody waits for the success of a liveness probe: it holds from the beginning.
        let mut schedule = ProbeSchedule::new(period, self.just_started && self.kind != ProbeKind::Liveness);
        let mut row = Row::default();
        loop {
            // Until the container has started, only its startup probe counts; afterwards that one is done.
            let changed = self.results.changed.notified();
            let started = self.results.started(&self.container_id);
            if (self.kind == ProbeKind::Startup) != started {
                let began = self.env.monotonic();
                let attempt = schedule.begin(began);
                let outcome = self.attempt(&probe, timeout, attempt).await;
                let succeeded = outcome == Some(ProbeResult::Success);
                // One that could not be made says nothing about the container.
                if let Some(outcome) = outcome
                    && (succeeded || attempt == Attempt::Periodic)
                    && row.add(outcome) >= threshold(&probe, outcome)
                    && self.settle(outcome)
                {
                    return;
                }
                self.env.sleep(schedule.wait(began, self.env.monotonic(), succeeded)).await;
            } else if self.kind == ProbeKind::Startup {
                return;
            } else {
                changed.await;
            }
        }
    }

    /// Takes a result that has held for long enough. True when there is nothing more to learn: the container is going
    /// to be killed, or has started.
    fn settle(&self, outcome: ProbeResult) -> bool {
        if self.results.set(&self.container_id, self.kind, outcome) {
            self.wakes.wake(pod_spec::uid(&self.pod));
        }
        match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => outcome == ProbeResult::Failure,
            ProbeKind::Readiness => false,
        }
    }

    /// `None` when the probe could not be made.
    async fn attempt(&self, probe: &Probe, timeout: Duration, attempt: Attempt) -> Option<ProbeResult> {
        let began = self.env.monotonic();
        let mut outcome = Err(ProbeError::MissingHandler);
        for _ in 0..PROBE_RETRIES_MAX {
            outcome = attempt::attempt(
                &*self.runtime,
                probe,
                &self.container,
                &self.container_id,
                &self.pod_ip,
                timeout,
                &self.env,
            )
            .await;
            if outcome.is_ok() {
                break;
            }
        }
        let kind = if pod_spec::containers(&self.pod).iter().any(|c| c.name == self.container.name) {
            Kind::App
        } else {
            Kind::Init
        };
        self.count(&outcome, began);
        let about = container_reference(&self.pod, kind, &self.container.name);
        let warn = |reason: &str, message: String| {
            if attempt == Attempt::Periodic {
                self.recorder.warning(&about, reason, message);
            }
        };
        match outcome {
            Ok(Found::Success) => Some(ProbeResult::Success),
            Ok(Found::Warning(output)) => {
                let message = format!("{} probe warning: {output}", self.kind.as_str());
                self.recorder.warning(&about, "ProbeWarning", message);
                Some(ProbeResult::Success)
            }
            Ok(Found::Failure(output)) => {
                let message = format!("{} probe failed: {output}", self.kind.as_str());
                warn("Unhealthy", message);
                Some(ProbeResult::Failure)
            }
            Err(error) => {
                let message = format!("{} probe errored and resulted in unknown state: {error}", self.kind.as_str());
                warn("Unhealthy", message);
                None
            }
        }
    }

    fn count(&self, outcome: &attempt::Outcome, began: Duration) {
        let result = match outcome {
            Ok(Found::Success | Found::Warning(_)) => "successful",
            Ok(Found::Failure(_)) => "failed",
            Err(_) => "unknown",
        };
        let (kind, container) = (self.kind.as_str(), self.container.name.as_str());
        let (name, namespace, uid) =
            (pod_spec::name(&self.pod), pod_spec::namespace(&self.pod), pod_spec::uid(&self.pod));
        self.metrics.count(&PROBES, &[kind, result, container, name, namespace, uid]);
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.observe(&PROBE_DURATION, &[kind, container, name, namespace], took);
    }
}
