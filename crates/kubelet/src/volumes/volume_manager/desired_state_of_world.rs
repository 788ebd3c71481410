//! Which volumes pods of this node are to have.
//! Written by `VolumeManager` from the pods' specifications; compared with `ActualStateOfWorld` by `reconciler`.
//! Knows nothing of what is mounted.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    pod::pod_spec,
    volumes::plugin::{VolumePlugins, is_claim},
};

#[derive(Debug, Clone, PartialEq)]
pub struct VolumeToMount {
    /// Its name in the pod.
    pub name: String,
    /// It shows what changes elsewhere, so it is set up again when it is mounted already.
    pub requires_remount: bool,
}

#[derive(Debug, Default)]
pub struct DesiredStateOfWorld {
    /// By pod UID, in the order of the specification.
    pods: HashMap<String, Vec<VolumeToMount>>,
}

impl DesiredStateOfWorld {
    /// What the container runtime mounts itself is left out.
    pub fn add_pod(&mut self, pod: &Pod, plugins: VolumePlugins) {
        let volumes = pod_spec::spec(pod).volumes.iter().flatten().filter_map(|volume| {
            // A type without a plugin stays in: mounting it fails, and says why.
            let plugin = plugins.find_inline(volume).filter(|_| !is_claim(volume));
            if plugin.is_some_and(|plugin| plugin.is_mounted_by_runtime()) {
                return None;
            }
            let requires_remount = plugin.is_some_and(|plugin| plugin.requires_remount());
            Some(VolumeToMount { name: volume.name.clone(), requires_remount })
        });
        self.pods.insert(pod_spec::uid(pod).to_string(), volumes.collect());
    }

    pub fn remove_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// `None`: the pod is to have nothing here.
    pub fn volumes(&self, uid: &str) -> Option<&[VolumeToMount]> {
        self.pods.get(uid).map(Vec::as_slice)
    }
}
