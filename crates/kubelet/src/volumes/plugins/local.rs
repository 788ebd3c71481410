//! local PersistentVolumes: a directory of the node, or a device, with a file system or for pods that want it as it is.
//! `devices` finds, makes and mounts file systems; claims are checked by `desired_state_of_world_populator`.
//! Never changes who owns what is mounted read-only, and never shows a pod a device in place of the file system it
//! asked for.

use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::{
    pod::pod_spec,
    volumes::{
        devices::{self, FileSystem},
        error::VolumeError,
        file_system,
        local_storage::LocalDirectory,
        ownership_progress::OwnershipProgress,
        plugin::{Expander, MountContext, Mounter, SetUp, Spec, VolumePlugin, Warning, is_block},
    },
};

pub const NAME: &str = "local-volume";

pub struct LocalPlugin;

impl VolumePlugin for LocalPlugin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.persistent().and_then(|volume| volume.spec.as_ref()).is_some_and(|spec| spec.local.is_some())
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let Spec::Persistent { volume, read_only } = spec else {
            return Err(VolumeError::NoPluginMatched(NAME.into()));
        };
        let mut local = LocalVolume::new(volume, read_only);
        local.provisioned = LocalDirectory::new(context.local_storage_dir, volume);
        let security_context = pod_spec::spec(context.pod).security_context.as_ref();
        let policy = security_context.and_then(|c| c.fs_group_change_policy.as_deref());
        let target = context.volume_dir(self, &local.name);
        let group = context.fs_group();
        let only_when_root_differs = policy == Some("OnRootMismatch");
        let ownership = Ownership { group, only_when_root_differs, progress: context.ownership.clone() };
        let others = group.and_then(|_| mounted_by_another(&local, &target, context));
        Ok(Box::new(move || {
            let owner = others.map(|path| owning_group(&path)).transpose()?;
            let path = local.prepare(&ownership, &target)?;
            let warning = match (group, owner) {
                (Some(wanted), Some(owner)) if wanted != owner => Some(already_mounted(&local.name, wanted, owner)),
                _ => None,
            };
            Ok(SetUp { path, warning })
        }))
    }

    fn new_expander(&self, volume: &PersistentVolume, local_storage_dir: &Path) -> Option<Expander> {
        // What the control plane's provisioner put here it also makes larger.
        if LocalDirectory::new(local_storage_dir, volume).is_some() {
            return None;
        }
        let local = LocalVolume::new(volume, false);
        Some(Box::new(move |target: &Path| local.expand(target)))
    }
}

fn already_mounted(name: &str, wanted: u32, owner: u32) -> Warning {
    let message = format!(
        "The requested fsGroup is {wanted}, but the volume {name} has GID {owner}. The volume may not be shareable."
    );
    Warning { reason: "AlreadyMountedVolume", message }
}

/// Where another pod has the volume, if pods may share it.
fn mounted_by_another(local: &LocalVolume, target: &Path, context: &MountContext) -> Option<PathBuf> {
    if local.block {
        return None;
    }
    let own = context.pods_dir.join(pod_spec::uid(context.pod));
    // A device is mounted for each pod of its own, below its directory.
    let below_pod = target.strip_prefix(own).ok();
    let is_same = |uid: &str, path: &Path| {
        path == local.path || below_pod.is_some_and(|rest| path == context.pods_dir.join(uid).join(rest))
    };
    context.actual.find_in_other_pods(pod_spec::uid(context.pod), is_same)
}

/// How the files of a volume are to be given to a group.
#[derive(Debug, Default)]
struct Ownership {
    group: Option<u32>,
    only_when_root_differs: bool,
    progress: Arc<OwnershipProgress>,
}

struct LocalVolume {
    name: String,
    path: PathBuf,
    file_system: FileSystem,
    /// A device without a file system.
    block: bool,
    read_only: bool,
    /// Of the node's own storage: made when it is first wanted.
    provisioned: Option<LocalDirectory>,
}

impl LocalVolume {
    fn new(volume: &PersistentVolume, read_only: bool) -> Self {
        let spec = volume.spec.clone().unwrap_or_default();
        let source = spec.local.unwrap_or_default();
        Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            path: source.path.into(),
            file_system: FileSystem { kind: source.fs_type, options: spec.mount_options.unwrap_or_default() },
            block: is_block(volume),
            read_only,
            provisioned: None,
        }
    }

    /// Checks what is there and gives it to the pod's group. A device is mounted at `target`. Where the files are.
    fn prepare(&self, ownership: &Ownership, target: &Path) -> Result<PathBuf, VolumeError> {
        if let Some(directory) = &self.provisioned {
            directory.set_up()?;
        }
        if !self.path.exists() {
            return Err(VolumeError::PathNotFound(self.path.clone()));
        }
        let files = match (self.block, is_block_device(&self.path)) {
            (true, true) => return Ok(self.path.clone()),
            (true, false) => return Err(VolumeError::NotBlockDevice(self.path.clone())),
            (false, true) => {
                devices::mount(&self.path, target, &self.file_system, self.read_only)?;
                target
            }
            (false, false) if self.path.is_dir() => &self.path,
            (false, false) => return Err(VolumeError::NeitherDirectoryNorDevice),
        };
        if let Some(group) = ownership.group.filter(|_| !self.read_only) {
            let lazily = ownership.only_when_root_differs;
            file_system::set_volume_ownership(files, group, false, lazily, &ownership.progress)?;
        }
        Ok(files.to_path_buf())
    }

    /// Lets the file system, mounted at `target`, have all of a device that has become larger. A directory has the room
    /// of the file system that it is in, and a device without one is as large as it is.
    fn expand(&self, target: &Path) -> Result<(), VolumeError> {
        match (self.block, is_block_device(&self.path)) {
            (true, _) => Ok(()),
            (false, true) => Ok(devices::grow(&self.path, target)?),
            (false, false) if self.path.is_dir() => Ok(()),
            (false, false) => Err(VolumeError::NeitherDirectoryNorDevice),
        }
    }
}

/// The group that has the files at `path`.
fn owning_group(path: &Path) -> Result<u32, VolumeError> {
    let metadata = path.metadata();
    metadata.map(|m| m.gid()).map_err(|source| VolumeError::CheckFsGroup { path: path.into(), source })
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn local(spec: Value, read_only: bool) -> LocalVolume {
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        LocalVolume::new(&volume, read_only)
    }

    #[test]
    fn only_devices_and_directories_are_volumes() {
        let ownership = Ownership::default();
        let check = |path: &str, mode: &str, expected: &str| {
            let found = local(json!({"local": {"path": path}, "volumeMode": mode}), false);
            let error = found.prepare(&ownership, Path::new("/nowhere")).unwrap_err().to_string();
            assert!(error.contains(expected), "{path}: {error}");
        };
        check("/dev/null", "Block", "is not a block device");
        check("/dev/null", "Filesystem", "only directory and block device are supported");
        check("/none at all", "Filesystem", "path \"/none at all\" does not exist");
    }

    #[test]
    fn what_has_no_file_system_of_its_own_has_nothing_to_grow() {
        let directory = tempfile::tempdir().unwrap();
        let grown = |path: &str, mode: &str| {
            let found = local(json!({"local": {"path": path}, "volumeMode": mode}), false);
            found.expand(Path::new("/nowhere")).map_err(|error| error.to_string())
        };
        assert_eq!(grown(directory.path().to_str().unwrap(), "Filesystem"), Ok(()));
        assert_eq!(grown("/dev/null", "Block"), Ok(()));
        let refused = "only directory and block device are supported";
        assert_eq!(grown("/dev/null", "Filesystem"), Err(refused.into()));
    }

    #[test]
    fn only_writable_volumes_are_given_to_the_group() {
        let check = |read_only: bool, expected: bool| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("file");
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let found = local(json!({"local": {"path": directory.path()}}), read_only);
            // Our own group, so that nobody needs to be root.
            let group = Some(file.metadata().unwrap().gid());
            let ownership = Ownership { group, ..Ownership::default() };
            assert_eq!(found.prepare(&ownership, Path::new("/nowhere")).unwrap(), directory.path());
            let given = file.metadata().unwrap().mode() & 0o777 == 0o660;
            assert_eq!(given, expected, "{read_only}");
        };
        check(false, true);
        check(true, false);
    }
}
