//! NFS volumes: an exported directory of a server, mounted by the host's `mount.nfs`.
//! Inline in a pod or behind a PersistentVolume, which may add mount options.
//! As upstream's, takes no fsGroup: who may write is the server's to say.
//! Any pod may name a server: what `mount` would take for one of its options is none (test:
//! `a_pod_does_not_pass_options_to_mount`).

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::core::v1::NFSVolumeSource;

use crate::{
    files::directories,
    volumes::{
        error::VolumeError,
        file_system,
        plugin::{MountContext, Mounter, SetUp, Spec, VolumePlugin},
    },
};

pub struct NfsPlugin;

impl VolumePlugin for NfsPlugin {
    fn name(&self) -> &'static str {
        "nfs"
    }

    fn can_support(&self, spec: Spec) -> bool {
        source(spec).is_some()
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let export = source(spec).map(|source| Export::new(source, spec));
        let export = export.ok_or_else(|| VolumeError::NoPluginMatched(self.name().into()))?;
        let name = spec.persistent().and_then(|volume| volume.metadata.name.as_deref());
        let target = context.volume_dir(self, name.unwrap_or(context.volume_name));
        Ok(Box::new(move || export.mount(target)))
    }

    /// It is the server's.
    fn has_usage(&self) -> bool {
        false
    }
}

fn source<'a>(spec: Spec<'a>) -> Option<&'a NFSVolumeSource> {
    match spec {
        Spec::Inline(volume) => volume.nfs.as_ref(),
        Spec::Persistent { volume, .. } => volume.spec.as_ref()?.nfs.as_ref(),
    }
}

#[derive(Debug, PartialEq)]
struct Export {
    device: String,
    options: Vec<String>,
}

impl Export {
    fn new(source: &NFSVolumeSource, spec: Spec) -> Self {
        let (read_only, options) = match spec {
            Spec::Inline(_) => (false, None),
            Spec::Persistent { volume, read_only } => {
                (read_only, volume.spec.as_ref().and_then(|spec| spec.mount_options.clone()))
            }
        };
        let mut options = options.unwrap_or_default();
        if read_only || source.read_only == Some(true) {
            options.insert(0, "ro".into());
        }
        let server = match source.server.contains(':') && !source.server.starts_with('[') {
            true => format!("[{}]", source.server),
            false => source.server.clone(),
        };
        Self { device: format!("{server}:{}", source.path), options }
    }

    fn arguments(&self, target: &Path) -> Vec<String> {
        let mut arguments = vec!["-t".to_string(), "nfs".into()];
        if !self.options.is_empty() {
            arguments.extend(["-o".into(), self.options.join(",")]);
        }
        arguments.extend([self.device.clone(), target.to_string_lossy().into_owned()]);
        arguments
    }

    fn mount(&self, target: PathBuf) -> Result<SetUp, VolumeError> {
        // `--fstab=` and a file of the pod's own would have anything of this machine mounted there.
        if self.device.starts_with('-') {
            let why = format!("{:?} is no directory of a server", self.device);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        if file_system::mounts_below(&target)?.contains(&target) {
            return Ok(SetUp::at(target));
        }
        directories::create(&target)?;
        let output = Command::new("mount").args(self.arguments(&target)).output()?;
        if output.status.success() {
            return Ok(SetUp::at(target));
        }
        // Only what is empty goes.
        std::fs::remove_dir(&target).ok();
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        Err(io::Error::other(format!(
            "mount failed: {}\nMounting command: mount\nMounting arguments: {}\nOutput: {said}",
            output.status,
            self.arguments(&target).join(" ")
        ))
        .into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_mount_says_what_the_volume_says() {
        let check = |volume: Value, read_only: bool, expected: &str| {
            let volume = json!({"metadata": {"name": "pv"}, "spec": volume});
            let volume = serde_json::from_value(volume).unwrap();
            let spec = Spec::Persistent { volume: &volume, read_only };
            let export = Export::new(source(spec).unwrap(), spec);
            assert_eq!(export.arguments(Path::new("/t")).join(" "), expected);
        };
        let at = |server: &str| json!({"server": server, "path": "/x"});
        check(json!({"nfs": at("s")}), false, "-t nfs s:/x /t");
        check(json!({"nfs": at("s"), "mountOptions": ["nfsvers=4.1"]}), true, "-t nfs -o ro,nfsvers=4.1 s:/x /t");
        check(json!({"nfs": at("fd00::1")}), false, "-t nfs [fd00::1]:/x /t");
    }

    #[test]
    fn a_pod_does_not_pass_options_to_mount() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (target, table) = (root.join("v/mount"), root.join("fstab:"));
        std::fs::create_dir(&table).unwrap();
        std::fs::write(table.join("x"), format!("/ {} none bind 0 0\n", target.display())).unwrap();
        for server in [format!("--fstab={}/fstab", root.display()), "-o".into(), "--all".into()] {
            let volume = json!({"name": "v", "nfs": {"server": server, "path": "/x"}});
            let volume = serde_json::from_value(volume).unwrap();
            let export = Export::new(source(Spec::Inline(&volume)).unwrap(), Spec::Inline(&volume));
            let error = export.mount(target.clone()).unwrap_err().to_string();
            assert!(error.contains("is no directory of a server") && !target.exists(), "{error}");
        }
    }

    #[test]
    fn a_server_that_cannot_be_had_is_told_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().canonicalize().unwrap().join("v/mount");
        let volume = json!({"name": "v", "nfs": {"server": "", "path": "/none", "readOnly": true}});
        let volume = serde_json::from_value(volume).unwrap();
        let export = Export::new(source(Spec::Inline(&volume)).unwrap(), Spec::Inline(&volume));
        let error = export.mount(target.clone()).unwrap_err().to_string();
        assert!(error.contains("Mounting arguments: -t nfs -o ro :/none"), "{error}");
        assert!(!target.exists());
    }
}
