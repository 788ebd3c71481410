//! Ranges of user and group ids for pods with `hostUsers: false`: each pod its own, the same after a restart.
//! Used by `runtime_manager` for sandboxes and mounts.
//! Two pods never share a range; range 0 is the machine's own.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::{files::directories, pod::pod_spec};

/// Ids of one pod, and the step between pods.
const IDS_PER_POD: u32 = 65_536;
/// The last range that still ends below 2^32.
const RANGE_MAX: u32 = u32::MAX / IDS_PER_POD - 1;
/// Keeps a pod's range in its directory.
const USERNS_FILE: &str = "userns";

/// Why a pod can't have users of its own.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespaceError {
    #[error("could not find an empty slot to allocate a user namespace")]
    NoFreeRange,
    #[error("failed to keep the user namespace of the pod: {0}")]
    Save(std::io::Error),
    #[error("can't set `spec.hostUsers: false`, {} does not support user namespaces", handler_name(.handler))]
    Unsupported { handler: String },
    #[error(
        "can't set `spec.hostUsers: false`, {} does not support user namespaces: the handler {handler:?} is not known",
        handler_name(.handler)
    )]
    UnknownHandler { handler: String },
}

fn handler_name(handler: &str) -> String {
    if handler.is_empty() { "runtime".into() } else { format!("RuntimeClass handler {handler:?}") }
}

pub struct UserNamespaces {
    pods_dir: PathBuf,
    /// Range by pod UID.
    taken: Mutex<BTreeMap<String, u32>>,
}

pub fn wanted(pod: &Pod) -> bool {
    pod_spec::spec(pod).host_users == Some(false)
}

impl UserNamespaces {
    /// Takes over what pods on disk have.
    pub fn new(pods_dir: PathBuf) -> Self {
        let entries = std::fs::read_dir(&pods_dir).into_iter().flatten().flatten();
        let taken = entries.filter_map(|entry| {
            let uid = entry.file_name().to_string_lossy().into_owned();
            Some((uid, read(&entry.path())?))
        });
        Self { taken: Mutex::new(taken.collect()), pods_dir }
    }

    /// The pod's range, found or made.
    pub fn allocate(&self, pod: &Pod) -> Result<Vec<v1::IdMapping>, UserNamespaceError> {
        let uid = pod_spec::uid(pod);
        let mut taken = self.taken.lock();
        // Pods that are gone leave no directory.
        taken.retain(|other, _| other == uid || self.pods_dir.join(other).exists());
        let range = match taken.get(uid) {
            Some(range) => *range,
            None => {
                let free = (1..=RANGE_MAX).find(|range| !taken.values().any(|used| used == range));
                let free = free.ok_or(UserNamespaceError::NoFreeRange)?;
                let directory = self.pods_dir.join(uid);
                directories::create(&directory)
                    .and_then(|()| std::fs::write(directory.join(USERNS_FILE), free.to_string()))
                    .map_err(UserNamespaceError::Save)?;
                taken.insert(uid.to_string(), free);
                free
            }
        };
        Ok(vec![v1::IdMapping { host_id: range * IDS_PER_POD, container_id: 0, length: IDS_PER_POD }])
    }
}

fn read(directory: &Path) -> Option<u32> {
    std::fs::read_to_string(directory.join(USERNS_FILE))
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|range| (1..=RANGE_MAX).contains(range))
}

/// The pod's namespaces with its own users.
pub fn options(mappings: &[v1::IdMapping]) -> v1::UserNamespace {
    v1::UserNamespace { mode: v1::NamespaceMode::Pod as i32, uids: mappings.to_vec(), gids: mappings.to_vec() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_are_apart_and_stay() {
        let directory = tempfile::tempdir().unwrap();
        let pod = |uid: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"hostUsers": false, "containers": []}}))
                .unwrap()
        };
        let first = |namespaces: &UserNamespaces, uid: &str| namespaces.allocate(&pod(uid)).unwrap()[0].host_id;
        let namespaces = UserNamespaces::new(directory.path().into());
        assert_eq!(
            (first(&namespaces, "a"), first(&namespaces, "b"), first(&namespaces, "a")),
            (65_536, 131_072, 65_536)
        );
        let restarted = UserNamespaces::new(directory.path().into());
        assert_eq!(first(&restarted, "b"), 131_072);
        std::fs::remove_dir_all(directory.path().join("a")).unwrap();
        assert_eq!(first(&restarted, "c"), 65_536, "given back");
        assert!(wanted(&pod("a")));
    }
}
