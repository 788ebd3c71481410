//! `/metrics/cadvisor`: what containers use, under the names and labels that dashboards know from cAdvisor.
//! Part of `stats`.
//! Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

use super::{
    ContainerUsage, Measured,
    pod_facts::{Group, Interface, PodFacts},
    render::{Pods, Text, image_of, started},
};
use crate::{
    pod::{pod_spec, pod_workers::Shared},
    runtime::container_config::resources::{QUOTA_PERIOD, linux_resources},
};

/// One container with everything that is told of it.
struct Row<'a> {
    usage: &'a ContainerUsage,
    group: Group,
    labels: String,
    started: Option<f64>,
    /// As its pod says: shares, quota, memory.
    spec: (i64, i64, i64),
}

type SampleFn = fn(&Row, &Measured) -> Option<f64>;

#[rustfmt::skip]
const FAMILIES: &[(&str, &str, &str, SampleFn)] = &[
    ("container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals.", |r, _| limited(r, r.group.throttling.periods as f64)),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals.", |r, _| limited(r, r.group.throttling.throttled_periods as f64)),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Total time duration the container has been throttled.", |r, _| limited(r, r.group.throttling.throttled_nanoseconds as f64 / 1e9)),
    ("container_fs_inodes_free", "gauge", "Number of available Inodes", |_, m| Some(m.node.inodes_free as f64)),
    ("container_fs_inodes_total", "gauge", "Number of Inodes", |_, m| Some(m.node.inodes as f64)),
    ("container_fs_limit_bytes", "gauge", "Number of bytes that can be consumed by the container on this filesystem.", |_, m| Some(m.node.disk_total as f64)),
    ("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container on this filesystem.", |r, _| Some(r.usage.disk_used as f64)),
    ("container_last_seen", "gauge", "Last time a container was seen by the exporter", |r, _| Some((r.usage.at_milliseconds / 1000) as f64)),
    ("container_memory_rss", "gauge", "Size of RSS in bytes.", |r, _| Some(r.usage.rss as f64)),
    ("container_memory_swap", "gauge", "Container swap usage in bytes.", |r, _| Some(r.usage.swap?.1 as f64)),
    ("container_memory_usage_bytes", "gauge", "Current memory usage in bytes, including all memory regardless of when it was accessed", |r, _| Some(r.usage.usage as f64)),
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", |r, _| Some(r.usage.working_set as f64)),
    ("container_processes", "gauge", "Number of processes running inside the container.", |r, _| Some(r.group.processes as f64)),
    ("container_spec_cpu_period", "gauge", "CPU period of the container.", |_, _| Some(QUOTA_PERIOD as f64)),
    ("container_spec_cpu_quota", "gauge", "CPU quota of the container.", |r, _| limited(r, r.spec.1 as f64)),
    ("container_spec_cpu_shares", "gauge", "CPU share of the container.", |r, _| Some(r.spec.0 as f64)),
    ("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.", |r, _| Some(r.spec.2 as f64)),
    ("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.", |r, _| r.started),
];

#[rustfmt::skip]
const NETWORK: &[(&str, &str, fn(&Interface) -> u64)] = &[
    ("container_network_receive_bytes_total", "Cumulative count of bytes received", |i| i.received.bytes),
    ("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", |i| i.received.errors),
    ("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", |i| i.received.dropped),
    ("container_network_receive_packets_total", "Cumulative count of packets received", |i| i.received.packets),
    ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |i| i.sent.bytes),
    ("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", |i| i.sent.errors),
    ("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", |i| i.sent.dropped),
    ("container_network_transmit_packets_total", "Cumulative count of packets transmitted", |i| i.sent.packets),
];

/// Only where a limit is enforced is anything counted.
fn limited(row: &Row, value: f64) -> Option<f64> {
    (row.spec.1 > 0).then_some(value)
}

fn labels(pod: &Pod, container: &str, id: &str, image: &str, name: &str) -> String {
    format!(
        "container=\"{container}\",id=\"{id}\",image=\"{image}\",name=\"{name}\",namespace=\"{}\",pod=\"{}\"",
        pod_spec::namespace(pod),
        pod_spec::name(pod)
    )
}

pub fn page(
    text: &mut Text,
    shared: &Shared,
    measured: &Measured,
    pods: &Pods,
    facts: &HashMap<String, PodFacts>,
    now: i64,
) {
    let rows: Vec<Row> = measured.containers.iter().filter_map(|usage| row(shared, usage, pods, facts)).collect();
    text.family("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.");
    for row in &rows {
        let labels = format!("cpu=\"total\",{}", row.labels);
        text.sample(&labels, row.usage.cpu_nanoseconds as f64 / 1e9, Some(row.usage.at_milliseconds));
    }
    for (name, kind, help, of) in FAMILIES {
        text.family(name, kind, help);
        for row in &rows {
            if let Some(value) = of(row, measured) {
                text.sample(&row.labels, value, Some(row.usage.at_milliseconds));
            }
        }
    }
    network(text, &shared.config.sandbox_image, measured, pods, facts, now);
    text.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
    text.sample("", std::thread::available_parallelism().map_or(1, |n| n.get()) as f64, None);
    text.family("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.");
    text.sample("", measured.node.memory_total as f64, None);
}

fn row<'a>(
    shared: &Shared,
    usage: &'a ContainerUsage,
    pods: &Pods,
    facts: &HashMap<String, PodFacts>,
) -> Option<Row<'a>> {
    let pod = pods.get(&usage.uid)?;
    let group = facts.get(&usage.uid).and_then(|f| f.groups.get(&usage.id)).cloned().unwrap_or_default();
    let image = image_of(shared, usage).unwrap_or_default();
    let spec = pod_spec::find_container(pod, &usage.name).map(|(kind, container)| {
        let resources = linux_resources(pod, &container, kind, shared.runtime.node.memory_bytes);
        (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes)
    });
    Some(Row {
        labels: labels(pod, &usage.name, &group.path, &image, &usage.id),
        usage,
        group,
        started: started(shared, usage).map(|at| at.as_second() as f64),
        spec: spec.unwrap_or_default(),
    })
}

/// A pod's network is its sandbox's.
fn network(
    text: &mut Text,
    image: &str,
    measured: &Measured,
    pods: &Pods,
    facts: &HashMap<String, PodFacts>,
    now: i64,
) {
    let mut rows: Vec<(String, &Interface)> = Vec::new();
    for (uid, pod) in pods {
        let Some(facts) = facts.get(uid) else { continue };
        let known = |id: &String| measured.containers.iter().any(|c| c.id == *id);
        let sandbox = facts.groups.iter().find(|(id, _)| !known(id));
        let (name, path) = sandbox.map_or(("", ""), |(id, group)| (id.as_str(), group.path.as_str()));
        for interface in facts.network.iter().flatten() {
            let labels = labels(pod, "", path, image, name);
            rows.push((format!("interface=\"{}\",{labels}", interface.name), interface));
        }
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, help, of) in NETWORK {
        text.family(name, "counter", help);
        for (labels, interface) in &rows {
            text.sample(labels, of(interface) as f64, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::stats::pod_facts::Traffic;

    #[test]
    fn the_network_is_told_of_under_the_sandbox() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}})).unwrap();
        let pods = Pods::from([("u".to_string(), Arc::new(pod))]);
        let traffic = |bytes| Traffic { bytes, packets: 1, errors: 2, dropped: 3 };
        let eth0 = Interface { name: "eth0".into(), received: traffic(10), sent: traffic(20) };
        let group = |path: &str| Group { path: path.into(), ..Group::default() };
        let facts = PodFacts {
            network: Some(vec![eth0]),
            groups: [("box".to_string(), group("/k/podu/box"))].into(),
            ..PodFacts::default()
        };
        let mut text = Text::default();
        network(&mut text, "pause:1", &Measured::default(), &pods, &HashMap::from([("u".to_string(), facts)]), 5);
        let page = text.into_string();
        let labels = "interface=\"eth0\",container=\"\",id=\"/k/podu/box\",image=\"pause:1\",name=\"box\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_network_receive_bytes_total{{{labels}}} 10 5"),
            format!("container_network_transmit_bytes_total{{{labels}}} 20 5"),
            format!("container_network_receive_packets_dropped_total{{{labels}}} 3 5"),
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
