//! Ends pods before the node runs out of memory, disk or process ids, and pods that use more disk than they may.
//! Run by `wiring`; ranks by `ranking`, decides by `thresholds`, acts through `pod_workers`.
//! One pod at a time for a shortage, and only after what nobody uses was removed.

mod filesystems;
mod local_storage;
mod ranking;
mod thresholds;

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::placement;
use client::EventType;
use filesystems::FileSystems;
use k8s_openapi::api::core::v1::{Pod, Taint};
use local_storage::DiskUsage;
use parking_lot::Mutex;
use ranking::{EvictionMessage, Usage};
use thresholds::{Observation, Observations, ThresholdHistory};
pub use thresholds::{Pressure, Signal, Threshold, ThresholdError, parse, with_allocatable, with_reclaim};
use tokio::sync::Notify;

use crate::{
    files::disk::{self, Disk},
    images::image_gc::ImageGc,
    node::{node_metrics::EVICTIONS, pod_metrics::EVICTION_STATS_AGE},
    pod::{
        admission::preemption::is_critical,
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
const END_TIMEOUT_MIN: Duration = Duration::from_secs(10);
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
        if is_critical(pod) {
            return None;
        }
        let only_memory = found == [Pressure::Memory];
        let asks = || pod_spec::qos_class(pod) != QosClass::BestEffort;
        if found.is_empty() || (only_memory && (asks() || tolerates_memory_pressure(pod))) {
            return None;
        }
        let names: Vec<&str> = found.iter().map(|pressure| condition_name(*pressure)).collect();
        Some(format!("The node had condition: [{}]. ", names.join(" ")))
    }
}

/// As every pod of a DaemonSet does.
fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let (key, effect) = ("node.kubernetes.io/memory-pressure".to_string(), "NoSchedule".to_string());
    let taint = Taint { key, effect, ..Taint::default() };
    let mut tolerations = pod_spec::spec(pod).tolerations.iter().flatten();
    tolerations.any(|toleration| placement::tolerates(toleration, &taint))
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
        let (seen, systems) = self.observe().await;
        let seen_at = shared.env.monotonic();
        let thresholds = systems.thresholds(&self.thresholds);
        let decision = history.decide(&thresholds, &seen, shared.env.monotonic(), shared.config.eviction_transition);
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
        if threshold.signal.pressure() == Pressure::Disk && self.reclaimed(&threshold, systems).await {
            return;
        }
        let ranked = ranking::rank(self.usages(threshold.signal, systems).await, threshold.signal);
        let Some((pod, usage)) = ranked.first() else { return };
        let grace = match threshold.grace.is_zero() {
            true => IMMEDIATE_GRACE_PERIOD_SECONDS,
            false => pod_spec::grace_period_seconds(pod).min(shared.config.eviction_max_grace_seconds).max(0),
        };
        let message = ranking::message(pod, usage, &threshold, shortage);
        let age = shared.env.monotonic().saturating_sub(seen_at);
        shared.metrics.observe(&EVICTION_STATS_AGE, &[threshold.signal.name()], age.as_secs_f64());
        let disruption_message = Some(message.text.clone());
        self.evict(pod, threshold.signal.name(), message, disruption_message, grace);
        self.wait_for_end(pod, grace).await;
    }

    /// Removes what nobody uses; true when that was enough.
    async fn reclaimed(&self, threshold: &Threshold, systems: FileSystems) -> bool {
        let reclaim = systems.reclaim(threshold.signal);
        if !reclaim.containers && !reclaim.images {
            return false;
        }
        if reclaim.containers
            && let Err(error) = container_gc::collect(&self.workers).await
        {
            tracing::warn!(%error, "failed to remove dead containers");
        }
        if reclaim.images {
            self.images.remove_all_unused(&self.workers).await;
        }
        let (seen, _) = self.observe().await;
        seen.get(&threshold.signal).is_none_or(|o| o.available >= threshold.least.resolve(o.capacity))
    }

    async fn observe(&self) -> (Observations, FileSystems) {
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
        if let Some((limit, used)) = shared.cgroups.pods_directory("memory").and_then(|place| memory_of_pods(&place)) {
            note(Signal::AllocatableMemory, limit.saturating_sub(used), limit);
        }
        let info = shared.runtime.runtime.image_fs_info().await.unwrap_or_default();
        let place = |list: &[cri::v1::FilesystemUsage]| -> Option<PathBuf> {
            list.first()?.fs_id.as_ref().map(|id| PathBuf::from(&id.mountpoint))
        };
        let images = place(&info.image_filesystems);
        let layers = place(&info.container_filesystems).or_else(|| images.clone());
        let node = Some(shared.config.root_dir.clone());
        for (place, bytes, inodes) in [
            (&node, Signal::NodeFs, Signal::NodeFsInodes),
            (&images, Signal::ImageFs, Signal::ImageFsInodes),
            (&layers, Signal::ContainerFs, Signal::ContainerFsInodes),
        ] {
            if let Some(disk) = place.as_deref().and_then(Disk::measure) {
                note(bytes, disk.bytes_free, disk.bytes);
                note(inodes, disk.inodes_free, disk.inodes);
            }
        }
        let device = |place: &Option<PathBuf>| std::fs::metadata(place.as_ref()?).ok().map(|meta| meta.dev());
        (seen, FileSystems::of_devices(device(&node), device(&images), device(&layers)))
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
    async fn usages(&self, signal: Signal, systems: FileSystems) -> Vec<(Arc<Pod>, Usage)> {
        let by_pod = self.container_stats().await;
        let counted = systems.counted(signal);
        let mut result = Vec::new();
        for pod in self.running_pods() {
            let stats = by_pod.get(pod_spec::uid(&pod)).map(Vec::as_slice).unwrap_or_default();
            let of = |amount: fn(&ContainerUsage) -> i64| -> Vec<(String, i64)> {
                stats.iter().map(|container| (container.name.clone(), amount(container))).collect()
            };
            let sum = |containers: &[(String, i64)]| containers.iter().map(|(_, used)| used).sum::<i64>();
            let (containers, volumes) = match signal {
                Signal::Memory | Signal::AllocatableMemory => (of(|c| c.memory), 0),
                Signal::NodeFs | Signal::ImageFs | Signal::ContainerFs => match counted.logs_and_volumes {
                    true => {
                        let disk = self.disk_usage(&pod, &by_pod, counted.layers).await;
                        (disk.containers.into_iter().collect(), disk.volumes.values().sum())
                    }
                    false if counted.layers => (of(|c| c.disk), 0),
                    false => (vec![], 0),
                },
                Signal::NodeFsInodes | Signal::ImageFsInodes | Signal::ContainerFsInodes => {
                    let own = if counted.layers { of(|c| c.inodes) } else { vec![] };
                    let volumes = if counted.logs_and_volumes { self.inodes_of_volumes(&pod).await } else { 0 };
                    (own, volumes)
                }
                Signal::Pid => (vec![], processes(&self.workers.shared.cgroups.pod_directories(&pod))),
            };
            result.push((pod, Usage { total: sum(&containers) + volumes, containers }));
        }
        result
    }

    async fn inodes_of_volumes(&self, pod: &Arc<Pod>) -> i64 {
        let logs = container_config::log_directory(&self.workers.shared.config.pod_logs_dir(), pod);
        let places: Vec<PathBuf> = self.volumes_on_disk(pod).into_values().chain([logs]).collect();
        let count = move || places.iter().map(|place| disk::usage_below(place).inodes as i64).sum();
        env::spawn_blocking(count).await.unwrap_or_default()
    }

    /// Directories of emptyDir volumes, by name.
    fn volumes_on_disk(&self, pod: &Pod) -> HashMap<String, PathBuf> {
        let paths = self.workers.shared.volumes.paths(pod_spec::uid(pod));
        let volumes = pod_spec::spec(pod).volumes.iter().flatten();
        let on_disk = volumes.filter(|v| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref() != Some("Memory")));
        on_disk.filter_map(|v| paths.get(&v.name).map(|path| (v.name.clone(), path.clone()))).collect()
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

    async fn disk_usage(
        &self,
        pod: &Arc<Pod>,
        by_pod: &HashMap<String, Vec<ContainerUsage>>,
        with_layers: bool,
    ) -> DiskUsage {
        let shared = &self.workers.shared;
        let uid = pod_spec::uid(pod);
        let places = self.volumes_on_disk(pod);
        let logs = container_config::log_directory(&shared.config.pod_logs_dir(), pod);
        let layers: Vec<(String, i64)> = by_pod
            .get(uid)
            .into_iter()
            .flatten()
            .map(|c| (c.name.clone(), if with_layers { c.disk } else { 0 }))
            .collect();
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
        if !self.workers.shared.config.local_storage_isolation {
            return;
        }
        let pods: Vec<_> =
            self.running_pods().into_iter().filter(|pod| local_storage::has_limits(pod) && !is_critical(pod)).collect();
        if pods.is_empty() {
            return;
        }
        let by_pod = self.container_stats().await;
        for pod in pods {
            let usage = self.disk_usage(&pod, &by_pod, true).await;
            if let Some(excess) = local_storage::excess(&pod, &usage) {
                let message = EvictionMessage { text: excess.message, ..EvictionMessage::default() };
                self.evict(&pod, excess.signal, message, None, IMMEDIATE_GRACE_PERIOD_SECONDS);
            }
        }
    }

    /// A pod that went beyond a limit of its own is no victim of the node's: nothing is said of a disruption.
    fn evict(
        &self,
        pod: &Arc<Pod>,
        signal: &str,
        message: EvictionMessage,
        disruption_message: Option<String>,
        grace_period_seconds: i64,
    ) {
        self.workers.shared.metrics.count(&EVICTIONS, &[signal]);
        let EvictionMessage { text: message, annotations } = message;
        tracing::warn!(pod = pod_spec::display(pod), message, "evicting a pod");
        let (about, recorder) = (client::reference(&**pod), &self.workers.shared.recorder);
        recorder.annotated(&about, EventType::Warning, "Evicted", message.clone(), annotations);
        let eviction = Eviction { reason: "Evicted".into(), message, disruption_message, grace_period_seconds };
        self.workers.evict(pod_spec::uid(pod), eviction);
    }

    /// So that the next look sees what the pod's end has freed.
    async fn wait_for_end(&self, pod: &Pod, grace_period_seconds: i64) {
        let shared = &self.workers.shared;
        let (env, uid) = (&shared.env, pod_spec::uid(pod));
        if env.timeout(end_timeout(grace_period_seconds), self.workers.wait_terminated(uid)).await.is_none() {
            let text = "Container runtime did not kill the pod within specified grace period.";
            shared.recorder.warning(&client::reference(pod), "ExceededGracePeriod", text);
        }
        env.timeout(POD_CLEANUP_TIMEOUT, self.workers.wait_terminated(uid)).await;
    }
}

/// How long an evicted pod is waited for before it is told of: its grace period and half of it again.
fn end_timeout(grace_period_seconds: i64) -> Duration {
    let seconds = grace_period_seconds.saturating_add(grace_period_seconds / 2);
    Duration::from_secs(seconds.max(0) as u64).max(END_TIMEOUT_MIN)
}

struct ContainerUsage {
    name: String,
    memory: i64,
    disk: i64,
    inodes: i64,
}

/// The most that all pods together may have, and what they use without what the kernel can drop; `None` where nothing
/// limits them.
fn memory_of_pods(directory: &Path) -> Option<(u64, u64)> {
    let read = |names: [&str; 2]| names.iter().find_map(|name| std::fs::read_to_string(directory.join(name)).ok());
    let number = |text: String| text.trim().parse::<u64>().ok();
    let limit = number(read(["memory.max", "memory.limit_in_bytes"])?)?;
    let used = number(read(["memory.current", "memory.usage_in_bytes"])?)?;
    let stat = std::fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let inactive = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    let inactive = inactive("total_inactive_file ").or_else(|| inactive("inactive_file ")).unwrap_or(0);
    Some((limit, used.saturating_sub(inactive)))
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
    fn an_end_is_waited_for_as_long_as_upstream_does() {
        let check = |grace, expected| assert_eq!(end_timeout(grace), Duration::from_secs(expected), "{grace}");
        [(0, 10), (1, 10), (8, 12), (30, 45)].into_iter().for_each(|(grace, expected)| check(grace, expected));
    }

    #[test]
    fn process_ids_are_bounded_by_the_smaller_limit() {
        assert_eq!(process_ids("0.1 0.2 0.3 2/300 999\n", "4194304\n", "1000\n"), (700, 1000));
        assert_eq!(process_ids("", "1", "1"), (0, 0));
    }

    #[test]
    fn the_memory_of_all_pods_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        assert_eq!(memory_of_pods(directory.path()), None);
        write("memory.current", "700\n");
        write("memory.stat", "anon 1\ninactive_file 200\n");
        write("memory.max", "max\n");
        assert_eq!(memory_of_pods(directory.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(memory_of_pods(directory.path()), Some((1000, 500)));
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
        let tolerating = |key: &str, effect: &str| {
            let mut pod = pod(0, json!({}));
            let toleration = json!([{"key": key, "operator": "Exists", "effect": effect}]);
            pod.spec.as_mut().unwrap().tolerations = serde_json::from_value(toleration).unwrap();
            pod
        };
        let key = "node.kubernetes.io/memory-pressure";
        check(&[Pressure::Memory], tolerating(key, "NoSchedule"), false);
        check(&[Pressure::Memory], tolerating(key, ""), false);
        check(&[Pressure::Memory], tolerating(key, "NoExecute"), true);
        check(&[Pressure::Memory], tolerating("node.kubernetes.io/disk-pressure", "NoSchedule"), true);
        check(&[Pressure::Memory, Pressure::Disk], tolerating(key, "NoSchedule"), true);
        check(&[Pressure::Disk], pod(0, asking()), true);
        check(&[Pressure::Disk], pod(2_000_000_000, asking()), false);
    }
}
