//! The measured usage in the forms that others read: the summary document and Prometheus text.
//! Part of `stats`.
//! Invariant: pure (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use super::{
    ContainerUsage, ImageDisk, Measured, NodeUsage,
    pod_facts::{Interface, PodFacts, VolumeUsage},
};
use crate::{
    files::disk::{Disk, Usage},
    pod::{pod_spec, pod_workers::Shared},
};

pub fn summary(
    shared: &Shared,
    measured: &Measured,
    facts: &HashMap<String, PodFacts>,
    images: Option<ImageDisk>,
    now: Timestamp,
) -> Value {
    let time = rfc3339(now);
    let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
    for container in &measured.containers {
        by_pod.entry(&container.uid).or_default().push(container);
    }
    let none = PodFacts::default();
    let mut pods = Vec::new();
    for pod in shared.pods.list() {
        let uid = pod_spec::uid(&pod);
        let Some(containers) = by_pod.get(uid) else { continue };
        let begun = |c: &ContainerUsage| started(shared, c).map(rfc3339);
        pods.push(pod_summary(&pod, containers, facts.get(uid).unwrap_or(&none), &measured.node, &time, begun));
    }
    json!({"node": node_summary(&shared.config.node_name, &measured.node, images, &time), "pods": pods})
}

fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn cpu(time: &str, rate: Option<u64>, total: u64) -> Value {
    let mut value = json!({"time": time, "usageCoreNanoSeconds": total});
    if let Some(rate) = rate {
        value["usageNanoCores"] = rate.into();
    }
    value
}

fn node_disk(node: &NodeUsage) -> Disk {
    Disk { bytes: node.disk_total, bytes_free: node.disk_available, inodes: node.inodes, inodes_free: node.inodes_free }
}

fn disk(time: &str, disk: Disk, used: Usage) -> Value {
    json!({"time": time, "availableBytes": disk.bytes_free, "capacityBytes": disk.bytes, "usedBytes": used.bytes,
        "inodesFree": disk.inodes_free, "inodes": disk.inodes, "inodesUsed": used.inodes})
}

fn swap(time: &str, (available, used): (u64, u64)) -> Value {
    json!({"time": time, "swapAvailableBytes": available, "swapUsageBytes": used})
}

fn node_summary(name: &str, node: &NodeUsage, images: Option<ImageDisk>, time: &str) -> Value {
    let used = node.memory_total.saturating_sub(node.memory_available);
    let own = node_disk(node);
    let all =
        Usage { bytes: own.bytes.saturating_sub(own.bytes_free), inodes: own.inodes.saturating_sub(own.inodes_free) };
    let (image_disk, image_usage) = images
        .map_or((own, all), |images| (images.disk, Usage { bytes: images.used_bytes, inodes: images.used_inodes }));
    let image_fs = disk(time, image_disk, image_usage);
    json!({
        "nodeName": name,
        "startTime": Timestamp::from_second(node.booted).map(rfc3339).unwrap_or_else(|_| time.to_string()),
        "cpu": cpu(time, node.cpu_rate, node.cpu_nanoseconds),
        "memory": {"time": time, "availableBytes": node.memory_available, "usageBytes": used, "workingSetBytes": used},
        "network": {"time": time, "rxBytes": node.received, "txBytes": node.sent},
        "fs": disk(time, own, all),
        "runtime": {"imageFs": image_fs, "containerFs": image_fs},
        "rlimit": {"time": time, "maxpid": node.most_processes, "curproc": node.processes},
        "swap": swap(time, (node.swap.1, node.swap.0.saturating_sub(node.swap.1))),
    })
}

fn pod_summary(
    pod: &Pod,
    containers: &[&ContainerUsage],
    facts: &PodFacts,
    node: &NodeUsage,
    time: &str,
    begun: impl Fn(&ContainerUsage) -> Option<String>,
) -> Value {
    let sum = |of: fn(&ContainerUsage) -> u64| containers.iter().map(|c| of(c)).sum::<u64>();
    let rate = containers.iter().map(|c| c.cpu_rate).try_fold(0, |total, rate| rate.map(|r| total + r));
    let own = node_disk(node);
    let of = |c: &&ContainerUsage| {
        let logs = facts.logs.get(&c.name).copied().unwrap_or_default();
        let mut value = json!({"name": c.name, "startTime": begun(c).map_or_else(|| start_time(pod), Value::from),
            "cpu": cpu(time, c.cpu_rate, c.cpu_nanoseconds),
            "memory": {"time": time, "usageBytes": c.usage, "workingSetBytes": c.working_set, "rssBytes": c.rss,
                "pageFaults": c.page_faults, "majorPageFaults": c.major_page_faults},
            "rootfs": disk(time, own, Usage { bytes: c.disk_used, inodes: c.inodes_used }),
            "logs": disk(time, own, logs)});
        if let Some(amounts) = c.swap {
            value["swap"] = swap(time, amounts);
        }
        value
    };
    let list: Vec<Value> = containers.iter().map(of).collect();
    let ephemeral = facts.volumes.iter().filter(|v| v.ephemeral).map(|v| v.used).chain(facts.logs.values().copied());
    let layers = Usage { bytes: sum(|c| c.disk_used), inodes: sum(|c| c.inodes_used) };
    let storage =
        ephemeral.fold(layers, |sum, more| Usage { bytes: sum.bytes + more.bytes, inodes: sum.inodes + more.inodes });
    let mut value = json!({
        "podRef": {"name": pod_spec::name(pod), "namespace": pod_spec::namespace(pod), "uid": pod_spec::uid(pod)},
        "startTime": start_time(pod),
        "containers": list,
        "cpu": cpu(time, rate, sum(|c| c.cpu_nanoseconds)),
        "memory": {"time": time, "usageBytes": sum(|c| c.usage), "workingSetBytes": sum(|c| c.working_set),
            "rssBytes": sum(|c| c.rss), "pageFaults": sum(|c| c.page_faults),
            "majorPageFaults": sum(|c| c.major_page_faults)},
        "volume": facts.volumes.iter().map(|volume| volume_summary(pod, volume, time)).collect::<Vec<_>>(),
        "ephemeral-storage": disk(time, own, storage),
        "process_stats": {"process_count": facts.processes},
    });
    if let Some(interfaces) = facts.network.as_deref().filter(|interfaces| !interfaces.is_empty()) {
        value["network"] = network_summary(interfaces, time);
    }
    if containers.iter().any(|c| c.swap.is_some()) {
        let amounts = (sum(|c| c.swap.map_or(0, |s| s.0)), sum(|c| c.swap.map_or(0, |s| s.1)));
        value["swap"] = swap(time, amounts);
    }
    value
}

fn volume_summary(pod: &Pod, volume: &VolumeUsage, time: &str) -> Value {
    let mut value = disk(time, volume.disk, volume.used);
    value["name"] = volume.name.clone().into();
    if let Some(claim) = &volume.claim {
        value["pvcRef"] = json!({"name": claim, "namespace": pod_spec::namespace(pod)});
    }
    value
}

/// That of the first interface, which is the one to the cluster, and each by itself.
fn network_summary(interfaces: &[Interface], time: &str) -> Value {
    let of = |i: &Interface| {
        json!({"name": i.name, "rxBytes": i.received.bytes, "rxErrors": i.received.errors,
            "txBytes": i.sent.bytes, "txErrors": i.sent.errors})
    };
    let first = interfaces.iter().find(|i| i.name == "eth0").or(interfaces.first());
    let mut value = first.map(of).unwrap_or_default();
    value["time"] = time.into();
    value["interfaces"] = interfaces.iter().map(of).collect();
    value
}

fn start_time(pod: &k8s_openapi::api::core::v1::Pod) -> Value {
    serde_json::to_value(pod.status.as_ref().and_then(|s| s.start_time.clone())).unwrap_or_default()
}

/// One page of Prometheus text.
pub fn metrics(shared: &Shared, measured: &Measured, page: &str, now: Timestamp) -> String {
    let mut text = Text::default();
    if page == "resource" {
        resource(&mut text, shared, measured, &pods(shared), now.as_millisecond());
    }
    text.0
}

/// By UID.
pub fn pods(shared: &Shared) -> Pods {
    shared.pods.list().into_iter().map(|pod| (pod_spec::uid(&pod).to_string(), pod)).collect()
}

#[derive(Default)]
pub struct Text(String, &'static str);

impl Text {
    pub fn into_string(self) -> String {
        self.0
    }

    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.1 = name;
    }

    pub fn sample(&mut self, labels: &str, value: f64, at_milliseconds: Option<i64>) {
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

pub type Pods = HashMap<String, Arc<Pod>>;

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

fn status_of(shared: &Shared, container: &ContainerUsage) -> Option<ContainerStatus> {
    let status = shared.statuses.get(&container.uid)?;
    let lists = [status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == container.name)
}

/// When the container that runs now was started.
pub fn started(shared: &Shared, container: &ContainerUsage) -> Option<Timestamp> {
    Some(status_of(shared, container)?.state?.running?.started_at?.0)
}

pub fn image_of(shared: &Shared, container: &ContainerUsage) -> Option<String> {
    status_of(shared, container).map(|status| status.image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::pod_facts::Traffic;

    #[test]
    fn a_pod_is_told_of_with_network_volumes_logs_and_processes() {
        let metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap();
        let usage = ContainerUsage {
            uid: "u".into(),
            id: "c".into(),
            name: "main".into(),
            at_milliseconds: 0,
            cpu_nanoseconds: 1,
            cpu_rate: None,
            working_set: 2,
            usage: 3,
            rss: 4,
            page_faults: 5,
            major_page_faults: 6,
            swap: Some((7, 8)),
            disk_used: 100,
            inodes_used: 1,
        };
        let traffic = |bytes| Traffic { bytes, packets: 0, errors: 1, dropped: 0 };
        let volume = |name: &str, claim: Option<&str>| VolumeUsage {
            name: name.into(),
            claim: claim.map(String::from),
            disk: Disk { bytes: 50, bytes_free: 40, inodes: 5, inodes_free: 4 },
            used: Usage { bytes: 10, inodes: 1 },
            ephemeral: claim.is_none(),
        };
        let facts = PodFacts {
            network: Some(vec![Interface { name: "eth0".into(), received: traffic(1), sent: traffic(2) }]),
            processes: 3,
            volumes: vec![volume("scratch", None), volume("data", Some("claim"))],
            logs: [("main".to_string(), Usage { bytes: 1000, inodes: 2 })].into(),
            ..PodFacts::default()
        };
        let node = NodeUsage { disk_total: 90, disk_available: 80, ..NodeUsage::default() };
        let found = pod_summary(&pod, &[&usage], &facts, &node, "now", |_| Some("then".into()));
        let check = |path: &str, expected: Value| assert_eq!(found.pointer(path), Some(&expected), "{path}\n{found:#}");
        check("/network/rxBytes", json!(1));
        check("/network/interfaces/0/txErrors", json!(1));
        check("/process_stats/process_count", json!(3));
        check("/volume/0/usedBytes", json!(10));
        check("/volume/1/pvcRef", json!({"name": "claim", "namespace": "n"}));
        check("/containers/0/logs/usedBytes", json!(1000));
        check("/containers/0/startTime", json!("then"));
        check("/containers/0/swap/swapUsageBytes", json!(8));
        check("/swap/swapAvailableBytes", json!(7));
        check("/ephemeral-storage/usedBytes", json!(1110));
    }

    #[test]
    fn the_node_has_been_up_since_it_booted_and_images_are_where_they_are() {
        let node = NodeUsage {
            booted: 1_700_000_000,
            most_processes: Some(100),
            processes: Some(9),
            swap: (30, 10),
            disk_total: 90,
            disk_available: 80,
            ..NodeUsage::default()
        };
        let images = ImageDisk {
            disk: Disk { bytes: 7, bytes_free: 6, inodes: 5, inodes_free: 4 },
            used_bytes: 3,
            used_inodes: 2,
        };
        let found = node_summary("node", &node, Some(images), "now");
        let check = |path: &str, expected: Value| assert_eq!(found.pointer(path), Some(&expected), "{path}\n{found:#}");
        check("/startTime", json!("2023-11-14T22:13:20Z"));
        check("/rlimit", json!({"time": "now", "maxpid": 100, "curproc": 9}));
        check("/runtime/imageFs/capacityBytes", json!(7));
        check("/runtime/imageFs/usedBytes", json!(3));
        check("/fs/usedBytes", json!(10));
        check("/swap/swapUsageBytes", json!(20));
    }
}
