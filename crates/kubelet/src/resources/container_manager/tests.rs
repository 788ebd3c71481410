//! Groups of pods and classes on files that stand for both versions of cgroups.

use serde_json::json;

use super::*;

fn pod(resources: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u-1"},
        "spec": {"containers": [{"name": "a", "resources": resources}]}}))
    .unwrap()
}

#[test]
fn names_follow_the_class_and_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let check = |driver, resources, expected: &str| {
        let manager = ContainerManager::with_hierarchy(Hierarchy::unified(dir.path()), "/minke", driver);
        assert_eq!(manager.cgroup_parent(&pod(resources)), expected);
    };
    check(CgroupDriver::Cgroupfs, json!({}), "/minke/kubepods/besteffort/podu-1");
    check(CgroupDriver::Cgroupfs, json!({"requests": {"cpu": "1"}}), "/minke/kubepods/burstable/podu-1");
    check(CgroupDriver::Cgroupfs, json!({"limits": {"cpu": "1", "memory": "1Mi"}}), "/minke/kubepods/podu-1");
    check(CgroupDriver::Systemd, json!({}), "minke-kubepods-besteffort-podu_1.slice");
    for (name, uid) in [
        ("podu-1", Some("u-1")),
        ("minke-kubepods-besteffort-podu_1.slice", Some("u-1")),
        ("burstable", None),
        ("kubepods-burstable.slice", None),
    ] {
        assert_eq!(uid_of(name.into()).as_deref(), uid, "{name}");
    }
}

#[test]
fn files_of_both_versions() {
    let resources =
        json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Mi", "hugepages-2Mi": "4Mi"}});
    let unified: &[(&str, &str)] = &[
        ("cpu.weight", "20"),
        ("cpu.max", "100000 100000"),
        ("memory.max", "1048576"),
        ("pids.max", "64"),
        ("hugetlb.2MB.max", "4194304"),
        ("hugetlb.1GB.max", "0"),
    ];
    let separate: &[(&str, &str)] = &[
        ("cpu.shares", "512"),
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "100000"),
        ("memory.limit_in_bytes", "1048576"),
        ("pids.max", "64"),
        ("hugetlb.2MB.limit_in_bytes", "4194304"),
        ("hugetlb.1GB.limit_in_bytes", "0"),
    ];
    for (quota, unify, expected) in
        [(true, true, unified), (true, false, separate), (false, true, &[("cpu.max", "max 100000")][..])]
    {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = match unify {
            true => Hierarchy::unified(dir.path()),
            false => Hierarchy::separate(dir.path(), &["cpu", "memory", "pids", "hugetlb"]),
        };
        let manager = ContainerManager {
            pids: Some(64),
            quota,
            page_sizes: vec!["1Gi".into(), "2Mi".into()],
            ..ContainerManager::with_hierarchy(hierarchy, "t", CgroupDriver::Cgroupfs)
        };
        let pod = pod(resources.clone());
        for place in manager.pod_directories(&pod) {
            // The kernel makes these with the group.
            std::fs::create_dir_all(&place).unwrap();
            for size in ["2MB", "1GB"].into_iter().filter(|_| unify) {
                std::fs::write(place.join(format!("hugetlb.{size}.max")), "max").unwrap();
            }
        }
        manager.create_pod(&pod).unwrap();
        for (file, text) in expected {
            let found = manager.pod_directories(&pod).iter().find_map(|d| std::fs::read_to_string(d.join(file)).ok());
            assert_eq!(found.as_deref(), Some(*text), "{file}");
        }
    }
}

#[test]
fn classes_get_what_their_pods_ask_for() {
    let named = |uid: &str, resources: serde_json::Value| {
        let mut pod = pod(resources);
        pod.metadata.uid = Some(uid.into());
        pod
    };
    for (unify, file, values) in [
        (true, "cpu.weight", ["137", "1", "1", "69", "79", "78"]),
        (false, "cpu.shares", ["3584", "2", "2", "1792", "2048", "2048"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = || match unify {
            true => Hierarchy::unified(dir.path()),
            false => Hierarchy::separate(dir.path(), &["cpu", "memory"]),
        };
        let manager = ContainerManager::with_hierarchy(hierarchy(), "t", CgroupDriver::Cgroupfs);
        manager.start(3500, None).unwrap();
        let shares = |path: &[String]| {
            let places = manager.hierarchy.directories(path);
            places.iter().find_map(|d| std::fs::read_to_string(d.join(file)).ok()).unwrap_or_default()
        };
        let class = || shares(&manager.burstable_group());
        assert_eq!([shares(&manager.top), shares(&manager.best_effort_group()), class()], values[..3], "{file}");
        manager.create_pod(&named("a", json!({"requests": {"cpu": "1500m"}}))).unwrap();
        manager.create_pod(&named("b", json!({"requests": {"memory": "1Mi"}, "limits": {"cpu": "250m"}}))).unwrap();
        manager.create_pod(&named("c", json!({"limits": {"cpu": "1", "memory": "1Mi"}}))).unwrap();
        assert_eq!(class(), values[3], "{file}: those of the class only");
        let changed = named("b", json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}));
        manager.set_limits(&changed, resources::pod_limits(&changed)).unwrap();
        assert_eq!(class(), values[4], "{file}: resized");
        // One that is started again finds them.
        std::fs::write(manager.hierarchy.directories(&manager.burstable_group())[0].join(file), "").unwrap();
        let again = ContainerManager::with_hierarchy(hierarchy(), "t", CgroupDriver::Cgroupfs);
        again.start(3500, None).unwrap();
        assert_eq!(class(), values[5], "{file}: adopted");
        // Files stand where the kernel has groups: nothing can be removed here.
        let _ = again.remove_pod("a");
        let _ = again.remove_pod("b");
        assert_eq!(class(), values[2], "{file}: all gone");
    }
}

#[test]
fn containers_end_whole_and_never_swap() {
    let check = |unify: bool, swap: bool, oom_group: bool, unified: &[(&str, &str)], memory_and_swap: i64| {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = match unify {
            true => Hierarchy::unified(dir.path()),
            false => Hierarchy::separate(dir.path(), &["cpu", "memory"]),
        };
        let plain = ContainerManager::with_hierarchy(hierarchy, "t", CgroupDriver::Cgroupfs);
        let manager = ContainerManager { oom_group, ..plain };
        manager.hierarchy.create(&manager.top).unwrap();
        for place in manager.hierarchy.directories(&manager.top).iter().filter(|_| swap) {
            for file in ["memory.swap.max", "memory.memsw.limit_in_bytes"] {
                std::fs::write(place.join(file), "").unwrap();
            }
        }
        let pod = pod(json!({}));
        for (limit, expected) in [(1 << 20, memory_and_swap), (0, 0)] {
            let mut resources = v1::LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() };
            manager.enforce(&pod, &pod_spec::containers(&pod)[0], &mut resources);
            let mut found: Vec<(&str, &str)> =
                resources.unified.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            found.sort_unstable();
            assert_eq!((found.as_slice(), resources.memory_swap_limit_in_bytes), (unified, expected));
        }
    };
    let (group, swap) = (("memory.oom.group", "1"), ("memory.swap.max", "0"));
    check(true, true, true, &[group, swap], 0);
    check(true, true, false, &[swap], 0);
    check(true, false, true, &[group], 0);
    check(false, true, true, &[], 1 << 20);
    check(false, false, true, &[], 0);
}

#[test]
fn memory_that_is_asked_for_is_protected() {
    let dir = tempfile::tempdir().unwrap();
    let plain = ContainerManager::with_hierarchy(Hierarchy::unified(dir.path()), "t", CgroupDriver::Cgroupfs);
    let manager = ContainerManager {
        throttling_factor: Some(0.5),
        swap_behavior: SwapBehavior::LimitedSwap,
        node_memory: NodeMemory { memory_bytes: 8 << 20, swap_bytes: 4 << 20, allocatable_bytes: 6 << 20 },
        ..plain
    };
    manager.start(1000, None).unwrap();
    std::fs::write(dir.path().join("t/kubepods/memory.swap.max"), "").unwrap();
    let pod = pod(json!({"requests": {"memory": "2Mi"}, "limits": {"memory": "4Mi"}}));
    manager.create_pod(&pod).unwrap();
    let mut resources = v1::LinuxContainerResources::default();
    manager.enforce(&pod, &pod_spec::containers(&pod)[0], &mut resources);
    let found: std::collections::BTreeMap<_, _> = resources.unified.into_iter().collect();
    let expected =
        [("memory.high", 3 << 20), ("memory.min", 2 << 20), ("memory.oom.group", 1), ("memory.swap.max", 1 << 20)];
    assert_eq!(found, expected.map(|(file, value)| (file.to_string(), value.to_string())).into());
    assert!(manager.swaps(&pod, &pod_spec::containers(&pod)[0]));
    let min = |group: &str| std::fs::read_to_string(dir.path().join(group).join("memory.min")).unwrap();
    for group in ["t/kubepods", "t/kubepods/burstable", "t/kubepods/burstable/podu-1"] {
        assert_eq!(min(group), (2 << 20).to_string(), "{group}");
    }
    // Files stand where the kernel has groups: nothing can be removed here.
    let _ = manager.remove_pod("u-1");
    assert_eq!((min("t/kubepods"), min("t/kubepods/burstable")), ("0".into(), "0".into()));
}

#[test]
fn groups_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    for (hierarchy, file, text) in [
        (Hierarchy::unified(dir.path()), "cpu.max", "100000 100000"),
        (Hierarchy::separate(dir.path(), &["cpu", "memory"]), "cpu.cfs_quota_us", "100000"),
    ] {
        let manager = ContainerManager::with_hierarchy(hierarchy, "t", CgroupDriver::Cgroupfs);
        let pod = pod(json!({"limits": {"cpu": "1", "memory": "1Mi"}}));
        manager.create_pod(&pod).unwrap();
        assert_eq!(manager.pods(), ["u-1"]);
        let directory = &manager.pod_directories(&pod)[0];
        assert_eq!(std::fs::read_to_string(directory.join(file)).unwrap(), text);
    }
}
