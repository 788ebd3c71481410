//! What the scheduler counts, under upstream's names.
//! Counted by `scheduler`; shown at a component's `/metrics`.
//! Pods and nodes never become labels.

use env::Env;
use metrics::{Family, Metrics};

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
pub static ALGORITHM: Family = Family::histogram(
    "scheduler_scheduling_algorithm_duration_seconds",
    &[],
    ATTEMPT_BUCKETS_SECONDS,
    "How long it took to find a node.",
);
/// From a tenth of a millisecond, each twice the one before.
const FINE_BUCKETS_SECONDS: &[f64] =
    &[0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];
static EXTENSION_POINT: Family = Family::histogram(
    "scheduler_framework_extension_point_duration_seconds",
    &["extension_point", "status", "profile"],
    FINE_BUCKETS_SECONDS,
    "How long the plugins of an extension point took.",
);
pub static EVENT_HANDLING: Family = Family::histogram(
    "scheduler_event_handling_duration_seconds",
    &["event"],
    FINE_BUCKETS_SECONDS,
    "How long it took to find the pods that a change may help.",
);
pub static CACHE_SIZE: Family = Family::gauge(
    "scheduler_cache_size",
    &["type"],
    "Nodes, pods and pods that are on their way to a node, as far as the scheduler knows.",
);
pub static UNSCHEDULABLE: Family = Family::gauge(
    "scheduler_unschedulable_pods",
    &["plugin", "profile"],
    "Pods that a plugin turned down and that have not been tried since.",
);
pub static GOROUTINES: Family =
    Family::gauge("scheduler_goroutines", &["operation"], "Tasks that are running, by what they do.");
pub static PERMIT_WAIT: Family = Family::histogram(
    "scheduler_permit_wait_duration_seconds",
    &["result"],
    ATTEMPT_BUCKETS_SECONDS,
    "How long pods were held back at Permit.",
);
pub static PREEMPTION_TASKS: Family = Family::counter(
    "scheduler_preemption_goroutines_execution_total",
    &["result"],
    "Tasks that sent pods away for another.",
);
pub static PREEMPTION_TASK_SECONDS: Family = Family::histogram(
    "scheduler_preemption_goroutines_duration_seconds",
    &["result"],
    SLI_BUCKETS_SECONDS,
    "How long it took to send pods away for another.",
);
pub static BATCH_ATTEMPTS: Family = Family::counter(
    "scheduler_batch_attempts_total",
    &["profile", "result"],
    "Pods, by whether what was known of others of their kind could be used.",
);
pub static NODE_HINT_SECONDS: Family = Family::histogram(
    "scheduler_get_node_hint_duration_seconds",
    &["hinted", "profile"],
    &[0.00001, 0.00002, 0.00004, 0.00008, 0.00016, 0.00032, 0.00064, 0.00128, 0.00256, 0.00512, 0.01024, 0.02048],
    "How long it took to use what was known of others of the same kind.",
);

/// Measures what the plugins of one profile do at an extension point.
#[derive(Clone, Copy)]
pub struct PointTimer<'a> {
    pub metrics: &'a Metrics,
    pub env: &'a Env,
    pub profile: &'a str,
}

impl PointTimer<'_> {
    pub fn run<T>(
        &self,
        extension_point: &'static str,
        work: impl FnOnce() -> T,
        status: impl FnOnce(&T) -> &'static str,
    ) -> T {
        let began = self.env.monotonic();
        let result = work();
        self.observe(extension_point, status(&result), began);
        result
    }

    /// What began then has ended.
    pub fn observe(&self, extension_point: &'static str, status: &'static str, began: std::time::Duration) {
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.observe(&EXTENSION_POINT, &[extension_point, status, self.profile], took);
    }
}

/// The status of what always succeeds.
pub fn success<T>(_: &T) -> &'static str {
    "Success"
}
