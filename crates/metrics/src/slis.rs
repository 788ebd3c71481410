//! How a component's health checks went, for `/metrics/slis`.
//! Used by whoever serves `/healthz` and its like.

use crate::{Family, Metrics};

static HEALTHCHECK: Family = Family::gauge(
    "kubernetes_healthcheck",
    &["name", "type"],
    "The result of a health check: 1 when it passed the last time.",
);
static HEALTHCHECKS: Family =
    Family::counter("kubernetes_healthchecks_total", &["name", "status", "type"], "Health checks, by their results.");

/// `endpoint` is where it was asked for: `healthz`, `livez` or `readyz`.
pub fn observe(metrics: &Metrics, name: &str, endpoint: &str, passed: bool) {
    metrics.set(&HEALTHCHECK, &[name, endpoint], f64::from(u8::from(passed)));
    metrics.count(&HEALTHCHECKS, &[name, if passed { "success" } else { "error" }, endpoint]);
}
