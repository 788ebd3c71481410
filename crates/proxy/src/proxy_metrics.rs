//! What the proxy counts, under upstream's names, and the port that shows it.
//! Counted by `run` and `proxy_health`.
//! One transaction writes both families, so both are counted alike.

use std::{net::SocketAddr, sync::LazyLock};

use env::Env;
use metrics::{Family, Metrics, http};

/// From a millisecond, each twice the one before.
const SYNC_BUCKETS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
/// Every second up to a minute, then more and more apart.
static PROGRAMMING_BUCKETS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let seconds = (1..60).map(f64::from);
    let minutes = (12..24).map(|n| f64::from(n * 5));
    let long = (4..11).map(|n| f64::from(n * 30));
    [0.25, 0.5].into_iter().chain(seconds).chain(minutes).chain(long).collect()
});
const FAMILY: &[&str] = &["ip_family"];

pub static SYNC_DURATION: Family = Family::histogram(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    FAMILY,
    SYNC_BUCKETS,
    "How long it took to write changed rules.",
);
pub static FULL_SYNC_DURATION: Family = Family::histogram(
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    FAMILY,
    SYNC_BUCKETS,
    "How long it took to write all rules.",
);
pub static PARTIAL_SYNC_DURATION: Family = Family::histogram(
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    FAMILY,
    SYNC_BUCKETS,
    "How long it took to write single changes of rules.",
);
pub static LAST_SYNC: Family = Family::gauge(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    FAMILY,
    "When rules were last written, in Unix time.",
);
pub static LAST_QUEUED: Family = Family::gauge(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    FAMILY,
    "When a change was last waiting, in Unix time.",
);
pub static PROGRAMMING: LazyLock<Family> = LazyLock::new(|| {
    Family::histogram(
        "kubeproxy_network_programming_duration_seconds",
        FAMILY,
        &PROGRAMMING_BUCKETS,
        "From the change of a pod or Service until the rules hold it.",
    )
});
pub static ENDPOINT_CHANGES: Family = Family::counter(
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    &[],
    "Changes of EndpointSlices that were heard of.",
);
pub static SERVICE_CHANGES: Family =
    Family::counter("kubeproxy_sync_proxy_rules_service_changes_total", &[], "Changes of Services that were heard of.");
pub static ENDPOINT_CHANGES_PENDING: Family = Family::gauge(
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    &[],
    "Services with changes that are not in the rules yet.",
);
pub static FAILURES: Family = Family::counter(
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    FAMILY,
    "Transactions that the kernel refused.",
);
pub static HEALTHZ: Family =
    Family::counter("kubeproxy_proxy_healthz_total", &["code"], "Answers of /healthz, by code.");
pub static LIVEZ: Family = Family::counter("kubeproxy_proxy_livez_total", &["code"], "Answers of /livez, by code.");

pub const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// Serves until it is dropped; a port in use is taken when it is free.
pub async fn serve(address: SocketAddr, metrics: Metrics, env: Env) {
    let refused = |error: &std::io::Error| {
        tracing::warn!(%address, %error, "failed to serve the proxy's metrics: choose another --proxy-metrics-port");
    };
    http::serve_metrics(&env, address, metrics, &[("/proxyMode", "nftables"), ("/healthz", "ok")], refused).await;
}
