//! The mounts of a container: its volumes with subPath and propagation, the hosts file, the termination message.
//! Used by `runtime_manager`.
//! The runtime is never told a path inside a volume, which the pod could change under it: see `sub_paths`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use cri::{image_sub_path, v1};
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
    /// Volumes whose files the runtime is to label; `None` where SELinux is off.
    pub relabelled: Option<&'a BTreeSet<String>>,
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
    let (mut result, mut sub_paths, mut labelled) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut has_hosts = false;
    for (index, mount) in input.container.volume_mounts.iter().flatten().enumerate() {
        has_hosts |= mount.mount_path.trim_end_matches('/') == "/etc/hosts";
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
        if let Some(image) = input.images.get(&mount.name) {
            result.push(image_mount(mount, image, sub_path.as_deref())?);
            continue;
        }
        let root = input
            .volumes
            .get(&mount.name)
            .ok_or_else(|| format!("failed to find volume {:?} of container {:?}", mount.name, input.container.name))?;
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
            // Once is enough for a container.
            selinux_relabel: input.relabelled.is_some_and(|names| names.contains(&mount.name))
                && labelled.insert(&mount.name),
            ..Default::default()
        });
    }
    let mut file = |container_path: &str, host_path: &Path| {
        result.push(v1::Mount {
            container_path: container_path.into(),
            host_path: host_path.to_string_lossy().into_owned(),
            selinux_relabel: input.relabelled.is_some(),
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

/// The runtime mounts the image itself, read-only: all of it, or what is below a path in it.
fn image_mount(mount: &VolumeMount, image: &str, sub_path: Option<&str>) -> Result<v1::Mount, String> {
    let mut mounted = v1::Mount {
        container_path: container_path(mount),
        readonly: true,
        image: Some(v1::ImageSpec { image: image.into(), ..Default::default() }),
        ..Default::default()
    };
    if let Some(path) = sub_path {
        let relative = Path::new(path);
        if relative.is_absolute() || relative.components().any(|part| part == Component::ParentDir) {
            return Err(format!("subPath {path:?} must be relative and must not contain \"..\""));
        }
        image_sub_path::set(&mut mounted, path);
    }
    Ok(mounted)
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
            relabelled: None,
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

    #[test]
    fn a_path_in_an_image_is_the_runtimes_to_find() {
        use serde_json::json;
        let check = |path: serde_json::Value, expected: Result<Option<&str>, &str>| {
            let mut mount = path;
            (mount["name"], mount["mountPath"]) = ("image".into(), "/image".into());
            let spec = json!({"volumes": [{"name": "image", "image": {"reference": "i"}}],
                "containers": [{"name": "c", "volumeMounts": [mount]}]});
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            let found = mounts(&Input {
                pod: &pod,
                container: &pod_spec::containers(&pod)[0],
                volumes: &BTreeMap::new(),
                images: &BTreeMap::from([("image".to_string(), "sha256:1".to_string())]),
                relabelled: None,
                environment: &BTreeMap::from([("NAME".to_string(), "x".to_string())]),
                sub_paths: Path::new("/nowhere"),
                hosts_file: None,
                message_file: None,
                recursive_read_only: false,
            });
            match (found, expected) {
                (Ok((found, _)), Ok(expected)) => {
                    assert_eq!(image_sub_path::get(&found[0]), expected, "{spec}");
                    assert!(found[0].readonly && found[0].host_path.is_empty());
                }
                (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
                (found, _) => panic!("{found:?} instead of {expected:?}"),
            }
        };
        check(json!({}), Ok(None));
        check(json!({"subPath": "etc/conf"}), Ok(Some("etc/conf")));
        check(json!({"subPathExpr": "etc/$(NAME)"}), Ok(Some("etc/x")));
        check(json!({"subPath": "../etc"}), Err("must not contain"));
    }

    #[test]
    fn files_are_labelled_once_where_selinux_is_on() {
        use serde_json::json;
        let check = |relabelled: Option<&[&str]>, expected: [bool; 4]| {
            let names = relabelled.map(|names| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>());
            let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
            let spec = json!({"containers": [{"name": "c",
                "volumeMounts": [mount("a", "/a"), mount("a", "/again"), mount("b", "/b")]}]});
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            let volumes = ["a", "b"].map(|name| (name.to_string(), PathBuf::from("/host").join(name)));
            let (found, _) = mounts(&Input {
                pod: &pod,
                container: &pod_spec::containers(&pod)[0],
                volumes: &BTreeMap::from(volumes),
                images: &BTreeMap::new(),
                relabelled: names.as_ref(),
                environment: &BTreeMap::new(),
                sub_paths: Path::new("/nowhere"),
                hosts_file: Some(Path::new("/hosts")),
                message_file: None,
                recursive_read_only: false,
            })
            .unwrap();
            let found: Vec<bool> = found.iter().map(|mount| mount.selinux_relabel).collect();
            assert_eq!(found, expected, "{relabelled:?}");
        };
        check(None, [false; 4]);
        check(Some(&["a"]), [true, false, false, true]);
        check(Some(&[]), [false, false, false, true]);
    }
}
