//! The core of attach and detach: which volumes a node is to have, which it has, and what follows.
//! Called by the controller in `attach_detach`.
//! Pure. What a node says it still uses is not detached, unless the node is out of service or has been silent too long;
//! what only one node may have is never attached to a second.

use std::collections::{BTreeMap, BTreeSet};

use api::csi;

/// A volume of a CSI driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachableVolume {
    pub driver: String,
    pub handle: String,
    pub persistent_volume: String,
    /// Several nodes may have it at once.
    pub is_shared: bool,
}

impl AttachableVolume {
    pub fn unique_name(&self) -> String {
        csi::unique_volume_name(&self.driver, &self.handle)
    }
}

/// A VolumeAttachment to the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    pub name: String,
    /// Of the volume; `None` where its PersistentVolume is gone.
    pub unique_name: Option<String>,
    pub is_attached: bool,
    pub is_deleting: bool,
}

/// Whether a VolumeAttachment has a name that this controller gives: `api::csi::attachment_name`.
pub fn is_own(name: &str) -> bool {
    let digest = name.strip_prefix("csi-").unwrap_or_default();
    digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A node as far as it matters here.
#[derive(Debug, Default)]
pub struct NodeView {
    pub exists: bool,
    pub out_of_service: bool,
    pub is_healthy: bool,
    pub volumes_in_use: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Attach(AttachableVolume),
    /// Another node has it, and only one may.
    MultiAttach(AttachableVolume),
    Detach {
        attachment: String,
        forced: Option<&'static str>,
    },
}

/// What to do for one node, and the volumes that it waits to unmount. `elsewhere` are PersistentVolumes with attachments to
/// other nodes; `waited_enough` tells whether a volume's unmounting took too long.
pub fn plan(
    desired: &BTreeMap<String, AttachableVolume>,
    attachments: &[Attachment],
    node: &NodeView,
    elsewhere: impl Fn(&AttachableVolume) -> bool,
    waited_enough: impl Fn(&str) -> bool,
) -> (Vec<Action>, Vec<String>) {
    let (mut actions, mut waiting) = (Vec::new(), Vec::new());
    for attachment in attachments.iter().filter(|attachment| !attachment.is_deleting) {
        let name = attachment.unique_name.as_deref();
        if name.is_some_and(|name| desired.contains_key(name)) {
            continue;
        }
        let in_use = node.exists && name.is_some_and(|name| node.volumes_in_use.contains(name));
        let forced = match in_use {
            false => None,
            true if node.out_of_service => Some("out-of-service"),
            true if !node.is_healthy && waited_enough(&attachment.name) => Some("timeout"),
            true => {
                waiting.push(attachment.name.clone());
                continue;
            }
        };
        actions.push(Action::Detach { attachment: attachment.name.clone(), forced });
    }
    if !node.exists {
        return (actions, waiting);
    }
    for (name, volume) in desired {
        // One that is being detached is attached again when it is gone.
        if attachments.iter().any(|attachment| attachment.unique_name.as_deref() == Some(name)) {
            continue;
        }
        match !volume.is_shared && elsewhere(volume) {
            true => actions.push(Action::MultiAttach(volume.clone())),
            false => actions.push(Action::Attach(volume.clone())),
        }
    }
    (actions, waiting)
}

/// What node.status.volumesAttached is to say, without what is about to be detached.
pub fn volumes_attached(attachments: &[Attachment], actions: &[Action]) -> Vec<String> {
    let leaves = |name: &str| {
        actions.iter().any(|action| matches!(action, Action::Detach { attachment, .. } if attachment == name))
    };
    let attached = attachments.iter().filter(|a| a.is_attached && !a.is_deleting && !leaves(&a.name));
    let mut names: Vec<String> = attached.filter_map(|attachment| attachment.unique_name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Why a volume can't be attached, as far as a pod of a namespace may know. `users` are namespaces and names of pods that
/// have it elsewhere.
pub fn multi_attach_message(volume: &str, namespace: &str, users: &[(String, String)]) -> String {
    let own: Vec<&str> = users.iter().filter(|(of, _)| of == namespace).map(|(_, name)| name.as_str()).collect();
    let others = users.len() - own.len();
    let why = match (own.is_empty(), others) {
        (true, 0) => "Volume is already exclusively attached to one node and can't be attached to another".into(),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", own.join(", ")),
        (false, _) => {
            format!("Volume is already used by pod(s) {} and {others} pod(s) in different namespaces", own.join(", "))
        }
    };
    format!("Multi-Attach error for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, is_shared: bool) -> AttachableVolume {
        AttachableVolume { driver: "d".into(), handle: name.into(), persistent_volume: name.into(), is_shared }
    }

    fn attachment(name: &str, is_attached: bool, is_deleting: bool) -> Attachment {
        let unique_name = Some(volume(name, false).unique_name());
        Attachment { name: name.into(), unique_name, is_attached, is_deleting }
    }

    fn node(in_use: &[&str]) -> NodeView {
        let volumes_in_use = in_use.iter().map(|name| volume(name, false).unique_name()).collect();
        NodeView { exists: true, is_healthy: true, volumes_in_use, out_of_service: false }
    }

    #[test]
    fn what_pods_need_is_attached_and_the_rest_detached_when_it_is_not_used() {
        let check =
            |desired: &[&str], has: &[Attachment], node: NodeView, late: bool, expected: &[Action], left: &[&str]| {
                let desired = desired.iter().map(|name| (volume(name, false).unique_name(), volume(name, false)));
                let desired: BTreeMap<_, _> = desired.collect();
                let (actions, waiting) = plan(&desired, has, &node, |_| false, |_| late);
                assert_eq!((actions.as_slice(), waiting), (expected, left.iter().map(|s| s.to_string()).collect()));
            };
        let detach = |name: &str, forced| Action::Detach { attachment: name.into(), forced };
        check(&["a"], &[], node(&[]), false, &[Action::Attach(volume("a", false))], &[]);
        check(&["a"], &[attachment("a", true, false)], node(&["a"]), false, &[], &[]);
        check(&["a"], &[attachment("a", true, true)], node(&[]), false, &[], &[]);
        check(&[], &[attachment("a", true, false)], node(&[]), false, &[detach("a", None)], &[]);
        check(&[], &[attachment("a", true, false)], node(&["a"]), false, &[], &["a"]);
        // A healthy node is waited for, however long it takes.
        check(&[], &[attachment("a", true, false)], node(&["a"]), true, &[], &["a"]);
        let sick = NodeView { is_healthy: false, ..node(&["a"]) };
        check(&[], &[attachment("a", true, false)], sick, true, &[detach("a", Some("timeout"))], &[]);
        let sick = NodeView { is_healthy: false, ..node(&["a"]) };
        check(&[], &[attachment("a", true, false)], sick, false, &[], &["a"]);
        let out = NodeView { out_of_service: true, is_healthy: false, ..node(&["a"]) };
        check(&[], &[attachment("a", true, false)], out, false, &[detach("a", Some("out-of-service"))], &[]);
        let gone = NodeView { exists: false, ..node(&["a"]) };
        check(&["b"], &[attachment("a", true, false)], gone, false, &[detach("a", None)], &[]);
    }

    #[test]
    fn its_own_attachments_are_known_by_their_names() {
        let made = api::csi::attachment_name("handle", "d.example.com", "n");
        for (name, expected) in [(made.as_str(), true), ("va", false), ("csi-", false), (&made[4..], false)] {
            assert_eq!(is_own(name), expected, "{name}");
        }
    }

    #[test]
    fn only_shared_volumes_go_to_a_second_node() {
        for (is_shared, elsewhere) in [(false, false), (false, true), (true, true)] {
            let wanted = volume("a", is_shared);
            let desired = BTreeMap::from([(wanted.unique_name(), wanted.clone())]);
            let (actions, _) = plan(&desired, &[], &node(&[]), |_| elsewhere, |_| false);
            let expected = match !is_shared && elsewhere {
                true => Action::MultiAttach(wanted),
                false => Action::Attach(wanted),
            };
            assert_eq!(actions, [expected]);
        }
    }

    #[test]
    fn the_node_reads_what_is_attached_and_stays() {
        let all = [attachment("a", true, false), attachment("b", false, false), attachment("c", true, true)];
        assert_eq!(volumes_attached(&all, &[]), ["kubernetes.io/csi/d^a"]);
        let detach = Action::Detach { attachment: "a".into(), forced: None };
        assert!(volumes_attached(&all, &[detach]).is_empty());
    }

    #[test]
    fn pods_are_named_only_within_their_namespace() {
        let users = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(namespace, name)| (namespace.to_string(), name.to_string())).collect()
        };
        let check = |list: &[(&str, &str)], part: &str| {
            let found = multi_attach_message("pv", "d", &users(list));
            assert_eq!(found, format!("Multi-Attach error for volume \"pv\" {part}"));
        };
        check(&[], "Volume is already exclusively attached to one node and can't be attached to another");
        check(&[("d", "p"), ("d", "q")], "Volume is already used by pod(s) p, q");
        check(&[("e", "p")], "Volume is already used by 1 pod(s) in different namespaces");
        check(&[("d", "p"), ("e", "q")], "Volume is already used by pod(s) p and 1 pod(s) in different namespaces");
    }
}
