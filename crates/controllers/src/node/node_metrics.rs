//! How many nodes of each zone are in trouble, and how many were given up: upstream's metrics.
//! Told by `lifecycle`, counted by `zones`; shown at the controller manager's `/metrics`.
//! A zone whose last node has gone stays, as healthy and empty.

use std::time::Duration;

use metrics::{Family, Metrics};

use super::zones::ZoneFigures;

static HEALTH: Family =
    Family::gauge("node_collector_zone_health", &["zone"], "Part of each zone's nodes that are ready, in percent.");
static SIZE: Family = Family::gauge("node_collector_zone_size", &["zone"], "Nodes of each zone.");
static UNHEALTHY: Family =
    Family::gauge("node_collector_unhealthy_nodes_in_zone", &["zone"], "Nodes of each zone that are not ready.");
static EVICTIONS: Family =
    Family::counter("node_collector_evictions_total", &["zone"], "Nodes whose pods were told to go, by zone.");
static UPDATE_SECONDS: Family = Family::histogram(
    "node_collector_update_node_health_duration_seconds",
    &[],
    &[0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384],
    "How long it took to judge a node.",
);

pub fn show_zone(metrics: &Metrics, figures: &ZoneFigures) {
    let (all, unhealthy) = (figures.ready + figures.not_ready, figures.not_ready);
    let zone = [figures.zone.as_str()];
    let health = if all == 0 { 100.0 } else { 100.0 * figures.ready as f64 / all as f64 };
    metrics.set(&HEALTH, &zone, health);
    metrics.set(&SIZE, &zone, all as f64);
    metrics.set(&UNHEALTHY, &zone, unhealthy as f64);
    // So that the series is there before the first.
    metrics.add(&EVICTIONS, &zone, 0.0);
}

pub fn count_eviction(metrics: &Metrics, zone: &str) {
    metrics.count(&EVICTIONS, &[zone]);
}

pub fn judged(metrics: &Metrics, took: Duration) {
    metrics.observe(&UPDATE_SECONDS, &[], took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_shown() {
        let metrics = Metrics::default();
        let check = |ready: usize, not_ready: usize, expected: [&str; 3]| {
            show_zone(&metrics, &ZoneFigures { zone: "a".into(), ready, not_ready });
            let page = metrics.page();
            let names = ["zone_health", "zone_size", "unhealthy_nodes_in_zone"];
            for (name, value) in names.into_iter().zip(expected) {
                let line = format!("node_collector_{name}{{zone=\"a\"}} {value}");
                assert!(page.lines().any(|found| found == line), "{line}\n{page}");
            }
        };
        check(3, 1, ["75", "4", "1"]);
        check(0, 2, ["0", "2", "2"]);
        check(0, 0, ["100", "0", "0"]);
        count_eviction(&metrics, "a");
        assert!(metrics.page().contains("node_collector_evictions_total{zone=\"a\"} 1"));
    }
}
