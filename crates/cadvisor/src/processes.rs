//! The processes of a group: how many, what they hold open, and a list of them as `ps` has it.
//! Used by `monitor` and by the kubelet for its own process and the runtime's.
//! Only reads; a process that ends meanwhile is left out. Command lines are not told: they may hold secrets.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt};

use jiff::Timestamp;

use crate::{
    info::{ContainerStats, CpuUsage, LoadStats, MemoryFaults, MemoryStats, ProcessInfo, ProcessStats, UlimitSpec},
    proc_files::{Meminfo, ProcessStat, boot_time},
};

const TICKS_PER_SECOND: u64 = 100;
const NANOSECONDS_PER_TICK: u64 = 1_000_000_000 / TICKS_PER_SECOND;
/// Lines of a process list; a fork bomb makes no page endless.
pub const PROCESSES_MAX: usize = 1000;

fn page_bytes() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    size.ok().flatten().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
}

/// Counts what the processes of a group hold open; the limits are those of the first.
pub fn count(processes: &[u32], into: &mut ContainerStats) {
    let mut stats = ProcessStats { process_count: processes.len() as u64, ..ProcessStats::default() };
    let mut load = LoadStats::default();
    for process in processes {
        match ProcessStat::read(*process).map(|stat| stat.state) {
            Some('R') => load.nr_running += 1,
            Some('D') => load.nr_uninterruptible += 1,
            Some('T' | 't') => load.nr_stopped += 1,
            Some(_) => load.nr_sleeping += 1,
            None => continue,
        }
        for entry in fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
            stats.fd_count += 1;
            let target = fs::read_link(entry.path());
            if target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:")) {
                stats.socket_count += 1;
            }
        }
    }
    if let Some(first) = processes.first() {
        stats.ulimits = ulimits(&fs::read_to_string(format!("/proc/{first}/limits")).unwrap_or_default());
    }
    stats.threads_current = into.processes.threads_current;
    stats.threads_max = into.processes.threads_max;
    into.processes = stats;
    into.task_stats = load;
}

/// The one limit that cAdvisor tells of; -1 stands for none.
fn ulimits(limits: &str) -> Vec<UlimitSpec> {
    let Some(rest) = limits.lines().find_map(|line| line.strip_prefix("Max open files")) else { return Vec::new() };
    let limit = |word: &str| if word == "unlimited" { Some(-1) } else { word.parse().ok() };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let [soft, hard, _] = words[..] else { return Vec::new() };
    let spec = |soft_limit, hard_limit| UlimitSpec { name: "max_open_files".into(), soft_limit, hard_limit };
    limit(soft).zip(limit(hard)).map(|(soft, hard)| spec(soft, hard)).into_iter().collect()
}

/// What one process has used, for those that share their group with others; and when it was started.
pub fn usage(process: u32, now: Timestamp) -> Option<(ContainerStats, Timestamp)> {
    let stat = ProcessStat::read(process)?;
    let rss = stat.rss_pages * page_bytes();
    let nanoseconds = |ticks: u64| ticks.saturating_mul(NANOSECONDS_PER_TICK);
    let faults =
        MemoryFaults { pgfault: stat.minor_faults.saturating_add(stat.major_faults), pgmajfault: stat.major_faults };
    let mut stats = ContainerStats {
        timestamp: now,
        memory: MemoryStats {
            usage: rss,
            working_set: rss,
            rss,
            container_data: faults,
            hierarchical_data: faults,
            ..MemoryStats::default()
        },
        ..ContainerStats::default()
    };
    stats.cpu.usage = CpuUsage {
        total: nanoseconds(stat.user_ticks.saturating_add(stat.system_ticks)),
        user: nanoseconds(stat.user_ticks),
        system: nanoseconds(stat.system_ticks),
    };
    Some((stats, started(&stat, boot_time())))
}

fn started(stat: &ProcessStat, booted: i64) -> Timestamp {
    Timestamp::from_second(booted + (stat.start_ticks / TICKS_PER_SECOND) as i64).unwrap_or_default()
}

/// Names by number, from the machine's own list.
fn users(passwd: &str) -> HashMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_string();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    passwd.lines().filter_map(user).collect()
}

fn clock(ticks: u64) -> String {
    let seconds = ticks / TICKS_PER_SECOND;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The processes of some groups, each with the group it is in; the busiest first.
pub fn list(groups: &[(String, Vec<u32>)], now: Timestamp) -> Vec<ProcessInfo> {
    let users = users(&fs::read_to_string("/etc/passwd").unwrap_or_default());
    let (booted, memory, page) = (boot_time(), Meminfo::read().total.max(1), page_bytes());
    let mut list = Vec::new();
    for (group, processes) in groups {
        for process in processes {
            let Some(stat) = ProcessStat::read(*process) else { continue };
            let owner = fs::metadata(format!("/proc/{process}")).map(|about| about.uid()).unwrap_or_default();
            let started = started(&stat, booted);
            let busy = stat.user_ticks + stat.system_ticks;
            let lived = (now.as_second() - started.as_second()).max(1) as f64;
            let rss = stat.rss_pages * page;
            list.push(ProcessInfo {
                user: users.get(&owner).cloned().unwrap_or_else(|| owner.to_string()),
                pid: *process,
                parent_pid: stat.parent,
                start_time: started.to_string(),
                percent_cpu: busy as f64 / TICKS_PER_SECOND as f64 / lived * 100.0,
                percent_mem: rss as f64 / memory as f64 * 100.0,
                rss,
                virtual_size: stat.virtual_bytes,
                status: stat.state.to_string(),
                running_time: clock(busy),
                cgroup_path: group.clone(),
                cmd: stat.command,
            });
        }
    }
    list.sort_by(|a, b| b.percent_cpu.total_cmp(&a.percent_cpu).then(a.pid.cmp(&b.pid)));
    list.truncate(PROCESSES_MAX);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_users_and_times() {
        let text = "Limit  Soft  Hard  Units\nMax open files            1024     unlimited      files \n";
        let expected = UlimitSpec { name: "max_open_files".into(), soft_limit: 1024, hard_limit: -1 };
        assert_eq!(ulimits(text), [expected]);
        assert_eq!(ulimits("Max open files odd\n"), []);
        assert_eq!(users("root:x:0:0:root:/root:/bin/sh\nodd\n"), HashMap::from([(0, "root".to_string())]));
        assert_eq!(clock(366_100), "01:01:01");
    }

    #[test]
    fn this_process_is_listed_and_counted() {
        let own = std::process::id();
        // The largest number is no process.
        let processes = [own, u32::MAX];
        let mut stats = ContainerStats::default();
        stats.processes.threads_current = 7;
        count(&processes, &mut stats);
        assert!(stats.processes.fd_count >= 3 && stats.processes.threads_current == 7, "{stats:?}");
        let load = stats.task_stats;
        assert_eq!(load.nr_running + load.nr_sleeping + load.nr_uninterruptible + load.nr_stopped, 1);
        let listed = list(&[("/x".into(), processes.to_vec())], env::Env::real().now());
        assert_eq!(listed.len(), 1);
        assert!(listed[0].pid == own && listed[0].cgroup_path == "/x" && listed[0].rss > 0, "{listed:?}");
        let (usage, started) = usage(own, env::Env::real().now()).unwrap();
        assert!(usage.memory.rss > 0 && started > Timestamp::UNIX_EPOCH);
    }
}
