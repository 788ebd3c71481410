//! Counts and times one request to the node's server.
//! Part of `server`.
//! Labels come from a bounded set: names of pods and of unknown paths never become labels.

use std::time::Duration;

use env::Env;
use http::Method;
use metrics::Metrics;

use crate::node::node_metrics::{HTTP_DURATION, HTTP_INFLIGHT, HTTP_REQUESTS};

#[rustfmt::skip]
const PATHS: [&str; 14] = [
    "attach", "configz", "containerLogs", "debug", "exec", "healthz", "logs", "metrics", "pods", "portForward", "run",
    "runningpods", "stats", "withdrawn",
];
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "portForward"];

/// What a request is counted under: the first part of its path, the second too for pages of metrics.
fn label(path: &str) -> &'static str {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("metrics", Some("cadvisor")) => "metrics/cadvisor",
        ("metrics", Some("resource")) => "metrics/resource",
        ("metrics", Some("probes")) => "metrics/probes",
        ("metrics", Some("slis")) => "other",
        _ => PATHS.into_iter().find(|known| *known == first).unwrap_or("other"),
    }
}

/// A request under way; counted when it is dropped.
pub struct RequestMetrics {
    metrics: Metrics,
    env: Env,
    labels: [&'static str; 4],
    began: Duration,
}

impl RequestMetrics {
    pub fn begin(metrics: &Metrics, env: &Env, method: &Method, path: &str, server_type: &'static str) -> Self {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let path = label(path);
        let long_running = if LONG_RUNNING.contains(&path) { "true" } else { "false" };
        let labels = [method, path, server_type, long_running];
        metrics.count(&HTTP_REQUESTS, &labels);
        metrics.add(&HTTP_INFLIGHT, &labels, 1.0);
        Self { metrics: metrics.clone(), env: env.clone(), labels, began: env.monotonic() }
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let took = self.env.monotonic().saturating_sub(self.began).as_secs_f64();
        self.metrics.add(&HTTP_INFLIGHT, &self.labels, -1.0);
        self.metrics.observe(&HTTP_DURATION, &self.labels, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let check = |path, expected| assert_eq!(label(path), expected);
        check("/exec/default/web/main", "exec");
        check("/metrics", "metrics");
        check("/metrics/cadvisor", "metrics/cadvisor");
        check("/metrics/nonsense", "metrics");
        check("/whatever/else", "other");
        check("/", "other");
    }
}
