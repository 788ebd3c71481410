//! Which volumes are mounted for which pods, and where.
//! Written by `VolumeManager` after each operation; compared with `DesiredStateOfWorld` by `reconciler`, read for
//! statistics.
//! Starts empty, so what an earlier process mounted is set up once more, which changes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

#[derive(Debug, Default)]
pub struct ActualStateOfWorld {
    /// Paths by volume name, by pod UID.
    pods: HashMap<String, BTreeMap<String, PathBuf>>,
}

impl ActualStateOfWorld {
    pub fn mark_mounted(&mut self, uid: &str, volume: &str, path: PathBuf) {
        self.pods.entry(uid.into()).or_default().insert(volume.into(), path);
    }

    pub fn mark_pod_unmounted(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    pub fn is_mounted(&self, uid: &str, volume: &str) -> bool {
        self.pods.get(uid).is_some_and(|volumes| volumes.contains_key(volume))
    }

    /// Where the pod's volumes are, by name.
    pub fn paths(&self, uid: &str) -> BTreeMap<String, PathBuf> {
        self.pods.get(uid).cloned().unwrap_or_default()
    }

    /// A volume of another pod whose UID and path are as `is_same` wants.
    pub fn find_in_other_pods(&self, uid: &str, is_same: impl Fn(&str, &Path) -> bool) -> Option<PathBuf> {
        let others = self.pods.iter().filter(|(other, _)| *other != uid);
        let mut volumes = others.flat_map(|(other, volumes)| volumes.values().map(move |path| (other, path)));
        volumes.find(|(other, path)| is_same(other, path)).map(|(_, path)| path.clone())
    }
}
