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

/// Ids are given out by this many.
pub const UNIT_IDS: u32 = 65_536;
/// The last unit that still ends below 2^32.
const UNIT_MAX: u32 = u32::MAX / UNIT_IDS - 1;
/// Keeps a pod's range in its directory: its first unit and, unless it is one, how many there are.
const USERNS_FILE: &str = "userns";

/// Units that a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    units: u32,
}

impl Range {
    fn end(self) -> u32 {
        self.first.saturating_add(self.units)
    }

    fn overlaps(self, other: Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

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
    units_per_pod: u32,
    /// By pod UID.
    taken: Mutex<BTreeMap<String, Range>>,
}

pub fn wanted(pod: &Pod) -> bool {
    pod_spec::spec(pod).host_users == Some(false)
}

impl UserNamespaces {
    /// Takes over what pods on disk have.
    pub fn new(pods_dir: PathBuf, ids_per_pod: u32) -> Self {
        let entries = std::fs::read_dir(&pods_dir).into_iter().flatten().flatten();
        let taken = entries.filter_map(|entry| {
            let uid = entry.file_name().to_string_lossy().into_owned();
            Some((uid, read(&entry.path())?))
        });
        Self { taken: Mutex::new(taken.collect()), pods_dir, units_per_pod: (ids_per_pod / UNIT_IDS).max(1) }
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
                let units = self.units_per_pod;
                let ranges = (1..=UNIT_MAX).step_by(units as usize).map(|first| Range { first, units });
                let mut fitting = ranges.filter(|range| range.end() <= UNIT_MAX + 1);
                let free = fitting.find(|range| !taken.values().any(|used| used.overlaps(*range)));
                let free = free.ok_or(UserNamespaceError::NoFreeRange)?;
                let directory = self.pods_dir.join(uid);
                directories::create(&directory)
                    .and_then(|()| std::fs::write(directory.join(USERNS_FILE), format!("{} {units}", free.first)))
                    .map_err(UserNamespaceError::Save)?;
                taken.insert(uid.to_string(), free);
                free
            }
        };
        let (host_id, length) = (range.first * UNIT_IDS, range.units * UNIT_IDS);
        Ok(vec![v1::IdMapping { host_id, container_id: 0, length }])
    }
}

fn read(directory: &Path) -> Option<Range> {
    let text = std::fs::read_to_string(directory.join(USERNS_FILE)).ok()?;
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u32>().ok());
    let first = numbers.next()??;
    let units = numbers.next().unwrap_or(Some(1))?;
    let range = Range { first, units };
    (first >= 1 && units >= 1 && range.end() <= UNIT_MAX + 1).then_some(range)
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
        let namespaces = UserNamespaces::new(directory.path().into(), UNIT_IDS);
        assert_eq!(
            (first(&namespaces, "a"), first(&namespaces, "b"), first(&namespaces, "a")),
            (65_536, 131_072, 65_536)
        );
        let restarted = UserNamespaces::new(directory.path().into(), UNIT_IDS);
        assert_eq!(first(&restarted, "b"), 131_072);
        std::fs::remove_dir_all(directory.path().join("a")).unwrap();
        assert_eq!(first(&restarted, "c"), 65_536, "given back");
        assert!(wanted(&pod("a")));
        let larger = UserNamespaces::new(directory.path().into(), 2 * UNIT_IDS);
        let found = &larger.allocate(&pod("d")).unwrap()[0];
        assert_eq!((found.host_id, found.length), (3 * UNIT_IDS, 2 * UNIT_IDS), "beside those of before");
        assert_eq!(first(&larger, "b"), 131_072);
        std::fs::write(directory.path().join("b/userns"), "2").unwrap();
        assert_eq!(
            first(&UserNamespaces::new(directory.path().into(), UNIT_IDS), "b"),
            131_072,
            "as older ones wrote it"
        );
    }
}
