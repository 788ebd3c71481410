//! hostPath volumes, of pods and of PersistentVolumes: what must be at the path, and what is made if it is not there.
//! Creates only what `DirectoryOrCreate` and `FileOrCreate` ask for, and never changes who owns a hostPath.

use std::{
    fs::{DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use nix::libc;

use crate::volumes::{
    error::VolumeError,
    plugin::{MountContext, Mounter, SetUp, Spec, VolumePlugin, is_block},
};

pub struct HostPathPlugin;

impl VolumePlugin for HostPathPlugin {
    fn name(&self) -> &'static str {
        "host-path"
    }

    fn can_support(&self, spec: Spec) -> bool {
        source(spec).is_some()
    }

    fn has_usage(&self) -> bool {
        false
    }

    fn new_mounter(&self, spec: Spec, _context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = source(spec).cloned().unwrap_or_default();
        if let Some(volume) = spec.persistent().filter(|volume| is_block(volume)) {
            let name = volume.metadata.name.clone().unwrap_or_default();
            return Err(VolumeError::HostPathBlock { name, path: source.path });
        }
        let (path, type_) = (PathBuf::from(source.path), source.type_.unwrap_or_default());
        Ok(Box::new(move || {
            check_type(&path, &type_)?;
            Ok(SetUp::at(path))
        }))
    }
}

fn source(spec: Spec<'_>) -> Option<&HostPathVolumeSource> {
    match spec {
        Spec::Inline(volume) => volume.host_path.as_ref(),
        Spec::Persistent { volume, .. } => volume.spec.as_ref()?.host_path.as_ref(),
    }
}

fn check_type(path: &Path, type_: &str) -> Result<(), VolumeError> {
    let meta = std::fs::metadata(path);
    let wrong = |expected| Err(VolumeError::HostPathType { path: path.into(), expected });
    match (type_, &meta) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", Err(_)) => Ok(make_directory(path)?),
        ("FileOrCreate", Err(_)) => Ok(make_file(path)?),
        ("Directory" | "DirectoryOrCreate", Ok(meta)) if meta.is_dir() => Ok(()),
        ("Directory" | "DirectoryOrCreate", _) => wrong("a directory"),
        ("File" | "FileOrCreate", Ok(meta)) if meta.is_file() => Ok(()),
        ("File" | "FileOrCreate", _) => wrong("a file"),
        ("Socket", Ok(meta)) if meta.file_type().is_socket() => Ok(()),
        ("Socket", _) => wrong("a socket file"),
        ("CharDevice", Ok(meta)) if meta.file_type().is_char_device() => Ok(()),
        ("CharDevice", _) => wrong("a character device"),
        ("BlockDevice", Ok(meta)) if meta.file_type().is_block_device() => Ok(()),
        ("BlockDevice", _) => wrong("a block device"),
        (other, _) => Err(VolumeError::InvalidHostPathType(other.into())),
    }
}

/// Only what is made here gets the mode; what another made meanwhile, link or pipe, is looked at when it is tried again.
fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    std::fs::create_dir(path)?;
    let made = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
    made.set_permissions(Permissions::from_mode(0o755))
}

fn make_file(path: &Path) -> io::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    made.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, os::unix::fs::MetadataExt};

    use serde_json::json;

    use super::*;
    use crate::{
        runtime::container_config::{downward::NodeFacts, environment::References},
        volumes::volume_manager::actual_state_of_world::ActualStateOfWorld,
    };

    fn mount(volume: serde_json::Value, fs_group: u32) -> Result<SetUp, VolumeError> {
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": volume})).unwrap();
        let pod = json!({"spec": {"containers": [], "securityContext": {"fsGroup": fs_group}}});
        let context = MountContext {
            pod: &serde_json::from_value(pod).unwrap(),
            volume_name: "v",
            references: &References::default(),
            pod_ips: &[],
            host_ips: &[],
            node: &NodeFacts::default(),
            tokens: &BTreeMap::new(),
            certificates: &BTreeMap::new(),
            pods_dir: Path::new("/nowhere"),
            local_storage_dir: Path::new("/nowhere"),
            actual: &ActualStateOfWorld::default(),
            ownership: &Default::default(),
            timestamp: "now",
            selinux_label: None,
            secret: None,
            network_disks: &Default::default(),
        };
        HostPathPlugin.new_mounter(Spec::Persistent { volume: &volume, read_only: false }, &context)?()
    }

    #[test]
    fn a_host_path_keeps_its_owner_and_is_no_device() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        // Our own group, so that nobody needs to be root.
        let group = file.metadata().unwrap().gid();
        let found = mount(json!({"hostPath": {"path": directory.path()}}), group).unwrap();
        assert_eq!(found, SetUp::at(directory.path().into()));
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        let refused = mount(json!({"hostPath": {"path": "/d"}, "volumeMode": "Block"}), group).unwrap_err();
        assert!(refused.to_string().contains("is a hostPath"), "{refused}");
    }

    #[test]
    fn types_are_checked_and_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let check = |path: &str, kind: &str, ok: bool| {
            let place = if path.starts_with('/') { path.into() } else { dir.path().join(path) };
            assert_eq!(super::check_type(&place, kind).is_ok(), ok, "{path} {kind}");
        };
        check("none", "", true);
        check("none", "Directory", false);
        check("none", "File", false);
        check("made", "DirectoryOrCreate", true);
        check("made", "Directory", true);
        check("file", "Directory", false);
        check("file", "DirectoryOrCreate", false);
        check("file", "File", true);
        check("made-file", "FileOrCreate", true);
        check("/dev/null", "CharDevice", true);
        check("/dev/null", "BlockDevice", false);
        check("file", "Socket", false);
        check("file", "Spoon", false);
    }
}
