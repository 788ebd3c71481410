//! How full the cluster's ranges of pod addresses are, under upstream's names.
//! Told by `ipam`; shown at the controller manager's `/metrics`.
//! Parts are never named, only counted.

use metrics::{Family, Metrics};

const RANGE: &[&str] = &["clusterCIDR"];
static ALLOCATIONS: Family = Family::counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    RANGE,
    "Parts of a range that nodes were given or already had.",
);
static RELEASES: Family = Family::counter(
    "node_ipam_controller_cidrset_cidrs_releases_total",
    RANGE,
    "Parts of a range that became free again.",
);
/// The name is upstream's, letters and all.
static CAPACITY: Family =
    Family::gauge("node_ipam_controller_cirdset_max_cidrs", RANGE, "Parts that a range has for nodes.");
static USAGE: Family =
    Family::gauge("node_ipam_controller_cidrset_usage_cidrs", RANGE, "How much of a range is taken, from 0 to 1.");
static TRIES: Family = Family::histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    RANGE,
    &[1.0, 5.0, 25.0, 125.0, 625.0],
    "Parts that were found taken before a free one.",
);

pub fn show(metrics: &Metrics, range: &str, used: usize, all: u128) {
    metrics.set(&CAPACITY, &[range], all as f64);
    metrics.set(&USAGE, &[range], used as f64 / all.max(1) as f64);
}

pub fn allocated(metrics: &Metrics, range: &str, parts: usize) {
    metrics.add(&ALLOCATIONS, &[range], parts as f64);
}

pub fn tried(metrics: &Metrics, range: &str, in_vain: u128) {
    metrics.observe(&TRIES, &[range], in_vain as f64);
}

pub fn released(metrics: &Metrics, range: &str, parts: usize) {
    metrics.add(&RELEASES, &[range], parts as f64);
}
