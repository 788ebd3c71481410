//! What the enforcement of NetworkPolicy counts; shown beside the service proxy's.
//! Counted by `run`.

use metrics::Family;

/// From a millisecond, each twice the one before.
const SYNC_BUCKETS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

pub static SYNC_DURATION: Family = Family::histogram(
    "network_policy_sync_rules_duration_seconds",
    &["kind"],
    SYNC_BUCKETS,
    "How long it took to compute and write rules: full, incremental, or elements alone.",
);
pub static FAILURES: Family =
    Family::counter("network_policy_sync_failures_total", &[], "Transactions that the kernel refused.");
pub static REPAIRS: Family =
    Family::counter("network_policy_repairs_total", &[], "How often somebody else had deleted from the rules.");
pub static POLICIES: Family = Family::gauge("network_policy_policies", &[], "NetworkPolicies in the cluster.");
pub static ISOLATED: Family = Family::gauge(
    "network_policy_isolated_addresses",
    &[],
    "Addresses of this node's pods that policies isolate, once for each direction.",
);
