//! SELinux on this node: whether it is on, the label of files for a process, and which label a pod's volume is mounted with.
//! Asked by `volume_manager` before a volume is mounted; `csi::mounter` and `plugins::network_disk` pass the label on.
//! Where SELinux is off nothing here does anything.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use api::selinux;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, SELinuxOptions};

use super::{error::VolumeError, plugin::Spec};
use crate::{
    Config,
    configuration::feature_gates::{SELINUX_MOUNT, SELINUX_MOUNT_READ_WRITE_ONCE_POD},
};

/// Of files of containers, where the machine's policy says nothing.
const FILE_LABEL: &str = "system_u:object_r:container_file_t:s0";
/// The files of a policy that name the labels of containers, most important first, below the policy's directory.
const CONTEXT_FILES: [&str; 2] = ["usr/share/containers/selinux/contexts", "contexts/lxc_contexts"];
const CONTEXTS_BYTES_MAX: u64 = 64 << 10;

/// What the machine has.
#[derive(Debug, Clone, PartialEq)]
struct Machine {
    file_label: String,
}

#[derive(Debug, Clone, Default)]
pub struct Selinux {
    machine: Option<Machine>,
    mounts_once_pods: bool,
    mounts_all: bool,
}

impl Selinux {
    pub fn new(config: &Config) -> Self {
        Self::of_machine(config, Path::new("/"))
    }

    /// Of the machine whose files are below `root`.
    fn of_machine(config: &Config, root: &Path) -> Self {
        let gate = |name| config.feature_gates.enabled(name);
        Self {
            machine: machine(root),
            mounts_once_pods: gate(SELINUX_MOUNT_READ_WRITE_ONCE_POD),
            mounts_all: gate(SELINUX_MOUNT),
        }
    }

    #[cfg(test)]
    pub fn enabled_for_tests(mounts_all: bool) -> Self {
        Self { machine: Some(Machine { file_label: FILE_LABEL.into() }), mounts_once_pods: true, mounts_all }
    }

    pub fn is_enabled(&self) -> bool {
        self.machine.is_some()
    }

    /// The label to mount a pod's volume with; `None` leaves its files to the container runtime.
    pub fn mount_label(
        &self,
        pod: &Pod,
        volume: &str,
        spec: Spec,
        has_mount_option: bool,
    ) -> Result<Option<String>, VolumeError> {
        let Some(machine) = self.machine.as_ref().filter(|_| self.mounts_once_pods) else { return Ok(None) };
        let Some(persistent) = spec.persistent().filter(|volume| self.mounts_all || is_once_pod(volume)) else {
            return Ok(None);
        };
        if !has_mount_option || !selinux::is_mounted(pod, volume) {
            return Ok(None);
        }
        let options = selinux::options_of_volume(pod, volume);
        let labels: BTreeSet<String> = options.into_iter().map(|options| machine.label(options)).collect();
        if labels.len() > 1 {
            let volume = persistent.metadata.name.clone().unwrap_or_default();
            let labels = labels.into_iter().collect::<Vec<_>>().join(",");
            return Err(VolumeError::ManySelinuxLabels { volume, labels });
        }
        let recursively = selinux::change_policy(pod) == selinux::RECURSIVE;
        Ok(labels.into_iter().next().filter(|label| !label.is_empty() && !recursively))
    }
}

/// What only one pod has at a time.
fn is_once_pod(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    matches!(modes, Some([mode]) if mode == "ReadWriteOncePod")
}

impl Machine {
    /// Of the files of a process with these options: user and level are its own, role and type those of files.
    fn label(&self, options: &SELinuxOptions) -> String {
        if selinux::label(options).is_empty() {
            return String::new();
        }
        let mut usual = self.file_label.splitn(4, ':');
        let mut part = |wanted: Option<&String>| {
            let usual = usual.next().unwrap_or_default();
            wanted.filter(|text| !text.is_empty()).map_or(usual, String::as_str).to_string()
        };
        let parts = [part(options.user.as_ref()), part(None), part(None), part(options.level.as_ref())];
        parts.join(":")
    }
}

/// The option that mounts with a label, quoted: levels have commas.
pub fn mount_option(label: &str) -> String {
    format!("context={label:?}")
}

/// `None` where SELinux is off.
fn machine(root: &Path) -> Option<Machine> {
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let is_mounted = mounts.lines().any(|line| line.split(" - ").nth(1).is_some_and(|t| t.starts_with("selinuxfs ")));
    // Without a policy every process is the kernel.
    let own = std::fs::read_to_string(root.join("proc/self/attr/current")).ok()?;
    let own = own.trim_end_matches(['\0', '\n']);
    if !is_mounted || own.is_empty() || own == "kernel" {
        return None;
    }
    let file_label = context_files(root).iter().find_map(|file| file_label(file));
    Some(Machine { file_label: file_label.unwrap_or_else(|| FILE_LABEL.into()) })
}

fn context_files(root: &Path) -> Vec<PathBuf> {
    let settings = std::fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
    let mut lines = settings.lines().map(str::trim);
    let policy = lines.find_map(|line| line.strip_prefix("SELINUXTYPE=")).unwrap_or("targeted").trim();
    let policy = root.join("etc/selinux").join(policy);
    vec![root.join(CONTEXT_FILES[0]), policy.join(CONTEXT_FILES[1])]
}

fn file_label(file: &Path) -> Option<String> {
    let text = crate::files::safe_open::read_head(file, CONTEXTS_BYTES_MAX).ok()?;
    let text = String::from_utf8(text).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    let (_, label) = lines.find(|(key, _)| key.trim() == "file")?;
    Some(label.trim().trim_matches('"').to_string()).filter(|label| label.split(':').count() >= 3)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_machine_is_read() {
        let on = "25 1 0:22 / /sys/fs/selinux rw,relatime shared:9 - selinuxfs selinuxfs rw\n";
        let check = |mounts: &str, own: &str, contexts: Option<&str>, expected: Option<&str>| {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().canonicalize().unwrap();
            let write = |path: &str, text: &str| {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            };
            write("proc/self/mountinfo", mounts);
            write("proc/self/attr/current", own);
            write("etc/selinux/config", "# policy\nSELINUX=enforcing\nSELINUXTYPE=mls\n");
            if let Some(contexts) = contexts {
                write("etc/selinux/mls/contexts/lxc_contexts", contexts);
            }
            let found = machine(&root).map(|machine| machine.file_label);
            assert_eq!(found.as_deref(), expected, "{mounts:?} {own:?} {contexts:?}");
        };
        let process = "system_u:system_r:kubelet_t:s0\0";
        check("", process, None, None);
        check(on, "kernel\0", None, None);
        check(on, process, None, Some(FILE_LABEL));
        let contexts = "process = \"system_u:system_r:svirt_lxc_net_t:s0\"\nfile = \"system_u:object_r:x_t:s0\"\n";
        check(on, process, Some(contexts), Some("system_u:object_r:x_t:s0"));
        check(on, process, Some("file = \"\"\n"), Some(FILE_LABEL));
    }

    #[test]
    fn a_volume_is_mounted_with_the_label_that_its_pod_has() {
        let check =
            |mode: &str, all: bool, supports: bool, context: Value, own: Value, expected: Result<&str, &str>| {
                let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": [mode]}});
                let volume = serde_json::from_value(volume).unwrap();
                let mount = json!([{"name": "v", "mountPath": "/v"}]);
                let containers = json!([{"name": "a", "volumeMounts": mount},
                {"name": "b", "volumeMounts": mount, "securityContext": own}]);
                let pod = json!({"spec": {"securityContext": context, "containers": containers}});
                let pod = serde_json::from_value(pod).unwrap();
                let spec = Spec::Persistent { volume: &volume, read_only: false };
                let found = Selinux::enabled_for_tests(all).mount_label(&pod, "v", spec, supports);
                let found = found.map(Option::unwrap_or_default).map_err(|error| error.to_string());
                assert_eq!(found.as_deref().map_err(String::as_str), expected, "{mode} {all} {supports} {pod:?}");
                let off = Selinux::default().mount_label(&pod, "v", spec, supports).unwrap();
                assert_eq!(off, None, "without SELinux");
            };
        let level = |level: &str| json!({"seLinuxOptions": {"level": level, "type": "spc_t"}});
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        check("ReadWriteOncePod", false, true, level("s0:c1,c2"), json!({}), Ok(label));
        check("ReadWriteOncePod", false, false, level("s0:c1,c2"), json!({}), Ok(""));
        check("ReadWriteOnce", false, true, level("s0:c1,c2"), json!({}), Ok(""));
        check("ReadWriteOnce", true, true, level("s0:c1,c2"), json!({}), Ok(label));
        check("ReadWriteOncePod", false, true, json!({}), json!({}), Ok(""));
        let mut recursive = level("s0:c1,c2");
        recursive["seLinuxChangePolicy"] = "Recursive".into();
        check("ReadWriteOncePod", false, true, recursive, json!({}), Ok(""));
        let many = format!("multiple SELinux labels found: {label},system_u:object_r:container_file_t:s0:c9");
        check("ReadWriteOncePod", false, true, level("s0:c1,c2"), level("s0:c9"), Err(&many));
    }

    #[test]
    fn a_level_with_commas_is_one_option() {
        assert_eq!(mount_option("u:r:t:s0:c1,c2"), "context=\"u:r:t:s0:c1,c2\"");
    }
}
