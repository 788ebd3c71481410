//! What a volume type tells the volume manager: upstream's `VolumePlugin`, and the table that finds one.
//! Implemented by the files of `plugins`; mounters are run by `volume_manager::operation_executor`.
//! A plugin only decides; the disk changes in the `Mounter` that it returns, on a thread that may hang.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{PersistentVolume, Pod, Volume};

use super::{
    certificates::CertificateSources, error::VolumeError, network_disks::NetworkDisks,
    ownership_progress::OwnershipProgress, tokens::TokenKey, volume_manager::actual_state_of_world::ActualStateOfWorld,
};
use crate::{
    pod::pod_spec,
    runtime::container_config::{downward::NodeFacts, environment::References},
};

/// A volume to mount (upstream's `volume.Spec`): one of the pod itself, or the PersistentVolume behind its claim.
#[derive(Debug, Clone, Copy)]
pub enum Spec<'a> {
    Inline(&'a Volume),
    Persistent { volume: &'a PersistentVolume, read_only: bool },
}

impl<'a> Spec<'a> {
    pub fn inline(self) -> Option<&'a Volume> {
        match self {
            Self::Inline(volume) => Some(volume),
            Self::Persistent { .. } => None,
        }
    }

    pub fn persistent(self) -> Option<&'a PersistentVolume> {
        match self {
            Self::Inline(_) => None,
            Self::Persistent { volume, .. } => Some(volume),
        }
    }
}

/// What a plugin may read to make a mounter.
pub struct MountContext<'a> {
    pub pod: &'a Pod,
    /// The volume's name in the pod.
    pub volume_name: &'a str,
    pub references: &'a References,
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node: &'a NodeFacts,
    /// The tokens that the plugin asked for.
    pub tokens: &'a BTreeMap<TokenKey, String>,
    /// What the volume's sources show of certificates.
    pub certificates: &'a CertificateSources,
    pub pods_dir: &'a Path,
    pub local_storage_dir: &'a Path,
    /// What other pods have mounted.
    pub actual: &'a ActualStateOfWorld,
    /// Of giving the volume's files to the pod's group.
    pub ownership: &'a Arc<OwnershipProgress>,
    /// The name of a new version of the volume's files.
    pub timestamp: &'a str,
    /// With which it is mounted, where it is to be.
    pub selinux_label: Option<&'a str>,
    /// What the secret holds that the plugin asked for.
    pub secret: Option<&'a BTreeMap<String, String>>,
    pub network_disks: &'a NetworkDisks,
}

impl MountContext<'_> {
    /// Where a plugin keeps a volume of the pod.
    pub fn volume_dir(&self, plugin: &dyn VolumePlugin, name: &str) -> PathBuf {
        let volumes = self.pods_dir.join(pod_spec::uid(self.pod)).join("volumes");
        volumes.join(format!("kubernetes.io~{}", plugin.name())).join(name)
    }

    pub fn fs_group(&self) -> Option<u32> {
        let group = pod_spec::spec(self.pod).security_context.as_ref().and_then(|c| c.fs_group)?;
        u32::try_from(group).ok()
    }
}

/// A volume that is there.
#[derive(Debug, PartialEq)]
pub struct SetUp {
    pub path: PathBuf,
    pub warning: Option<Warning>,
}

impl SetUp {
    pub fn at(path: PathBuf) -> Self {
        Self { path, warning: None }
    }
}

/// What an Event about the pod is to say.
#[derive(Debug, PartialEq)]
pub struct Warning {
    pub reason: &'static str,
    pub message: String,
}

/// Makes a volume as large as its PersistentVolume says, where it is mounted, as often as it is run.
pub type Expander = Box<dyn FnOnce(&Path) -> Result<(), VolumeError> + Send>;

/// Puts a volume in place, as often as it is run.
pub type Mounter = Box<dyn FnOnce() -> Result<SetUp, VolumeError> + Send>;

/// ConfigMaps and Secrets of the pod's namespace.
#[derive(Debug, Default, PartialEq)]
pub struct ObjectNames {
    pub config_maps: Vec<String>,
    pub secrets: Vec<String>,
}

/// Namespace and name.
pub type SecretKey = (String, String);

pub trait VolumePlugin: Send + Sync {
    /// Upstream's name for it without `kubernetes.io/`; also that of its directory in the pod's.
    fn name(&self) -> &'static str;

    fn can_support(&self, spec: Spec) -> bool;

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError>;

    /// What makes a mounted volume larger on the node. `None` for a type whose volumes keep their size.
    fn new_expander(&self, _volume: &PersistentVolume, _local_storage_dir: &Path) -> Option<Expander> {
        None
    }

    /// Whether it shows what changes elsewhere, so that a mounted one is set up again and again.
    fn requires_remount(&self) -> bool {
        false
    }

    /// Whether no container may write to it, whatever its mount says.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether it can be mounted with an SELinux label.
    fn has_selinux_mount(&self) -> bool {
        false
    }

    /// Whether the container runtime is to label its files, where SELinux is on and they may be written to.
    fn is_relabelled(&self) -> bool {
        false
    }

    /// The Secret that it needs to be mounted, beside those of `add_referenced`.
    fn secret(&self, _spec: Spec, _pod: &Pod) -> Option<SecretKey> {
        None
    }

    /// Whether the container runtime mounts it, so that the node has nothing to do.
    fn is_mounted_by_runtime(&self) -> bool {
        false
    }

    /// Whether the files in it are the pod's to be counted.
    fn has_usage(&self) -> bool {
        true
    }

    /// Whether it shows the pod's address, so that it is mounted only after the sandbox has one.
    fn needs_pod_ip(&self, _volume: &Volume) -> bool {
        false
    }

    /// The objects that it needs to be mounted.
    fn add_referenced(&self, _volume: &Volume, _names: &mut ObjectNames) {}

    /// The tokens that it needs to be mounted.
    fn tokens(&self, _volume: &Volume) -> HashSet<TokenKey> {
        HashSet::new()
    }
}

/// The volume types that a node knows (upstream's `VolumePluginMgr`).
#[derive(Clone, Copy)]
pub struct VolumePlugins(pub &'static [&'static dyn VolumePlugin]);

impl VolumePlugins {
    pub fn find(self, spec: Spec) -> Option<&'static dyn VolumePlugin> {
        self.0.iter().copied().find(|plugin| plugin.can_support(spec))
    }

    /// That of a volume which is no claim.
    pub fn find_inline(self, volume: &Volume) -> Option<&'static dyn VolumePlugin> {
        self.find(Spec::Inline(volume))
    }

    /// As upstream's metrics name what is mounted for a pod's volume.
    pub fn metric_name_of(self, spec: Spec, volume: &Volume) -> String {
        let driver = match spec {
            Spec::Inline(volume) => volume.csi.as_ref().map(|csi| &csi.driver),
            Spec::Persistent { volume, .. } => {
                volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| &csi.driver)
            }
        };
        match (driver, self.find(spec)) {
            (Some(driver), _) => api::csi::plugin_name(driver),
            (None, Some(plugin)) => format!("kubernetes.io/{}", plugin.name()),
            (None, None) => self.metric_name(volume),
        }
    }

    /// As upstream's metrics name the type of a pod's volume.
    pub fn metric_name(self, volume: &Volume) -> String {
        let name = match self.find_inline(volume) {
            Some(plugin) => plugin.name().to_string(),
            // Of a claim it is not known before it is bound; on this node most lead to local volumes.
            None if is_claim(volume) => super::plugins::local::NAME.to_string(),
            None => type_name(volume).to_lowercase(),
        };
        format!("kubernetes.io/{name}")
    }

    /// Whether any volume of the pod must be set up again when something changes.
    pub fn requires_remount(self, pod: &Pod) -> bool {
        self.of_pod(pod).any(|(_, plugin)| plugin.requires_remount())
    }

    pub fn needs_pod_ip(self, pod: &Pod) -> bool {
        self.of_pod(pod).any(|(volume, plugin)| plugin.needs_pod_ip(volume))
    }

    /// Whether no container may write to the volume: by its type, or because the pod says so of its claim.
    pub fn is_read_only(self, pod: &Pod, volume_name: &str) -> bool {
        let mut volumes = pod_spec::spec(pod).volumes.iter().flatten().filter(|volume| volume.name == volume_name);
        volumes.any(|volume| {
            is_read_only_claim(volume) || self.find_inline(volume).is_some_and(|plugin| plugin.is_read_only())
        })
    }

    /// The pod's volumes whose types are known, claims left out.
    pub fn of_pod(self, pod: &Pod) -> impl Iterator<Item = (&Volume, &'static dyn VolumePlugin)> {
        let volumes = pod_spec::spec(pod).volumes.iter().flatten();
        volumes.filter_map(move |volume| Some((volume, self.find_inline(volume)?)))
    }
}

pub fn is_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

pub fn is_read_only_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true))
}

/// Whether pods are to have it as a device without a file system.
pub fn is_block(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// The name of the field that says what type of volume it is.
pub fn type_name(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten().map(|(key, _)| key.clone());
    fields.filter(|key| key != "name").collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::volumes::plugins::PLUGINS;

    #[test]
    fn what_is_read_only_is_told_by_the_type_or_by_the_claim() {
        let check = |source: Value, expected: bool| {
            let mut volume = source.clone();
            volume["name"] = "v".into();
            let pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [volume]}})).unwrap();
            assert_eq!(PLUGINS.is_read_only(&pod, "v"), expected, "{source}");
            assert!(!PLUGINS.is_read_only(&pod, "w"));
        };
        check(json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}), true);
        check(json!({"persistentVolumeClaim": {"claimName": "c"}}), false);
        check(json!({"configMap": {"name": "c"}}), true);
        check(json!({"secret": {"secretName": "s"}}), true);
        check(json!({"projected": {}}), true);
        check(json!({"downwardAPI": {}}), true);
        check(json!({"emptyDir": {}}), false);
        check(json!({"hostPath": {"path": "/"}}), false);
    }

    #[test]
    fn metrics_name_types_as_upstream_does() {
        let check = |source: Value, expected: &str| {
            let mut volume = source.clone();
            volume["name"] = "v".into();
            let volume = serde_json::from_value(volume).unwrap();
            assert_eq!(PLUGINS.metric_name(&volume), format!("kubernetes.io/{expected}"), "{source}");
        };
        check(json!({"emptyDir": {}}), "empty-dir");
        check(json!({"hostPath": {"path": "/"}}), "host-path");
        check(json!({"configMap": {"name": "c"}}), "configmap");
        check(json!({"secret": {"secretName": "s"}}), "secret");
        check(json!({"downwardAPI": {}}), "downward-api");
        check(json!({"projected": {}}), "projected");
        check(json!({"image": {}}), "image");
        check(json!({"persistentVolumeClaim": {"claimName": "c"}}), "local-volume");
        check(json!({"ephemeral": {}}), "local-volume");
        check(json!({"nfs": {"server": "s", "path": "/"}}), "nfs");
        check(json!({"iscsi": {"targetPortal": "p", "iqn": "i", "lun": 0}}), "iscsi");
        check(json!({"fc": {"wwids": ["w"]}}), "fc");
    }
}
