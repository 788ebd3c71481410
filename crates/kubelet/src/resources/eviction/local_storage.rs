//! Pods that use more of the node's disk than they may: emptyDir limits and limits of ephemeral storage.
//! Part of `eviction`.
//! Walks only directories of pods that have a limit.

use std::{collections::BTreeMap, path::Path};

use api::{pod_resources, quantity};
use k8s_openapi::api::core::v1::Pod;

use crate::{files::disk, pod::pod_spec, runtime::container_config::resources};

/// Bytes that a pod uses on disk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskUsage {
    /// emptyDir volumes, by name.
    pub volumes: BTreeMap<String, i64>,
    /// Writable layer and logs, by container name.
    pub containers: BTreeMap<String, i64>,
}

pub fn has_limits(pod: &Pod) -> bool {
    let spec = pod_spec::spec(pod);
    let limited = |c: &k8s_openapi::api::core::v1::Container| storage_limit(c).is_some();
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|v| v.empty_dir.as_ref()).any(|e| e.size_limit.is_some())
        || pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).any(limited)
}

fn storage_limit(container: &k8s_openapi::api::core::v1::Container) -> Option<i64> {
    resources::bytes(&container.resources.as_ref()?.limits, "ephemeral-storage")
}

/// A limit of its own that a pod has gone beyond.
#[derive(Debug, PartialEq, Eq)]
pub struct Excess {
    /// As the metrics call it.
    pub signal: &'static str,
    /// As the pod's status shows it.
    pub message: String,
}

/// Why the pod must go.
pub fn excess(pod: &Pod, usage: &DiskUsage) -> Option<Excess> {
    for volume in pod_spec::spec(pod).volumes.iter().flatten() {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()) else { continue };
        let bytes = quantity::value(limit).filter(|bytes| *bytes > 0);
        if bytes.is_some_and(|bytes| usage.volumes.get(&volume.name).is_some_and(|used| *used > bytes)) {
            let message = format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, limit.0);
            return Some(Excess { signal: "emptydirfs.limit", message });
        }
    }
    if let Some(limit) = pod_resources::limits(pod).get("ephemeral-storage").map(|limit| limit.value()) {
        let used: i64 = usage.volumes.values().chain(usage.containers.values()).sum();
        if used > limit {
            let message = format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
                super::ranking::binary(limit)
            );
            return Some(Excess { signal: "ephemeralpodfs.limit", message });
        }
    }
    pod_spec::containers(pod).iter().find_map(|container| {
        let limit = storage_limit(container).filter(|limit| *limit > 0)?;
        let used = usage.containers.get(&container.name)?;
        (*used > limit).then(|| {
            let limit = super::ranking::binary(limit);
            let message =
                format!("Container {} exceeded its local ephemeral storage limit {limit:?}. ", container.name);
            Excess { signal: "ephemeralcontainerfs.limit", message }
        })
    })
}

/// Bytes on disk below a directory.
pub fn bytes_below(directory: &Path) -> i64 {
    disk::usage_below(directory).bytes as i64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_exceeds_its_limit_is_named() {
        let limited =
            |name: &str, limit: &str| json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}});
        let check = |spec: Value, volume: i64, container: i64, expected: Option<&str>| {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let usage = DiskUsage {
                volumes: [("v".to_string(), volume)].into(),
                containers: [("a".to_string(), container)].into(),
            };
            assert_eq!(excess(&pod, &usage).map(|excess| excess.message).as_deref(), expected, "{spec}");
        };
        let volume =
            json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]});
        check(volume.clone(), 1024, 9999, None);
        check(volume, 1025, 0, Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "));
        let one = json!({"containers": [limited("a", "1Ki")]});
        check(one.clone(), 0, 1000, None);
        check(one, 1000, 1000, Some("Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "));
        check(
            json!({"containers": [limited("a", "1Ki"), {"name": "b"}]}),
            0,
            2000,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "),
        );
        check(
            json!({"containers": [limited("a", "1Ki"), limited("b", "1Mi")]}),
            0,
            2000,
            Some("Container a exceeded its local ephemeral storage limit \"1Ki\". "),
        );
    }

    #[test]
    fn linked_files_count_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), vec![1; 8192]).unwrap();
        let one = bytes_below(dir.path());
        assert!(one >= 8192);
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert_eq!(bytes_below(dir.path()), one);
    }
}
