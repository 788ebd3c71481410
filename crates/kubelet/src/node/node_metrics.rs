//! What the node counts, under upstream's names: one row per family.
//! Counted where things happen; shown by `stats` at `/metrics`, the probes' at `/metrics/probes`.
//! Only names and shapes; nothing is counted here.

use metrics::{DEFAULT_BUCKETS, Family};

/// 0.005 s, each 2.5 times the one before.
const RUNTIME_BUCKETS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const START_BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULL_BUCKETS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const STATUS_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const RESIZE_BUCKETS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 30000.0, 60000.0, 120000.0, 300000.0, 600000.0,
];
const STORAGE_BUCKETS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

const OPERATION: &[&str] = &["operation_type"];
const REQUEST: &[&str] = &["method", "path", "server_type", "long_running"];
const CLAIM: &[&str] = &["namespace", "persistentvolumeclaim"];

pub static FEATURE_ENABLED: Family = Family::gauge(
    "kubernetes_feature_enabled",
    &["name", "stage"],
    "This metric records the data about the stage and enablement of a k8s feature.",
);

// What the runtime was asked.
pub static RUNTIME_OPERATIONS: Family =
    Family::counter("kubelet_runtime_operations_total", OPERATION, "Calls of the container runtime, by operation.");
pub static RUNTIME_DURATION: Family = Family::histogram(
    "kubelet_runtime_operations_duration_seconds",
    OPERATION,
    RUNTIME_BUCKETS,
    "How long calls of the container runtime took, by operation.",
);
pub static RUNTIME_ERRORS: Family = Family::counter(
    "kubelet_runtime_operations_errors_total",
    OPERATION,
    "Calls of the container runtime that failed, by operation.",
);
pub static SANDBOX_DURATION: Family = Family::histogram(
    "kubelet_run_podsandbox_duration_seconds",
    &["runtime_handler"],
    DEFAULT_BUCKETS,
    "How long sandboxes took to start, by runtime handler.",
);
pub static SANDBOX_ERRORS: Family = Family::counter(
    "kubelet_run_podsandbox_errors_total",
    &["runtime_handler"],
    "Sandboxes that could not be started, by runtime handler.",
);
pub static RELIST_DURATION: Family = Family::histogram(
    "kubelet_pleg_relist_duration_seconds",
    &[],
    DEFAULT_BUCKETS,
    "How long it took to list everything in the runtime.",
);
pub static RELIST_INTERVAL: Family = Family::histogram(
    "kubelet_pleg_relist_interval_seconds",
    &[],
    DEFAULT_BUCKETS,
    "Time between two lists of everything in the runtime.",
);
pub static RELIST_SEEN: Family =
    Family::gauge("kubelet_pleg_last_seen_seconds", &[], "When the runtime last answered a list, in Unix time.");

// Pods.
pub static POD_WORKER_DURATION: Family = Family::histogram(
    "kubelet_pod_worker_duration_seconds",
    OPERATION,
    DEFAULT_BUCKETS,
    "How long one round of work on a pod took: create, sync, kill or terminated.",
);
pub static POD_START_DURATION: Family = Family::histogram(
    "kubelet_pod_start_duration_seconds",
    &[],
    START_BUCKETS,
    "From the moment the node heard of a pod until it was Running.",
);
pub static POD_START_SLI_DURATION: Family = Family::histogram(
    "kubelet_pod_start_sli_duration_seconds",
    &[],
    START_BUCKETS,
    "From a pod's creation until all its containers ran, without image pulls and init containers.",
);
pub static POD_START_TOTAL_DURATION: Family = Family::histogram(
    "kubelet_pod_start_total_duration_seconds",
    &[],
    START_BUCKETS,
    "From a pod's creation until it was Running, image pulls included.",
);
pub static STATUS_DURATION: Family = Family::histogram(
    "kubelet_pod_status_sync_duration_seconds",
    &[],
    STATUS_BUCKETS,
    "How long it took to report a pod's status.",
);
pub static STARTED_PODS: Family = Family::counter("kubelet_started_pods_total", &[], "Pods whose start was begun.");
pub static STARTED_PODS_ERRORS: Family =
    Family::counter("kubelet_started_pods_errors_total", &[], "Pods that could not be started.");
pub static STARTED_CONTAINERS: Family =
    Family::counter("kubelet_started_containers_total", &["container_type"], "Containers whose start was begun.");
pub static STARTED_CONTAINERS_ERRORS: Family = Family::counter(
    "kubelet_started_containers_errors_total",
    &["container_type", "code"],
    "Containers that could not be started, by reason.",
);
pub static ADMISSION_REJECTIONS: Family =
    Family::counter("kubelet_admission_rejections_total", &["reason"], "Pods that the node refused, by reason.");
pub static GRACEFUL_SHUTDOWN_START: Family = Family::gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    &[],
    "When the last graceful shutdown began, in Unix time.",
);
pub static GRACEFUL_SHUTDOWN_END: Family = Family::gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    &[],
    "When the last graceful shutdown ended, in Unix time.",
);
pub static PREEMPTIONS: Family = Family::counter(
    "kubelet_preemptions",
    &["preemption_signal"],
    "Pods that were ended to make room for a critical one, by what was missing.",
);
pub static EVICTIONS: Family =
    Family::counter("kubelet_evictions", &["eviction_signal"], "Pods that were evicted, by what was short.");
pub static IMAGE_PULL_DURATION: Family = Family::histogram(
    "kubelet_image_pull_duration_seconds",
    &["image_size_in_bytes"],
    PULL_BUCKETS,
    "How long images took to pull, by their size.",
);
pub static CREDENTIAL_PROVIDER_DURATION: Family = Family::histogram(
    "kubelet_credential_provider_plugin_duration",
    &["plugin_name"],
    DEFAULT_BUCKETS,
    "How long image credential providers took to answer.",
);
pub static CREDENTIAL_PROVIDER_ERRORS: Family = Family::counter(
    "kubelet_credential_provider_plugin_errors_total",
    &["plugin_name"],
    "Times that an image credential provider gave no valid answer.",
);
pub static CGROUP_DURATION: Family = Family::histogram(
    "kubelet_cgroup_manager_duration_seconds",
    OPERATION,
    DEFAULT_BUCKETS,
    "How long it took to make or remove a pod's control group.",
);
pub static CSI_OPERATION_DURATION: Family = Family::histogram(
    "csi_operations_seconds",
    &["driver_name", "method_name", "grpc_status_code", "migrated"],
    STORAGE_BUCKETS,
    "How long calls of CSI drivers took.",
);
pub static STORAGE_DURATION: Family = Family::histogram(
    "storage_operation_duration_seconds",
    &["volume_plugin", "operation_name", "status", "migrated"],
    STORAGE_BUCKETS,
    "How long work on a volume took.",
);

// In-place resizes.
pub static REQUESTED_RESIZES: Family = Family::counter(
    "kubelet_container_requested_resizes_total",
    &["resource", "requirement", "operation"],
    "Changes of what containers ask for, each resource on its own: add, remove, increase or decrease.",
);
pub static RESIZE_DURATION: Family = Family::histogram(
    "kubelet_pod_resize_duration_milliseconds",
    &["success"],
    RESIZE_BUCKETS,
    "How long it took to put a pod's resize into effect, in milliseconds.",
);
pub static CRI_LOSING_SUPPORT: Family = Family::gauge(
    "kubelet_cri_losing_support",
    &["version"],
    "The version of Kubernetes from which this runtime is too old.",
);
pub static INFEASIBLE_RESIZES: Family = Family::counter(
    "kubelet_pod_infeasible_resizes_total",
    &["reason_detail"],
    "Resizes that this node can never grant, by reason.",
);
pub static DEFERRED_ACCEPTED_RESIZES: Family = Family::counter(
    "kubelet_pod_deferred_accepted_resizes_total",
    &["retry_trigger"],
    "Resizes that were granted after they had waited, by what made the node look again.",
);

// The node's own server.
pub static HTTP_REQUESTS: Family =
    Family::counter("kubelet_http_requests_total", REQUEST, "Requests to the node's server.");
pub static HTTP_DURATION: Family = Family::histogram(
    "kubelet_http_requests_duration_seconds",
    REQUEST,
    DEFAULT_BUCKETS,
    "How long requests to the node's server took.",
);
pub static HTTP_INFLIGHT: Family =
    Family::gauge("kubelet_http_inflight_requests", REQUEST, "Requests to the node's server that are being answered.");

// Seen when somebody asks.
pub static NODE_NAME: Family = Family::gauge("kubelet_node_name", &["node"], "The node's name; always 1.");
pub static RUNNING_PODS: Family = Family::gauge("kubelet_running_pods", &[], "Pods that have a running sandbox.");
pub static RUNNING_CONTAINERS: Family =
    Family::gauge("kubelet_running_containers", &["container_state"], "Containers in the runtime, by state.");
pub static DESIRED_PODS: Family =
    Family::gauge("kubelet_desired_pods", &["static"], "Pods that the node is told to run.");
pub static ACTIVE_PODS: Family =
    Family::gauge("kubelet_active_pods", &["static"], "Pods that the node has and that have not ended.");
pub static PENDING_RESIZES: Family =
    Family::gauge("kubelet_pod_pending_resizes", &["reason"], "Pods whose resize is not granted, by reason.");
pub static IN_PROGRESS_RESIZES: Family =
    Family::gauge("kubelet_pod_in_progress_resizes", &[], "Pods whose resize is granted and not yet in effect.");
pub static MIRROR_PODS: Family = Family::gauge("kubelet_mirror_pods", &[], "Mirrors of static pods.");
pub static CGROUP_VERSION: Family = Family::gauge("kubelet_cgroup_version", &[], "The version of control groups.");
pub static VOLUMES: Family =
    Family::gauge("volume_manager_total_volumes", &["plugin_name", "state"], "Volumes wanted and set up, by kind.");
pub static VOLUME_CAPACITY: Family =
    Family::gauge("kubelet_volume_stats_capacity_bytes", CLAIM, "Size of a claim's volume in bytes.");
pub static VOLUME_AVAILABLE: Family =
    Family::gauge("kubelet_volume_stats_available_bytes", CLAIM, "Free bytes of a claim's volume.");
pub static VOLUME_USED: Family =
    Family::gauge("kubelet_volume_stats_used_bytes", CLAIM, "Used bytes of a claim's volume.");
pub static VOLUME_INODES: Family = Family::gauge("kubelet_volume_stats_inodes", CLAIM, "Inodes of a claim's volume.");
pub static VOLUME_INODES_FREE: Family =
    Family::gauge("kubelet_volume_stats_inodes_free", CLAIM, "Free inodes of a claim's volume.");
pub static VOLUME_INODES_USED: Family =
    Family::gauge("kubelet_volume_stats_inodes_used", CLAIM, "Used inodes of a claim's volume.");
pub static VOLUME_ABNORMAL: Family = Family::gauge(
    "kubelet_volume_stats_health_status_abnormal",
    CLAIM,
    "1 where a claim's driver says that something is wrong with its volume, 0 where it says that nothing is.",
);

// Probes, on a page of their own.
pub static PROBES: Family = Family::counter(
    "prober_probe_total",
    &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
    "Probes of containers, by result.",
);
pub static PROBE_DURATION: Family = Family::histogram(
    "prober_probe_duration_seconds",
    &["probe_type", "container", "pod", "namespace"],
    DEFAULT_BUCKETS,
    "How long probes took.",
);

/// The label that upstream gives an image of this size.
pub fn image_size(bytes: u64) -> &'static str {
    const MEGABYTE: u64 = 1024 * 1024;
    const GIGABYTE: u64 = 1024 * MEGABYTE;
    match bytes {
        b if b < 10 * MEGABYTE => "0-10MB",
        b if b < 100 * MEGABYTE => "10MB-100MB",
        b if b < 500 * MEGABYTE => "100MB-500MB",
        b if b < GIGABYTE => "500MB-1GB",
        b if b < 5 * GIGABYTE => "1GB-5GB",
        b if b < 10 * GIGABYTE => "5GB-10GB",
        b if b < 20 * GIGABYTE => "10GB-20GB",
        b if b < 30 * GIGABYTE => "20GB-30GB",
        b if b < 40 * GIGABYTE => "30GB-40GB",
        b if b < 60 * GIGABYTE => "40GB-60GB",
        b if b < 100 * GIGABYTE => "60GB-100GB",
        _ => "GT100GB",
    }
}
