//! The measured usage in the forms that others read: the summary document and Prometheus text.
//! Part of `stats`.
//! Invariant: pure.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{ContainerUsage, Measured};
use crate::{pod_spec, pod_workers::Shared};

pub fn summary(shared: &Shared, measured: &Measured, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let node = &measured.node;
    let cpu = |rate: Option<u64>, total: u64| {
        let mut value = json!({"time": time, "usageCoreNanoSeconds": total});
        if let Some(rate) = rate {
            value["usageNanoCores"] = rate.into();
        }
        value
    };
    let used = node.memory_total.saturating_sub(node.memory_available);
    let disk = json!({"time": time, "availableBytes": node.disk_available, "capacityBytes": node.disk_total,
        "usedBytes": node.disk_total.saturating_sub(node.disk_available), "inodesFree": node.inodes_free,
        "inodes": node.inodes, "inodesUsed": node.inodes.saturating_sub(node.inodes_free)});
    let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
    for container in &measured.containers {
        by_pod.entry(&container.uid).or_default().push(container);
    }
    let mut pods = Vec::new();
    for pod in shared.pods.list() {
        let Some(containers) = by_pod.get(pod_spec::uid(&pod)) else { continue };
        let sum = |of: fn(&ContainerUsage) -> u64| containers.iter().map(|c| of(c)).sum::<u64>();
        let rate = containers.iter().map(|c| c.cpu_rate).try_fold(0, |total, rate| rate.map(|r| total + r));
        let list: Vec<Value> = containers
            .iter()
            .map(|c| {
                json!({"name": c.name, "startTime": start_time(&pod), "cpu": cpu(c.cpu_rate, c.cpu_nanoseconds),
                    "memory": {"time": time, "usageBytes": c.usage, "workingSetBytes": c.working_set, "rssBytes": c.rss},
                    "rootfs": {"time": time, "availableBytes": node.disk_available, "capacityBytes": node.disk_total,
                        "usedBytes": c.disk_used, "inodesUsed": c.inodes_used}})
            })
            .collect();
        pods.push(json!({
            "podRef": {"name": pod_spec::name(&pod), "namespace": pod_spec::namespace(&pod), "uid": pod_spec::uid(&pod)},
            "startTime": start_time(&pod),
            "containers": list,
            "cpu": cpu(rate, sum(|c| c.cpu_nanoseconds)),
            "memory": {"time": time, "usageBytes": sum(|c| c.usage), "workingSetBytes": sum(|c| c.working_set),
                "rssBytes": sum(|c| c.rss)},
            "ephemeral-storage": {"time": time, "availableBytes": node.disk_available,
                "capacityBytes": node.disk_total, "usedBytes": sum(|c| c.disk_used)},
        }));
    }
    json!({
        "node": {
            "nodeName": shared.config.node_name,
            "startTime": time,
            "cpu": cpu(node.cpu_rate, node.cpu_nanoseconds),
            "memory": {"time": time, "availableBytes": node.memory_available, "usageBytes": used,
                "workingSetBytes": used},
            "network": {"time": time, "rxBytes": node.received, "txBytes": node.sent},
            "fs": disk,
            "runtime": {"imageFs": disk},
        },
        "pods": pods,
    })
}

fn start_time(pod: &k8s_openapi::api::core::v1::Pod) -> Value {
    serde_json::to_value(pod.status.as_ref().and_then(|s| s.start_time.clone())).unwrap_or_default()
}

/// One page of Prometheus text.
pub fn metrics(shared: &Shared, measured: &Measured, page: &str, now: Timestamp) -> String {
    let mut text = Text::default();
    let pods: HashMap<String, Arc<Pod>> =
        shared.pods.list().into_iter().map(|pod| (pod_spec::uid(&pod).to_string(), pod)).collect();
    match page {
        "resource" => resource(&mut text, shared, measured, &pods, now.as_millisecond()),
        "cadvisor" => cadvisor(&mut text, measured, &pods),
        _ => {}
    }
    text.0
}

#[derive(Default)]
struct Text(String, &'static str);

impl Text {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.1 = name;
    }

    fn sample(&mut self, labels: &str, value: f64, at_milliseconds: Option<i64>) {
        let _ = match labels {
            "" => write!(self.0, "{} {value}", self.1),
            labels => write!(self.0, "{}{{{labels}}} {value}", self.1),
        };
        let _ = match at_milliseconds {
            Some(at) => writeln!(self.0, " {at}"),
            None => writeln!(self.0),
        };
    }
}

type Pods = HashMap<String, Arc<Pod>>;

fn place(pods: &Pods, uid: &str) -> Option<String> {
    let pod = pods.get(uid)?;
    Some(format!("namespace=\"{}\",pod=\"{}\"", pod_spec::namespace(pod), pod_spec::name(pod)))
}

/// What autoscaling needs, under upstream's names and with the moment each was measured.
fn resource(text: &mut Text, shared: &Shared, measured: &Measured, pods: &Pods, now: i64) {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    // Those of pods that are gone from here are nobody's business any more.
    let known: Vec<(String, &ContainerUsage)> = measured
        .containers
        .iter()
        .filter_map(|c| Some((format!("container=\"{}\",{}", c.name, place(pods, &c.uid)?), c)))
        .collect();
    text.family(
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    );
    for (labels, c) in &known {
        text.sample(labels, seconds(c.cpu_nanoseconds), Some(c.at_milliseconds));
    }
    text.family(
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
    );
    for (labels, c) in &known {
        text.sample(labels, c.working_set as f64, Some(c.at_milliseconds));
    }
    text.family(
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
    );
    for (labels, c) in &known {
        if let Some(started) = started(shared, c) {
            text.sample(labels, started.as_second() as f64, None);
        }
    }
    let node = &measured.node;
    text.family(
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    );
    text.sample("", seconds(node.cpu_nanoseconds), Some(now));
    text.family("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes");
    text.sample("", node.memory_total.saturating_sub(node.memory_available) as f64, Some(now));
    let mut sums: BTreeMap<String, (u64, u64, i64)> = BTreeMap::new();
    for (_, c) in &known {
        let Some(pod) = place(pods, &c.uid) else { continue };
        let sum = sums.entry(pod).or_default();
        *sum = (sum.0 + c.cpu_nanoseconds, sum.1 + c.working_set, sum.2.max(c.at_milliseconds));
    }
    text.family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    for (labels, (cpu, _, at)) in &sums {
        text.sample(labels, seconds(*cpu), Some(*at));
    }
    text.family("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes");
    for (labels, (_, memory, at)) in &sums {
        text.sample(labels, *memory as f64, Some(*at));
    }
    text.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    text.sample("", 0.0, None);
}

/// When the container that runs now was started.
fn started(shared: &Shared, container: &ContainerUsage) -> Option<Timestamp> {
    let status = shared.statuses.get(&container.uid)?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.filter(|s| s.name == container.name)
        .find_map(|s| Some(s.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0))
}

fn cadvisor(text: &mut Text, measured: &Measured, pods: &Pods) {
    type Row = (&'static str, &'static str, &'static str, fn(&ContainerUsage) -> f64);
    let rows: [Row; 5] = [
        ("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", |c| {
            c.cpu_nanoseconds as f64 / 1e9
        }),
        ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", |c| c.working_set as f64),
        ("container_memory_usage_bytes", "gauge", "Current memory usage in bytes.", |c| c.usage as f64),
        ("container_memory_rss", "gauge", "Size of RSS in bytes.", |c| c.rss as f64),
        ("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container.", |c| {
            c.disk_used as f64
        }),
    ];
    for (name, kind, help, of) in rows {
        text.family(name, kind, help);
        for c in &measured.containers {
            let Some(place) = place(pods, &c.uid) else { continue };
            text.sample(&format!("container=\"{}\",{place}", c.name), of(c), Some(c.at_milliseconds));
        }
    }
    text.family("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.");
    text.sample("", measured.node.memory_total as f64, None);
}
