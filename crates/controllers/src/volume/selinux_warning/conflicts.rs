//! Which pods want one volume with different SELinux labels, and what each is told of the other.
//! Fed by the controller in `selinux_warning`; what conflicts is `api::selinux`'s to say.
//! Pure. Each conflict is told once, to both pods; a pod is told nothing of pods in other namespaces.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::selinux;

/// Namespace and name.
pub type PodKey = (String, String);

/// How a pod wants a volume labelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUse {
    pub label: String,
    pub policy: String,
}

/// One pod's side of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    pub property: &'static str,
    pub pod: PodKey,
    pub value: String,
    pub other_pod: PodKey,
    pub other_value: String,
}

impl Conflict {
    pub fn event_reason(&self) -> String {
        format!("{}Conflict", self.property)
    }

    pub fn message(&self) -> String {
        let Self { property, value, other_value, .. } = self;
        let end = "If both pods land on the same node, only one of them may access the volume.";
        match self.pod.0 == self.other_pod.0 {
            true => format!(
                "{property} {value:?} conflicts with pod {} that uses the same volume as this pod with {property} \
                 {other_value:?}. {end}",
                self.other_pod.1
            ),
            false => format!(
                "{property}{value:?} conflicts with another pod that uses the same volume as this pod with a different \
                 {property}. {end}"
            ),
        }
    }
}

#[derive(Debug, Default)]
pub struct Conflicts {
    /// Users by volume.
    volumes: HashMap<String, BTreeMap<PodKey, VolumeUse>>,
    /// Volumes by user.
    pods: HashMap<PodKey, BTreeSet<String>>,
    /// By volume, both sides of each.
    current: HashMap<String, BTreeSet<Conflict>>,
}

impl Conflicts {
    /// The conflicts that this brings. What was known already brings none.
    pub fn set(&mut self, pod: &PodKey, volume: &str, wanted: VolumeUse) -> BTreeSet<Conflict> {
        let users = self.volumes.entry(volume.into()).or_default();
        if users.get(pod) == Some(&wanted) {
            return BTreeSet::new();
        }
        self.pods.entry(pod.clone()).or_default().insert(volume.into());
        let mut found = BTreeSet::new();
        for (other, used) in users.iter().filter(|(other, _)| *other != pod) {
            if used.policy != wanted.policy {
                found.extend(both("SELinuxChangePolicy", (pod, &wanted.policy), (other, &used.policy)));
            }
            if selinux::conflicts(&used.label, &wanted.label) {
                found.extend(both("SELinuxLabel", (pod, &wanted.label), (other, &used.label)));
            }
        }
        users.insert(pod.clone(), wanted);
        self.forget(pod, volume);
        if !found.is_empty() {
            self.current.entry(volume.into()).or_default().extend(found.iter().cloned());
        }
        found
    }

    pub fn remove_pod(&mut self, pod: &PodKey) {
        for volume in self.pods.remove(pod).unwrap_or_default() {
            self.forget(pod, &volume);
            if let Some(users) = self.volumes.get_mut(&volume) {
                users.remove(pod);
                if users.is_empty() {
                    self.volumes.remove(&volume);
                }
            }
        }
    }

    /// What the pod was part of.
    fn forget(&mut self, pod: &PodKey, volume: &str) {
        if let Some(current) = self.current.get_mut(volume) {
            current.retain(|conflict| conflict.pod != *pod && conflict.other_pod != *pod);
            if current.is_empty() {
                self.current.remove(volume);
            }
        }
    }

    /// All there are, whichever volume they are about.
    pub fn current(&self) -> BTreeSet<&Conflict> {
        self.current.values().flatten().collect()
    }
}

fn both(property: &'static str, one: (&PodKey, &String), two: (&PodKey, &String)) -> [Conflict; 2] {
    let side = |one: (&PodKey, &String), two: (&PodKey, &String)| Conflict {
        property,
        pod: one.0.clone(),
        value: one.1.clone(),
        other_pod: two.0.clone(),
        other_value: two.1.clone(),
    };
    [side(one, two), side(two, one)]
}

#[cfg(test)]
mod tests {
    use api::selinux::{MOUNT_OPTION, RECURSIVE};

    use super::*;

    fn pod(namespace: &str, name: &str) -> PodKey {
        (namespace.into(), name.into())
    }

    fn wanted(label: &str, policy: &str) -> VolumeUse {
        VolumeUse { label: label.into(), policy: policy.into() }
    }

    #[test]
    fn both_pods_are_told_once_and_as_much_as_they_may_know() {
        let check = |second: PodKey, use_: VolumeUse, expected: &[(&str, &str)]| {
            let mut conflicts = Conflicts::default();
            let first = pod("a", "first");
            assert!(conflicts.set(&first, "v", wanted(":::s0:c1", MOUNT_OPTION)).is_empty());
            assert!(conflicts.set(&second, "other", use_.clone()).is_empty());
            let found = conflicts.set(&second, "v", use_.clone());
            let told: Vec<(String, String)> =
                found.iter().filter(|c| c.pod == first).map(|c| (c.event_reason(), c.message())).collect();
            let told: Vec<(&str, &str)> = told.iter().map(|(r, m)| (r.as_str(), m.as_str())).collect();
            assert_eq!(told, expected);
            assert_eq!(found.len(), 2 * expected.len(), "both sides");
            assert_eq!(conflicts.current().len(), found.len());
            assert!(conflicts.set(&second, "v", use_).is_empty(), "told already");
            assert_eq!(conflicts.current().len(), found.len());
            conflicts.remove_pod(&first);
            assert!(conflicts.current().is_empty());
            conflicts.remove_pod(&second);
            assert!(conflicts.volumes.is_empty() && conflicts.pods.is_empty());
        };
        let end = "If both pods land on the same node, only one of them may access the volume.";
        check(pod("a", "second"), wanted("u:::s0:c1", MOUNT_OPTION), &[]);
        let label = format!(
            "SELinuxLabel \":::s0:c1\" conflicts with pod second that uses the same volume as this pod with SELinuxLabel \
             \":::s0:c2\". {end}"
        );
        check(pod("a", "second"), wanted(":::s0:c2", MOUNT_OPTION), &[("SELinuxLabelConflict", &label)]);
        let hidden = format!(
            "SELinuxLabel\":::s0:c1\" conflicts with another pod that uses the same volume as this pod with a different \
             SELinuxLabel. {end}"
        );
        check(pod("b", "second"), wanted(":::s0:c2", MOUNT_OPTION), &[("SELinuxLabelConflict", &hidden)]);
        let policy = format!(
            "SELinuxChangePolicy \"MountOption\" conflicts with pod second that uses the same volume as this pod with \
             SELinuxChangePolicy \"Recursive\". {end}"
        );
        let unlabelled = format!(
            "SELinuxLabel \":::s0:c1\" conflicts with pod second that uses the same volume as this pod with SELinuxLabel \
             \"\". {end}"
        );
        let expected = [("SELinuxChangePolicyConflict", &*policy), ("SELinuxLabelConflict", &*unlabelled)];
        check(pod("a", "second"), wanted("", RECURSIVE), &expected);
    }

    #[test]
    fn a_conflict_ends_when_a_pod_comes_to_want_the_same() {
        let mut conflicts = Conflicts::default();
        conflicts.set(&pod("a", "first"), "v", wanted(":::s0:c1", MOUNT_OPTION));
        assert_eq!(conflicts.set(&pod("a", "second"), "v", wanted("", RECURSIVE)).len(), 4);
        assert!(conflicts.set(&pod("a", "first"), "v", wanted("", RECURSIVE)).is_empty());
        assert!(conflicts.current().is_empty());
    }
}
