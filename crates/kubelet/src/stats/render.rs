//! The measured usage in the forms that others read: the summary document and Prometheus text.
//! Part of `stats`.
//! Invariant: pure.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;
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

pub fn metrics(shared: &Shared, measured: &Measured, page: &str) -> String {
    let mut text = String::new();
    let node = &measured.node;
    let used = node.memory_total.saturating_sub(node.memory_available);
    let pods = shared.pods.list();
    let labels = |container: &ContainerUsage| {
        let pod = pods.iter().find(|pod| pod_spec::uid(pod) == container.uid);
        let (name, namespace) = pod.map_or(("", ""), |pod| (pod_spec::name(pod), pod_spec::namespace(pod)));
        format!("container=\"{}\",namespace=\"{namespace}\",pod=\"{name}\"", container.name)
    };
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(text, "{name}{braces} {value}");
        }
    };
    let each = |of: &dyn Fn(&ContainerUsage) -> f64| -> Vec<(String, f64)> {
        measured.containers.iter().map(|c| (labels(c), of(c))).collect()
    };
    match page {
        "resource" => {
            family(
                "node_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed by the node in core-seconds",
                vec![(String::new(), seconds(node.cpu_nanoseconds))],
            );
            family(
                "node_memory_working_set_bytes",
                "gauge",
                "Current working set of the node in bytes",
                vec![(String::new(), used as f64)],
            );
            family(
                "container_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed by the container in core-seconds",
                each(&|c| seconds(c.cpu_nanoseconds)),
            );
            family(
                "container_memory_working_set_bytes",
                "gauge",
                "Current working set of the container in bytes",
                each(&|c| c.working_set as f64),
            );
        }
        "cadvisor" => {
            family(
                "container_cpu_usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed in seconds.",
                each(&|c| seconds(c.cpu_nanoseconds)),
            );
            family(
                "container_memory_working_set_bytes",
                "gauge",
                "Current working set in bytes.",
                each(&|c| c.working_set as f64),
            );
            family(
                "container_memory_usage_bytes",
                "gauge",
                "Current memory usage in bytes.",
                each(&|c| c.usage as f64),
            );
            family("container_memory_rss", "gauge", "Size of RSS in bytes.", each(&|c| c.rss as f64));
            family(
                "container_fs_usage_bytes",
                "gauge",
                "Number of bytes that are consumed by the container.",
                each(&|c| c.disk_used as f64),
            );
            family(
                "machine_memory_bytes",
                "gauge",
                "Amount of memory installed on the machine.",
                vec![(String::new(), node.memory_total as f64)],
            );
        }
        "probes" => {}
        _ => {
            family(
                "kubelet_running_pods",
                "gauge",
                "Number of pods that have a running pod sandbox",
                vec![(String::new(), pods.len() as f64)],
            );
            family(
                "kubelet_running_containers",
                "gauge",
                "Number of containers currently running",
                vec![(String::new(), measured.containers.len() as f64)],
            );
        }
    }
    text
}
