//! What the node counts of pods, their images and volumes beside how long they take (`node_metrics`), under upstream's
//! names: one row per family.
//! Counted where things happen; shown by `stats` at `/metrics`.
//! Only names and shapes, and the zeros that a node begins with.

use metrics::{DEFAULT_BUCKETS, Family, Kind, Metrics};

use super::node_metrics::{GRACEFUL_SHUTDOWN_END, GRACEFUL_SHUTDOWN_START, STARTED_PODS, STARTED_PODS_ERRORS};

pub static CONTAINERS_PER_POD: Family = Family::histogram(
    "kubelet_containers_per_pod_count",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
    "How many containers pods have.",
);
pub static POD_WORKER_START_DURATION: Family = Family::histogram(
    "kubelet_pod_worker_start_duration_seconds",
    &[],
    DEFAULT_BUCKETS,
    "From the moment the node heard of a pod until it began to work on it.",
);
pub static WORKING_PODS: Family = Family::gauge(
    "kubelet_working_pods",
    &["lifecycle", "config", "static"],
    "Pods that the node works on: how far they are, and whether a source still has them.",
);
pub static RESTARTED_PODS: Family = Family::counter(
    "kubelet_restarted_pods_total",
    &["static"],
    "Pods that were removed and came back with the same UID while the node still had them.",
);
pub static ORPHANED_RUNTIME_PODS: Family = Family::counter(
    "kubelet_orphaned_runtime_pods_total",
    &[],
    "Pods that the runtime had and no source and no worker knew.",
);
pub static EPHEMERAL_CONTAINERS: Family =
    Family::gauge("kubelet_managed_ephemeral_containers", &[], "Ephemeral containers of the node's pods.");
pub static USER_NAMESPACED_PODS: Family = Family::counter(
    "kubelet_started_user_namespaced_pods_total",
    &[],
    "Pods with users of their own whose start was begun.",
);
pub static USER_NAMESPACED_PODS_ERRORS: Family = Family::counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    &[],
    "Pods with users of their own that could not be started.",
);
pub static FIRST_NETWORK_POD_START: Family = Family::gauge(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    &[],
    "How long the first pod with a network of its own took to start, without image pulls and init containers.",
);
pub static HOOK_HTTP_FALLBACKS: Family = Family::counter(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    &[],
    "Hooks that were to be HTTPS and succeeded over HTTP.",
);
pub static SLEEPS_CUT_SHORT: Family = Family::counter(
    "kubelet_sleep_action_terminated_early_total",
    &[],
    "Hooks that sleep and were given up before they were done.",
);
pub static DISCARDED_EVENTS: Family =
    Family::counter("kubelet_pleg_discard_events", &[], "Pod lifecycle events that were dropped; here none ever is.");
pub static EVICTION_STATS_AGE: Family = Family::histogram(
    "kubelet_eviction_stats_age_seconds",
    &["eviction_signal"],
    DEFAULT_BUCKETS,
    "How old the figures were by which a pod was evicted.",
);
pub static ORPHAN_POD_VOLUMES: Family = Family::gauge(
    "kubelet_orphan_pod_cleaned_volumes",
    &[],
    "Pods that nobody knows whose volumes the last clean-up removed.",
);
pub static ORPHAN_POD_VOLUMES_ERRORS: Family = Family::gauge(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    &[],
    "Pods that nobody knows whose volumes the last clean-up could not remove.",
);

// Images.
pub static IMAGES_COLLECTED: Family =
    Family::counter("kubelet_image_garbage_collected_total", &["reason"], "Images removed for space or for their age.");
pub static ENSURED_IMAGES: Family = Family::counter(
    "kubelet_image_manager_ensure_image_requests_total",
    &["pull_policy", "present_locally", "pull_required"],
    "Images that were asked for, and whether they were there and had to be pulled.",
);
pub static IMAGE_VOLUMES: Family =
    Family::counter("kubelet_image_volume_requested_total", &[], "Images that containers asked for as volumes.");
pub static IMAGE_VOLUMES_MOUNTED: Family = Family::counter(
    "kubelet_image_volume_mounted_succeed_total",
    &[],
    "Images that were mounted into containers as volumes.",
);
pub static IMAGE_VOLUMES_ERRORS: Family = Family::counter(
    "kubelet_image_volume_mounted_errors_total",
    &[],
    "Images that could not be mounted into containers as volumes.",
);

/// Those without labels are there from the beginning, so that nobody takes a count that has not begun for one that is
/// not kept.
static FROM_THE_BEGINNING: &[&Family] = &[
    &DISCARDED_EVENTS,
    &FIRST_NETWORK_POD_START,
    &GRACEFUL_SHUTDOWN_END,
    &GRACEFUL_SHUTDOWN_START,
    &HOOK_HTTP_FALLBACKS,
    &IMAGE_VOLUMES,
    &IMAGE_VOLUMES_ERRORS,
    &IMAGE_VOLUMES_MOUNTED,
    &ORPHANED_RUNTIME_PODS,
    &ORPHAN_POD_VOLUMES,
    &ORPHAN_POD_VOLUMES_ERRORS,
    &SLEEPS_CUT_SHORT,
    &STARTED_PODS,
    &STARTED_PODS_ERRORS,
    &USER_NAMESPACED_PODS,
    &USER_NAMESPACED_PODS_ERRORS,
];

pub fn begin(metrics: &Metrics) {
    for family in FROM_THE_BEGINNING {
        debug_assert!(!matches!(family.kind, Kind::Histogram(_)), "{}", family.name);
        metrics.add(family, &[], 0.0);
    }
    for fixed in ["", "true"] {
        metrics.add(&RESTARTED_PODS, &[fixed], 0.0);
    }
    // A pod that only the runtime knows is removed without a worker.
    let kinds = [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), ("runtime_only", "unknown")];
    for (config, fixed) in kinds {
        for lifecycle in ["sync", "terminating", "terminated"] {
            metrics.add(&WORKING_PODS, &[lifecycle, config, fixed], 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_counted_is_zero() {
        let metrics = Metrics::default();
        begin(&metrics);
        let page = metrics.page();
        for line in [
            "kubelet_started_pods_errors_total 0",
            "kubelet_orphaned_runtime_pods_total 0",
            "kubelet_image_volume_requested_total 0",
            "kubelet_restarted_pods_total{static=\"true\"} 0",
            "kubelet_working_pods{lifecycle=\"terminated\",config=\"orphan\",static=\"\"} 0",
            "kubelet_working_pods{lifecycle=\"sync\",config=\"runtime_only\",static=\"unknown\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
