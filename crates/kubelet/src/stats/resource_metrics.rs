//! `/metrics/resource`: what autoscaling needs, under upstream's names and with the moment each was measured.
//! Part of `stats`.
//! Invariant: pure (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use metrics::Text;

use super::{ContainerUsage, Measured, started};
use crate::pod::{pod_spec, pod_workers::Shared};

/// A container with its pod, and when it was started.
struct Row<'a> {
    usage: &'a ContainerUsage,
    namespace: &'a str,
    pod: &'a str,
    started: Option<f64>,
}

type RowFn = fn(&Row) -> Option<f64>;

#[rustfmt::skip]
const CONTAINERS: &[(&str, &str, &str, RowFn)] = &[
    ("container_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds", |r| Some(seconds(r.usage.cpu_nanoseconds))),
    ("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes", |r| Some(r.usage.working_set as f64)),
    ("container_start_time_seconds", "gauge", "[STABLE] Start time of the container since unix epoch in seconds", |r| r.started),
    ("container_swap_limit_bytes", "gauge", "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems", |r| r.usage.swap.map(|(available, used)| available.saturating_add(used) as f64)),
    ("container_swap_usage_bytes", "gauge", "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", |r| r.usage.swap.map(|(_, used)| used as f64)),
];

/// Without a moment, as upstream has it.
const UNTIMED: &str = "container_start_time_seconds";

#[derive(Default)]
struct Sum {
    cpu_nanoseconds: u64,
    working_set: u64,
    swap: Option<u64>,
    at_milliseconds: i64,
}

type SumFn = fn(&Sum) -> Option<f64>;

#[rustfmt::skip]
const PODS: &[(&str, &str, &str, SumFn)] = &[
    ("pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", |s| Some(seconds(s.cpu_nanoseconds))),
    ("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes", |s| Some(s.working_set as f64)),
    ("pod_swap_usage_bytes", "gauge", "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", |s| s.swap.map(|bytes| bytes as f64)),
];

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

pub fn page(shared: &Shared, measured: &Measured, now: Timestamp) -> String {
    let pods = shared.pods.list().into_iter().map(|pod| (pod_spec::uid(&pod).to_string(), pod)).collect();
    render(measured, &pods, |usage| started(shared, usage), now)
}

fn render(
    measured: &Measured,
    pods: &HashMap<String, Arc<Pod>>,
    started: impl Fn(&ContainerUsage) -> Option<Timestamp>,
    now: Timestamp,
) -> String {
    // Those of pods that are gone from here are nobody's business any more.
    let rows: Vec<Row> = measured
        .containers
        .iter()
        .filter_map(|usage| {
            let pod = pods.get(&usage.uid)?;
            let started = started(usage).map(|at| at.as_second() as f64);
            Some(Row { usage, namespace: pod_spec::namespace(pod), pod: pod_spec::name(pod), started })
        })
        .collect();
    let mut text = Text::default();
    for (name, kind, help, of) in CONTAINERS {
        let mut samples = text.family(name, kind, help);
        for row in &rows {
            let labels = [("container", row.usage.name.as_str()), ("namespace", row.namespace), ("pod", row.pod)];
            match of(row) {
                Some(value) if *name == UNTIMED => samples.sample(&labels, value),
                Some(value) => samples.sample_at(&labels, value, row.usage.at_milliseconds),
                None => {}
            }
        }
    }
    let node = &measured.node;
    let at = now.as_millisecond();
    let help = "[STABLE] Cumulative cpu time consumed by the node in core-seconds";
    text.family("node_cpu_usage_seconds_total", "counter", help).sample_at(&[], seconds(node.cpu_nanoseconds), at);
    let help = "[STABLE] Current working set of the node in bytes";
    let used = node.memory_total.saturating_sub(node.memory_available);
    text.family("node_memory_working_set_bytes", "gauge", help).sample_at(&[], used, at);
    let help = "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems";
    text.family("node_swap_usage_bytes", "gauge", help).sample_at(&[], node.swap.0.saturating_sub(node.swap.1), at);
    let mut sums: BTreeMap<(&str, &str), Sum> = BTreeMap::new();
    for row in &rows {
        let sum = sums.entry((row.namespace, row.pod)).or_default();
        sum.cpu_nanoseconds += row.usage.cpu_nanoseconds;
        sum.working_set += row.usage.working_set;
        sum.at_milliseconds = sum.at_milliseconds.max(row.usage.at_milliseconds);
        if let Some((_, used)) = row.usage.swap {
            *sum.swap.get_or_insert(0) += used;
        }
    }
    for (name, kind, help, of) in PODS {
        let mut samples = text.family(name, kind, help);
        for ((namespace, pod), sum) in &sums {
            if let Some(value) = of(sum) {
                samples.sample_at(&[("namespace", namespace), ("pod", pod)], value, sum.at_milliseconds);
            }
        }
    }
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    text.single("resource_scrape_error", "gauge", help, 0);
    text.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn upstreams_names_with_their_times() {
        let usage = |name: &str, swap| ContainerUsage {
            uid: "u".into(),
            name: name.into(),
            at_milliseconds: 7,
            cpu_nanoseconds: 1_500_000_000,
            working_set: 2,
            swap,
            ..ContainerUsage::default()
        };
        let mut measured =
            Measured { containers: vec![usage("a\"b", Some((5, 3))), usage("c", None)], ..Measured::default() };
        measured.containers.push(ContainerUsage { uid: "gone".into(), ..ContainerUsage::default() });
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}})).unwrap();
        let pods = HashMap::from([("u".to_string(), Arc::new(pod))]);
        let page = render(&measured, &pods, |_| Timestamp::from_second(9).ok(), Timestamp::UNIX_EPOCH);
        for line in [
            "container_cpu_usage_seconds_total{container=\"a\\\"b\",namespace=\"n\",pod=\"p\"} 1.5 7",
            "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 9",
            "container_swap_limit_bytes{container=\"a\\\"b\",namespace=\"n\",pod=\"p\"} 8 7",
            "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 3 7",
            "pod_swap_usage_bytes{namespace=\"n\",pod=\"p\"} 3 7",
            "node_swap_usage_bytes 0 0",
            "resource_scrape_error 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert_eq!(page.matches("container_cpu_usage_seconds_total{").count(), 2, "{page}");
    }
}
