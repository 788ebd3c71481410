//! What the node tells of itself in Events: its limits, its conditions when they change, and that it was rebooted.
//! Part of `node_status`.
//! Tells only what the API server has taken.

use client::{EventRecorder, ObjectRef};
use k8s_openapi::api::core::v1::{Node, NodeStatus};

use super::NodeStatusManager;
use crate::{
    config::Config,
    resources::container_manager::reserved_groups::{Enforcement, ReservedGroup},
};

/// A node that may have no Node object yet, as Events about it name it: its UID is its name.
pub fn node_reference(name: &str) -> ObjectRef {
    let mut node = Node::default();
    (node.metadata.name, node.metadata.uid) = (Some(name.into()), Some(name.into()));
    client::reference(&node)
}

/// The groups that are held to what is reserved for them, with what upstream calls each.
pub fn enforced_groups(config: &Config) -> impl Iterator<Item = (&'static str, &ReservedGroup)> {
    let all = [("System", &config.system_reserved), ("Kube", &config.kube_reserved)];
    all.into_iter().filter(|(_, group)| group.enforcement != Enforcement::Nothing)
}

/// Tells that a group can't be held to what is reserved for it; the message, for whoever gives up because of it.
pub fn record_failed_enforcement(
    recorder: &EventRecorder,
    node: &str,
    title: &str,
    group: &ReservedGroup,
    error: &dyn std::error::Error,
) -> String {
    let kind = if group.enforcement == Enforcement::Compressible { " Compressible" } else { "" };
    let message = format!("Failed to enforce {title} Reserved{kind} Cgroup Limits on {:?}: {error}", group.name);
    recorder.warning(&node_reference(node), "FailedNodeAllocatableEnforcement", message.clone());
    message
}

impl NodeStatusManager {
    /// The node as Events about it name it: its UID is its name.
    fn about(&self) -> client::ObjectRef {
        let mut about = client::reference(&*self.node.lock());
        about.uid = Some(self.config.node_name.clone());
        about
    }

    pub(super) fn record_allocatable_enforced(&self) {
        for (title, group) in enforced_groups(&self.config) {
            let text = format!("Updated limits on {} reserved cgroup {}", title.to_lowercase(), group.name);
            self.recorder.normal(&self.about(), "NodeAllocatableEnforced", text);
        }
        if self.config.enforce_node_allocatable {
            let text = "Updated Node Allocatable limit across pods";
            self.recorder.normal(&self.about(), "NodeAllocatableEnforced", text);
        }
    }

    pub(super) fn record_event(&self, event: &str) {
        let text = format!("Node {} status is now: {event}", self.config.node_name);
        self.recorder.normal(&self.about(), event, text);
    }

    pub(super) fn record_changed_pressures(&self, previous: &NodeStatus, status: &NodeStatus) {
        changed_pressures(previous, status).into_iter().for_each(|event| self.record_event(event));
        let (before, now) =
            (previous.node_info.as_ref().map_or("", |i| i.boot_id.as_str()), self.machine.boot_id.as_str());
        if !before.is_empty() && before != now {
            let text = format!("Node {} has been rebooted, boot id: {now}", self.config.node_name);
            self.recorder.warning(&self.about(), "Rebooted", text);
        }
    }
}

/// What tells that pods may be scheduled here again, or no longer, if that is news.
pub(super) fn schedulable_event(was_unschedulable: bool, node: &Node) -> Option<&'static str> {
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    (unschedulable != was_unschedulable).then_some(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" })
}

/// The Events that tell of conditions which are new or not what they were.
fn changed_pressures(old: &NodeStatus, new: &NodeStatus) -> Vec<&'static str> {
    let find = |status: &NodeStatus, kind: &str| {
        let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        found.map(|condition| condition.status.clone())
    };
    [
        ("MemoryPressure", "NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
        ("DiskPressure", "NodeHasNoDiskPressure", "NodeHasDiskPressure"),
        ("PIDPressure", "NodeHasSufficientPID", "NodeHasInsufficientPID"),
    ]
    .into_iter()
    .filter(|(kind, ..)| find(old, kind) != find(new, kind))
    .map(|(kind, fine, short)| if find(new, kind).as_deref() == Some("True") { short } else { fine })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cordons_are_told() {
        let check = |before: bool, spec: serde_json::Value, expected: Option<&str>| {
            let node: Node = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(schedulable_event(before, &node), expected, "{before} {spec}");
        };
        check(false, json!({}), None);
        check(false, json!({"unschedulable": true}), Some("NodeNotSchedulable"));
        check(true, json!({"unschedulable": true}), None);
        check(true, json!({"unschedulable": false}), Some("NodeSchedulable"));
        check(true, json!({}), Some("NodeSchedulable"));
    }

    #[test]
    fn changed_pressures_are_told() {
        let check = |old: &[(&str, &str)], new: &[(&str, &str)], expected: &[&str]| {
            let status = |list: &[(&str, &str)]| {
                let condition = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status});
                let conditions: Vec<_> = list.iter().map(condition).collect();
                serde_json::from_value::<NodeStatus>(json!({"conditions": conditions})).unwrap()
            };
            assert_eq!(changed_pressures(&status(old), &status(new)), expected, "{old:?} -> {new:?}");
        };
        let fine = [("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False")];
        check(&[], &fine, &["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]);
        check(&fine, &fine, &[]);
        let short = [("MemoryPressure", "True"), ("DiskPressure", "False"), ("PIDPressure", "True")];
        check(&fine, &short, &["NodeHasInsufficientMemory", "NodeHasInsufficientPID"]);
        check(&short, &fine, &["NodeHasSufficientMemory", "NodeHasSufficientPID"]);
        // As the node lifecycle controller leaves it.
        let unknown = [("MemoryPressure", "Unknown"), ("DiskPressure", "False"), ("PIDPressure", "False")];
        check(&unknown, &fine, &["NodeHasSufficientMemory"]);
    }
}
