//! The mounts of a container: its volumes with subPath and propagation, the hosts file, the termination message.
//! Used by `runtime_manager`.
//! The runtime is never told a path inside a volume, which the pod could change under it: see `sub_paths`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};

use super::{expansion::expand_noting, sub_paths::SubPath};
use crate::{pod::pod_spec, volumes::plugins::PLUGINS};

pub struct Input<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// Where each volume is on the host.
    pub volumes: &'a BTreeMap<String, PathBuf>,
    /// The ids of the images behind image volumes.
    pub images: &'a BTreeMap<String, String>,
    pub environment: &'a BTreeMap<String, String>,
    /// What is inside volumes is mounted below it, for the runtime.
    pub sub_paths: &'a Path,
    pub hosts_file: Option<&'a Path>,
    pub message_file: Option<&'a Path>,
    /// Whether the runtime can make mounts inside a read-only one read-only too.
    pub recursive_read_only: bool,
}

/// Whether a mount is to be read-only all the way down.
pub fn recursively(mount: &VolumeMount, possible: bool) -> Result<bool, String> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    let refuse = |why: &str| {
        Err(format!(
            "failed to resolve recursive read-only mode: volume {:?} requested recursive read-only mode, but it is {why}",
            mount.name
        ))
    };
    match mode {
        "Disabled" => Ok(false),
        _ if mount.read_only != Some(true) => refuse("not read-only"),
        _ if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") => {
            refuse("not compatible with its mount propagation")
        }
        "IfPossible" => Ok(possible),
        "Enabled" if possible => Ok(true),
        "Enabled" => refuse("not supported by the runtime"),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

/// A path in a volume that must be mounted for the runtime before it is told of it.
#[derive(Debug, PartialEq)]
pub struct SubPathMount {
    volume: PathBuf,
    sub_path: String,
    target: PathBuf,
    shared: bool,
}

impl SubPathMount {
    /// On a thread that may hang: the volume is the pod's.
    pub fn mount(&self) -> Result<(), String> {
        SubPath::open(&self.volume, &self.sub_path)?.bind(&self.target, self.shared)
    }
}

/// What the runtime is told, and what must be mounted before.
pub fn mounts(input: &Input) -> Result<(Vec<v1::Mount>, Vec<SubPathMount>), String> {
    let (mut result, mut sub_paths) = (Vec::new(), Vec::new());
    let mut has_hosts = false;
    for (index, mount) in input.container.volume_mounts.iter().flatten().enumerate() {
        has_hosts |= mount.mount_path.trim_end_matches('/') == "/etc/hosts";
        if let Some(image) = input.images.get(&mount.name) {
            result.push(image_mount(mount, image)?);
            continue;
        }
        let root = input
            .volumes
            .get(&mount.name)
            .ok_or_else(|| format!("failed to find volume {:?} of container {:?}", mount.name, input.container.name))?;
        let sub_path = match (mount.sub_path_expr.as_deref(), mount.sub_path.as_deref()) {
            (Some(expression), _) if !expression.is_empty() => {
                let (text, unknown) = expand_noting(expression, |name| input.environment.get(name).cloned());
                if !unknown.is_empty() {
                    return Err(format!("missing value for {:?}", unknown[0]));
                }
                Some(text)
            }
            (_, Some(path)) if !path.is_empty() => Some(path.to_string()),
            _ => None,
        };
        let host_path = match sub_path {
            Some(sub_path) => {
                let target = input.sub_paths.join(&mount.name).join(&input.container.name).join(index.to_string());
                let shared = mount.mount_propagation.as_deref() == Some("Bidirectional");
                sub_paths.push(SubPathMount { volume: root.clone(), sub_path, target: target.clone(), shared });
                target
            }
            None => root.clone(),
        };
        result.push(v1::Mount {
            container_path: container_path(mount),
            host_path: host_path.to_string_lossy().into_owned(),
            readonly: mount.read_only.unwrap_or(false) || PLUGINS.is_read_only(input.pod, &mount.name),
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
                Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
                _ => v1::MountPropagation::PropagationPrivate,
            } as i32,
            recursive_read_only: recursively(mount, input.recursive_read_only)?,
            ..Default::default()
        });
    }
    let mut file = |container_path: &str, host_path: &Path| {
        result.push(v1::Mount {
            container_path: container_path.into(),
            host_path: host_path.to_string_lossy().into_owned(),
            ..Default::default()
        });
    };
    if let Some(path) = input.hosts_file.filter(|_| !has_hosts) {
        file("/etc/hosts", path);
    }
    if let Some(path) = input.message_file {
        file(super::message_path(input.container), path);
    }
    Ok((result, sub_paths))
}

/// The devices behind claims that the container wants without a file system.
pub fn devices(
    pod: &Pod,
    container: &Container,
    volumes: &BTreeMap<String, PathBuf>,
) -> Result<Vec<v1::Device>, String> {
    let device = |wanted: &VolumeDevice| {
        let path = volumes
            .get(&wanted.name)
            .ok_or_else(|| format!("failed to find volume {:?} of container {:?}", wanted.name, container.name))?;
        // Without `m` a container can't make another node for it.
        let permissions = if PLUGINS.is_read_only(pod, &wanted.name) { "r" } else { "mrw" };
        Ok(v1::Device {
            container_path: wanted.device_path.clone(),
            host_path: path.to_string_lossy().into_owned(),
            permissions: permissions.into(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

fn container_path(mount: &VolumeMount) -> String {
    match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    }
}

/// The runtime mounts the image itself, read-only.
fn image_mount(mount: &VolumeMount, image: &str) -> Result<v1::Mount, String> {
    let within = [&mount.sub_path, &mount.sub_path_expr];
    if within.into_iter().flatten().any(|path| !path.is_empty()) {
        return Err(format!("subPath of image volume {:?} is not supported by the container runtime", mount.name));
    }
    Ok(v1::Mount {
        container_path: container_path(mount),
        readonly: true,
        image: Some(v1::ImageSpec { image: image.into(), ..Default::default() }),
        ..Default::default()
    })
}

/// Whether the node manages the hosts file of this container: not for pods in the host's process namespaces on
/// request of their own mount.
pub fn wants_hosts_file(pod: &Pod, container: &Container) -> bool {
    let own = container.volume_mounts.iter().flatten().any(|m| m.mount_path.trim_end_matches('/') == "/etc/hosts");
    !own && !pod_spec::name(pod).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_all_the_way_down_only_where_possible() {
        let check = |mount: serde_json::Value, possible: bool, expected: Result<bool, &str>| {
            let mut mount = mount;
            (mount["name"], mount["mountPath"]) = ("v".into(), "/v".into());
            let found = recursively(&serde_json::from_value(mount).unwrap(), possible);
            match expected {
                Ok(wanted) => assert_eq!(found, Ok(wanted)),
                Err(part) => assert!(found.unwrap_err().contains(part)),
            }
        };
        use serde_json::json;
        check(json!({"readOnly": true}), true, Ok(false));
        check(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), true, Ok(true));
        check(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), false, Ok(false));
        check(json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), true, Ok(true));
        check(json!({"readOnly": true, "recursiveReadOnly": "Enabled"}), false, Err("not supported by the runtime"));
        check(json!({"recursiveReadOnly": "Enabled"}), true, Err("but it is not read-only"));
    }

    #[test]
    fn a_read_only_claim_is_read_only_in_every_way() {
        use serde_json::json;
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "volumes": [{"name": "ro", "persistentVolumeClaim": {"claimName": "a", "readOnly": true}},
                {"name": "rw", "persistentVolumeClaim": {"claimName": "b"}}],
            "containers": [{"name": "c",
                "volumeMounts": [{"name": "ro", "mountPath": "/ro"}, {"name": "rw", "mountPath": "/rw"}],
                "volumeDevices": [{"name": "ro", "devicePath": "/dev/ro"}, {"name": "rw", "devicePath": "/dev/rw"}]}]}}))
        .unwrap();
        let container = &pod_spec::containers(&pod)[0];
        let volumes = BTreeMap::from(["ro", "rw"].map(|name| (name.to_string(), PathBuf::from("/host").join(name))));
        let input = Input {
            pod: &pod,
            container,
            volumes: &volumes,
            images: &BTreeMap::new(),
            environment: &BTreeMap::new(),
            sub_paths: Path::new("/nowhere"),
            hosts_file: None,
            message_file: None,
            recursive_read_only: false,
        };
        let mounted: Vec<bool> = mounts(&input).unwrap().0.iter().map(|mount| mount.readonly).collect();
        assert_eq!(mounted, [true, false]);
        let show = |d: &v1::Device| format!("{} {} {}", d.host_path, d.container_path, d.permissions);
        let devices: Vec<String> = devices(&pod, container, &volumes).unwrap().iter().map(show).collect();
        assert_eq!(devices, ["/host/ro /dev/ro r", "/host/rw /dev/rw mrw"]);
    }
}
