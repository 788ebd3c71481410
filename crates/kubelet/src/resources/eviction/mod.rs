//! Ends pods before the node runs out of memory, disk or process ids, and pods that use more disk than they may.
//! Run by `wiring`; ranks by `ranking`, decides by `thresholds`, acts through `pod_workers`.
//! One pod at a time for a shortage, and only after what nobody uses was removed.

mod local_storage;
mod ranking;
mod thresholds;

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use local_storage::DiskUsage;
use parking_lot::Mutex;
use ranking::Usage;
use thresholds::{Observation, Observations, ThresholdHistory};
pub use thresholds::{Pressure, Signal, Threshold, ThresholdError, parse, with_reclaim};
use tokio::sync::Notify;

use crate::{
    files::disk::Disk,
    images::image_gc::ImageGc,
    node::node_metrics::EVICTIONS,
    pod::{
        pod_spec::{self, QosClass},
        pod_status::is_terminal,
        pod_workers::{Eviction, PodWorkers},
    },
    runtime::{
        container_config::{self, POD_UID},
        container_gc,
    },
    stats,
};

const MONITORING_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait for an evicted pod before the next look.
const POD_CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// A pod that must go at once still gets this much to end.
const IMMEDIATE_GRACE_PERIOD_SECONDS: i64 = 1;

/// What the node is short of just now; `node_status` tells it, admission heeds it.
#[derive(Default)]
pub struct Pressures(Mutex<Vec<Pressure>>);

impl Pressures {
    pub fn has(&self, pressure: Pressure) -> bool {
        self.0.lock().contains(&pressure)
    }

    /// Why a pod may not begin here now.
    pub fn refuse(&self, pod: &Pod) -> Option<String> {
        let found = self.0.lock().clone();
        if ranking::is_critical(pod) {
            return None;
        }
        let only_memory = found == [Pressure::Memory];
        if found.is_empty() || (only_memory && pod_spec::qos_class(pod) != QosClass::BestEffort) {
            return None;
        }
        let names: Vec<&str> = found.iter().map(|pressure| condition_name(*pressure)).collect();
        Some(format!("The node had condition: [{}]. ", names.join(" ")))
    }
}

pub fn condition_name(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::Memory => "MemoryPressure",
        Pressure::Disk => "DiskPressure",
        Pressure::Pid => "PIDPressure",
    }
}

pub struct EvictionManager {
    pub workers: Arc<PodWorkers>,
    pub images: Arc<ImageGc>,
    pub thresholds: Vec<Threshold>,
    /// Asks for the node's status to be told.
    pub tell: Arc<Notify>,
}

impl EvictionManager {
    pub async fn run(self) {
        let env = self.workers.shared.env.clone();
        let mut history = ThresholdHistory::default();
        loop {
            env.sleep(MONITORING_INTERVAL).await;
            self.synchronize(&mut history).await;
            self.enforce_limits().await;
        }
    }

    async fn synchronize(&self, history: &mut ThresholdHistory) {
        let shared = &self.workers.shared;
        let seen = self.observe().await;
        let decision =
            history.decide(&self.thresholds, &seen, shared.env.monotonic(), shared.config.eviction_transition);
        let before = std::mem::replace(&mut *shared.pressures.0.lock(), decision.pressures.clone());
        if before != decision.pressures {
            self.tell.notify_one();
        }
        let Some(threshold) = decision.act_on else { return };
        let Some(shortage) = seen.get(&threshold.signal).copied() else { return };
        tracing::warn!(signal = ?threshold.signal, available = shortage.available, "the node is short of a resource");
        let about = client::reference(&*shared.node.lock());
        let message = format!("Attempting to reclaim {}", threshold.signal.resource());
        shared.recorder.warning(&about, "EvictionThresholdMet", message);
        if threshold.signal.pressure() == Pressure::Disk && self.reclaimed(&threshold).await {
            return;
        }
        let ranked = ranking::rank(self.usages(threshold.signal).await, threshold.signal);
        let Some((pod, usage)) = ranked.first() else { return };
        let grace = match (threshold.grace.is_zero(), shared.config.eviction_max_grace_seconds) {
            (true, _) => IMMEDIATE_GRACE_PERIOD_SECONDS,
            (false, most) if most > 0 => pod_spec::grace_period_seconds(pod).min(most),
            (false, _) => pod_spec::grace_period_seconds(pod),
        };
        self.evict(pod, threshold.signal.name(), ranking::message(pod, usage, &threshold, shortage), grace);
        self.wait_for_end(pod).await;
    }

    /// Removes what nobody uses; true when that was enough.
    async fn reclaimed(&self, threshold: &Threshold) -> bool {
        if let Err(error) = container_gc::collect(&self.workers).await {
            tracing::warn!(%error, "failed to remove dead containers");
        }
        self.images.remove_all_unused(&self.workers).await;
        let seen = self.observe().await;
        seen.get(&threshold.signal).is_none_or(|o| o.available >= threshold.least.resolve(o.capacity))
    }

    async fn observe(&self) -> Observations {
        let shared = &self.workers.shared;
        let mut seen = Observations::new();
        let mut note = |signal, available: u64, capacity: u64| {
            if capacity > 0 {
                seen.insert(signal, Observation { available: available as i64, capacity: capacity as i64 });
            }
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (total, available) = stats::memory(&read("/proc/meminfo"));
        note(Signal::Memory, available, total);
        let (free, limit) = process_ids(
            &read("/proc/loadavg"),
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
        );
        note(Signal::Pid, free, limit);
        if let Some(disk) = Disk::measure(&shared.config.root_dir) {
            note(Signal::NodeFs, disk.bytes_free, disk.bytes);
            note(Signal::NodeFsInodes, disk.inodes_free, disk.inodes);
        }
        let info = shared.runtime.runtime.image_fs_info().await.unwrap_or_default();
        let place = info.image_filesystems.first().and_then(|fs| fs.fs_id.as_ref()).map(|id| id.mountpoint.clone());
        if let Some(disk) = place.and_then(|place| Disk::measure(Path::new(&place))) {
            note(Signal::ImageFs, disk.bytes_free, disk.bytes);
            note(Signal::ImageFsInodes, disk.inodes_free, disk.inodes);
        }
        seen
    }

    /// By what they were granted: asking for more must not protect anyone.
    fn running_pods(&self) -> Vec<Arc<Pod>> {
        let shared = &self.workers.shared;
        let ended = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(is_terminal);
        let mut pods = shared.pods.list();
        pods.retain(|pod| !ended(pod) && pod.metadata.deletion_timestamp.is_none());
        pods.iter().map(|pod| shared.allocations.granted(pod)).collect()
    }

    /// What each pod uses of the short resource.
    async fn usages(&self, signal: Signal) -> Vec<(Arc<Pod>, Usage)> {
        let by_pod = self.container_stats().await;
        let mut result = Vec::new();
        for pod in self.running_pods() {
            let stats = by_pod.get(pod_spec::uid(&pod)).map(Vec::as_slice).unwrap_or_default();
            let mut usage = Usage::default();
            for container in stats {
                let used = match signal {
                    Signal::Memory => container.memory,
                    Signal::NodeFs | Signal::ImageFs => container.disk,
                    Signal::NodeFsInodes | Signal::ImageFsInodes => container.inodes,
                    Signal::Pid => 0,
                };
                usage.containers.push((container.name.clone(), used));
            }
            usage.total = usage.containers.iter().map(|(_, used)| used).sum();
            match signal {
                Signal::NodeFs => {
                    let disk = self.disk_usage(&pod, &by_pod).await;
                    usage.total = disk.volumes.values().chain(disk.containers.values()).sum();
                    usage.containers = disk.containers.into_iter().collect();
                }
                Signal::Pid => usage.total = processes(&self.workers.shared.cgroups.pod_directories(&pod)),
                _ => {}
            }
            result.push((pod, usage));
        }
        result
    }

    async fn container_stats(&self) -> HashMap<String, Vec<ContainerUsage>> {
        let listed = self.workers.shared.runtime.runtime.list_container_stats(None).await.unwrap_or_default();
        let value = |number: Option<cri::v1::UInt64Value>| number.map_or(0, |n| n.value as i64);
        let mut by_pod: HashMap<String, Vec<ContainerUsage>> = HashMap::new();
        for stats in listed {
            let Some(attributes) = stats.attributes else { continue };
            let Some(uid) = attributes.labels.get(POD_UID) else { continue };
            let layer = stats.writable_layer.unwrap_or_default();
            by_pod.entry(uid.clone()).or_default().push(ContainerUsage {
                name: attributes.metadata.map(|m| m.name).unwrap_or_default(),
                memory: stats.memory.map_or(0, |memory| value(memory.working_set_bytes)),
                disk: value(layer.used_bytes),
                inodes: value(layer.inodes_used),
            });
        }
        by_pod
    }

    async fn disk_usage(&self, pod: &Arc<Pod>, by_pod: &HashMap<String, Vec<ContainerUsage>>) -> DiskUsage {
        let shared = &self.workers.shared;
        let uid = pod_spec::uid(pod);
        let paths = shared.volumes.paths(uid);
        let volumes = pod_spec::spec(pod).volumes.iter().flatten();
        let on_disk = volumes.filter(|v| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref() != Some("Memory")));
        let places: Vec<_> =
            on_disk.filter_map(|v| paths.get(&v.name).map(|path| (v.name.clone(), path.clone()))).collect();
        let logs = container_config::log_directory(&shared.config.pod_logs_dir(), pod);
        let layers: Vec<(String, i64)> =
            by_pod.get(uid).into_iter().flatten().map(|c| (c.name.clone(), c.disk)).collect();
        let measure = move || DiskUsage {
            volumes: places.into_iter().map(|(name, path)| (name, local_storage::bytes_below(&path))).collect(),
            containers: layers
                .into_iter()
                .map(|(name, layer)| (name.clone(), layer + local_storage::bytes_below(&logs.join(&name))))
                .collect(),
        };
        env::spawn_blocking(measure).await.unwrap_or_default()
    }

    /// Ends pods that have gone beyond their own limits of disk.
    async fn enforce_limits(&self) {
        let pods: Vec<_> = self.running_pods().into_iter().filter(|pod| local_storage::has_limits(pod)).collect();
        if pods.is_empty() {
            return;
        }
        let by_pod = self.container_stats().await;
        for pod in pods {
            let usage = self.disk_usage(&pod, &by_pod).await;
            if let Some(message) = local_storage::excess(&pod, &usage) {
                self.evict(&pod, "ephemeral-storage", message, IMMEDIATE_GRACE_PERIOD_SECONDS);
            }
        }
    }

    fn evict(&self, pod: &Arc<Pod>, signal: &str, message: String, grace_period_seconds: i64) {
        self.workers.shared.metrics.count(&EVICTIONS, &[signal]);
        tracing::warn!(pod = pod_spec::display(pod), message, "evicting a pod");
        self.workers.shared.recorder.warning(&client::reference(&**pod), "Evicted", message.clone());
        let eviction = Eviction { reason: "Evicted".into(), message, grace_period_seconds };
        self.workers.evict(pod_spec::uid(pod), eviction);
    }

    /// So that the next look sees what the pod's end has freed.
    async fn wait_for_end(&self, pod: &Pod) {
        let env = &self.workers.shared.env;
        let until = env.monotonic() + POD_CLEANUP_TIMEOUT;
        while !self.workers.is_terminated(pod_spec::uid(pod)) && env.monotonic() < until {
            env.sleep(Duration::from_millis(500)).await;
        }
    }
}

struct ContainerUsage {
    name: String,
    memory: i64,
    disk: i64,
    inodes: i64,
}

/// Free process ids and how many there can be.
fn process_ids(loadavg: &str, pid_max: &str, threads_max: &str) -> (u64, u64) {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let running = loadavg.split_whitespace().nth(3).and_then(|field| number(field.split_once('/')?.1));
    let limit = [number(pid_max), number(threads_max)].into_iter().flatten().min();
    match (running, limit) {
        (Some(running), Some(limit)) => (limit.saturating_sub(running), limit),
        _ => (0, 0),
    }
}

/// Processes in a pod's group and those below it.
fn processes(directories: &[std::path::PathBuf]) -> i64 {
    let count = |directory: &Path| -> i64 {
        let mut total = 0;
        let mut pending = vec![directory.to_path_buf()];
        while let Some(place) = pending.pop() {
            total += std::fs::read_to_string(place.join("cgroup.procs")).map_or(0, |text| text.lines().count() as i64);
            let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
            pending.extend(entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
        }
        total
    };
    directories.iter().map(|directory| count(directory)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn process_ids_are_bounded_by_the_smaller_limit() {
        assert_eq!(process_ids("0.1 0.2 0.3 2/300 999\n", "4194304\n", "1000\n"), (700, 1000));
        assert_eq!(process_ids("", "1", "1"), (0, 0));
    }

    #[test]
    fn a_short_node_takes_only_what_it_must() {
        let pod = |priority: i32, requests: serde_json::Value| -> Pod {
            let resources = json!({"requests": requests});
            serde_json::from_value(
                json!({"spec": {"priority": priority, "containers": [{"name": "a", "resources": resources}]}}),
            )
            .unwrap()
        };
        let check = |pressures: &[Pressure], pod: Pod, refused: bool| {
            let found = Pressures(Mutex::new(pressures.to_vec())).refuse(&pod);
            assert_eq!(found.is_some(), refused, "{pressures:?}");
        };
        let asking = || json!({"cpu": "1"});
        check(&[], pod(0, json!({})), false);
        check(&[Pressure::Memory], pod(0, json!({})), true);
        check(&[Pressure::Memory], pod(0, asking()), false);
        check(&[Pressure::Disk], pod(0, asking()), true);
        check(&[Pressure::Disk], pod(2_000_000_000, asking()), false);
    }
}
