//! Which container of which pod has which devices, and what the plugins said must be done to give them.
//! Part of `DeviceState`; written to disk by `checkpoint`.
//! Tells the log of plugins that disagree, and does nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::messages::{ContainerAllocateResponse, DeviceSpec, Mount};

/// The place of devices that belong to no NUMA node.
pub const WITHOUT_NUMA_NODE: i64 = -1;

/// Devices of one resource that one container has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerAllocation {
    /// By NUMA node; a device that is near to several is in each.
    pub devices: BTreeMap<i64, Vec<String>>,
    pub response: ContainerAllocateResponse,
}

impl ContainerAllocation {
    pub fn device_ids(&self) -> BTreeSet<String> {
        self.devices.values().flatten().cloned().collect()
    }
}

type Containers = BTreeMap<String, BTreeMap<String, ContainerAllocation>>;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodDevices {
    /// By the pods' UIDs, then by container and resource.
    pods: BTreeMap<String, Containers>,
}

/// What a container is given so that it can use its devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceRunContainerOptions {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<DeviceSpec>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<String>,
}

impl PodDevices {
    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, allocation: ContainerAllocation) {
        let containers = self.pods.entry(uid.into()).or_default();
        containers.entry(container.into()).or_default().insert(resource.into(), allocation);
    }

    /// Whether there was anything of the pod.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    pub fn has_pod(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub fn pod_uids(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &ContainerAllocation)> {
        self.pods.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, found)| (&**uid, &**container, &**resource, found))
            })
        })
    }

    pub fn container(&self, uid: &str, container: &str) -> Option<&BTreeMap<String, ContainerAllocation>> {
        self.pods.get(uid)?.get(container)
    }

    pub fn devices(&self, uid: &str, container: &str, resource: &str) -> Option<BTreeSet<String>> {
        self.container(uid, container)?.get(resource).map(ContainerAllocation::device_ids)
    }

    /// Devices of the resource that some container has.
    pub fn in_use(&self, resource: &str) -> BTreeSet<String> {
        self.iter().filter(|(_, _, found, _)| *found == resource).flat_map(|(.., found)| found.device_ids()).collect()
    }

    pub fn has_resource(&self, resource: &str) -> bool {
        self.iter().any(|(_, _, found, _)| found == resource)
    }

    /// Of two resources that say different things of the same name, the first one is heard.
    pub fn run_options(&self, uid: &str, container: &str) -> Option<DeviceRunContainerOptions> {
        let resources = self.container(uid, container)?;
        let mut options = DeviceRunContainerOptions::default();
        for (resource, ContainerAllocation { response, .. }) in resources {
            let conflict = |what: &str, name: &str| {
                tracing::warn!(resource, what, name, "devices of a container disagree; the first is heard")
            };
            for (into, from, what) in [
                (&mut options.envs, &response.envs, "environment variable"),
                (&mut options.annotations, &response.annotations, "annotation"),
            ] {
                for (key, value) in from {
                    if into.entry(key.clone()).or_insert_with(|| value.clone()) != value {
                        conflict(what, key);
                    }
                }
            }
            for mount in &response.mounts {
                match options.mounts.iter().find(|known| known.container_path == mount.container_path) {
                    None => options.mounts.push(mount.clone()),
                    Some(known) if known.host_path != mount.host_path => conflict("mount", &mount.container_path),
                    Some(_) => {}
                }
            }
            for device in &response.devices {
                match options.devices.iter().find(|known| known.container_path == device.container_path) {
                    None => options.devices.push(device.clone()),
                    Some(known) if known.host_path != device.host_path => conflict("device", &device.container_path),
                    Some(_) => {}
                }
            }
            for device in &response.cdi_devices {
                if !options.cdi_devices.contains(&device.name) {
                    options.cdi_devices.push(device.name.clone());
                }
            }
        }
        Some(options)
    }
}
