//! How often trust was published and with what result: upstream's metrics of both publishers.
//! Used by `service_account/root_ca` and `certificates/trust_bundle_publisher`, each with its own names.
//! Namespaces and bundles never become labels.

use std::time::Duration;

use api::ApiError;
use metrics::{Family, Metrics};

/// From a millisecond, each twice the one before.
const BUCKETS_SECONDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

pub struct Families {
    syncs: Family,
    seconds: Family,
}

pub static ROOT_CA: Families = Families {
    syncs: Family::counter("root_ca_cert_publisher_sync_total", &["code"], "Namespaces that were looked at."),
    seconds: Family::histogram(
        "root_ca_cert_publisher_sync_duration_seconds",
        &["code"],
        BUCKETS_SECONDS,
        "How long it took to look at a namespace.",
    ),
};
pub static TRUST_BUNDLE: Families = Families {
    syncs: Family::counter("clustertrustbundle_publisher_sync_total", &["code"], "How often the bundle was looked at."),
    seconds: Family::histogram(
        "clustertrustbundle_publisher_sync_duration_seconds",
        &["code"],
        BUCKETS_SECONDS,
        "How long it took to look at the bundle.",
    ),
};

pub fn record<T>(metrics: &Metrics, families: &'static Families, result: &Result<T, ApiError>, took: Duration) {
    let code = result.as_ref().map_or_else(|error| error.code, |_| 200).to_string();
    metrics.count(&families.syncs, &[&code]);
    metrics.observe(&families.seconds, &[&code], took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let check = |result: Result<(), ApiError>, code: &str| {
            let metrics = Metrics::default();
            record(&metrics, &ROOT_CA, &result, Duration::from_millis(3));
            for name in ["sync_total", "sync_duration_seconds_count"] {
                let line = format!("root_ca_cert_publisher_{name}{{code=\"{code}\"}} 1");
                assert!(metrics.page().contains(&line), "{line}\n{}", metrics.page());
            }
        };
        check(Ok(()), "200");
        check(Err(ApiError::internal("no")), "500");
        check(Err(ApiError::not_found("", "configmaps", "a")), "404");
    }
}
