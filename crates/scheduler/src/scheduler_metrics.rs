//! What the scheduler counts, under upstream's names.
//! Counted by `scheduler`; shown at a component's `/metrics`.
//! Invariant: pods and nodes never become labels.

use metrics::Family;

/// From a millisecond, each twice the one before.
const ATTEMPT: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

pub static PENDING: Family =
    Family::gauge("scheduler_pending_pods", &["queue"], "Pods that wait, by the part of the queue they are in.");
pub static ATTEMPTS: Family = Family::counter(
    "scheduler_schedule_attempts_total",
    &["result", "profile"],
    "Attempts to schedule pods, by what came of them.",
);
pub static DURATION: Family = Family::histogram(
    "scheduler_scheduling_attempt_duration_seconds",
    &["result", "profile"],
    ATTEMPT,
    "How long attempts took, with their binding.",
);
pub static TRIES: Family = Family::histogram(
    "scheduler_pod_scheduling_attempts",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
    "How many attempts pods took that were scheduled.",
);
pub static PREEMPTIONS: Family =
    Family::counter("scheduler_preemption_attempts_total", &[], "Times that pods were to go for another.");
pub static VICTIMS: Family = Family::histogram(
    "scheduler_preemption_victims",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
    "How many pods had to go for another.",
);
