//! The control groups of pods: one per pod below its class of service, on cgroup v1 and v2.
//! Called by `pod_workers`; the runtime puts sandboxes and containers below what is made here.
//! Touches nothing outside its own root, so several nodes live on one machine.

mod burstable;
mod group_names;
mod hierarchy;
mod systemd;

use std::{io, path::PathBuf};

use burstable::Burstable;
use cri::v1;
use hierarchy::Hierarchy;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::{
    config::{CgroupDriver, Config},
    node::node_status::Machine,
    pod::pod_spec::{self, QosClass},
    runtime::container_config::resources::{self, PodLimits},
};

pub struct ContainerManager {
    hierarchy: Hierarchy,
    /// The components below the hierarchy's top: the configured root and "kubepods".
    top: Vec<String>,
    driver: CgroupDriver,
    /// Processes per pod.
    pids: Option<i64>,
    /// Whether processor limits are enforced.
    quota: bool,
    /// Whether running out of memory ends all of a container (v2).
    oom_group: bool,
    /// Sizes of huge pages this machine has, as pods name them ("2Mi").
    page_sizes: Vec<String>,
    burstable: Mutex<Burstable>,
}

impl ContainerManager {
    /// As `new`, with everything the node was told.
    pub fn configured(config: &Config, machine: &Machine) -> Self {
        let page_sizes = machine.hugepages.iter().map(|(size, _)| size.clone()).collect();
        let plain = Self::new(&config.cgroup_root, config.cgroup_driver);
        let oom_group = !config.single_process_oom_kill.unwrap_or(false);
        Self { pids: config.pod_pids_limit, quota: config.cpu_cfs_quota, oom_group, page_sizes, ..plain }
    }

    pub fn new(root: &str, driver: CgroupDriver) -> Self {
        Self::with_hierarchy(Hierarchy::detect(), root, driver)
    }

    fn with_hierarchy(hierarchy: Hierarchy, root: &str, driver: CgroupDriver) -> Self {
        let mut top: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
        top.push("kubepods".into());
        Self {
            hierarchy,
            top,
            driver,
            pids: None,
            quota: true,
            oom_group: true,
            page_sizes: vec![],
            burstable: Mutex::default(),
        }
    }

    /// Makes the groups of the classes. All pods together get `cpu_milli` of the processors against what else runs here,
    /// and `memory_bytes` at most.
    pub fn start(&self, cpu_milli: i64, memory_bytes: Option<i64>) -> io::Result<()> {
        let all = PodLimits { cpu_shares: resources::cpu_shares(cpu_milli), cpu_quota: 0, memory_bytes };
        // Whatever asks for nothing gets only what others leave.
        let least = PodLimits { cpu_shares: resources::MIN_SHARES, cpu_quota: 0, memory_bytes: None };
        let classes =
            [(self.top.clone(), Some(all)), (self.burstable_group(), None), (self.best_effort_group(), Some(least))];
        for (class, limits) in classes {
            match self.driver {
                CgroupDriver::Cgroupfs => self.hierarchy.create(&class)?,
                CgroupDriver::Systemd => systemd::call(&systemd::start(&class, &[]))?,
            }
            if let Some(limits) = limits {
                self.apply(&class, limits)?;
            }
        }
        self.adopt();
        Ok(())
    }

    /// What the pods of the Burstable class have that an earlier run left running.
    fn adopt(&self) {
        let place = self.place(&self.burstable_group());
        let mut burstable = self.burstable.lock();
        for name in self.hierarchy.children(&place) {
            let group: Vec<String> = place.iter().cloned().chain([name.clone()]).collect();
            let shares = self.hierarchy.shares(&group).unwrap_or(resources::MIN_SHARES);
            if let Some(uid) = uid_of(name) {
                burstable.set(&uid, Some(burstable::milli(shares)));
            }
        }
        drop(burstable);
        self.share();
    }

    /// Gives the Burstable class what its pods ask for.
    fn share(&self) {
        // Held while writing, so that the last to change it is the last to write.
        let mut burstable = self.burstable.lock();
        let Some(shares) = burstable.wanted() else { return };
        let limits = PodLimits { cpu_shares: shares, cpu_quota: 0, memory_bytes: None };
        match self.apply(&self.burstable_group(), limits) {
            Ok(()) => burstable.written = Some(shares),
            Err(error) => tracing::warn!(%error, "failed to give the Burstable class its share of the processors"),
        }
    }

    /// Counts what a pod asks for, if it is of the Burstable class.
    fn count(&self, pod: &Pod) {
        if pod_spec::qos_class(pod) == QosClass::Burstable {
            self.burstable.lock().set(pod_spec::uid(pod), Some(resources::pod_cpu_request(pod)));
            self.share();
        }
    }

    fn burstable_group(&self) -> Vec<String> {
        self.below(&["burstable"])
    }

    fn best_effort_group(&self) -> Vec<String> {
        self.below(&["besteffort"])
    }

    fn below(&self, names: &[&str]) -> Vec<String> {
        self.top.iter().cloned().chain(names.iter().map(|name| name.to_string())).collect()
    }

    fn components(&self, class: QosClass, uid: &str) -> Vec<String> {
        let pod = format!("pod{uid}");
        match class {
            QosClass::Guaranteed => self.below(&[&pod]),
            QosClass::Burstable => self.below(&["burstable", &pod]),
            QosClass::BestEffort => self.below(&["besteffort", &pod]),
        }
    }

    /// Where a group's directories are below the top of a hierarchy.
    fn place(&self, components: &[String]) -> Vec<String> {
        match self.driver {
            CgroupDriver::Cgroupfs => components.to_vec(),
            CgroupDriver::Systemd => systemd::directories(components),
        }
    }

    /// The group as the runtime wants it named.
    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
            CgroupDriver::Systemd => systemd::slice(&components),
        }
    }

    /// Makes the pod's group with its limits.
    pub fn create_pod(&self, pod: &Pod) -> io::Result<()> {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        let limits = self.enforced(resources::pod_limits(pod));
        if self.driver == CgroupDriver::Systemd {
            let properties = systemd::properties(limits, self.pids, self.hierarchy.is_unified());
            systemd::call(&systemd::start(&components, &properties))?;
        } else {
            self.hierarchy.create(&components)?;
            self.apply(&components, limits)?;
            if let Some(pids) = self.pids {
                self.hierarchy.set_pids(&components, pids)?;
            }
        }
        self.count(pod);
        let pages = resources::pod_hugepages(pod, &self.page_sizes);
        self.hierarchy.set_hugepages(&self.place(&components), &pages)
    }

    /// What this node wants of every container, whatever its pod says.
    pub fn enforce(&self, resources: &mut v1::LinuxContainerResources) {
        if !self.quota {
            resources.cpu_quota = -1;
        }
        let unified = self.hierarchy.is_unified();
        if unified && self.oom_group {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        if !self.hierarchy.limits_swap(&self.place(&self.top)) {
            return;
        }
        // No container swaps.
        match unified {
            true => drop(resources.unified.insert("memory.swap.max".into(), "0".into())),
            // Memory and swap together; without a limit of memory it has no meaning.
            false => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        }
    }

    pub fn is_unified(&self) -> bool {
        self.hierarchy.is_unified()
    }

    fn enforced(&self, limits: PodLimits) -> PodLimits {
        PodLimits { cpu_quota: if self.quota { limits.cpu_quota } else { 0 }, ..limits }
    }

    /// Sets the limits of an existing pod anew.
    pub fn set_limits(&self, pod: &Pod, limits: PodLimits) -> io::Result<()> {
        self.apply(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)), self.enforced(limits))?;
        self.count(pod);
        Ok(())
    }

    fn apply(&self, components: &[String], limits: PodLimits) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            let properties = systemd::properties(limits, None, self.hierarchy.is_unified());
            return systemd::call(&systemd::set(components, &properties));
        }
        self.hierarchy.set_cpu(components, limits.cpu_shares, limits.cpu_quota)?;
        match limits.memory_bytes {
            Some(bytes) => self.hierarchy.set_memory(components, bytes),
            None => Ok(()),
        }
    }

    /// Removes the pod's groups. An error means that something still runs in them.
    pub fn remove_pod(&self, uid: &str) -> io::Result<()> {
        self.burstable.lock().set(uid, None);
        self.share();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let components = self.components(class, uid);
            let there = || self.hierarchy.directories(&self.place(&components)).iter().any(|place| place.exists());
            if self.driver == CgroupDriver::Systemd && there() {
                systemd::call(&systemd::stop(&components))?;
            }
            self.hierarchy.remove(&self.place(&components))?;
        }
        Ok(())
    }

    /// UIDs of the pods that have groups.
    pub fn pods(&self) -> Vec<String> {
        let places = [self.top.clone(), self.burstable_group(), self.best_effort_group()];
        let mut uids: Vec<String> =
            places.iter().flat_map(|place| self.hierarchy.children(&self.place(place))).filter_map(uid_of).collect();
        uids.sort();
        uids.dedup();
        uids
    }

    /// Removes everything of ours: what `minke down` wants. Fails when something still runs.
    pub fn remove_all(&self) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            systemd::call(&systemd::stop(&self.top))?;
        }
        self.hierarchy.remove(&self.place(&self.top))?;
        if self.top.len() > 1 {
            self.hierarchy.remove(&self.place(&self.top[..1]))?;
        }
        Ok(())
    }

    /// What the kernel calls a pod's group, and its directory for one controller.
    pub fn pod_group(&self, pod: &Pod, controller: &str) -> Option<(String, PathBuf)> {
        let place = self.place(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)));
        Some((format!("/{}", place.join("/")), self.hierarchy.group_dir(controller, &place)?))
    }

    /// Bytes of memory that all of a pod uses now.
    pub fn memory_usage(&self, pod: &Pod) -> Option<i64> {
        let file = if self.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        let (_, place) = self.pod_group(pod, "memory")?;
        std::fs::read_to_string(place.join(file)).ok()?.trim().parse().ok()
    }

    /// Directory of the group that all pods are in, for one controller.
    pub fn pods_directory(&self, controller: &str) -> Option<PathBuf> {
        self.hierarchy.group_dir(controller, &self.place(&self.top))
    }

    /// Directories of a pod's group, one per hierarchy, for statistics.
    pub fn pod_directories(&self, pod: &Pod) -> Vec<PathBuf> {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        self.hierarchy.directories(&self.place(&components))
    }
}

/// From the name of a pod's group under either driver.
fn uid_of(name: String) -> Option<String> {
    match name.strip_suffix(".slice") {
        Some(slice) => Some(slice.rsplit_once("-pod")?.1.replace('_', "-")),
        None => name.strip_prefix("pod").map(String::from),
    }
}

#[cfg(test)]
mod tests {
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
                let found =
                    manager.pod_directories(&pod).iter().find_map(|d| std::fs::read_to_string(d.join(file)).ok());
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
            for (limit, expected) in [(1 << 20, memory_and_swap), (0, 0)] {
                let mut resources = v1::LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() };
                manager.enforce(&mut resources);
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
}
