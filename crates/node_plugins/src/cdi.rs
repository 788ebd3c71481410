//! CDI devices for runtimes that know nothing of CDI: what the files of `/etc/cdi` and `/var/run/cdi` say of a device, as
//! devices, mounts and variables that every runtime knows.
//! Used by `kubelet` where the runtime is too old to do this itself.
//! Invariant: a device is given whole or not at all: what only a runtime could do is refused (test:
//! `devices_are_what_their_files_say`).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::devices::{
    messages::{DeviceSpec, Mount},
    pod_devices::DeviceRunContainerOptions,
};

pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CdiError {
    #[error("unresolvable CDI devices {0}")]
    Unresolvable(String),
    #[error("CDI device {device} has {what}, which needs a container runtime with CDI (containerd 1.7 or newer)")]
    Unsupported { device: String, what: &'static str },
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct CdiSpec {
    kind: String,
    #[serde(default)]
    devices: Vec<CdiDevice>,
    #[serde(default, rename = "containerEdits")]
    edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct CdiDevice {
    name: String,
    #[serde(default, rename = "containerEdits")]
    edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerEdits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<CdiMount>,
    hooks: Vec<serde_json::Value>,
    additional_gids: Vec<u32>,
    intel_rdt: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: String,
    permissions: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiMount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

/// What the files of these directories say; those of later directories go before.
pub fn read(directories: &[impl AsRef<Path>]) -> Vec<CdiSpec> {
    let mut specs = Vec::new();
    for directory in directories.iter().rev() {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        specs.extend(paths.iter().filter_map(|path| read_file(path)));
    }
    specs
}

fn read_file(path: &Path) -> Option<CdiSpec> {
    let form = path.extension()?.to_str().filter(|form| ["json", "yaml"].contains(form))?;
    let size = path.metadata().ok().map_or(u64::MAX, |meta| meta.len());
    let text = if size <= FILE_BYTES_MAX { std::fs::read_to_string(path).ok()? } else { return None };
    let read = match form {
        "json" => serde_json::from_str(&text).map_err(|error| error.to_string()),
        _ => serde_saphyr::from_str(&text).map_err(|error| error.to_string()),
    };
    read.inspect_err(|error| tracing::warn!(error, path = %path.display(), "failed to read a file of CDI devices")).ok()
}

/// Adds what the devices need, all of them or none. Each is named as `<vendor>/<class>=<name>`.
pub fn apply(names: &[String], specs: &[CdiSpec], options: &mut DeviceRunContainerOptions) -> Result<(), CdiError> {
    let mut unresolvable = Vec::new();
    let mut found = Vec::new();
    for name in names {
        let (kind, device) = name.split_once('=').unwrap_or((name, ""));
        let of_kind = specs.iter().filter(|spec| spec.kind == kind);
        let both = of_kind.flat_map(|spec| spec.devices.iter().map(move |device| (spec, device)));
        match both.clone().find(|(_, known)| known.name == device) {
            Some((spec, known)) => found.extend([(name, &spec.edits), (name, &known.edits)]),
            None => unresolvable.push(name.as_str()),
        }
    }
    if !unresolvable.is_empty() {
        return Err(CdiError::Unresolvable(unresolvable.join(", ")));
    }
    for (name, edits) in &found {
        let problem = match edits {
            edits if !edits.hooks.is_empty() => Some("hooks"),
            edits if !edits.additional_gids.is_empty() => Some("additional groups"),
            edits if edits.intel_rdt.is_some() => Some("settings of Intel RDT"),
            _ => None,
        };
        if let Some(what) = problem {
            return Err(CdiError::Unsupported { device: (*name).clone(), what });
        }
    }
    found.into_iter().for_each(|(_, edits)| add(edits, options));
    Ok(())
}

fn add(edits: &ContainerEdits, options: &mut DeviceRunContainerOptions) {
    for variable in &edits.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        options.envs.insert(name.into(), value.into());
    }
    for node in &edits.device_nodes {
        let host_path = if node.host_path.is_empty() { &node.path } else { &node.host_path };
        let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
        options.devices.push(DeviceSpec {
            container_path: node.path.clone(),
            host_path: host_path.clone(),
            permissions: permissions.into(),
        });
    }
    options.mounts.extend(edits.mounts.iter().map(|mount| Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        read_only: mount.options.iter().any(|option| option == "ro"),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_what_their_files_say() {
        let root = tempfile::tempdir().unwrap();
        let json = r#"{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "containerEdits": {"env": ["ALL=1"]},
            "devices": [{"name": "0", "containerEdits": {"env": ["GPU=0"],
                "deviceNodes": [{"path": "/dev/gpu0"}, {"path": "/dev/c", "hostPath": "/dev/h", "permissions": "r"}],
                "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid"]}]}},
                {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/x"}]}}]}"#;
        std::fs::write(root.path().join("a.json"), json).unwrap();
        let yaml = "cdiVersion: 0.6.0\nkind: example.com/nic\ndevices:\n- name: eth\n  containerEdits:\n    env:\n    - NIC=1\n";
        std::fs::write(root.path().join("b.yaml"), yaml).unwrap();
        std::fs::write(root.path().join("torn.json"), "{").unwrap();
        let specs = read(&[Path::new("/nowhere"), root.path()]);
        let check = |names: &[&str], expected: Result<&str, &str>| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let mut options = DeviceRunContainerOptions::default();
            let found = apply(&names, &specs, &mut options).map(|()| {
                let envs = options.envs.iter().map(|(name, value)| format!("{name}={value}"));
                let device = |d: &DeviceSpec| format!("{}:{}:{}", d.host_path, d.container_path, d.permissions);
                let mount = |m: &Mount| format!("{}>{}:{}", m.host_path, m.container_path, m.read_only);
                let parts = envs.chain(options.devices.iter().map(device)).chain(options.mounts.iter().map(mount));
                parts.collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found.map_err(|e| e.to_string()), expected.map(String::from).map_err(String::from), "{names:?}");
        };
        let gpu = "ALL=1 GPU=0 /dev/gpu0:/dev/gpu0:rwm /dev/h:/dev/c:r /h>/c:true";
        check(&[], Ok(""));
        check(&["example.com/gpu=0"], Ok(gpu));
        check(&["example.com/nic=eth"], Ok("NIC=1"));
        let missing = "unresolvable CDI devices example.com/gpu=9, x";
        check(&["example.com/gpu=0", "example.com/gpu=9", "x"], Err(missing));
        let hooked = "CDI device example.com/gpu=hooked has hooks, which needs a container runtime with CDI (containerd \
                      1.7 or newer)";
        check(&["example.com/gpu=hooked"], Err(hooked));
    }
}
