//! What is behind a claim: a directory, or a device for pods that want one.
//! Used by `volume_manager`, which has found the claim's volume; `prepare` runs on a thread that may hang.
//! Invariant: never changes who owns a hostPath or what is mounted read-only, and never shows a pod a device in place
//! of the file system it asked for.

use std::{
    collections::BTreeMap,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use api::placement;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use super::{
    devices::{self, FileSystem},
    file_system, host_path,
};
use crate::pod::pod_spec;

/// Where the volume is on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Behind {
    pub path: PathBuf,
    source: Source,
    /// A device without a file system.
    block: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    HostPath { kind: String },
    Local(FileSystem),
}

/// How its files are to be given to a group.
#[derive(Debug, Clone, Copy)]
pub struct Ownership {
    pub group: Option<u32>,
    pub read_only: bool,
    pub only_when_root_differs: bool,
}

/// How the containers of a pod use one of its volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Uses {
    pub mounted: bool,
    pub device: bool,
}

impl Uses {
    pub fn of(pod: &Pod, volume: &str) -> Self {
        let ephemeral = pod_spec::ephemeral_containers(pod);
        let all = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral);
        all.fold(Self::default(), |uses, container| Self {
            mounted: uses.mounted || container.volume_mounts.iter().flatten().any(|m| m.name == volume),
            device: uses.device || container.volume_devices.iter().flatten().any(|d| d.name == volume),
        })
    }
}

/// Whether a pod asked for its claim to be read-only, whatever each mount says.
pub fn is_read_only(pod: &Pod, volume: &str) -> bool {
    let mut volumes = pod_spec::spec(pod).volumes.iter().flatten();
    volumes.any(|v| v.name == volume && v.persistent_volume_claim.as_ref().is_some_and(|c| c.read_only == Some(true)))
}

/// A claim that only has the name which a template gives is somebody else's.
pub fn check_owner(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), String> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    match owners.any(|owner| owner.controller == Some(true) && owner.uid == pod_spec::uid(pod)) {
        true => Ok(()),
        false => {
            let namespace = pod_spec::namespace(pod);
            let claim = claim.metadata.name.as_deref().unwrap_or_default();
            let name = pod_spec::name(pod);
            Err(format!("PVC {namespace}/{claim} was not created for pod {namespace}/{name} (pod is not owner)"))
        }
    }
}

impl Behind {
    /// `volume_in_pod` is for messages.
    pub fn of(volume: PersistentVolume, volume_in_pod: &str, uses: Uses) -> Result<Self, String> {
        let name = volume.metadata.name.unwrap_or_default();
        let spec = volume.spec.unwrap_or_default();
        let block = spec.volume_mode.as_deref() == Some("Block");
        if block && uses.mounted {
            return Err(format!("volume {volume_in_pod} has volumeMode Block, but is specified in volumeMounts"));
        }
        if !block && uses.device {
            return Err(format!("volume {volume_in_pod} has volumeMode Filesystem, but is specified in volumeDevices"));
        }
        let (path, source) = match (spec.host_path, spec.local) {
            (Some(source), _) if block => {
                return Err(format!("PV {name} at {:?} is a hostPath, which has no device for a pod", source.path));
            }
            (Some(source), _) => (source.path.into(), Source::HostPath { kind: source.type_.unwrap_or_default() }),
            (None, Some(source)) => {
                let options = spec.mount_options.unwrap_or_default();
                (PathBuf::from(&source.path), Source::Local(FileSystem { kind: source.fs_type, options }))
            }
            (None, None) => return Err(format!("PV {name} has a source that this node does not support")),
        };
        Ok(Self { path, source, block })
    }

    /// Whether it is a directory or a file system of this node that pods may share.
    pub fn has_local_files(&self) -> bool {
        matches!(self.source, Source::Local(_)) && !self.block
    }

    /// Checks what is there and gives it to the pod's group. A device is mounted at `target`. Where the files are.
    pub fn prepare(&self, ownership: Ownership, target: &Path) -> Result<PathBuf, String> {
        match &self.source {
            Source::HostPath { kind } => host_path::check(&self.path, kind).map(|()| self.path.clone()),
            Source::Local(file_system) => self.prepare_local(file_system, ownership, target),
        }
    }

    fn prepare_local(&self, wanted: &FileSystem, ownership: Ownership, target: &Path) -> Result<PathBuf, String> {
        let path = self.path.display();
        if !self.path.exists() {
            return Err(format!("path {path:?} does not exist"));
        }
        let files = match (self.block, is_block_device(&self.path)) {
            (true, true) => return Ok(self.path.clone()),
            (true, false) => return Err(format!("path {path:?} is not a block device")),
            (false, true) => {
                devices::mount(&self.path, target, wanted, ownership.read_only)?;
                target
            }
            (false, false) if self.path.is_dir() => &self.path,
            (false, false) => return Err("only directory and block device are supported".into()),
        };
        if let Some(group) = ownership.group.filter(|_| !ownership.read_only) {
            file_system::give_to_group(files, group, false, ownership.only_when_root_differs)
                .map_err(|error| error.to_string())?;
        }
        Ok(files.to_path_buf())
    }
}

/// The group that has the files at `place`.
pub fn owning_group(place: &Path) -> Result<u32, String> {
    let about = place.metadata();
    about.map(|about| about.gid()).map_err(|error| format!("failed to check fsGroup for {} ({error})", place.display()))
}

/// Whether a volume may be used on a node with these labels.
pub fn check_node_affinity(
    volume: &PersistentVolume,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    match affinity.and_then(|affinity| affinity.required.as_ref()) {
        Some(required)
            if !required.node_selector_terms.iter().any(|term| placement::term_selects(term, node, labels)) =>
        {
            Err("no matching NodeSelectorTerms".into())
        }
        _ => Ok(()),
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn behind(spec: Value, uses: Uses) -> Result<Behind, String> {
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        Behind::of(volume, "data", uses)
    }

    #[test]
    fn a_claim_is_used_as_what_it_is() {
        let (mounted, device) = (Uses { mounted: true, device: false }, Uses { mounted: false, device: true });
        let check = |mode: &str, source: Value, uses, expected: Option<&str>| {
            let mut spec = source;
            spec["volumeMode"] = mode.into();
            let found = behind(spec.clone(), uses).err();
            assert!(found.as_deref().unwrap_or("").contains(expected.unwrap_or("")), "{spec}: {found:?}");
            assert_eq!(found.is_some(), expected.is_some(), "{spec}: {found:?}");
        };
        let (local, host) = (json!({"local": {"path": "/d"}}), json!({"hostPath": {"path": "/d"}}));
        check("Block", local.clone(), device, None);
        check(
            "Block",
            local.clone(),
            mounted,
            Some("volume data has volumeMode Block, but is specified in volumeMounts"),
        );
        check("Filesystem", local.clone(), device, Some("volumeMode Filesystem, but is specified in volumeDevices"));
        check("Filesystem", local, mounted, None);
        check("Filesystem", host.clone(), mounted, None);
        check("Block", host, device, Some("is a hostPath"));
        check("Filesystem", json!({"nfs": {"path": "/", "server": "s"}}), mounted, Some("does not support"));
    }

    #[test]
    fn only_devices_and_directories_are_volumes() {
        let ownership = Ownership { group: None, read_only: false, only_when_root_differs: false };
        let check = |path: &str, mode: &str, expected: &str| {
            let found = behind(json!({"local": {"path": path}, "volumeMode": mode}), Uses::default()).unwrap();
            let why = found.prepare(ownership, Path::new("/nowhere")).unwrap_err();
            assert!(why.contains(expected), "{path}: {why}");
        };
        check("/dev/null", "Block", "is not a block device");
        check("/dev/null", "Filesystem", "only directory and block device are supported");
        check("/none at all", "Filesystem", "does not exist");
    }

    #[test]
    fn volumes_stay_on_their_nodes() {
        let check = |affinity: Value, expected: Option<&str>| {
            let volume = serde_json::from_value(json!({"spec": {"nodeAffinity": affinity}})).unwrap();
            let labels = BTreeMap::from([("kubernetes.io/hostname".to_string(), "here".to_string())]);
            assert_eq!(check_node_affinity(&volume, "here", &labels).err().as_deref(), expected, "{affinity}");
        };
        let on = |host: &str| json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]});
        check(json!(null), None);
        check(json!({"required": {"nodeSelectorTerms": [on("here")]}}), None);
        check(json!({"required": {"nodeSelectorTerms": [on("there"), on("here")]}}), None);
        check(json!({"required": {"nodeSelectorTerms": [on("there")]}}), Some("no matching NodeSelectorTerms"));
    }

    #[test]
    fn only_writable_local_volumes_are_given_to_the_group() {
        let check = |source: &str, read_only: bool, expected: bool| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("file");
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let found = behind(json!({source: {"path": directory.path()}}), Uses::default()).unwrap();
            // Our own group, so that nobody needs to be root.
            let group = Some(file.metadata().unwrap().gid());
            let ownership = Ownership { group, read_only, only_when_root_differs: false };
            assert_eq!(found.prepare(ownership, Path::new("/nowhere")).unwrap(), directory.path());
            let given = file.metadata().unwrap().mode() & 0o777 == 0o660;
            assert_eq!(given, expected, "{source} {read_only}");
        };
        check("local", false, true);
        check("local", true, false);
        check("hostPath", false, false);
    }

    #[test]
    fn a_claim_of_a_template_is_its_pods_own() {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).unwrap();
        let check = |owners: Value, expected: bool| {
            let metadata = json!({"name": "p-v", "namespace": "n", "ownerReferences": owners});
            let found = check_owner(&serde_json::from_value(json!({"metadata": metadata})).unwrap(), &pod);
            assert_eq!(found.is_ok(), expected, "{owners}: {found:?}");
        };
        let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]);
        check(owner("u", true), true);
        check(owner("u", false), false);
        check(owner("earlier", true), false);
        check(json!([]), false);
    }

    #[test]
    fn a_claim_is_read_only_when_its_pod_says_so() {
        let check = |source: Value, expected: bool| {
            let volume = json!({"name": "v", "persistentVolumeClaim": source});
            let pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [volume]}})).unwrap();
            assert_eq!(is_read_only(&pod, "v"), expected);
            assert!(!is_read_only(&pod, "w"));
        };
        check(json!({"claimName": "c", "readOnly": true}), true);
        check(json!({"claimName": "c"}), false);
    }
}
