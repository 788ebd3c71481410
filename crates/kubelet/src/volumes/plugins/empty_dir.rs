//! emptyDir volumes: a directory of the pod's own, on disk, in memory or on huge pages.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use api::quantity;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};

use crate::{
    files::directories,
    pod::pod_spec,
    runtime::container_config::resources::pod_limits,
    volumes::{
        error::VolumeError,
        file_system,
        ownership_progress::OwnershipProgress,
        plugin::{MountContext, Mounter, SetUp, Spec, VolumePlugin},
    },
};

pub struct EmptyDirPlugin;

impl VolumePlugin for EmptyDirPlugin {
    fn name(&self) -> &'static str {
        "empty-dir"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.empty_dir.is_some())
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = spec.inline().and_then(|volume| volume.empty_dir.clone()).unwrap_or_default();
        let medium = match source.medium.as_deref().unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => Medium::Memory(size_bytes_max(&source, context.pod, context.node.memory_bytes)),
            huge if huge.starts_with("HugePages") => Medium::HugePages(page_size(huge, context.pod)?),
            other => return Err(VolumeError::UnknownMedium(other.into())),
        };
        let (path, group) = (context.volume_dir(self, context.volume_name), context.fs_group());
        Ok(Box::new(move || set_up(path, &medium, group)))
    }
}

/// Where an emptyDir keeps its files.
#[derive(Debug)]
enum Medium {
    Disk,
    /// With the most bytes it may hold.
    Memory(Option<i64>),
    /// Of this size ("2Mi").
    HugePages(String),
}

fn set_up(path: PathBuf, medium: &Medium, group: Option<u32>) -> Result<SetUp, VolumeError> {
    make(&path, medium, group)?;
    Ok(SetUp::at(path))
}

fn make(path: &Path, medium: &Medium, group: Option<u32>) -> io::Result<()> {
    let fresh = !path.exists();
    directories::create(path)?;
    let mounts_now = !matches!(medium, Medium::Disk) && !file_system::is_mount_point(path);
    match medium {
        Medium::Memory(size) if mounts_now => file_system::mount_tmpfs(path, *size)?,
        Medium::HugePages(size) if mounts_now => file_system::mount_hugetlbfs(path, size)?,
        _ => {}
    }
    if fresh || mounts_now {
        let mode = path.metadata()?.permissions().mode();
        // As upstream's: one in memory keeps the sticky bit that the kernel gives it.
        if mode & 0o777 != 0o777 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        }
        if let Some(group) = group {
            // It is empty: there is nothing to tell of.
            file_system::set_volume_ownership(path, group, false, false, &OwnershipProgress::default())?;
        }
    }
    Ok(())
}

/// How large an emptyDir in memory may become: as it says, but no more than its pod or all pods may use.
fn size_bytes_max(source: &EmptyDirVolumeSource, pod: &Pod, allocatable_bytes: i64) -> Option<i64> {
    let own = source.size_limit.as_ref().and_then(quantity::value);
    let limits = [own, pod_limits(pod).memory_bytes, Some(allocatable_bytes)];
    limits.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// The size of the pages behind a medium of huge pages: the one it names, or the only one that the pod asks for.
fn page_size(medium: &str, pod: &Pod) -> Result<String, VolumeError> {
    let own = pod_spec::spec(pod).resources.iter();
    let all = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    let requests = own.chain(all.filter_map(|c| c.resources.as_ref())).flat_map(|r| r.requests.iter().flatten());
    let mut sizes: Vec<&str> = requests.filter_map(|(name, _)| name.strip_prefix("hugepages-")).collect();
    if let Some(wanted) = medium.strip_prefix("HugePages-") {
        sizes.retain(|size| *size == wanted);
    }
    sizes.sort_unstable();
    sizes.dedup();
    match sizes.as_slice() {
        [size] => Ok(size.to_string()),
        [] => Err(VolumeError::NoHugePageRequest(medium.into())),
        _ => Err(VolumeError::ManyHugePageSizes(medium.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn memory_is_bounded_by_the_volume_the_pod_and_the_node() {
        let check = |size: Option<&str>, limit: Option<&str>, expected: i64| {
            let source = EmptyDirVolumeSource {
                medium: Some("Memory".into()),
                size_limit: size.map(|size| k8s_openapi::apimachinery::pkg::api::resource::Quantity(size.into())),
            };
            let limits = limit.map_or(serde_json::json!({}), |limit| serde_json::json!({"memory": limit}));
            let container = serde_json::json!({"name": "a", "resources": {"limits": limits}});
            let pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [container]}})).unwrap();
            assert_eq!(size_bytes_max(&source, &pod, 1 << 30), Some(expected), "{size:?} {limit:?}");
        };
        check(None, None, 1 << 30);
        check(Some("10Mi"), None, 10 << 20);
        check(Some("10Mi"), Some("5Mi"), 5 << 20);
        check(Some("10Mi"), Some("50Mi"), 10 << 20);
        check(None, Some("50Mi"), 50 << 20);
        check(Some("0"), None, 1 << 30);
        check(Some("4Gi"), Some("2Gi"), 1 << 30);
    }

    #[test]
    fn one_in_memory_keeps_its_sticky_bit_with_a_group_too() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("left out: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, medium: Medium, group: Option<u32>, expected: u32| {
            let path = directory.path().canonicalize().unwrap().join(name);
            make(&path, &medium, group).unwrap();
            let mode = path.metadata().unwrap().permissions().mode() & 0o7777;
            file_system::remove(&path).unwrap();
            assert_eq!(mode, expected, "{name}: {mode:o}");
        };
        check("disk", Medium::Disk, None, 0o777);
        check("memory", Medium::Memory(None), None, 0o1777);
        check("given", Medium::Memory(None), Some(2000), 0o3777);
    }

    #[test]
    fn huge_pages_are_of_the_size_that_the_pod_asks_for() {
        let check = |medium: &str, asked: &[&str], expected: Result<&str, &str>| {
            let requests: BTreeMap<String, &str> =
                asked.iter().map(|size| (format!("hugepages-{size}"), "1Gi")).collect();
            let container = serde_json::json!({"name": "a", "resources": {"requests": requests}});
            let pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [container]}})).unwrap();
            match (page_size(medium, &pod), expected) {
                (Ok(size), Ok(expected)) => assert_eq!(size, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, expected) => panic!("{medium} {asked:?}: {found:?} instead of {expected:?}"),
            }
        };
        check("HugePages", &["2Mi"], Ok("2Mi"));
        check("HugePages", &["2Mi", "1Gi"], Err("multiple huge page sizes"));
        check("HugePages-1Gi", &["2Mi", "1Gi"], Ok("1Gi"));
        check("HugePages-1Gi", &["2Mi"], Err("no resource request for huge pages"));
        check("HugePages", &[], Err("no resource request for huge pages"));
    }
}
