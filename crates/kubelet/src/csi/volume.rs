//! What is asked of a driver for one volume: read from the pod's inline volume or the PersistentVolume behind its claim.
//! Used by `mounter`; the CSIDriver object says which of it the driver wants.
//! Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use api::{
    csi::{attachment_name, hex_digest, unique_volume_name},
    quantity,
};
use k8s_openapi::api::{
    core::v1::{Pod, SecretReference},
    storage::v1::CSIDriver,
};

use super::messages::{AccessMode, AccessType, BlockVolume, MountVolume, VolumeCapability, access_mode, capability};
use crate::{
    pod::pod_spec,
    volumes::plugin::{Spec, is_block},
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CsiVolume {
    pub driver: String,
    pub handle: String,
    /// The PersistentVolume's name, or the volume's in the pod.
    pub spec_name: String,
    pub is_ephemeral: bool,
    pub is_block: bool,
    pub read_only: bool,
    pub fs_type: String,
    pub attributes: BTreeMap<String, String>,
    pub access_modes: Vec<String>,
    pub mount_options: Vec<String>,
    pub publish_secret: Option<SecretKey>,
    pub stage_secret: Option<SecretKey>,
    pub expand_secret: Option<SecretKey>,
    pub capacity_bytes: Option<i64>,
}

/// Namespace and name.
pub type SecretKey = (String, String);

impl CsiVolume {
    /// `None` for a volume that no driver is behind.
    pub fn new(spec: Spec, pod: &Pod) -> Option<Self> {
        match spec {
            Spec::Inline(volume) => {
                let source = volume.csi.as_ref()?;
                let secret = source.node_publish_secret_ref.as_ref().map(|secret| secret.name.clone());
                Some(Self {
                    driver: source.driver.clone(),
                    handle: format!("csi-{}", hex_digest(&[pod_spec::uid(pod), &volume.name])),
                    spec_name: volume.name.clone(),
                    is_ephemeral: true,
                    read_only: source.read_only.unwrap_or(false),
                    fs_type: source.fs_type.clone().unwrap_or_default(),
                    attributes: source.volume_attributes.clone().unwrap_or_default(),
                    publish_secret: secret.map(|name| (pod_spec::namespace(pod).into(), name)),
                    ..Self::default()
                })
            }
            Spec::Persistent { volume, read_only } => {
                let spec = volume.spec.as_ref()?;
                let source = spec.csi.as_ref()?;
                let secret = |reference: &Option<SecretReference>| {
                    let reference = reference.as_ref()?;
                    Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
                };
                Some(Self {
                    driver: source.driver.clone(),
                    handle: source.volume_handle.clone(),
                    spec_name: volume.metadata.name.clone().unwrap_or_default(),
                    is_ephemeral: false,
                    is_block: is_block(volume),
                    read_only: read_only || source.read_only.unwrap_or(false),
                    fs_type: source.fs_type.clone().unwrap_or_default(),
                    attributes: source.volume_attributes.clone().unwrap_or_default(),
                    access_modes: spec.access_modes.clone().unwrap_or_default(),
                    mount_options: spec.mount_options.clone().unwrap_or_default(),
                    publish_secret: secret(&source.node_publish_secret_ref),
                    stage_secret: secret(&source.node_stage_secret_ref),
                    expand_secret: secret(&source.node_expand_secret_ref),
                    capacity_bytes: spec.capacity.as_ref().and_then(|c| quantity::value(c.get("storage")?)),
                })
            }
        }
    }

    pub fn device(&self) -> Device {
        Device { driver: self.driver.clone(), handle: self.handle.clone() }
    }

    pub fn lifecycle_mode(&self) -> &'static str {
        if self.is_ephemeral { "Ephemeral" } else { "Persistent" }
    }

    /// Why the driver can't be asked for such a volume.
    pub fn mode_refusal(&self, driver: Option<&CSIDriver>) -> Option<String> {
        let mode = self.lifecycle_mode();
        let Some(object) = driver else {
            return self.is_ephemeral.then(|| {
                format!("volume mode {mode:?} not supported by driver {} (no CSIDriver object)", self.driver)
            });
        };
        let modes = object.spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
        let supported = if modes.is_empty() { !self.is_ephemeral } else { modes.iter().any(|m| m == mode) };
        let only = modes.join(", ");
        (!supported)
            .then(|| format!("volume mode {mode:?} not supported by driver {} (only supports {only:?})", self.driver))
    }

    pub fn capability(&self, has: &BTreeSet<i32>, group: Option<u32>) -> VolumeCapability {
        let single_writers = has.contains(&capability::SINGLE_NODE_MULTI_WRITER);
        let mode = match (self.access_modes.first().map(String::as_str), single_writers) {
            (Some("ReadOnlyMany"), _) => access_mode::MULTI_NODE_READER_ONLY,
            (Some("ReadWriteMany"), _) => access_mode::MULTI_NODE_MULTI_WRITER,
            (Some("ReadWriteOncePod"), true) => access_mode::SINGLE_NODE_SINGLE_WRITER,
            (Some("ReadWriteOnce"), true) => access_mode::SINGLE_NODE_MULTI_WRITER,
            (None, true) => access_mode::SINGLE_NODE_MULTI_WRITER,
            _ => access_mode::SINGLE_NODE_WRITER,
        };
        let mount = || MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        let access_type = if self.is_block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(mount()) };
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
    }

    /// Whether the node gives the files to the pod's group itself.
    pub fn node_sets_group(&self, driver: Option<&CSIDriver>) -> bool {
        let policy = driver.and_then(|d| d.spec.fs_group_policy.as_deref()).unwrap_or("ReadWriteOnceWithFSType");
        let once = self.access_modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
        match policy {
            "None" => false,
            "File" => !self.read_only && !self.is_block,
            // One pod has an inline volume, whatever it says.
            _ => !self.read_only && !self.is_block && (once || self.is_ephemeral) && !self.fs_type.is_empty(),
        }
    }

    /// What a driver is told that wants to know whose volume it is.
    pub fn pod_info(&self, pod: &Pod) -> BTreeMap<String, String> {
        let account = pod_spec::spec(pod).service_account_name.clone().unwrap_or_default();
        [
            ("csi.storage.k8s.io/pod.name", pod_spec::name(pod).to_string()),
            ("csi.storage.k8s.io/pod.namespace", pod_spec::namespace(pod).into()),
            ("csi.storage.k8s.io/pod.uid", pod_spec::uid(pod).into()),
            ("csi.storage.k8s.io/serviceAccount.name", account),
            ("csi.storage.k8s.io/ephemeral", self.is_ephemeral.to_string()),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .into()
    }
}

/// A volume as its driver knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    pub driver: String,
    pub handle: String,
}

impl Device {
    /// The name of the VolumeAttachment to this node.
    pub fn attachment(&self, node: &str) -> String {
        attachment_name(&self.handle, &self.driver, node)
    }

    /// As node.status.volumesInUse names it.
    pub fn unique_name(&self) -> String {
        unique_volume_name(&self.driver, &self.handle)
    }

    /// Holds `vol_data.json` and the directory at which the volume is staged.
    pub fn directory(&self, root_dir: &Path) -> PathBuf {
        root_dir.join("plugins/kubernetes.io/csi").join(&self.driver).join(hex_digest(&[&self.handle]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn persistent(spec: Value, read_only: bool) -> CsiVolume {
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": spec});
        volume["spec"]["csi"]["driver"] = "d".into();
        volume["spec"]["csi"]["volumeHandle"] = "h".into();
        let volume = serde_json::from_value(volume).unwrap();
        CsiVolume::new(Spec::Persistent { volume: &volume, read_only }, &Pod::default()).unwrap()
    }

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    #[test]
    fn access_modes_are_the_protocols() {
        let check = |mode: &str, single_writers: bool, expected: i32| {
            let has =
                if single_writers { BTreeSet::from([capability::SINGLE_NODE_MULTI_WRITER]) } else { BTreeSet::new() };
            let found = persistent(json!({"accessModes": [mode]}), false).capability(&has, None);
            assert_eq!(found.access_mode.unwrap().mode, expected, "{mode} {single_writers}");
        };
        check("ReadWriteOnce", false, 1);
        check("ReadWriteOnce", true, 7);
        check("ReadWriteOncePod", false, 1);
        check("ReadWriteOncePod", true, 6);
        check("ReadOnlyMany", true, 3);
        check("ReadWriteMany", false, 5);
    }

    #[test]
    fn groups_are_given_as_the_drivers_policy_says() {
        let check = |policy: Option<&str>, spec: Value, read_only: bool, expected: bool| {
            let object = policy.map(|policy| driver(json!({"fsGroupPolicy": policy})));
            let found = persistent(spec.clone(), read_only).node_sets_group(object.as_ref());
            assert_eq!(found, expected, "{policy:?} {spec} {read_only}");
        };
        let typed = || json!({"csi": {"fsType": "ext4"}, "accessModes": ["ReadWriteOnce"]});
        check(None, typed(), false, true);
        check(None, typed(), true, false);
        check(None, json!({"accessModes": ["ReadWriteOnce"]}), false, false);
        check(None, json!({"csi": {"fsType": "ext4"}, "accessModes": ["ReadWriteMany"]}), false, false);
        check(Some("File"), json!({"accessModes": ["ReadWriteMany"]}), false, true);
        check(Some("File"), json!({}), true, false);
        check(Some("None"), typed(), false, false);
        for (fs_type, expected) in [("ext4", true), ("", false)] {
            let volume = json!({"name": "v", "csi": {"driver": "d", "fsType": fs_type}});
            let volume = serde_json::from_value(volume).unwrap();
            let inline = CsiVolume::new(Spec::Inline(&volume), &Pod::default()).unwrap();
            assert_eq!(inline.node_sets_group(None), expected, "{fs_type:?}");
        }
    }

    #[test]
    fn a_driver_is_asked_only_for_volumes_of_its_modes() {
        let volume = json!({"name": "v", "csi": {"driver": "d"}});
        let volume = serde_json::from_value(volume).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u", "namespace": "n"}})).unwrap();
        let inline = CsiVolume::new(Spec::Inline(&volume), &pod).unwrap();
        assert_eq!(inline.handle, format!("csi-{}", hex_digest(&["uv"])));
        let persistent = persistent(json!({}), false);
        let check = |modes: Option<Value>, ephemeral: bool, expected: Option<&str>| {
            let object = modes.clone().map(|modes| driver(json!({"volumeLifecycleModes": modes})));
            let volume = if ephemeral { &inline } else { &persistent };
            let found = volume.mode_refusal(object.as_ref());
            assert_eq!(found.is_some(), expected.is_some(), "{modes:?} {ephemeral}: {found:?}");
            assert!(expected.is_none_or(|part| found.unwrap().contains(part)));
        };
        check(None, false, None);
        check(None, true, Some("no CSIDriver object"));
        check(Some(json!([])), true, Some("not supported by driver d"));
        check(Some(json!(["Ephemeral"])), true, None);
        check(Some(json!(["Ephemeral"])), false, Some("only supports \"Ephemeral\""));
    }

    #[test]
    fn names_are_upstreams() {
        let device = Device { driver: "d".into(), handle: "h".into() };
        assert_eq!(device.unique_name(), "kubernetes.io/csi/d^h");
        assert_eq!(device.attachment("n"), format!("csi-{}", hex_digest(&["hdn"])));
        let directory = device.directory(Path::new("/root"));
        assert!(directory.starts_with("/root/plugins/kubernetes.io/csi/d"), "{directory:?}");
    }
}
