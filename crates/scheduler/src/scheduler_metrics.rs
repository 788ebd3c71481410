//! What the scheduler counts, under upstream's names.
//! Counted by `scheduler`; shown at a component's `/metrics`.
//! Pods and nodes never become labels.

use metrics::Family;

/// From a millisecond, each twice the one before.
const ATTEMPT_BUCKETS_SECONDS: &[f64] =
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
    ATTEMPT_BUCKETS_SECONDS,
    "How long attempts took, with their binding.",
);
pub static TRIES: Family = Family::histogram(
    "scheduler_pod_scheduling_attempts",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
    "How many attempts pods took that were scheduled.",
);
/// From ten milliseconds, each twice the one before.
const SLI_BUCKETS_SECONDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
    1310.72, 2621.44, 5242.88,
];
pub static SLI: Family = Family::histogram(
    "scheduler_pod_scheduling_sli_duration_seconds",
    &["attempts"],
    SLI_BUCKETS_SECONDS,
    "How long it took from when pods could first be tried until they were bound, by their number of attempts.",
);
pub static INCOMING: Family = Family::counter(
    "scheduler_queue_incoming_pods_total",
    &["queue", "event"],
    "Pods that came into a part of the queue, by what brought them there.",
);
pub static PREEMPTIONS: Family =
    Family::counter("scheduler_preemption_attempts_total", &[], "Times that pods were to go for another.");
pub static VICTIMS: Family = Family::histogram(
    "scheduler_preemption_victims",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
    "How many pods had to go for another.",
);
