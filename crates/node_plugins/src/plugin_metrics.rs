//! What the node counts about plugins, under upstream's names: one row per family.
//! Counted by `devices`, `dra` and `pod_resources`; shown by the kubelet at `/metrics`.
//! Only names and shapes; nothing is counted here.

use metrics::{DEFAULT_BUCKETS, Family};

const RESOURCE: &[&str] = &["resource_name"];
const API_VERSION: &[&str] = &["server_api_version"];

pub static DEVICE_PLUGIN_REGISTRATIONS: Family = Family::counter(
    "kubelet_device_plugin_registration_total",
    RESOURCE,
    "Registrations of device plugins, by resource name.",
);
pub static DEVICE_PLUGIN_ALLOC_DURATION: Family = Family::histogram(
    "kubelet_device_plugin_alloc_duration_seconds",
    RESOURCE,
    DEFAULT_BUCKETS,
    "How long device plugins took to allocate, by resource name.",
);
pub static POD_RESOURCES_REQUESTS_TOTAL: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_total",
    API_VERSION,
    "Calls of the PodResources API, by its version.",
);
pub static POD_RESOURCES_REQUESTS_LIST: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_list",
    API_VERSION,
    "Calls of List of the PodResources API, by its version.",
);
pub static POD_RESOURCES_REQUESTS_GET_ALLOCATABLE: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    API_VERSION,
    "Calls of GetAllocatableResources of the PodResources API, by its version.",
);
pub static POD_RESOURCES_REQUESTS_GET: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_get",
    API_VERSION,
    "Calls of Get of the PodResources API, by its version.",
);
pub static POD_RESOURCES_ERRORS_GET: Family = Family::counter(
    "kubelet_pod_resources_endpoint_errors_get",
    API_VERSION,
    "Calls of Get of the PodResources API that failed, by its version.",
);

/// From 0.1 s to 40 s, each 1.53 times the one before.
const DRA_BUCKETS: &[f64] = &[
    0.1, 0.153413, 0.235355, 0.361064, 0.553918, 0.849781, 1.303673, 2.0, 3.068255, 4.707094, 7.221282, 11.078366,
    16.995625, 26.073454, 40.0,
];
pub static DRA_OPERATIONS_DURATION: Family = Family::histogram(
    "dra_operations_duration_seconds",
    &["operation_name", "is_error"],
    DRA_BUCKETS,
    "How long it took to prepare or unprepare all claims of a pod, by operation and whether it failed.",
);
pub static DRA_GRPC_OPERATIONS_DURATION: Family = Family::histogram(
    "dra_grpc_operations_duration_seconds",
    &["driver_name", "method_name", "grpc_status_code"],
    DRA_BUCKETS,
    "How long calls of DRA drivers took, by driver, method and code of the answer.",
);
pub static DRA_CLAIMS_IN_USE: Family = Family::gauge(
    "dra_resource_claims_in_use",
    &["driver_name"],
    "ResourceClaims that are in use on the node, by driver and in all (<any>).",
);
