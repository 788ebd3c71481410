//! The control groups of pods: one per pod below its class of service, on cgroup v1 and v2.
//! Called by `pod_workers`; the runtime puts sandboxes and containers below what is made here.
//! Invariant: touches nothing outside its own root, so several nodes live on one machine.

mod hierarchy;
mod systemd;

use std::{io, path::PathBuf};

use hierarchy::Hierarchy;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::{CgroupDriver, Config},
    container_config::resources::{self, PodLimits},
    node_status::Machine,
    pod_spec::{self, QosClass},
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
    /// Sizes of huge pages this machine has, as pods name them ("2Mi").
    page_sizes: Vec<String>,
}

impl ContainerManager {
    /// As `new`, with everything the node was told.
    pub fn configured(config: &Config, machine: &Machine) -> Self {
        let page_sizes = machine.hugepages.iter().map(|(size, _)| size.clone()).collect();
        let plain = Self::new(&config.cgroup_root, config.cgroup_driver);
        Self { pids: config.pod_pids_limit, quota: config.cpu_cfs_quota, page_sizes, ..plain }
    }

    pub fn new(root: &str, driver: CgroupDriver) -> Self {
        Self::with_hierarchy(Hierarchy::detect(), root, driver)
    }

    fn with_hierarchy(hierarchy: Hierarchy, root: &str, driver: CgroupDriver) -> Self {
        let mut top: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
        top.push("kubepods".into());
        Self { hierarchy, top, driver, pids: None, quota: true, page_sizes: vec![] }
    }

    /// Makes the groups of the classes. `memory_bytes` bounds all pods together.
    pub fn start(&self, memory_bytes: Option<i64>) -> io::Result<()> {
        let all = PodLimits { cpu_shares: resources::cpu_shares(1000), cpu_quota: 0, memory_bytes };
        let classes = ["burstable", "besteffort"].map(|class| self.below(&[class]));
        // Whatever asks for nothing gets only what others leave.
        let least = PodLimits { cpu_shares: resources::MIN_SHARES, cpu_quota: 0, memory_bytes: None };
        if self.driver == CgroupDriver::Systemd {
            let unified = self.hierarchy.is_unified();
            systemd::call(&systemd::start(&self.top, &systemd::properties(all, None, unified)))?;
            return classes.iter().try_for_each(|class| {
                systemd::call(&systemd::start(class, &systemd::properties(least, None, unified)))
            });
        }
        self.hierarchy.create(&self.top)?;
        if let Some(bytes) = memory_bytes {
            self.hierarchy.set_memory(&self.top, bytes)?;
        }
        classes.iter().try_for_each(|class| self.hierarchy.create(class))?;
        self.hierarchy.set_cpu(&self.below(&["besteffort"]), resources::MIN_SHARES, 0)
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
        let pages = resources::pod_hugepages(pod, &self.page_sizes);
        self.hierarchy.set_hugepages(&self.place(&components), &pages)
    }

    fn enforced(&self, limits: PodLimits) -> PodLimits {
        PodLimits { cpu_quota: if self.quota { limits.cpu_quota } else { 0 }, ..limits }
    }

    /// Sets the limits of an existing pod anew.
    pub fn update_pod(&self, pod: &Pod) -> io::Result<()> {
        self.set_limits(pod, resources::pod_limits(pod))
    }

    pub fn set_limits(&self, pod: &Pod, limits: PodLimits) -> io::Result<()> {
        self.apply(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)), self.enforced(limits))
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
        let places = [self.top.clone(), self.below(&["burstable"]), self.below(&["besteffort"])];
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
