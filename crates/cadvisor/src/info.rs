//! What is known of a container and of the machine, in cAdvisor's form: names and units are those of its JSON.
//! Filled in by `cgroup`, `processes`, `filesystem` and `machine`; shown by `container_metrics`, `machine_metrics` and `http`.
//! Invariant: pure (tidy: `pure_files`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ContainerSpec {
    pub creation_time: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub has_cpu: bool,
    pub cpu: CpuSpec,
    pub has_memory: bool,
    pub memory: MemorySpec,
    pub has_hugetlb: bool,
    pub has_network: bool,
    pub has_processes: bool,
    pub processes: ProcessSpec,
    pub has_filesystem: bool,
    pub has_diskio: bool,
    pub has_custom_metrics: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct CpuSpec {
    /// Shares.
    pub limit: u64,
    pub max_limit: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mask: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub quota: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub period: u64,
}

/// Bytes; the largest number stands for no limit.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct MemorySpec {
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub reservation: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub swap_limit: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ProcessSpec {
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One sample.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ContainerStats {
    pub timestamp: Timestamp,
    pub cpu: CpuStats,
    pub diskio: DiskIoStats,
    pub memory: MemoryStats,
    pub network: NetworkStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystem: Vec<FsStats>,
    pub task_stats: LoadStats,
    pub processes: ProcessStats,
    #[serde(skip_serializing_if = "is_zero")]
    pub oom_events: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct PsiStats {
    pub full: PsiData,
    pub some: PsiData,
}

#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct PsiData {
    /// Microseconds.
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// Processes by state.
#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct LoadStats {
    pub nr_sleeping: u64,
    pub nr_running: u64,
    pub nr_stopped: u64,
    pub nr_uninterruptible: u64,
    pub nr_io_wait: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct CpuStats {
    pub usage: CpuUsage,
    pub cfs: CpuCfs,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

/// Nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct CpuUsage {
    pub total: u64,
    pub user: u64,
    pub system: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct CpuCfs {
    pub periods: u64,
    pub throttled_periods: u64,
    /// Nanoseconds.
    pub throttled_time: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct DiskIoStats {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_service_bytes: Vec<PerDiskStats>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_serviced: Vec<PerDiskStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct PerDiskStats {
    pub device: String,
    pub major: u64,
    pub minor: u64,
    /// By operation: `Read`, `Write` and what else the kernel tells.
    pub stats: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct MemoryStats {
    pub usage: u64,
    pub max_usage: u64,
    pub cache: u64,
    pub rss: u64,
    pub swap: u64,
    pub mapped_file: u64,
    pub working_set: u64,
    pub total_active_file: u64,
    pub total_inactive_file: u64,
    pub failcnt: u64,
    pub kernel: u64,
    pub container_data: MemoryFaults,
    pub hierarchical_data: MemoryFaults,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq)]
pub struct MemoryFaults {
    pub pgfault: u64,
    pub pgmajfault: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkStats {
    pub interfaces: Vec<InterfaceStats>,
}

/// The first interface stands beside the list of all, for clients that know of one only.
impl Serialize for NetworkStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Inlined<'a> {
            #[serde(flatten)]
            first: &'a InterfaceStats,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            interfaces: &'a [InterfaceStats],
        }
        let none = InterfaceStats::default();
        Inlined { first: self.interfaces.first().unwrap_or(&none), interfaces: &self.interfaces }.serialize(serializer)
    }
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct InterfaceStats {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_packets: u64,
    pub rx_errors: u64,
    pub rx_dropped: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    pub tx_dropped: u64,
}

/// A file system, and what its device has done; times in milliseconds.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct FsStats {
    pub device: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub capacity: u64,
    pub usage: u64,
    pub available: u64,
    pub has_inodes: bool,
    pub inodes: u64,
    pub inodes_free: u64,
    pub reads_completed: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub read_time: u64,
    pub writes_completed: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub write_time: u64,
    pub io_in_progress: u64,
    pub io_time: u64,
    pub weighted_io_time: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ProcessStats {
    pub process_count: u64,
    pub fd_count: u64,
    pub socket_count: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub threads_current: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub threads_max: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ulimits: Vec<UlimitSpec>,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct UlimitSpec {
    pub name: String,
    pub soft_limit: i64,
    pub hard_limit: i64,
}

/// One line of a process list.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct ProcessInfo {
    pub user: String,
    pub pid: u32,
    pub parent_pid: u32,
    pub start_time: String,
    pub percent_cpu: f64,
    pub percent_mem: f64,
    /// Bytes, as `virtual_size`.
    pub rss: u64,
    pub virtual_size: u64,
    pub status: String,
    pub running_time: String,
    pub cgroup_path: String,
    pub cmd: String,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct MachineInfo {
    pub timestamp: Timestamp,
    pub vendor_id: String,
    pub num_cores: u64,
    pub num_physical_cores: u64,
    pub num_sockets: u64,
    pub cpu_frequency_khz: u64,
    pub memory_capacity: u64,
    pub swap_capacity: u64,
    pub memory_by_type: BTreeMap<String, MemoryInfo>,
    pub hugepages: Vec<HugePagesInfo>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub filesystems: Vec<FsInfo>,
    pub disk_map: BTreeMap<String, DiskInfo>,
    pub network_devices: Vec<NetInfo>,
    pub cloud_provider: String,
    pub instance_type: String,
    pub instance_id: String,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct MemoryInfo {
    pub capacity: u64,
    pub dimm_count: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct HugePagesInfo {
    /// Kilobytes.
    pub page_size: u64,
    pub num_pages: u64,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct FsInfo {
    pub device: String,
    pub capacity: u64,
    #[serde(rename = "type")]
    pub kind: String,
    pub inodes: u64,
    pub has_inodes: bool,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct DiskInfo {
    pub name: String,
    pub major: u64,
    pub minor: u64,
    pub size: u64,
    pub scheduler: String,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub struct NetInfo {
    pub name: String,
    pub mac_address: String,
    /// Megabits per second.
    pub speed: i64,
    pub mtu: i64,
}
