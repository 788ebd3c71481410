//! Which volumes are mounted for which pods, and where.
//! Written by `VolumeManager` after each operation; compared with `DesiredStateOfWorld` by `reconciler`, read for
//! statistics.
//! Starts empty, so what an earlier process mounted is set up once more, which changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::Duration,
};

/// As often as upstream looks at a pod that does not change.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct ActualStateOfWorld {
    /// Paths by volume name, by pod UID.
    pods: HashMap<String, BTreeMap<String, PathBuf>>,
    /// Volumes that their driver wants to be told of again and again, by pod UID.
    republished: HashMap<String, BTreeSet<String>>,
    /// Claims whose volumes can grow, and when their sizes were last compared, by pod UID.
    expandable: HashMap<String, BTreeMap<String, Duration>>,
    /// Volumes whose files the container runtime is to label, by pod UID.
    relabelled: HashMap<String, BTreeSet<String>>,
    /// How large claims of drivers are here, by pod UID.
    sizes: HashMap<String, BTreeMap<String, i64>>,
}

impl ActualStateOfWorld {
    pub fn mark_mounted(&mut self, uid: &str, volume: &str, path: PathBuf) {
        self.pods.entry(uid.into()).or_default().insert(volume.into(), path);
    }

    /// From now on it is looked at for a larger size.
    pub fn mark_expandable(&mut self, uid: &str, volume: &str, now: Duration) {
        self.expandable.entry(uid.into()).or_default().insert(volume.into(), now);
    }

    /// Whether the pod has a volume that its driver wants to hear of again, or that may grow.
    pub fn follows_driver(&self, uid: &str) -> bool {
        self.republished.contains_key(uid) || self.expandable.contains_key(uid)
    }

    /// When to look again, because a volume of the pod may have become larger elsewhere: a node can't watch claims.
    pub fn look_again_after(&self, uid: &str) -> Option<Duration> {
        self.expandable.contains_key(uid).then_some(CLAIM_POLL_INTERVAL)
    }

    pub fn mark_size(&mut self, uid: &str, volume: &str, bytes: i64) {
        self.sizes.entry(uid.into()).or_default().insert(volume.into(), bytes);
    }

    pub fn size_bytes(&self, uid: &str, volume: &str) -> Option<i64> {
        self.sizes.get(uid)?.get(volume).copied()
    }

    /// The pod's volumes that were not looked at for so long, and where they are.
    pub fn due_for_expansion(&mut self, uid: &str, now: Duration, interval: Duration) -> Vec<(String, PathBuf)> {
        let Some(volumes) = self.expandable.get_mut(uid) else { return Vec::new() };
        let due = volumes.iter_mut().filter(|(_, seen)| now.saturating_sub(**seen) >= interval);
        let due: Vec<String> = due
            .map(|(name, seen)| {
                *seen = now;
                name.clone()
            })
            .collect();
        let paths = self.pods.get(uid);
        due.into_iter().filter_map(|name| Some((name.clone(), paths?.get(&name)?.clone()))).collect()
    }

    pub fn mark_relabelled(&mut self, uid: &str, volume: &str) {
        self.relabelled.entry(uid.into()).or_default().insert(volume.into());
    }

    pub fn relabelled(&self, uid: &str) -> BTreeSet<String> {
        self.relabelled.get(uid).cloned().unwrap_or_default()
    }

    pub fn mark_republished(&mut self, uid: &str, volume: &str) {
        self.republished.entry(uid.into()).or_default().insert(volume.into());
    }

    pub fn is_republished(&self, uid: &str, volume: &str) -> bool {
        self.republished.get(uid).is_some_and(|volumes| volumes.contains(volume))
    }

    pub fn mark_pod_unmounted(&mut self, uid: &str) {
        self.republished.remove(uid);
        self.relabelled.remove(uid);
        self.expandable.remove(uid);
        self.sizes.remove(uid);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_of_a_driver_is_looked_at_for_as_long_as_it_is_mounted() {
        let mut actual = ActualStateOfWorld::default();
        let at = Duration::from_secs;
        actual.mark_mounted("u", "v", "/v".into());
        assert_eq!((actual.look_again_after("u"), actual.follows_driver("u")), (None, false));
        actual.mark_expandable("u", "v", at(5));
        actual.mark_size("u", "v", 7);
        assert!(actual.look_again_after("u").is_some() && actual.follows_driver("u"));
        assert!(actual.due_for_expansion("u", at(10), at(10)).is_empty());
        assert_eq!(actual.due_for_expansion("u", at(15), at(10)), [("v".to_string(), PathBuf::from("/v"))]);
        assert!(actual.due_for_expansion("u", at(16), at(10)).is_empty());
        assert_eq!(actual.size_bytes("u", "v"), Some(7));
        actual.mark_pod_unmounted("u");
        assert_eq!((actual.look_again_after("u"), actual.size_bytes("u", "v")), (None, None));
    }
}
