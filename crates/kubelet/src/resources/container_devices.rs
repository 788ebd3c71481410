//! Devices of pods on this node: what is taken for a pod when it is admitted, what is prepared before it starts, and
//! what a container is made with.
//! Used by `pod_workers` and `runtime_manager`; asks the device manager and the DRA manager of `node_plugins`.
//! A container that is to have devices is not made without them.

use std::{collections::BTreeMap, sync::Arc};

use cri::v1;
use k8s_openapi::{
    api::core::v1::{Container, Node, Pod, ResourceStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use node_plugins::{
    cdi::{self, CdiError},
    devices::{
        manager::DeviceManager, messages::Mount, pod_devices::DeviceRunContainerOptions, state::AllocationError,
    },
    dra::manager::{DraError, DraManager},
};

use crate::{
    pod::{admission::Refusal, pod_spec},
    resources::device_hints::DeviceAffinity,
};

pub struct ContainerDevices {
    pub plugins: Arc<DeviceManager>,
    pub claims: Arc<DraManager>,
    /// Whether the runtime would make containers without their CDI devices.
    pub runtime_ignores_cdi: bool,
}

/// Why a container can't have its devices now.
#[derive(Debug, thiserror::Error)]
pub enum ContainerDevicesError {
    #[error(transparent)]
    Plugin(#[from] AllocationError),
    #[error(transparent)]
    Claim(#[from] DraError),
    #[error("CDI device injection failed: {0}")]
    Cdi(#[from] CdiError),
}

impl ContainerDevices {
    /// Takes the devices of all containers of a pod, near to where the topology manager wants them, or says why it
    /// can't run here.
    pub async fn allocate(&self, pod: &Pod, affinity: &DeviceAffinity) -> Result<(), Refusal> {
        self.plugins.allocate_pod(pod, affinity).await.map_err(|error| Refusal {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("Allocate failed due to {error}, which is unexpected"),
        })
    }

    /// A pod that has its devices fits also where their plugin has gone.
    pub fn with_allocated(&self, pod: &Pod, mut node: Node) -> Node {
        let allocatable = node.status.as_mut().and_then(|status| status.allocatable.as_mut());
        let Some(allocatable) = allocatable else { return node };
        for (resource, count) in self.plugins.allocated_counts(pod_spec::uid(pod)) {
            let shown = allocatable.get(&resource).and_then(api::quantity::value).unwrap_or(0);
            if shown < count as i64 {
                allocatable.insert(resource, Quantity(count.to_string()));
            }
        }
        node
    }

    /// What the container is to be made with.
    pub async fn options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<DeviceRunContainerOptions, ContainerDevicesError> {
        let mut options = self.plugins.run_container_options(pod, container).await?.unwrap_or_default();
        for name in self.claims.cdi_devices(pod, container)? {
            if !options.cdi_devices.contains(&name) {
                options.cdi_devices.push(name);
            }
        }
        if self.runtime_ignores_cdi && !options.cdi_devices.is_empty() {
            let names = std::mem::take(&mut options.cdi_devices);
            cdi::apply(&names, &cdi::read(&cdi::DIRECTORIES), &mut options)?;
        }
        Ok(options)
    }

    /// How the devices of a container are, where the gate `ResourceHealthStatus` has them shown.
    pub fn resource_health(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let mut statuses = self.plugins.resource_health(pod_spec::uid(pod), &container.name);
        statuses.extend(self.claims.resource_health(pod, container));
        statuses
    }

    /// Nothing of the pod runs any more.
    pub async fn release(&self, uid: &str) {
        self.plugins.release(uid).await;
    }
}

/// What the pod itself says of a variable goes first.
pub fn add_environment(environment: &mut BTreeMap<String, String>, options: &DeviceRunContainerOptions) {
    for (name, value) in &options.envs {
        environment.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

pub fn add_to_config(config: &mut v1::ContainerConfig, options: DeviceRunContainerOptions) {
    let mount = |mount: Mount| v1::Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.read_only,
        ..Default::default()
    };
    config.mounts.extend(options.mounts.into_iter().map(mount));
    config.devices.extend(options.devices.into_iter().map(|device| v1::Device {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    }));
    for (name, value) in options.annotations {
        config.annotations.entry(name).or_insert(value);
    }
    config.cdi_devices.extend(options.cdi_devices.into_iter().map(|name| v1::CdiDevice { name }));
}

#[cfg(test)]
mod tests {
    use node_plugins::devices::messages::DeviceSpec;

    use super::*;

    #[test]
    fn containers_are_made_with_their_devices() {
        let pairs = |given: &[(&str, &str)]| given.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let device =
            DeviceSpec { container_path: "/dev/a".into(), host_path: "/dev/b".into(), permissions: "r".into() };
        let options = DeviceRunContainerOptions {
            envs: pairs(&[("A", "device"), ("B", "device")]),
            mounts: vec![Mount { container_path: "/c".into(), host_path: "/h".into(), read_only: true }],
            devices: vec![device],
            annotations: pairs(&[("own", "device"), ("more", "device")]),
            cdi_devices: vec!["example.com/x=a".into()],
        };
        let mut environment: BTreeMap<String, String> = pairs(&[("A", "pod")]);
        add_environment(&mut environment, &options);
        assert_eq!(environment, pairs(&[("A", "pod"), ("B", "device")]));
        let mut config = v1::ContainerConfig {
            annotations: [("own".to_string(), "kubelet".to_string())].into(),
            ..Default::default()
        };
        add_to_config(&mut config, options);
        assert_eq!((&*config.mounts[0].host_path, config.mounts[0].readonly), ("/h", true));
        assert_eq!((&*config.devices[0].host_path, &*config.devices[0].permissions), ("/dev/b", "r"));
        let annotations: BTreeMap<_, _> = config.annotations.into_iter().collect();
        assert_eq!(annotations, pairs(&[("own", "kubelet"), ("more", "device")]));
        assert_eq!(config.cdi_devices[0].name, "example.com/x=a");
    }
}
