//! The control groups of pods: one per pod below its class of service, on cgroup v1 and v2.
//! Called by `pod_workers`; the runtime puts sandboxes and containers below what is made here.
//! Invariant: touches nothing outside its own root, so several nodes live on one machine.

mod hierarchy;

use std::{io, path::PathBuf};

use hierarchy::Hierarchy;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::CgroupDriver,
    container_config::resources::{self, PodLimits},
    pod_spec::{self, QosClass},
};

pub struct ContainerManager {
    hierarchy: Hierarchy,
    /// The components below the hierarchy's top: the configured root and "kubepods".
    top: Vec<String>,
    driver: CgroupDriver,
}

impl ContainerManager {
    pub fn new(root: &str, driver: CgroupDriver) -> Self {
        Self::with_hierarchy(Hierarchy::detect(), root, driver)
    }

    fn with_hierarchy(hierarchy: Hierarchy, root: &str, driver: CgroupDriver) -> Self {
        let mut top: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
        top.push("kubepods".into());
        Self { hierarchy, top, driver }
    }

    /// Makes the groups of the classes. `memory_bytes` bounds all pods together.
    pub fn start(&self, memory_bytes: Option<i64>) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            return Ok(());
        }
        self.hierarchy.create(&self.top)?;
        if let Some(bytes) = memory_bytes {
            self.hierarchy.set_memory(&self.top, bytes)?;
        }
        for class in ["burstable", "besteffort"] {
            let path = self.below(&[class]);
            self.hierarchy.create(&path)?;
        }
        // Whatever asks for nothing gets only what others leave.
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

    /// The group as the runtime wants it named.
    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        let components = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", components.join("/")),
            CgroupDriver::Systemd => systemd_slice(&components),
        }
    }

    /// Makes the pod's group with its limits.
    pub fn create_pod(&self, pod: &Pod) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            // The runtime asks systemd for the slices itself.
            return Ok(());
        }
        let path = self.components(pod_spec::qos_class(pod), pod_spec::uid(pod));
        self.hierarchy.create(&path)?;
        self.apply(&path, resources::pod_limits(pod))
    }

    /// Sets the limits of an existing pod anew.
    pub fn update_pod(&self, pod: &Pod) -> io::Result<()> {
        self.set_limits(pod, resources::pod_limits(pod))
    }

    pub fn set_limits(&self, pod: &Pod, limits: PodLimits) -> io::Result<()> {
        self.apply(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)), limits)
    }

    fn apply(&self, path: &[String], limits: PodLimits) -> io::Result<()> {
        self.hierarchy.set_cpu(path, limits.cpu_shares, limits.cpu_quota)?;
        match limits.memory_bytes {
            Some(bytes) => self.hierarchy.set_memory(path, bytes),
            None => Ok(()),
        }
    }

    /// Removes the pod's groups. An error means that something still runs in them.
    pub fn remove_pod(&self, uid: &str) -> io::Result<()> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            self.hierarchy.remove(&self.components(class, uid))?;
        }
        Ok(())
    }

    /// UIDs of the pods that have groups.
    pub fn pods(&self) -> Vec<String> {
        let places = [self.top.clone(), self.below(&["burstable"]), self.below(&["besteffort"])];
        let mut uids: Vec<String> = places
            .iter()
            .flat_map(|place| self.hierarchy.children(place))
            .filter_map(|name| name.strip_prefix("pod").map(String::from))
            .collect();
        uids.sort();
        uids.dedup();
        uids
    }

    /// Removes everything of ours: what `minke down` wants. Fails when something still runs.
    pub fn remove_all(&self) -> io::Result<()> {
        self.hierarchy.remove(&self.top)?;
        if self.top.len() > 1 {
            self.hierarchy.remove(&self.top[..1])?;
        }
        Ok(())
    }

    /// Directories of a pod's group, one per hierarchy, for statistics.
    pub fn pod_directories(&self, pod: &Pod) -> Vec<PathBuf> {
        self.hierarchy.directories(&self.components(pod_spec::qos_class(pod), pod_spec::uid(pod)))
    }
}

/// systemd reads dashes in a slice's name as levels, so those of a component become underscores.
fn systemd_slice(components: &[String]) -> String {
    let escaped: Vec<String> = components.iter().map(|part| part.replace('-', "_")).collect();
    format!("{}.slice", escaped.join("-"))
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
