//! What the autoscaler counts, under upstream's names.
//! Told by `mod`; shown at the controller manager's `/metrics`.
//! A series of an autoscaler goes with it.

use std::time::Duration;

use metrics::{Family, Metrics};

use super::plan::Plan;

/// From a millisecond, each twice the one before.
const BUCKETS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

static RECONCILIATIONS: Family = Family::counter(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    &["action", "error"],
    "How often autoscalers were looked at.",
);
static RECONCILIATION_SECONDS: Family = Family::histogram(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    &["action", "error"],
    BUCKETS,
    "How long that took.",
);
static COMPUTATIONS: Family = Family::counter(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    &["action", "error", "metric_type"],
    "How often a metric was evaluated.",
);
static COMPUTATION_SECONDS: Family = Family::histogram(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    &["action", "error", "metric_type"],
    BUCKETS,
    "How long it took to get a metric.",
);
static AUTOSCALERS: Family = Family::gauge(
    "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
    &[],
    "HorizontalPodAutoscalers there are.",
);
static DESIRED: Family = Family::gauge(
    "horizontal_pod_autoscaler_controller_desired_replicas",
    &["namespace", "hpa_name"],
    "Replicas an autoscaler wants.",
);

fn action(from: i32, to: i32) -> &'static str {
    match to.cmp(&from) {
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => "none",
        std::cmp::Ordering::Greater => "scale_up",
    }
}

pub fn count_autoscalers(metrics: &Metrics, count: usize) {
    metrics.set(&AUTOSCALERS, &[], count as f64);
}

pub fn observe(metrics: &Metrics, namespace: &str, name: &str, plan: &Plan, computed: &[Duration], took: Duration) {
    let current = plan.status.current_replicas.unwrap_or_default();
    for (outcome, seconds) in plan.outcomes.iter().zip(computed.iter().map(Duration::as_secs_f64)) {
        let (action, error) = match outcome.proposed {
            Some(proposed) => (action(current, proposed), "none"),
            None if outcome.is_spec_error => ("none", "spec"),
            None => ("none", "internal"),
        };
        metrics.count(&COMPUTATIONS, &[action, error, &outcome.metric_type]);
        metrics.observe(&COMPUTATION_SECONDS, &[action, error, &outcome.metric_type], seconds);
    }
    let action = plan.rescale.as_ref().map_or("none", |rescale| action(rescale.from, rescale.to));
    let error = match &plan.failure {
        None => "none",
        Some(failure) if failure.is_spec => "spec",
        Some(_) => "internal",
    };
    metrics.count(&RECONCILIATIONS, &[action, error]);
    metrics.observe(&RECONCILIATION_SECONDS, &[action, error], took.as_secs_f64());
    if plan.status.current_replicas.is_some() {
        metrics.set(&DESIRED, &[namespace, name], f64::from(plan.status.desired_replicas));
    }
}

pub fn forget(metrics: &Metrics, namespace: &str, name: &str) {
    metrics.retain(&DESIRED, |labels| *labels[0] != *namespace || *labels[1] != *name);
}
