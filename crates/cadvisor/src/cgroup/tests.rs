//! Groups of both versions as plain files.

use super::*;

fn write(root: &Path, files: &[(&str, &str)]) {
    for (file, text) in files {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

#[test]
fn a_group_of_version_two() {
    let dir = tempfile::tempdir().unwrap();
    let psi = "some avg10=2.00 avg60=1.00 avg300=0.50 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n";
    write(
        dir.path(),
        &[
            (
                "kube/a/cpu.stat",
                "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_periods 2\nnr_throttled 1\nthrottled_usec 5\n",
            ),
            ("kube/a/cpu.weight", "100\n"),
            ("kube/a/cpu.max", "50000 100000\n"),
            ("kube/a/memory.current", "1000\n"),
            ("kube/a/memory.peak", "2000\n"),
            ("kube/a/memory.max", "4096\n"),
            ("kube/a/memory.swap.max", "max\n"),
            (
                "kube/a/memory.stat",
                "anon 300\nfile 500\nfile_mapped 20\ninactive_file 100\nactive_file 50\npgfault 8\npgmajfault 2\n",
            ),
            ("kube/a/memory.events", "max 3\noom_kill 6\n"),
            ("kube/a/io.stat", "8:0 rbytes=11 wbytes=12 rios=13 wios=14\n"),
            ("kube/a/pids.current", "5\n"),
            ("kube/a/pids.max", "max\n"),
            ("kube/a/cpu.pressure", psi),
            ("kube/a/cgroup.procs", "10\n11\n"),
            ("kube/b/cpu.stat", ""),
            ("kube/cgroup.procs", ""),
        ],
    );
    let groups = Cgroups::Unified { root: dir.path().into() };
    let stats = groups.stats("/kube/a", &Devices::default(), NOW).unwrap();
    assert_eq!((stats.cpu.usage.total, stats.cpu.usage.user, stats.cpu.cfs.throttled_time), (7000, 4000, 5000));
    assert_eq!((stats.memory.working_set, stats.memory.rss, stats.memory.cache), (900, 300, 500));
    assert_eq!((stats.memory.max_usage, stats.memory.failcnt, stats.oom_events), (2000, 3, 6));
    assert_eq!((stats.diskio.io_service_bytes[0].stats["Write"], stats.diskio.io_serviced[0].stats["Read"]), (12, 13));
    assert_eq!((stats.processes.threads_current, stats.processes.threads_max), (5, 0));
    assert_eq!((stats.cpu.psi.unwrap().some.total, stats.memory.psi), (9, None));
    let spec = groups.spec("/kube/a").unwrap();
    assert_eq!((spec.cpu.limit, spec.cpu.quota, spec.cpu.period), (2597, 50_000, 100_000));
    assert_eq!((spec.has_memory, spec.memory.limit, spec.memory.swap_limit), (true, 4096, u64::MAX));
    assert_eq!(groups.children("/kube"), ["/kube/a", "/kube/b"]);
    assert_eq!(groups.processes("/kube/a"), [10, 11]);
    let usage = Usage { cpu_nanoseconds: 7000, memory_bytes: 1000, working_set_bytes: 900 };
    assert_eq!(groups.usage("/kube/a"), Some(usage));
}

#[test]
fn a_group_of_version_one() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            ("cpu/a/cpu.stat", "nr_periods 2\nnr_throttled 1\nthrottled_time 5000\n"),
            ("cpu/a/cpu.shares", "512\n"),
            ("cpu/a/cpu.cfs_period_us", "100000\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cpu/a/cpuacct.usage", "7000\n"),
            ("cpu/a/cpuacct.stat", "user 2\nsystem 1\n"),
            ("memory/a/memory.usage_in_bytes", "1000\n"),
            ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.stat", "rss 1\ntotal_rss 300\ntotal_inactive_file 2000\npgfault 8\ntotal_pgfault 80\n"),
            ("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("blkio/a/blkio.throttle.io_service_bytes", "8:0 Read 11\n8:0 Write 12\n8:0 Total 23\nTotal 23\n"),
        ],
    );
    let controllers = ["cpu,cpuacct", "memory", "blkio"];
    let place = |names: &str| dir.path().join(names.split(',').next().unwrap());
    let controllers = controllers.map(|names| (names.to_string(), place(names))).to_vec();
    let groups = Cgroups::Separate { controllers };
    let stats = groups.stats("/a", &Devices::default(), NOW).unwrap();
    assert_eq!((stats.cpu.usage.total, stats.cpu.usage.user, stats.cpu.cfs.throttled_time), (7000, 20_000_000, 5000));
    // What can be given back is more than all of it: nothing is in use.
    assert_eq!((stats.memory.working_set, stats.memory.rss, stats.oom_events), (0, 300, 2));
    assert_eq!((stats.memory.container_data.pgfault, stats.memory.hierarchical_data.pgfault), (8, 80));
    assert_eq!(stats.diskio.io_service_bytes[0].stats["Total"], 23);
    let spec = groups.spec("/a").unwrap();
    assert_eq!((spec.cpu.limit, spec.cpu.quota, spec.has_memory), (512, 0, true));
}

#[test]
fn what_is_no_group_is_none() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("top/a/cpu.stat", ""), ("secret/cpu.stat", "usage_usec 1")]);
    let groups = Cgroups::Unified { root: dir.path().join("top") };
    assert!(groups.stats("/a", &Devices::default(), NOW).is_some());
    for name in ["/none", "/../secret", "/a/../../secret", "a", "", "/a\0", "/a/./x"] {
        assert!(groups.stats(name, &Devices::default(), NOW).is_none(), "{name:?}");
        assert!(groups.usage(name).is_none() && groups.spec(name).is_none(), "{name:?}");
        assert!(groups.children(name).is_empty() && groups.processes(name).is_empty(), "{name:?}");
    }
}
