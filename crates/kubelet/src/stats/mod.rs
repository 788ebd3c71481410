//! What the node and its pods use: processor, memory, disk, network.
//! Read by `server_view` for `/stats/summary` and the metrics pages.
//! Costs nothing while nobody asks.

mod counters;
mod group_usage;
mod pod_facts;
mod pod_naming;
mod resource_metrics;
mod summary;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use cadvisor::{Monitor, info::FsStats, proc_files::Meminfo};
use cri::v1;
use group_usage::Groups;
use k8s_openapi::api::core::v1::ContainerStatus;
use metrics::Text;
use parking_lot::Mutex;
use pod_naming::PodNaming;
use serde_json::Value;

use crate::{
    files::disk::Disk, node::node_status::Machine, pod::pod_workers::Shared, runtime::container_config::POD_UID,
};

/// Two samples this far apart are enough for a rate.
const CPU_SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(500);
/// An older sample says nothing about now.
const CPU_SAMPLE_INTERVAL_MAX: Duration = Duration::from_secs(120);

const MEASURE_RETRY_DELAY_MAX: Duration = Duration::from_millis(400);

/// Processor time used so far, at some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuSample {
    pub at: Duration,
    pub nanoseconds: u64,
}

impl CpuSample {
    /// Nanoseconds of processor time per second since `earlier`.
    fn rate_since(&self, earlier: &CpuSample) -> Option<u64> {
        let span = self.at.checked_sub(earlier.at)?;
        let used = self.nanoseconds.checked_sub(earlier.nanoseconds)?;
        (span >= CPU_SAMPLE_INTERVAL_MIN && span <= CPU_SAMPLE_INTERVAL_MAX)
            .then(|| (used as f64 / span.as_secs_f64()) as u64)
    }
}

/// Everything measured at one moment.
#[derive(Default)]
pub(crate) struct Measured {
    pub node: NodeUsage,
    pub containers: Vec<ContainerUsage>,
    /// Only for the summary.
    pub groups: Groups,
    /// Of pods by UID, and of the node's own programs by name.
    pub group_rates: HashMap<String, u64>,
}

#[derive(Default, Clone)]
pub(crate) struct NodeUsage {
    pub cpu_nanoseconds: u64,
    pub cpu_rate: Option<u64>,
    pub memory_total: u64,
    pub memory_available: u64,
    pub disk_total: u64,
    pub disk_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// Total and free.
    pub swap: (u64, u64),
    /// Seconds of Unix time.
    pub booted: i64,
    pub most_processes: Option<i64>,
    pub processes: Option<i64>,
}

/// The file system that images or containers are on, and what they use of it.
#[derive(Clone, Copy)]
pub(crate) struct ImageDisk {
    pub disk: Disk,
    pub used_bytes: u64,
    pub used_inodes: u64,
}

#[derive(Clone, Default)]
pub(crate) struct ContainerUsage {
    pub uid: String,
    pub id: String,
    pub name: String,
    /// When it was measured, in milliseconds of Unix time.
    pub at_milliseconds: i64,
    pub cpu_nanoseconds: u64,
    pub cpu_rate: Option<u64>,
    pub working_set: u64,
    pub usage: u64,
    pub rss: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Available and used, where the runtime tells.
    pub swap: Option<(u64, u64)>,
    pub disk_used: u64,
    pub inodes_used: u64,
}

/// What the files of containers take, by the runtime's ids, as it was last told.
type WritableLayers = Arc<Mutex<HashMap<String, FsStats>>>;

pub struct Stats {
    shared: Arc<Shared>,
    monitor: Arc<Monitor>,
    layers: WritableLayers,
    last: Mutex<HashMap<String, CpuSample>>,
}

const NODE: &str = "";

impl Stats {
    pub fn new(shared: Arc<Shared>) -> Self {
        let layers = WritableLayers::default();
        let machine = Machine::probe(&shared.config.root_dir);
        let own = format!("minke-{}", env!("CARGO_PKG_VERSION"));
        let versions = cadvisor::Versions { kernel: machine.kernel, system: machine.os_image, own };
        let naming = PodNaming { shared: shared.clone(), layers: layers.clone() };
        let monitor = Monitor::new(shared.cgroups.cgroups(), Arc::new(naming), versions, shared.env.clone());
        Self { shared, monitor: Arc::new(monitor), layers, last: Mutex::default() }
    }

    /// What port 4194 shows.
    pub fn monitor(&self) -> Arc<Monitor> {
        self.monitor.clone()
    }

    pub async fn summary(&self, only_cpu_and_memory: bool) -> Result<Value, ApiError> {
        let measured = self.measure().await?;
        let now = self.shared.env.now();
        if only_cpu_and_memory {
            return Ok(summary::cpu_and_memory(summary::render(&self.shared, &measured, &HashMap::new(), None, now)));
        }
        let (facts, images) = tokio::join!(pod_facts::gather(&self.shared), self.image_disks());
        Ok(summary::render(&self.shared, &measured, &facts, images, now))
    }

    /// The file systems of images and of containers; where the runtime tells of one only, it is both.
    async fn image_disks(&self) -> Option<(ImageDisk, ImageDisk)> {
        let answer = self.shared.runtime.runtime.image_fs_info().await.ok()?;
        let value = |number: Option<v1::UInt64Value>| number.map_or(0, |n| n.value);
        let measure = |systems: Vec<v1::FilesystemUsage>| {
            let system = systems.into_iter().next()?;
            let disk = Disk::measure(std::path::Path::new(&system.fs_id?.mountpoint))?;
            Some(ImageDisk { disk, used_bytes: value(system.used_bytes), used_inodes: value(system.inodes_used) })
        };
        let images = measure(answer.image_filesystems)?;
        let containers = measure(answer.container_filesystems).unwrap_or(images);
        Some((images, containers))
    }

    /// Pages have counters only, so one sample is enough.
    pub async fn metrics(&self, page: &str) -> Result<String, ApiError> {
        match page {
            "metrics" => Ok(counters::page(&self.shared).await),
            "probes" => Ok(counters::probes(&self.shared)),
            "cadvisor" => {
                // The runtime knows only what files take: without it, the rest is told.
                if let Err(error) = self.sample().await {
                    tracing::debug!(error = error.message, "container metrics lack what files take");
                }
                let monitor = self.monitor.clone();
                let page = env::spawn_blocking(move || {
                    let mut text = Text::default();
                    monitor.metrics(&mut text);
                    text.finish()
                });
                page.await.map_err(|error| ApiError::internal(error.to_string()))
            }
            _ => {
                let measured = self.sample().await?;
                Ok(resource_metrics::page(&self.shared, &measured, self.shared.env.now()))
            }
        }
    }

    /// A rate needs two samples: the first question waits for the second one.
    async fn measure(&self) -> Result<Measured, ApiError> {
        let fresh =
            self.last.lock().get(NODE).is_none_or(|s| self.shared.env.monotonic() - s.at > CPU_SAMPLE_INTERVAL_MAX);
        if fresh {
            self.sample_groups(self.sample().await?).await;
            self.shared.env.sleep(CPU_SAMPLE_INTERVAL_MIN).await;
        }
        Ok(self.sample_groups(self.sample().await?).await)
    }

    /// Adds what the kernel tells beyond what the runtime does.
    async fn sample_groups(&self, mut measured: Measured) -> Measured {
        let groups = group_usage::gather(&self.shared).await;
        let at = self.shared.env.monotonic();
        let pods = groups.pods.iter().map(|(uid, group)| (uid.as_str(), group));
        for (key, group) in pods.chain(groups.system.iter().map(|(name, group)| (*name, group))) {
            let sample = CpuSample { at, nanoseconds: group.stats.cpu.usage.total };
            if let Some(rate) = self.rate(key, sample) {
                measured.group_rates.insert(key.into(), rate);
            }
        }
        measured.groups = groups;
        measured
    }

    async fn sample(&self) -> Result<Measured, ApiError> {
        let shared = &self.shared;
        let listed = self.list().await.map_err(|error| ApiError::internal(error.to_string()))?;
        let now = shared.env.monotonic();
        let mut node = node_usage(&shared.config.root_dir);
        node.cpu_rate = self.rate(NODE, CpuSample { at: now, nanoseconds: node.cpu_nanoseconds });
        let mut containers = Vec::new();
        for stats in &listed {
            // The runtime also lists containers that have ended: those use no processor any more.
            let (Some(attributes), Some(cpu)) = (&stats.attributes, &stats.cpu) else { continue };
            let Some(uid) = attributes.labels.get(POD_UID) else { continue };
            let mut usage = container_usage(stats, uid, shared.env.now().as_millisecond());
            let at = Duration::from_nanos(cpu.timestamp.max(0) as u64);
            usage.cpu_rate = self.rate(&attributes.id, CpuSample { at, nanoseconds: usage.cpu_nanoseconds });
            containers.push(usage);
        }
        *self.layers.lock() = layers(&listed);
        // Containers that are gone are forgotten.
        let mut last = self.last.lock();
        if last.len() > 4 * containers.len() + 32 {
            last.retain(|key, _| key == NODE);
        }
        drop(last);
        Ok(Measured { node, containers, ..Measured::default() })
    }

    /// Some runtimes fail to list anything while one container is being removed, so they are asked again.
    async fn list(&self) -> cri::Result<Vec<v1::ContainerStats>> {
        let shared = &self.shared;
        let mut delay = Duration::from_millis(50);
        loop {
            match shared.runtime.runtime.list_container_stats(None).await {
                Err(error) if delay <= MEASURE_RETRY_DELAY_MAX => {
                    tracing::debug!(%error, "failed to list what containers use");
                    shared.env.sleep(delay).await;
                    delay *= 2;
                }
                other => return other,
            }
        }
    }

    /// The rate since the last sample, which this one replaces once it is far enough from it.
    fn rate(&self, key: &str, sample: CpuSample) -> Option<u64> {
        let mut last = self.last.lock();
        let rate = last.get(key).and_then(|earlier| sample.rate_since(earlier));
        if rate.is_some() || !last.contains_key(key) || last[key].at + CPU_SAMPLE_INTERVAL_MAX < sample.at {
            last.insert(key.into(), sample);
        }
        rate
    }
}

fn container_usage(stats: &v1::ContainerStats, uid: &str, now_milliseconds: i64) -> ContainerUsage {
    let value = |number: &Option<v1::UInt64Value>| number.as_ref().map_or(0, |n| n.value);
    let cpu = stats.cpu.unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let disk = stats.writable_layer.clone().unwrap_or_default();
    ContainerUsage {
        uid: uid.into(),
        id: stats.attributes.as_ref().map(|a| a.id.clone()).unwrap_or_default(),
        name: stats.attributes.as_ref().and_then(|a| a.metadata.as_ref()).map(|m| m.name.clone()).unwrap_or_default(),
        at_milliseconds: Some(cpu.timestamp / 1_000_000).filter(|ms| *ms > 0).unwrap_or(now_milliseconds),
        cpu_nanoseconds: value(&cpu.usage_core_nano_seconds),
        cpu_rate: None,
        working_set: value(&memory.working_set_bytes),
        usage: value(&memory.usage_bytes).max(value(&memory.working_set_bytes)),
        rss: value(&memory.rss_bytes),
        page_faults: value(&memory.page_faults),
        major_page_faults: value(&memory.major_page_faults),
        swap: stats.swap.as_ref().map(|swap| (value(&swap.swap_available_bytes), value(&swap.swap_usage_bytes))),
        disk_used: value(&disk.used_bytes),
        inodes_used: value(&disk.inodes_used),
    }
}

/// What containers' own files take, and of which file system.
fn layers(listed: &[v1::ContainerStats]) -> HashMap<String, FsStats> {
    let mut systems: HashMap<String, (String, Option<Disk>)> = HashMap::new();
    let mut found = HashMap::new();
    for stats in listed {
        let (Some(attributes), Some(layer)) = (&stats.attributes, &stats.writable_layer) else { continue };
        let place = layer.fs_id.as_ref().map(|id| id.mountpoint.clone()).unwrap_or_default();
        let (device, disk) = systems.entry(place).or_insert_with_key(|place| {
            let place = std::path::Path::new(place);
            (cadvisor::device_of(place), Disk::measure(place))
        });
        let disk = disk.unwrap_or_default();
        let usage = FsStats {
            device: device.clone(),
            kind: "vfs".into(),
            capacity: disk.bytes,
            usage: layer.used_bytes.as_ref().map_or(0, |bytes| bytes.value),
            available: disk.bytes_free,
            has_inodes: disk.inodes > 0,
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
            ..FsStats::default()
        };
        found.insert(attributes.id.clone(), usage);
    }
    found
}

/// What was last reported of the container that a usage is of.
fn status_of(shared: &Shared, container: &ContainerUsage) -> Option<ContainerStatus> {
    let status = shared.statuses.get(&container.uid)?;
    let lists = [status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == container.name)
}

/// When the container that runs now was started.
fn started(shared: &Shared, container: &ContainerUsage) -> Option<jiff::Timestamp> {
    Some(status_of(shared, container)?.state?.running?.started_at?.0)
}

fn node_usage(root: &std::path::Path) -> NodeUsage {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = Meminfo::read();
    let stat = read("/proc/stat");
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let mut usage = NodeUsage {
        cpu_nanoseconds: cpu(&stat),
        booted: booted(&stat),
        swap: (memory.swap_total, memory.swap_free),
        most_processes: limits.iter().filter_map(|file| read(file).trim().parse().ok()).min(),
        processes: processes(&read("/proc/loadavg")),
        memory_total: memory.total,
        memory_available: memory.available,
        ..Default::default()
    };
    if let Ok(fs) = nix::sys::statvfs::statvfs(root) {
        usage.disk_total = fs.blocks() * fs.fragment_size();
        usage.disk_available = fs.blocks_available() * fs.fragment_size();
        usage.inodes = fs.files();
        usage.inodes_free = fs.files_free();
    }
    usage
}

/// Busy time of all processors in nanoseconds; the kernel counts in hundredths of a second.
fn cpu(stat: &str) -> u64 {
    let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // Idle and iowait are not busy; guest time is in user time already.
    let busy: u64 = fields.iter().take(8).enumerate().filter(|(i, _)| *i != 3 && *i != 4).map(|(_, v)| v).sum();
    busy * 10_000_000
}

pub(crate) fn memory(meminfo: &str) -> (u64, u64) {
    let memory = Meminfo::parse(meminfo);
    (memory.total, memory.available)
}

fn booted(stat: &str) -> i64 {
    metrics::boot_time(stat).unwrap_or(0)
}

/// All that there are, from "0.00 0.01 0.05 1/234 5678".
fn processes(loadavg: &str) -> Option<i64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_and_rates() {
        assert_eq!(cpu("cpu  10 1 5 100 50 0 2 0 3 0\ncpu0 1 1 1\n"), 180_000_000);
        assert_eq!(memory("MemTotal: 4 kB\nMemAvailable: 3 kB\n"), (4096, 3072));
        assert_eq!(booted("cpu 1\nbtime 1700000000\nprocesses 9\n"), 1_700_000_000);
        assert_eq!(processes("0.00 0.01 0.05 1/234 5678\n"), Some(234));
        let at = |seconds, nanoseconds| CpuSample { at: Duration::from_secs(seconds), nanoseconds };
        let check = |a: CpuSample, b: CpuSample, expected| assert_eq!(b.rate_since(&a), expected);
        check(at(0, 0), at(2, 1000), Some(500));
        check(at(0, 0), at(0, 1000), None);
        check(at(0, 5), at(2, 1), None);
        check(at(0, 0), at(600, 1), None);
    }
}
