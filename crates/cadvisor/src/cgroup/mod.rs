//! What the kernel counts of a control group, on cgroup v1 and v2.
//! Used by `monitor`, and by the kubelet for what it tells of its own groups.
//! Only reads; a group that vanishes meanwhile is `None`, a file that is not there counts as zero.

mod files;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use files::{KeyValues, blkio, io_stat, number, pressure, shares_of_weight};
use jiff::Timestamp;

use crate::{
    devices::Devices,
    info::{ContainerSpec, ContainerStats, CpuCfs, CpuUsage, MemoryFaults, MemoryStats, PsiStats},
    proc_files,
};

/// The kernel counts processor time of v1 in hundredths of a second.
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

pub const ROOT: &str = "/";

/// The mounted hierarchies.
#[derive(Debug, Clone)]
pub enum Cgroups {
    Unified {
        root: PathBuf,
    },
    /// Controllers (separated by commas, as they are mounted) and where each is.
    Separate {
        controllers: Vec<(String, PathBuf)>,
    },
}

/// What a list of groups shows of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    pub working_set_bytes: u64,
}

impl Cgroups {
    /// The directory of a group for one controller. Names are absolute, as the kernel tells them; one that leads
    /// elsewhere is no group.
    pub fn directory(&self, controller: &str, name: &str) -> Option<PathBuf> {
        let root = match self {
            Self::Unified { root } => root,
            Self::Separate { controllers } => {
                &controllers.iter().find(|(options, _)| options.split(',').any(|option| option == controller))?.1
            }
        };
        let parts = name.strip_prefix('/')?.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(root.clone(), |place, part| match part {
            "." | ".." => None,
            part if part.contains('\0') => None,
            part => Some(place.join(part)),
        })
    }

    fn is_unified(&self) -> bool {
        matches!(self, Self::Unified { .. })
    }

    /// Whose processor time is counted is a group.
    fn main_directory(&self, name: &str) -> Option<PathBuf> {
        self.directory(if self.is_unified() { "" } else { "cpuacct" }, name)
    }

    pub fn exists(&self, name: &str) -> bool {
        self.main_directory(name).is_some_and(|place| place.is_dir())
    }

    /// The names of the groups directly inside one, sorted.
    pub fn children(&self, name: &str) -> Vec<String> {
        let entries = self.main_directory(name).and_then(|place| fs::read_dir(place).ok());
        let groups = entries.into_iter().flatten().flatten();
        let groups = groups.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let parent = name.trim_end_matches('/');
        let named = |entry: fs::DirEntry| Some(format!("{parent}/{}", entry.file_name().into_string().ok()?));
        let mut names: Vec<String> = groups.filter_map(named).collect();
        names.sort();
        names
    }

    /// The processes in a group itself.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let file = self.main_directory(name).map(|place| place.join("cgroup.procs"));
        let text = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Processor time and memory only: what a list of many groups shows.
    pub fn usage(&self, name: &str) -> Option<Usage> {
        let main = self.main_directory(name).filter(|place| place.is_dir())?;
        let place = self.directory("memory", name).unwrap_or_default();
        let stat = read(&place, "memory.stat");
        let (cpu_nanoseconds, memory_bytes, inactive) = match self {
            Self::Unified { .. } => {
                let (cpu, _) = unified_cpu(&read(&main, "cpu.stat"));
                (cpu.total, read_number(&place, "memory.current"), "inactive_file")
            }
            Self::Separate { .. } => {
                let cpu = read_number(&main, "cpuacct.usage");
                (cpu, read_number(&place, "memory.usage_in_bytes"), "total_inactive_file")
            }
        };
        let working_set_bytes = memory_bytes.saturating_sub(KeyValues(&stat).get(inactive));
        Some(Usage { cpu_nanoseconds, memory_bytes, working_set_bytes })
    }

    /// Everything that the files of a group tell.
    pub fn stats(&self, name: &str, devices: &Devices, now: Timestamp) -> Option<ContainerStats> {
        let main = self.main_directory(name).filter(|place| place.is_dir())?;
        let mut stats = ContainerStats { timestamp: now, ..ContainerStats::default() };
        match self {
            Self::Unified { .. } => {
                (stats.cpu.usage, stats.cpu.cfs) = unified_cpu(&read(&main, "cpu.stat"));
                let io = read(&main, "io.stat");
                (stats.diskio.io_service_bytes, stats.diskio.io_serviced) = io_stat(&io, |a, b| devices.name(a, b));
                stats.oom_events = KeyValues(&read(&main, "memory.events")).get("oom_kill");
            }
            Self::Separate { .. } => {
                stats.cpu.usage = separate_cpu(&main);
                if let Some(place) = self.directory("cpu", name) {
                    let text = read(&place, "cpu.stat");
                    stats.cpu.cfs = cfs(&text, KeyValues(&text).get("throttled_time"));
                }
                if let Some(place) = self.directory("blkio", name) {
                    let of = |kind: &str| {
                        let file = format!("blkio.throttle.{kind}_recursive");
                        let text = fs::read_to_string(place.join(file));
                        let text = text.unwrap_or_else(|_| read(&place, &format!("blkio.throttle.{kind}")));
                        blkio(&text, |a, b| devices.name(a, b))
                    };
                    stats.diskio.io_service_bytes = of("io_service_bytes");
                    stats.diskio.io_serviced = of("io_serviced");
                }
                let place = self.directory("memory", name);
                stats.oom_events =
                    place.map_or(0, |place| KeyValues(&read(&place, "memory.oom_control")).get("oom_kill"));
            }
        }
        stats.memory = self.memory(name);
        [stats.cpu.psi, stats.memory.psi, stats.diskio.psi] = self.pressure(name);
        if let Some(place) = self.directory("pids", name) {
            stats.processes.threads_current = read_number(&place, "pids.current");
            stats.processes.threads_max = number(&read(&place, "pids.max")).filter(|n| *n != u64::MAX).unwrap_or(0);
        }
        Some(stats)
    }

    fn memory(&self, name: &str) -> MemoryStats {
        let Some(place) = self.directory("memory", name) else { return MemoryStats::default() };
        let text = read(&place, "memory.stat");
        let stat = KeyValues(&text);
        let faults = MemoryFaults { pgfault: stat.get("pgfault"), pgmajfault: stat.get("pgmajfault") };
        let mut memory = MemoryStats { container_data: faults, hierarchical_data: faults, ..MemoryStats::default() };
        if self.is_unified() {
            memory.usage = read_number(&place, "memory.current");
            memory.max_usage = read_number(&place, "memory.peak");
            memory.swap = read_number(&place, "memory.swap.current");
            if name == ROOT {
                // The top group has no such files: the machine is asked.
                let machine = proc_files::Meminfo::read();
                memory.usage = machine.total.saturating_sub(machine.free);
                memory.swap = machine.swap_total.saturating_sub(machine.swap_free);
            }
            memory.cache = stat.get("file");
            memory.rss = stat.get("anon");
            memory.mapped_file = stat.get("file_mapped");
            memory.kernel = stat.get("kernel");
            memory.total_active_file = stat.get("active_file");
            memory.total_inactive_file = stat.get("inactive_file");
            memory.failcnt = KeyValues(&read(&place, "memory.events")).get("max");
        } else {
            memory.usage = read_number(&place, "memory.usage_in_bytes");
            memory.max_usage = read_number(&place, "memory.max_usage_in_bytes");
            memory.swap = stat.get("total_swap");
            memory.cache = stat.get("total_cache");
            memory.rss = stat.get("total_rss");
            memory.mapped_file = stat.get("total_mapped_file");
            memory.kernel = read_number(&place, "memory.kmem.usage_in_bytes");
            memory.total_active_file = stat.get("total_active_file");
            memory.total_inactive_file = stat.get("total_inactive_file");
            memory.failcnt = read_number(&place, "memory.failcnt");
            let total = |name: &str, own| stat.find(name).unwrap_or(own);
            memory.hierarchical_data = MemoryFaults {
                pgfault: total("total_pgfault", faults.pgfault),
                pgmajfault: total("total_pgmajfault", faults.pgmajfault),
            };
        }
        memory.working_set = memory.usage.saturating_sub(memory.total_inactive_file);
        memory
    }

    /// Of processors, memory and disks; only v2 tells it of groups.
    fn pressure(&self, name: &str) -> [Option<PsiStats>; 3] {
        let kinds = ["cpu", "memory", "io"];
        match self {
            _ if name == ROOT => kinds.map(|kind| pressure(&read(Path::new("/proc/pressure"), kind))),
            Self::Unified { .. } => {
                let place = self.directory("", name).unwrap_or_default();
                kinds.map(|kind| pressure(&read(&place, &format!("{kind}.pressure"))))
            }
            Self::Separate { .. } => [None; 3],
        }
    }

    /// What the group is limited to.
    pub fn spec(&self, name: &str) -> Option<ContainerSpec> {
        let main = self.main_directory(name)?;
        let about = fs::metadata(&main).ok()?;
        let mut spec = ContainerSpec {
            creation_time: Timestamp::from_second(about.mtime()).unwrap_or_default(),
            has_cpu: true,
            has_processes: true,
            has_diskio: true,
            ..ContainerSpec::default()
        };
        if let Some(place) = self.directory("cpu", name) {
            if self.is_unified() {
                spec.cpu.limit = number(&read(&place, "cpu.weight")).map_or(0, shares_of_weight);
                let text = read(&place, "cpu.max");
                if let Some((quota, period)) = text.trim().split_once(' ') {
                    spec.cpu.quota = quota.parse().unwrap_or(0);
                    spec.cpu.period = period.parse().unwrap_or(0);
                }
            } else {
                spec.cpu.limit = read_number(&place, "cpu.shares");
                spec.cpu.period = read_number(&place, "cpu.cfs_period_us");
                spec.cpu.quota = read_number(&place, "cpu.cfs_quota_us");
            }
        }
        if let Some(place) = self.directory("cpuset", name) {
            let file = if self.is_unified() { "cpuset.cpus.effective" } else { "cpuset.cpus" };
            spec.cpu.mask = read(&place, file).trim().into();
        }
        if let Some(place) = self.directory("memory", name) {
            let (limit, swap, reservation) = match self.is_unified() {
                true => ("memory.max", "memory.swap.max", "memory.min"),
                false => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"),
            };
            spec.has_memory = place.join(limit).exists();
            spec.memory.limit = read_number(&place, limit);
            spec.memory.swap_limit = read_number(&place, swap);
            spec.memory.reservation = read_number(&place, reservation);
        }
        if let Some(place) = self.directory("pids", name) {
            spec.processes.limit = number(&read(&place, "pids.max")).filter(|n| *n != u64::MAX).unwrap_or(0);
        }
        Some(spec)
    }
}

fn read(place: &Path, file: &str) -> String {
    fs::read_to_string(place.join(file)).unwrap_or_default()
}

fn read_number(place: &Path, file: &str) -> u64 {
    number(&read(place, file)).unwrap_or(0)
}

fn cfs(stat: &str, throttled_time: u64) -> CpuCfs {
    let stat = KeyValues(stat);
    CpuCfs { periods: stat.get("nr_periods"), throttled_periods: stat.get("nr_throttled"), throttled_time }
}

fn unified_cpu(text: &str) -> (CpuUsage, CpuCfs) {
    let stat = KeyValues(text);
    let nanoseconds = |name: &str| stat.get(name).saturating_mul(1000);
    let usage = CpuUsage {
        total: nanoseconds("usage_usec"),
        user: nanoseconds("user_usec"),
        system: nanoseconds("system_usec"),
    };
    (usage, cfs(text, nanoseconds("throttled_usec")))
}

fn separate_cpu(place: &Path) -> CpuUsage {
    let text = read(place, "cpuacct.stat");
    let nanoseconds = |name: &str| KeyValues(&text).get(name).saturating_mul(NANOSECONDS_PER_TICK);
    CpuUsage { total: read_number(place, "cpuacct.usage"), user: nanoseconds("user"), system: nanoseconds("system") }
}

#[cfg(test)]
mod tests;
