//! The whole decision about one autoscaler: which size, which conditions, which Events.
//! `mod` looks at the target and its metrics, asks here, and carries out what comes back; `replica_calculator` counts,
//! `behavior` slows down.
//! Invariant: pure (tidy: `pure_files`). An autoscaler that can't tell leaves its target as it is.

use std::{sync::Arc, time::Duration};

use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::{
    autoscaling::v2::{
        HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
        HorizontalPodAutoscalerStatus, MetricStatus,
    },
    core::v1::Pod,
};

use super::{
    behavior::{self, Bounds, History},
    metric_proposal::{self, MetricError, MetricProposal, Sample},
    replica_calculator::{PodInitialization, ReplicaCalculator, Tolerances},
};
use crate::{
    common::meta::{Object, time},
    config::HorizontalPodAutoscalerSettings,
};

/// What the target's scale subresource says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scale {
    pub spec_replicas: i32,
    pub status_replicas: i32,
    pub selector: String,
}

/// Why the pods of the target can't be told.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectorFailure {
    pub event_reason: &'static str,
    pub condition_reason: &'static str,
    pub message: String,
    pub condition_message: String,
}

/// The pods of the target, and what each metric of the spec said.
pub struct Observation<'a> {
    pub pods: &'a [Arc<Pod>],
    pub samples: Vec<Result<Sample, String>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub message: String,
    /// The autoscaler itself is wrong, not what it needs.
    pub is_spec: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rescale {
    pub from: i32,
    pub to: i32,
    pub reason: String,
}

/// How one metric fared.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricOutcome {
    pub metric_type: String,
    pub proposed: Option<i32>,
    pub is_spec_error: bool,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub status: HorizontalPodAutoscalerStatus,
    pub rescale: Option<Rescale>,
    pub events: Vec<Event>,
    pub failure: Option<Failure>,
    pub outcomes: Vec<MetricOutcome>,
}

/// The moment of a decision, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now: Timestamp,
    pub monotonic: Duration,
}

fn min_replicas(spec: &HorizontalPodAutoscalerSpec) -> i32 {
    spec.min_replicas.unwrap_or(1)
}

/// Whether the size depends on metrics at all.
pub fn needs_metrics(spec: &HorizontalPodAutoscalerSpec, scale: &Scale) -> bool {
    let (current, least) = (scale.spec_replicas, min_replicas(spec));
    !(current == 0 && least != 0) && current <= spec.max_replicas && current >= least
}

pub fn reference(autoscaler: &HorizontalPodAutoscaler) -> String {
    let target = autoscaler.spec.as_ref().map(|spec| &spec.scale_target_ref);
    target.map_or_else(String::new, |target| format!("{}/{}/{}", target.kind, autoscaler.namespace(), target.name))
}

/// A target that can't be asked.
pub fn without_scale(autoscaler: &HorizontalPodAutoscaler, error: &str, failure: Failure, at: Moment) -> Plan {
    let mut plan = Plan { status: autoscaler.status.clone().unwrap_or_default(), ..Plan::default() };
    plan.warn("FailedGetScale", error.to_string());
    let message = format!("the HPA controller was unable to get the target's current scale: {error}");
    plan.condition("AbleToScale", false, "FailedGetScale", message, at.now);
    plan.failure = Some(failure);
    plan
}

/// `observed` is there where `needs_metrics` asked for it.
pub fn plan(
    autoscaler: &HorizontalPodAutoscaler,
    scale: &Scale,
    observed: Option<Result<Observation<'_>, SelectorFailure>>,
    history: &mut History,
    settings: &HorizontalPodAutoscalerSettings,
    at: Moment,
) -> Plan {
    let mut plan = Plan { status: autoscaler.status.clone().unwrap_or_default(), ..Plan::default() };
    let Some(spec) = &autoscaler.spec else { return plan };
    let (current, least) = (scale.spec_replicas, min_replicas(spec));
    let got = "the HPA controller was able to get the target's current scale";
    plan.condition("AbleToScale", true, "SucceededGetScale", got, at.now);
    history.begin(current, at.monotonic);
    plan.status.current_replicas = Some(current);
    if current == 0 && least != 0 {
        let disabled = "scaling is disabled since the replica count of the target is zero";
        plan.condition("ScalingActive", false, "ScalingDisabled", disabled, at.now);
        return plan.finish(current, None);
    }
    let outside = if current > spec.max_replicas {
        Some((spec.max_replicas, "Current number of replicas above Spec.MaxReplicas"))
    } else if current < least {
        Some((least, "Current number of replicas below Spec.MinReplicas"))
    } else {
        None
    };
    if let Some((to, reason)) = outside {
        plan.rescale = Some(Rescale { from: current, to, reason: reason.into() });
        return plan.finish(to, None);
    }
    let computed = match observed {
        Some(Ok(observation)) => plan.compute(autoscaler, spec, scale, observation, settings, at),
        Some(Err(failure)) => {
            plan.warn(failure.event_reason, failure.message.clone());
            plan.condition("ScalingActive", false, failure.condition_reason, failure.condition_message, at.now);
            Err((failure.message, Vec::new()))
        }
        None => Err(("no metrics were asked for".into(), Vec::new())),
    };
    let Computed { replicas, metric, statuses } = match computed {
        Ok(computed) => computed,
        Err((message, statuses)) => {
            plan.warn("FailedComputeMetricsReplicas", message.clone());
            plan.failure = Some(Failure {
                message: format!(
                    "failed to compute desired number of replicas based on listed metrics for {}: {message}",
                    reference(autoscaler)
                ),
                is_spec: false,
            });
            let desired = plan.status.desired_replicas;
            return plan.finish(desired, Some(statuses));
        }
    };
    let wished = replicas.max(0);
    let reason = match wished > current {
        true => format!("{metric} above target"),
        false => "All metrics below target".to_string(),
    };
    let to = plan.normalize(spec, current, wished, history, settings, at);
    if to != current {
        plan.rescale = Some(Rescale { from: current, to, reason });
    }
    plan.finish(to, Some(statuses))
}

struct Computed {
    replicas: i32,
    metric: String,
    statuses: Vec<MetricStatus>,
}

impl Plan {
    fn warn(&mut self, reason: &'static str, message: String) {
        self.events.push(Event { warning: true, reason, message });
    }

    fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>, now: Timestamp) {
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if holds { "True" } else { "False" };
        let place = conditions.iter().position(|condition| condition.type_ == kind).unwrap_or_else(|| {
            conditions.push(HorizontalPodAutoscalerCondition { type_: kind.into(), ..Default::default() });
            conditions.len() - 1
        });
        let condition = &mut conditions[place];
        if condition.status != status {
            condition.last_transition_time = Some(time(now));
        }
        condition.status = status.into();
        condition.reason = Some(reason.into());
        condition.message = Some(message.into());
    }

    fn finish(mut self, desired: i32, statuses: Option<Vec<MetricStatus>>) -> Self {
        self.status.desired_replicas = desired;
        self.status.current_metrics = statuses.filter(|statuses| !statuses.is_empty());
        self.status.observed_generation = None;
        self
    }

    /// What became of the wish to rescale.
    pub fn rescaled(
        &mut self,
        autoscaler: &HorizontalPodAutoscaler,
        result: Result<(), String>,
        history: &mut History,
        at: Moment,
    ) {
        let Some(Rescale { from, to, reason }) = self.rescale.clone() else { return };
        let words = format!("New size: {to}; reason: {reason}");
        match result {
            Ok(()) => {
                let message = format!("the HPA controller was able to update the target scale to {to}");
                self.condition("AbleToScale", true, "SucceededRescale", message, at.now);
                self.events.push(Event { warning: false, reason: "SuccessfulRescale", message: words });
                self.status.last_scale_time = Some(time(at.now));
                if let Some(behavior) = autoscaler.spec.as_ref().and_then(|spec| spec.behavior.as_ref()) {
                    history.scaled(behavior, from, to, at.monotonic);
                }
            }
            Err(error) => {
                self.warn("FailedRescale", format!("{words}; error: {error}"));
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                self.condition("AbleToScale", false, "FailedUpdateScale", message, at.now);
                self.status.desired_replicas =
                    autoscaler.status.as_ref().map(|status| status.desired_replicas).unwrap_or_default();
                let message = format!("failed to rescale {}: {error}", reference(autoscaler));
                self.failure = Some(Failure { message, is_spec: false });
                self.rescale = None;
            }
        }
    }

    pub fn failed_to_update_status(&mut self, autoscaler: &HorizontalPodAutoscaler, error: &str) {
        self.warn("FailedUpdateStatus", error.to_string());
        let message = format!("failed to update status for {}: {error}", autoscaler.name());
        self.failure = Some(Failure { message, is_spec: false });
    }

    /// The highest wish of the metrics. Where some can't be read, only growth is believed.
    fn compute(
        &mut self,
        autoscaler: &HorizontalPodAutoscaler,
        spec: &HorizontalPodAutoscalerSpec,
        scale: &Scale,
        observation: Observation<'_>,
        settings: &HorizontalPodAutoscalerSettings,
        at: Moment,
    ) -> Result<Computed, (String, Vec<MetricStatus>)> {
        let calculator = ReplicaCalculator {
            pods: observation.pods,
            tolerances: tolerances(spec, settings.tolerance),
            initialization: PodInitialization {
                cpu_initialization_period: settings.cpu_initialization_period,
                initial_readiness_delay: settings.initial_readiness_delay,
            },
            now: at.now,
        };
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let (mut statuses, mut best, mut invalid) = (Vec::new(), None::<MetricProposal>, Vec::new());
        for (metric, sample) in metrics.iter().zip(observation.samples) {
            let computed = metric_proposal::propose(&calculator, autoscaler.namespace(), metric, scale, sample);
            self.outcomes.push(MetricOutcome {
                metric_type: metric.type_.clone(),
                proposed: computed.as_ref().ok().map(|proposal| proposal.replicas),
                is_spec_error: computed.as_ref().is_err_and(|error| error.reason == metric_proposal::INVALID_TYPE),
            });
            match computed {
                Ok(proposal) => {
                    statuses.push(proposal.status.clone());
                    if best.as_ref().is_none_or(|best| best.replicas == 0 || proposal.replicas > best.replicas) {
                        best = Some(proposal);
                    }
                }
                Err(error) => {
                    self.warn(error.reason, error.cause.clone());
                    statuses.push(MetricStatus::default());
                    invalid.push(error);
                }
            }
        }
        let words = |first: &MetricError| {
            let (count, all) = (invalid.len(), metrics.len());
            format!("invalid metrics ({count} invalid out of {all}), first error is: {}", first.message)
        };
        match (best, invalid.first()) {
            (Some(best), None) => Ok(self.active(best, statuses, at)),
            (Some(best), Some(first)) if best.replicas >= scale.spec_replicas => {
                self.failure = Some(Failure { message: words(first), is_spec: false });
                Ok(self.active(best, statuses, at))
            }
            (_, Some(first)) => {
                let message = format!("the HPA was unable to compute the replica count: {}", first.cause);
                self.condition("ScalingActive", false, first.reason, message, at.now);
                Err((words(first), statuses))
            }
            (None, None) => Err(("no metrics are configured".into(), statuses)),
        }
    }

    fn active(&mut self, best: MetricProposal, statuses: Vec<MetricStatus>, at: Moment) -> Computed {
        let message = format!("the HPA was able to successfully calculate a replica count from {}", best.metric);
        self.condition("ScalingActive", true, "ValidMetricFound", message, at.now);
        Computed { replicas: best.replicas, metric: best.metric, statuses }
    }

    /// The wish, held within windows, rates and bounds.
    fn normalize(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        wished: i32,
        history: &mut History,
        settings: &HorizontalPodAutoscalerSettings,
        at: Moment,
    ) -> i32 {
        let bounds = Bounds { min_replicas: min_replicas(spec), max_replicas: spec.max_replicas, current };
        let (window, now) = (settings.downscale_stabilization, at.monotonic);
        let stabilized = match &spec.behavior {
            None => history.stabilize(wished, window, now),
            Some(behavior) => history.stabilize_with(behavior, window, wished, current, now),
        };
        if stabilized.replicas != wished {
            self.condition("AbleToScale", true, stabilized.reason, stabilized.message, at.now);
        } else {
            self.condition("AbleToScale", true, "ReadyForNewScale", "recommended size matches current size", at.now);
        }
        let limited = match &spec.behavior {
            None => behavior::limit(stabilized.replicas, bounds),
            Some(behavior) => history.limit_with(behavior, stabilized.replicas, bounds, now),
        };
        let is_limited = limited.replicas != stabilized.replicas;
        self.condition("ScalingLimited", is_limited, limited.reason, limited.message, at.now);
        limited.replicas
    }
}

fn tolerances(spec: &HorizontalPodAutoscalerSpec, everywhere: f64) -> Tolerances {
    let of = |rules: Option<&HPAScalingRules>| {
        let own = rules.and_then(|rules| Quantity::parse(&rules.tolerance.as_ref()?.0).ok());
        own.map_or(everywhere, |tolerance| tolerance.as_f64())
    };
    let behavior = spec.behavior.as_ref();
    Tolerances {
        scale_down: of(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
        scale_up: of(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
