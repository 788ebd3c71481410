//! The families of `/metrics/cadvisor` about containers, one row each, under cAdvisor's names.
//! Written by `monitor`'s callers from a snapshot.
//! Invariant: pure (tidy: `pure_files`).

use metrics::Text;

use crate::{
    info::{ContainerStats, FsStats, InterfaceStats, PerDiskStats, PsiStats},
    monitor::Container,
};

/// Takes the values of a family's own labels, and the sample.
type Emit<'a> = dyn FnMut(&[&str], f64) + 'a;

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Beside those that every family has.
    labels: &'static [&'static str],
    emit: fn(&ContainerStats, &mut Emit),
}

const fn family(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    emit: fn(&ContainerStats, &mut Emit),
) -> Family {
    Family { name, kind, help, labels, emit }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Of each device: what groups did there, then what the node's file systems there tell.
fn io(stats: &ContainerStats, disks: &[PerDiskStats], operation: &str, of: fn(&FsStats) -> f64, emit: &mut Emit) {
    for disk in disks {
        emit(&[&disk.device], disk.stats.get(operation).copied().unwrap_or(0) as f64);
    }
    filesystems(stats, of, emit);
}

fn filesystems(stats: &ContainerStats, of: fn(&FsStats) -> f64, emit: &mut Emit) {
    stats.filesystem.iter().for_each(|system| emit(&[&system.device], of(system)));
}

fn interfaces(stats: &ContainerStats, of: fn(&InterfaceStats) -> u64, emit: &mut Emit) {
    stats.network.interfaces.iter().for_each(|interface| emit(&[&interface.name], of(interface) as f64));
}

/// Only where the kernel tells it.
fn pressure(psi: Option<PsiStats>, of: fn(PsiStats) -> u64, emit: &mut Emit) {
    if let Some(psi) = psi {
        emit(&[], of(psi) as f64 / 1e6);
    }
}

fn waiting(psi: PsiStats) -> u64 {
    psi.some.total
}

fn stalled(psi: PsiStats) -> u64 {
    psi.full.total
}

/// Only of groups whose processor time is limited.
#[rustfmt::skip]
const LIMITED: &[Family] = &[
    family("container_cpu_cfs_periods_total", COUNTER, "Number of elapsed enforcement period intervals.", &[], |s, emit| emit(&[], s.cpu.cfs.periods as f64)),
    family("container_cpu_cfs_throttled_periods_total", COUNTER, "Number of throttled period intervals.", &[], |s, emit| emit(&[], s.cpu.cfs.throttled_periods as f64)),
    family("container_cpu_cfs_throttled_seconds_total", COUNTER, "Total time duration the container has been throttled.", &[], |s, emit| emit(&[], seconds(s.cpu.cfs.throttled_time))),
];

#[rustfmt::skip]
const FAMILIES: &[Family] = &[
    family("container_blkio_device_usage_total", COUNTER, "Blkio Device bytes usage", &["device", "major", "minor", "operation"], |s, emit| {
        for disk in &s.diskio.io_service_bytes {
            for (operation, bytes) in &disk.stats {
                emit(&[&disk.device, &disk.major.to_string(), &disk.minor.to_string(), operation], *bytes as f64);
            }
        }
    }),
    // As upstream's kubelet, which runs without a reader of loads.
    family("container_cpu_load_average_10s", GAUGE, "Value of container cpu load average over the last 10 seconds.", &[], |_, emit| emit(&[], 0.0)),
    family("container_cpu_load_d_average_10s", GAUGE, "Value of container cpu load.d average over the last 10 seconds.", &[], |_, emit| emit(&[], 0.0)),
    family("container_cpu_system_seconds_total", COUNTER, "Cumulative system cpu time consumed in seconds.", &[], |s, emit| emit(&[], seconds(s.cpu.usage.system))),
    family("container_cpu_usage_seconds_total", COUNTER, "Cumulative cpu time consumed in seconds.", &["cpu"], |s, emit| {
        if s.cpu.usage.total > 0 {
            emit(&["total"], seconds(s.cpu.usage.total));
        }
    }),
    family("container_cpu_user_seconds_total", COUNTER, "Cumulative user cpu time consumed in seconds.", &[], |s, emit| emit(&[], seconds(s.cpu.usage.user))),
    family("container_file_descriptors", GAUGE, "Number of open file descriptors for the container.", &[], |s, emit| emit(&[], s.processes.fd_count as f64)),
    family("container_fs_inodes_free", GAUGE, "Number of available Inodes", &["device"], |s, emit| filesystems(s, |f| f.inodes_free as f64, emit)),
    family("container_fs_inodes_total", GAUGE, "Number of Inodes", &["device"], |s, emit| filesystems(s, |f| f.inodes as f64, emit)),
    family("container_fs_io_current", GAUGE, "Number of I/Os currently in progress", &["device"], |s, emit| filesystems(s, |f| f.io_in_progress as f64, emit)),
    family("container_fs_io_time_seconds_total", COUNTER, "Cumulative count of seconds spent doing I/Os", &["device"], |s, emit| filesystems(s, |f| f.io_time as f64 / 1e3, emit)),
    family("container_fs_io_time_weighted_seconds_total", COUNTER, "Cumulative weighted I/O time in seconds", &["device"], |s, emit| filesystems(s, |f| f.weighted_io_time as f64 / 1e3, emit)),
    family("container_fs_limit_bytes", GAUGE, "Number of bytes that can be consumed by the container on this filesystem.", &["device"], |s, emit| filesystems(s, |f| f.capacity as f64, emit)),
    family("container_fs_read_seconds_total", COUNTER, "Cumulative count of seconds spent reading", &["device"], |s, emit| filesystems(s, |f| f.read_time as f64 / 1e3, emit)),
    family("container_fs_reads_bytes_total", COUNTER, "Cumulative count of bytes read", &["device"], |s, emit| s.diskio.io_service_bytes.iter().for_each(|d| emit(&[&d.device], d.stats.get("Read").copied().unwrap_or(0) as f64))),
    family("container_fs_reads_merged_total", COUNTER, "Cumulative count of reads merged", &["device"], |s, emit| filesystems(s, |f| f.reads_merged as f64, emit)),
    family("container_fs_reads_total", COUNTER, "Cumulative count of reads completed", &["device"], |s, emit| io(s, &s.diskio.io_serviced, "Read", |f| f.reads_completed as f64, emit)),
    family("container_fs_sector_reads_total", COUNTER, "Cumulative count of sector reads completed", &["device"], |s, emit| filesystems(s, |f| f.sectors_read as f64, emit)),
    family("container_fs_sector_writes_total", COUNTER, "Cumulative count of sector writes completed", &["device"], |s, emit| filesystems(s, |f| f.sectors_written as f64, emit)),
    family("container_fs_usage_bytes", GAUGE, "Number of bytes that are consumed by the container on this filesystem.", &["device"], |s, emit| filesystems(s, |f| f.usage as f64, emit)),
    family("container_fs_write_seconds_total", COUNTER, "Cumulative count of seconds spent writing", &["device"], |s, emit| filesystems(s, |f| f.write_time as f64 / 1e3, emit)),
    family("container_fs_writes_bytes_total", COUNTER, "Cumulative count of bytes written", &["device"], |s, emit| s.diskio.io_service_bytes.iter().for_each(|d| emit(&[&d.device], d.stats.get("Write").copied().unwrap_or(0) as f64))),
    family("container_fs_writes_merged_total", COUNTER, "Cumulative count of writes merged", &["device"], |s, emit| filesystems(s, |f| f.writes_merged as f64, emit)),
    family("container_fs_writes_total", COUNTER, "Cumulative count of writes completed", &["device"], |s, emit| io(s, &s.diskio.io_serviced, "Write", |f| f.writes_completed as f64, emit)),
    family("container_last_seen", GAUGE, "Last time a container was seen by the exporter", &[], |s, emit| emit(&[], s.timestamp.as_second() as f64)),
    family("container_memory_cache", GAUGE, "Number of bytes of page cache memory.", &[], |s, emit| emit(&[], s.memory.cache as f64)),
    family("container_memory_failcnt", COUNTER, "Number of memory usage hits limits", &[], |s, emit| emit(&[], s.memory.failcnt as f64)),
    family("container_memory_failures_total", COUNTER, "Cumulative count of memory allocation failures.", &["failure_type", "scope"], |s, emit| {
        for (scope, faults) in [("container", s.memory.container_data), ("hierarchy", s.memory.hierarchical_data)] {
            emit(&["pgfault", scope], faults.pgfault as f64);
            emit(&["pgmajfault", scope], faults.pgmajfault as f64);
        }
    }),
    family("container_memory_kernel_usage", GAUGE, "Size of kernel memory allocated in bytes.", &[], |s, emit| emit(&[], s.memory.kernel as f64)),
    family("container_memory_mapped_file", GAUGE, "Size of memory mapped files in bytes.", &[], |s, emit| emit(&[], s.memory.mapped_file as f64)),
    family("container_memory_max_usage_bytes", GAUGE, "Maximum memory usage recorded in bytes", &[], |s, emit| emit(&[], s.memory.max_usage as f64)),
    family("container_memory_rss", GAUGE, "Size of RSS in bytes.", &[], |s, emit| emit(&[], s.memory.rss as f64)),
    family("container_memory_swap", GAUGE, "Container swap usage in bytes.", &[], |s, emit| emit(&[], s.memory.swap as f64)),
    family("container_memory_total_active_file_bytes", GAUGE, "Current total active file in bytes.", &[], |s, emit| emit(&[], s.memory.total_active_file as f64)),
    family("container_memory_total_inactive_file_bytes", GAUGE, "Current total inactive file in bytes.", &[], |s, emit| emit(&[], s.memory.total_inactive_file as f64)),
    family("container_memory_usage_bytes", GAUGE, "Current memory usage in bytes, including all memory regardless of when it was accessed", &[], |s, emit| emit(&[], s.memory.usage as f64)),
    family("container_memory_working_set_bytes", GAUGE, "Current working set in bytes.", &[], |s, emit| emit(&[], s.memory.working_set as f64)),
    family("container_network_receive_bytes_total", COUNTER, "Cumulative count of bytes received", &["interface"], |s, emit| interfaces(s, |i| i.rx_bytes, emit)),
    family("container_network_receive_errors_total", COUNTER, "Cumulative count of errors encountered while receiving", &["interface"], |s, emit| interfaces(s, |i| i.rx_errors, emit)),
    family("container_network_receive_packets_dropped_total", COUNTER, "Cumulative count of packets dropped while receiving", &["interface"], |s, emit| interfaces(s, |i| i.rx_dropped, emit)),
    family("container_network_receive_packets_total", COUNTER, "Cumulative count of packets received", &["interface"], |s, emit| interfaces(s, |i| i.rx_packets, emit)),
    family("container_network_transmit_bytes_total", COUNTER, "Cumulative count of bytes transmitted", &["interface"], |s, emit| interfaces(s, |i| i.tx_bytes, emit)),
    family("container_network_transmit_errors_total", COUNTER, "Cumulative count of errors encountered while transmitting", &["interface"], |s, emit| interfaces(s, |i| i.tx_errors, emit)),
    family("container_network_transmit_packets_dropped_total", COUNTER, "Cumulative count of packets dropped while transmitting", &["interface"], |s, emit| interfaces(s, |i| i.tx_dropped, emit)),
    family("container_network_transmit_packets_total", COUNTER, "Cumulative count of packets transmitted", &["interface"], |s, emit| interfaces(s, |i| i.tx_packets, emit)),
    family("container_oom_events_total", COUNTER, "Count of out of memory events observed for the container", &[], |s, emit| emit(&[], s.oom_events as f64)),
    family("container_pressure_cpu_stalled_seconds_total", COUNTER, "Total time duration no tasks in the container could make progress due to CPU congestion.", &[], |s, emit| pressure(s.cpu.psi, stalled, emit)),
    family("container_pressure_cpu_waiting_seconds_total", COUNTER, "Total time duration tasks in the container have waited due to CPU congestion.", &[], |s, emit| pressure(s.cpu.psi, waiting, emit)),
    family("container_pressure_io_stalled_seconds_total", COUNTER, "Total time duration no tasks in the container could make progress due to IO congestion.", &[], |s, emit| pressure(s.diskio.psi, stalled, emit)),
    family("container_pressure_io_waiting_seconds_total", COUNTER, "Total time duration tasks in the container have waited due to IO congestion.", &[], |s, emit| pressure(s.diskio.psi, waiting, emit)),
    family("container_pressure_memory_stalled_seconds_total", COUNTER, "Total time duration no tasks in the container could make progress due to memory congestion.", &[], |s, emit| pressure(s.memory.psi, stalled, emit)),
    family("container_pressure_memory_waiting_seconds_total", COUNTER, "Total time duration tasks in the container have waited due to memory congestion.", &[], |s, emit| pressure(s.memory.psi, waiting, emit)),
    family("container_processes", GAUGE, "Number of processes running inside the container.", &[], |s, emit| emit(&[], s.processes.process_count as f64)),
    family("container_sockets", GAUGE, "Number of open sockets for the container.", &[], |s, emit| emit(&[], s.processes.socket_count as f64)),
    family("container_tasks_state", GAUGE, "Number of tasks in given state", &["state"], |s, emit| {
        let load = s.task_stats;
        emit(&["sleeping"], load.nr_sleeping as f64);
        emit(&["running"], load.nr_running as f64);
        emit(&["stopped"], load.nr_stopped as f64);
        emit(&["uninterruptible"], load.nr_uninterruptible as f64);
        emit(&["iowaiting"], load.nr_io_wait as f64);
    }),
    family("container_threads", GAUGE, "Number of threads running inside the container", &[], |s, emit| emit(&[], s.processes.threads_current as f64)),
    family("container_threads_max", GAUGE, "Maximum number of threads allowed inside the container, infinity if value is zero", &[], |s, emit| emit(&[], s.processes.threads_max as f64)),
    family("container_ulimits_soft", GAUGE, "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice", &["ulimit"], |s, emit| s.processes.ulimits.iter().for_each(|u| emit(&[&u.name], u.soft_limit as f64))),
];

type SpecFn = fn(&Container) -> Option<f64>;

/// What containers were told, which has no moment of measurement.
#[rustfmt::skip]
const SPECS: &[(&str, &str, SpecFn)] = &[
    ("container_spec_cpu_period", "CPU period of the container.", |c| c.spec.has_cpu.then_some(c.spec.cpu.period as f64)),
    ("container_spec_cpu_quota", "CPU quota of the container.", |c| is_limited(c).then_some(c.spec.cpu.quota as f64)),
    ("container_spec_cpu_shares", "CPU share of the container.", |c| c.spec.has_cpu.then_some(c.spec.cpu.limit as f64)),
    ("container_spec_memory_limit_bytes", "Memory limit for the container.", |c| bytes(c, c.spec.memory.limit)),
    ("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", |c| bytes(c, c.spec.memory.reservation)),
    ("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |c| bytes(c, c.spec.memory.swap_limit)),
    ("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |c| Some(c.spec.creation_time.as_second() as f64)),
];

/// The kernel rounds what stands for no limit; nothing is as large.
const UNLIMITED_BYTES_MIN: u64 = 1 << 62;

fn bytes(container: &Container, limit: u64) -> Option<f64> {
    let shown = if limit > UNLIMITED_BYTES_MIN { 0 } else { limit };
    container.spec.has_memory.then_some(shown as f64)
}

fn is_limited(container: &Container) -> bool {
    container.spec.cpu.quota != 0
}

fn labels<'a>(container: &'a Container, names: &[&'static str], values: &[&'a str]) -> Vec<(&'static str, &'a str)> {
    let mut labels: Vec<(&'static str, &str)> = vec![
        ("container", &container.container),
        ("id", &container.id),
        ("image", &container.spec.image),
        ("name", container.aliases.first().map_or("", String::as_str)),
        ("namespace", &container.namespace),
        ("pod", &container.pod),
    ];
    labels.extend(names.iter().copied().zip(values.iter().copied()));
    labels.sort_unstable();
    labels
}

/// All families, each with the samples of all containers.
pub fn write<'a>(text: &mut Text, containers: impl Iterator<Item = &'a Container> + Clone) {
    let families = FAMILIES.iter().map(|family| (family, false)).chain(LIMITED.iter().map(|family| (family, true)));
    for (family, limited) in families {
        let mut out = text.family(family.name, family.kind, family.help);
        for container in containers.clone().filter(|container| !limited || is_limited(container)) {
            let at = container.stats.timestamp.as_millisecond();
            (family.emit)(&container.stats, &mut |values, value| {
                out.sample_at(&labels(container, family.labels, values), value, at);
            });
        }
    }
    for (name, help, of) in SPECS {
        let mut out = text.family(name, GAUGE, help);
        for container in containers.clone() {
            if let Some(value) = of(container) {
                out.sample(&labels(container, &[], &[]), value);
            }
        }
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    text.single("container_scrape_error", GAUGE, help, 0);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn page(container: &Container) -> String {
        let mut text = Text::default();
        write(&mut text, std::iter::once(container));
        text.finish()
    }

    fn container() -> Container {
        let mut container = Container {
            id: "/kubepods/podu/c".into(),
            aliases: vec!["c".into()],
            container: "main".into(),
            pod: "p".into(),
            namespace: "n".into(),
            ..Container::default()
        };
        container.spec.image = "repo/\"odd\\image\"".into();
        container.spec.has_memory = true;
        container.spec.memory.limit = u64::MAX;
        let stats = &mut container.stats;
        stats.timestamp = jiff::Timestamp::from_millisecond(5000).unwrap();
        stats.cpu.usage.total = 1_500_000_000;
        stats.network.interfaces = vec![InterfaceStats { name: "eth0".into(), rx_bytes: 10, ..Default::default() }];
        let stats_of = BTreeMap::from([("Read".to_string(), 7)]);
        stats.diskio.io_service_bytes =
            vec![PerDiskStats { device: "/dev/sda".into(), major: 8, minor: 0, stats: stats_of }];
        stats.cpu.psi = Some(PsiStats::default());
        container
    }

    #[test]
    fn samples_have_their_labels_sorted_and_escaped_and_their_time() {
        let found = page(&container());
        let base = |more: &str, after: &str| {
            format!(
                "{{container=\"main\",{more}id=\"/kubepods/podu/c\",image=\"repo/\\\"odd\\\\image\\\"\",{after}name=\"c\",namespace=\"n\",pod=\"p\"}}"
            )
        };
        for line in [
            format!("container_cpu_usage_seconds_total{} 1.5 5000", base("cpu=\"total\",", "")),
            format!("container_network_receive_bytes_total{} 10 5000", base("", "interface=\"eth0\",")),
            format!("container_fs_reads_bytes_total{} 7 5000", base("device=\"/dev/sda\",", "")),
            format!("container_pressure_cpu_waiting_seconds_total{} 0 5000", base("", "")),
            format!("container_spec_memory_limit_bytes{} 0", base("", "")),
            "container_scrape_error 0".into(),
        ] {
            assert!(found.lines().any(|found| found == line), "{line}\n{found}");
        }
        for absent in ["container_cpu_cfs_periods_total{", "container_pressure_io_waiting_seconds_total{"] {
            assert!(!found.contains(absent), "{absent}");
        }
    }

    #[test]
    fn limited_containers_tell_how_they_were_throttled() {
        let mut container = container();
        container.spec.cpu.quota = 50_000;
        container.stats.cpu.cfs.throttled_periods = 3;
        let found = page(&container);
        let lines: Vec<&str> = found.lines().filter(|line| line.contains("throttled_periods_total{")).collect();
        assert!(lines.len() == 1 && lines[0].ends_with("} 3 5000"), "{lines:?}");
    }

    /// Those that upstream's kubelet 1.35 asks its cAdvisor for.
    #[test]
    fn no_family_of_upstreams_is_missing() {
        const UPSTREAM: &str = "container_blkio_device_usage_total container_cpu_cfs_periods_total \
            container_cpu_cfs_throttled_periods_total container_cpu_cfs_throttled_seconds_total \
            container_cpu_load_average_10s container_cpu_load_d_average_10s container_cpu_system_seconds_total \
            container_cpu_usage_seconds_total container_cpu_user_seconds_total container_file_descriptors \
            container_fs_inodes_free container_fs_inodes_total container_fs_io_current \
            container_fs_io_time_seconds_total container_fs_io_time_weighted_seconds_total container_fs_limit_bytes \
            container_fs_read_seconds_total container_fs_reads_bytes_total container_fs_reads_merged_total \
            container_fs_reads_total container_fs_sector_reads_total container_fs_sector_writes_total \
            container_fs_usage_bytes container_fs_write_seconds_total container_fs_writes_bytes_total \
            container_fs_writes_merged_total container_fs_writes_total container_last_seen container_memory_cache \
            container_memory_failcnt container_memory_failures_total container_memory_kernel_usage \
            container_memory_mapped_file container_memory_max_usage_bytes container_memory_rss container_memory_swap \
            container_memory_total_active_file_bytes container_memory_total_inactive_file_bytes \
            container_memory_usage_bytes container_memory_working_set_bytes container_network_receive_bytes_total \
            container_network_receive_errors_total container_network_receive_packets_dropped_total \
            container_network_receive_packets_total container_network_transmit_bytes_total \
            container_network_transmit_errors_total container_network_transmit_packets_dropped_total \
            container_network_transmit_packets_total container_oom_events_total \
            container_pressure_cpu_stalled_seconds_total container_pressure_cpu_waiting_seconds_total \
            container_pressure_io_stalled_seconds_total container_pressure_io_waiting_seconds_total \
            container_pressure_memory_stalled_seconds_total container_pressure_memory_waiting_seconds_total \
            container_processes container_scrape_error container_sockets container_spec_cpu_period \
            container_spec_cpu_quota container_spec_cpu_shares container_spec_memory_limit_bytes \
            container_spec_memory_reservation_limit_bytes container_spec_memory_swap_limit_bytes \
            container_start_time_seconds container_tasks_state container_threads container_threads_max \
            container_ulimits_soft";
        let page = page(&container());
        let mut found: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        found.sort_unstable();
        assert_eq!(found, UPSTREAM.split_whitespace().collect::<Vec<_>>());
    }
}
