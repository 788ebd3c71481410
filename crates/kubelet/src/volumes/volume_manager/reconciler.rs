//! Compares what a pod is to have with what it has.
//! Called by `VolumeManager`, which carries the actions out.
//! Invariant: pure; what is mounted is touched again only if it shows what changes elsewhere (tidy: `pure_files`).

use super::{actual_state_of_world::ActualStateOfWorld, desired_state_of_world::DesiredStateOfWorld};

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Mounts the volume of this name, or sets it up again.
    Mount(String),
    /// Unmounts and removes all that the pod has on disk.
    UnmountAll,
}

pub fn reconcile(uid: &str, desired: &DesiredStateOfWorld, actual: &ActualStateOfWorld) -> Vec<Action> {
    let Some(volumes) = desired.volumes(uid) else { return vec![Action::UnmountAll] };
    let missing = volumes.iter().filter(|volume| {
        let again = volume.requires_remount || actual.is_republished(uid, &volume.name);
        again || !actual.is_mounted(uid, &volume.name)
    });
    missing.map(|volume| Action::Mount(volume.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::volumes::plugins::PLUGINS;

    #[test]
    fn missing_volumes_are_mounted_and_those_that_follow_objects_again() {
        let volumes = json!([
            {"name": "scratch", "emptyDir": {}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "config", "configMap": {"name": "c"}},
            {"name": "unknown", "nfs": {"server": "s", "path": "/"}},
            {"name": "image", "image": {"reference": "i"}},
        ]);
        let pod = json!({"metadata": {"uid": "u"}, "spec": {"containers": [], "volumes": volumes}});
        let pod = serde_json::from_value(pod).unwrap();
        let check = |wanted: bool, mounted: &[&str], expected: &[&str]| {
            let (mut desired, mut actual) = (DesiredStateOfWorld::default(), ActualStateOfWorld::default());
            if wanted {
                desired.add_pod(&pod, PLUGINS);
            }
            mounted.iter().for_each(|volume| actual.mark_mounted("u", volume, "/v".into()));
            let expected: Vec<Action> = match wanted {
                true => expected.iter().map(|volume| Action::Mount(volume.to_string())).collect(),
                false => vec![Action::UnmountAll],
            };
            assert_eq!(reconcile("u", &desired, &actual), expected, "{mounted:?}");
        };
        check(true, &[], &["scratch", "claim", "config", "unknown"]);
        check(true, &["scratch", "config"], &["claim", "config", "unknown"]);
        check(true, &["scratch", "claim", "config"], &["config", "unknown"]);
        check(false, &["scratch"], &[]);
        check(false, &[], &[]);
    }
}
