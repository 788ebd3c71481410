//! The document of `/stats/summary`.
//! Part of `stats`.
//! Invariant: pure (tidy: `pure_files`).

use std::collections::{BTreeMap, HashMap};

use cadvisor::info::{InterfaceStats, PsiStats};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    ContainerUsage, ImageDisk, Measured, NodeUsage,
    group_usage::Group,
    pod_facts::{PodFacts, VolumeUsage},
    started,
};
use crate::{
    files::disk::{Disk, Usage},
    pod::{pod_spec, pod_workers::Shared},
};

pub fn render(
    shared: &Shared,
    measured: &Measured,
    facts: &HashMap<String, PodFacts>,
    images: Option<(ImageDisk, ImageDisk)>,
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
        pods.push(pod_summary(&pod, containers, facts.get(uid).unwrap_or(&none), measured, &time, begun));
    }
    json!({"node": node_summary(&shared.config.node_name, measured, images, &time), "pods": pods})
}

/// As much of it as is asked for with `only_cpu_and_memory`.
pub fn cpu_and_memory(mut summary: Value) -> Value {
    fn keep(value: &mut Value, names: &[&str]) {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| names.contains(&name.as_str()));
        }
    }
    keep(&mut summary["node"], &["nodeName", "startTime", "cpu", "memory", "swap", "systemContainers"]);
    for pod in summary["pods"].as_array_mut().into_iter().flatten() {
        keep(pod, &["podRef", "startTime", "cpu", "memory", "swap", "containers"]);
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            keep(container, &["name", "startTime", "cpu", "memory", "swap"]);
        }
    }
    summary
}

fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn cpu(time: &str, rate: Option<u64>, total: u64, psi: Option<PsiStats>) -> Value {
    let mut value = json!({"time": time, "usageCoreNanoSeconds": total});
    if let Some(rate) = rate {
        value["usageNanoCores"] = rate.into();
    }
    with_pressure(value, psi)
}

/// Only where the kernel tells it.
fn with_pressure(mut value: Value, psi: Option<PsiStats>) -> Value {
    if let Some(psi) = psi {
        value["psi"] = json!(psi);
    }
    value
}

/// As the kernel counts a group, with what is left of its limit.
fn group_memory(time: &str, group: &Group) -> Value {
    let memory = &group.stats.memory;
    let mut value = json!({"time": time, "usageBytes": memory.usage, "workingSetBytes": memory.working_set,
        "rssBytes": memory.rss, "pageFaults": memory.container_data.pgfault,
        "majorPageFaults": memory.container_data.pgmajfault});
    if let Some(available) = group.available_bytes() {
        value["availableBytes"] = available.into();
    }
    with_pressure(value, memory.psi)
}

fn with_io(value: &mut Value, time: &str, group: Option<&Group>) {
    if let Some(psi) = group.and_then(|group| group.stats.diskio.psi) {
        value["io"] = json!({"time": time, "psi": psi});
    }
}

/// The node's own programs.
fn system_container(name: &str, group: &Group, rate: Option<u64>, time: &str) -> Value {
    let mut value = json!({"name": name, "startTime": rfc3339(group.spec.creation_time),
        "cpu": cpu(time, Some(rate.unwrap_or(0)), group.stats.cpu.usage.total, group.stats.cpu.psi),
        "memory": group_memory(time, group),
        "swap": {"time": time, "swapUsageBytes": group.stats.memory.swap}});
    with_io(&mut value, time, Some(group));
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

fn node_summary(name: &str, measured: &Measured, images: Option<(ImageDisk, ImageDisk)>, time: &str) -> Value {
    let (node, groups) = (&measured.node, &measured.groups);
    let used = node.memory_total.saturating_sub(node.memory_available);
    let own = node_disk(node);
    let all =
        Usage { bytes: own.bytes.saturating_sub(own.bytes_free), inodes: own.inodes.saturating_sub(own.inodes_free) };
    let used_by = |of: ImageDisk| disk(time, of.disk, Usage { bytes: of.used_bytes, inodes: of.used_inodes });
    let unknown = || (disk(time, own, all), disk(time, own, all));
    let (image_fs, container_fs) =
        images.map_or_else(unknown, |(images, containers)| (used_by(images), used_by(containers)));
    let counted = &groups.node.stats.memory;
    let memory = json!({"time": time, "availableBytes": node.memory_available, "usageBytes": counted.usage.max(used),
        "workingSetBytes": used, "rssBytes": counted.rss, "pageFaults": counted.hierarchical_data.pgfault,
        "majorPageFaults": counted.hierarchical_data.pgmajfault});
    let system = groups.system.iter();
    let system =
        system.map(|(name, group)| system_container(name, group, measured.group_rates.get(*name).copied(), time));
    let mut value = json!({
        "nodeName": name,
        "systemContainers": system.collect::<Vec<_>>(),
        "startTime": Timestamp::from_second(node.booted).map(rfc3339).unwrap_or_else(|_| time.to_string()),
        "cpu": cpu(time, node.cpu_rate, node.cpu_nanoseconds, groups.node.stats.cpu.psi),
        "memory": with_pressure(memory, counted.psi),
        "network": network_summary(&groups.interfaces, time),
        "fs": disk(time, own, all),
        "runtime": {"imageFs": image_fs, "containerFs": container_fs},
        "rlimit": {"time": time, "maxpid": node.most_processes, "curproc": node.processes},
        "swap": swap(time, (node.swap.1, node.swap.0.saturating_sub(node.swap.1))),
    });
    with_io(&mut value, time, Some(&groups.node));
    value
}

fn container_summary(
    container: &ContainerUsage,
    group: Option<&Group>,
    logs: Usage,
    own: Disk,
    started: Value,
    time: &str,
) -> Value {
    let c = container;
    let mut memory = json!({"time": time, "usageBytes": c.usage, "workingSetBytes": c.working_set, "rssBytes": c.rss,
        "pageFaults": c.page_faults, "majorPageFaults": c.major_page_faults});
    if let Some(available) = group.and_then(Group::available_bytes) {
        memory["availableBytes"] = available.into();
    }
    let mut value = json!({"name": c.name, "startTime": started,
        "cpu": cpu(time, c.cpu_rate, c.cpu_nanoseconds, group.and_then(|group| group.stats.cpu.psi)),
        "memory": with_pressure(memory, group.and_then(|group| group.stats.memory.psi)),
        "rootfs": disk(time, own, Usage { bytes: c.disk_used, inodes: c.inodes_used }),
        "logs": disk(time, own, logs)});
    with_io(&mut value, time, group);
    if let Some(amounts) = c.swap {
        value["swap"] = swap(time, amounts);
    }
    value
}

fn pod_summary(
    pod: &Pod,
    containers: &[&ContainerUsage],
    facts: &PodFacts,
    measured: &Measured,
    time: &str,
    begun: impl Fn(&ContainerUsage) -> Option<String>,
) -> Value {
    let sum = |of: fn(&ContainerUsage) -> u64| containers.iter().map(|c| of(c)).sum::<u64>();
    let own = node_disk(&measured.node);
    let of = |c: &&ContainerUsage| {
        let logs = facts.logs.get(&c.name).copied().unwrap_or_default();
        let started = begun(c).map_or_else(|| start_time(pod), Value::from);
        container_summary(c, measured.groups.containers.get(&c.id), logs, own, started, time)
    };
    let list: Vec<Value> = containers.iter().map(of).collect();
    let ephemeral = facts.volumes.iter().filter(|v| v.ephemeral).map(|v| v.used).chain(facts.logs.values().copied());
    let layers = Usage { bytes: sum(|c| c.disk_used), inodes: sum(|c| c.inodes_used) };
    let storage =
        ephemeral.fold(layers, |sum, more| Usage { bytes: sum.bytes + more.bytes, inodes: sum.inodes + more.inodes });
    let uid = pod_spec::uid(pod);
    let group = measured.groups.pods.get(uid);
    let (cpu, memory) = match group {
        // The sandbox counts, too.
        Some(group) => {
            let rate = measured.group_rates.get(uid).copied();
            (cpu(time, rate, group.stats.cpu.usage.total, group.stats.cpu.psi), group_memory(time, group))
        }
        None => {
            let rate = containers.iter().map(|c| c.cpu_rate).try_fold(0, |total, rate| rate.map(|r| total + r));
            let memory = json!({"time": time, "usageBytes": sum(|c| c.usage),
                "workingSetBytes": sum(|c| c.working_set), "rssBytes": sum(|c| c.rss),
                "pageFaults": sum(|c| c.page_faults), "majorPageFaults": sum(|c| c.major_page_faults)});
            (cpu(time, rate, sum(|c| c.cpu_nanoseconds), None), memory)
        }
    };
    let mut value = json!({
        "podRef": {"name": pod_spec::name(pod), "namespace": pod_spec::namespace(pod), "uid": uid},
        "startTime": start_time(pod),
        "containers": list,
        "cpu": cpu,
        "memory": memory,
        "volume": facts.volumes.iter().map(|volume| volume_summary(pod, volume, time)).collect::<Vec<_>>(),
        "ephemeral-storage": disk(time, own, storage),
        "process_stats": {"process_count": facts.processes},
    });
    with_io(&mut value, time, group);
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
    if let Some(abnormal) = volume.abnormal {
        value["volumeHealthStats"] = json!({"abnormal": abnormal});
    }
    value
}

/// That of the first interface, which is the one to the cluster, and each by itself.
fn network_summary(interfaces: &[InterfaceStats], time: &str) -> Value {
    let of = |i: &InterfaceStats| {
        json!({"name": i.name, "rxBytes": i.rx_bytes, "rxErrors": i.rx_errors,
            "txBytes": i.tx_bytes, "txErrors": i.tx_errors})
    };
    let first = interfaces.iter().find(|i| i.name == "eth0").or(interfaces.first());
    let mut value = first.map_or_else(|| json!({}), of);
    value["time"] = time.into();
    value["interfaces"] = interfaces.iter().map(of).collect();
    value
}

fn start_time(pod: &k8s_openapi::api::core::v1::Pod) -> Value {
    serde_json::to_value(pod.status.as_ref().and_then(|s| s.start_time.clone())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::group_usage::Groups;

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
        let volume = |name: &str, claim: Option<&str>| VolumeUsage {
            name: name.into(),
            claim: claim.map(String::from),
            disk: Disk { bytes: 50, bytes_free: 40, inodes: 5, inodes_free: 4 },
            used: Usage { bytes: 10, inodes: 1 },
            ephemeral: claim.is_none(),
            abnormal: claim.map(|_| true),
        };
        let facts = PodFacts {
            network: Some(vec![InterfaceStats {
                name: "eth0".into(),
                rx_bytes: 1,
                tx_errors: 1,
                ..Default::default()
            }]),
            processes: 3,
            volumes: vec![volume("scratch", None), volume("data", Some("claim"))],
            logs: [("main".to_string(), Usage { bytes: 1000, inodes: 2 })].into(),
        };
        let node = NodeUsage { disk_total: 90, disk_available: 80, ..NodeUsage::default() };
        let mut group = Group::default();
        group.spec.memory.limit = 100;
        group.stats.memory.working_set = 30;
        group.stats.cpu.usage.total = 77;
        group.stats.cpu.psi = Some(PsiStats::default());
        group.stats.diskio.psi = Some(PsiStats::default());
        let groups = Groups {
            pods: [("u".to_string(), group.clone())].into(),
            containers: [("c".to_string(), group)].into(),
            ..Groups::default()
        };
        let group_rates = [("u".to_string(), 9)].into();
        let measured = Measured { node, groups, group_rates, ..Measured::default() };
        let found = pod_summary(&pod, &[&usage], &facts, &measured, "now", |_| Some("then".into()));
        let check = |path: &str, expected: Value| assert_eq!(found.pointer(path), Some(&expected), "{path}\n{found:#}");
        check("/network/rxBytes", json!(1));
        check("/network/interfaces/0/txErrors", json!(1));
        check("/process_stats/process_count", json!(3));
        check("/volume/0/usedBytes", json!(10));
        check("/volume/1/pvcRef", json!({"name": "claim", "namespace": "n"}));
        check("/volume/1/volumeHealthStats", json!({"abnormal": true}));
        check("/containers/0/logs/usedBytes", json!(1000));
        check("/containers/0/startTime", json!("then"));
        check("/containers/0/swap/swapUsageBytes", json!(8));
        check("/swap/swapAvailableBytes", json!(7));
        check("/ephemeral-storage/usedBytes", json!(1110));
        check("/cpu/usageCoreNanoSeconds", json!(77));
        check("/cpu/usageNanoCores", json!(9));
        check("/memory/availableBytes", json!(70));
        check("/containers/0/memory/availableBytes", json!(70));
        check("/containers/0/cpu/psi/some/total", json!(0));
        check("/io/psi/full/total", json!(0));
        let little = cpu_and_memory(json!({"node": {"fs": 1, "cpu": 2}, "pods": [found]}));
        assert_eq!(little["node"], json!({"cpu": 2}));
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&little["pods"][0]), ["containers", "cpu", "memory", "podRef", "startTime", "swap"]);
        let container = &little["pods"][0]["containers"][0];
        assert_eq!(names(container), ["cpu", "memory", "name", "startTime", "swap"]);
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
        let containers = ImageDisk { used_bytes: 1, ..images };
        let mut group = Group::default();
        group.stats.memory.rss = 5;
        let groups = Groups {
            node: group.clone(),
            interfaces: vec![InterfaceStats { name: "eth0".into(), rx_bytes: 8, ..Default::default() }],
            system: vec![("kubelet", group)],
            ..Groups::default()
        };
        let measured = Measured { node, groups, ..Measured::default() };
        let found = node_summary("node", &measured, Some((images, containers)), "now");
        let check = |path: &str, expected: Value| assert_eq!(found.pointer(path), Some(&expected), "{path}\n{found:#}");
        check("/startTime", json!("2023-11-14T22:13:20Z"));
        check("/rlimit", json!({"time": "now", "maxpid": 100, "curproc": 9}));
        check("/runtime/imageFs/capacityBytes", json!(7));
        check("/runtime/imageFs/usedBytes", json!(3));
        check("/runtime/containerFs/usedBytes", json!(1));
        check("/fs/usedBytes", json!(10));
        check("/swap/swapUsageBytes", json!(20));
        check("/memory/rssBytes", json!(5));
        check("/network/interfaces/0/rxBytes", json!(8));
        check("/systemContainers/0/name", json!("kubelet"));
        check("/systemContainers/0/memory/rssBytes", json!(5));
        check("/systemContainers/0/cpu/usageNanoCores", json!(0));
    }
}
