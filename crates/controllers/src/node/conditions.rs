//! The core of node lifecycle: conditions of a silent node, and the taints that conditions call for.
//! Called by `lifecycle`.
//! Taints of other keys are never touched.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

use crate::common::meta::time;

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const WATCHED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Condition, its status, and the NoSchedule taint that follows.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// `True`, `False` or `Unknown`; a node that never said is Unknown.
pub fn ready(node: &Node) -> &str {
    condition(node, "Ready").map_or("Unknown", |c| c.status.as_str())
}

/// The conditions of a node that has been silent for too long; `None` when they say so already.
pub fn silent(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in WATCHED {
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                changed = true;
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(time(now));
            }
            None => {
                changed = true;
                conditions.push(NodeCondition {
                    type_: kind.into(),
                    status: "Unknown".into(),
                    reason: Some("NodeStatusNeverUpdated".into()),
                    message: Some("Kubelet never posted node status.".into()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(time(now)),
                });
            }
        }
    }
    changed.then_some(conditions)
}

/// What is to become of the taint that sends pods away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// As the condition asks.
    Follow,
    /// Not yet.
    Hold,
    /// Not at all: what is there goes.
    Withdraw,
}

/// Whether the node has a taint that sends pods away for its condition.
pub fn evicts(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().any(|t| t.effect == "NoExecute" && (t.key == NOT_READY || t.key == UNREACHABLE))
}

/// The taints that the node should have; `None` when it has them.
pub fn taints(node: &Node, eviction: Eviction, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.clone().unwrap_or_default();
    let have = spec.taints.unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    // A node that has not said anything yet is not judged here; its deadline will.
    let status = |kind: &str| condition(node, kind).map(|c| c.status.as_str());
    for (kind, state, key) in BY_CONDITION {
        if status(kind) == Some(state) {
            wanted.push((key, "NoSchedule"));
        }
    }
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    match status("Ready").filter(|_| eviction == Eviction::Follow) {
        Some("False") => wanted.push((NOT_READY, "NoExecute")),
        Some("Unknown") => wanted.push((UNREACHABLE, "NoExecute")),
        _ => {}
    }
    let ours = |taint: &Taint| {
        let key = taint.key.as_str();
        match taint.effect.as_str() {
            "NoSchedule" => key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, k)| *k == key),
            "NoExecute" => key == NOT_READY || key == UNREACHABLE,
            _ => false,
        }
    };
    // A fresh node carries not-ready from its registration until it first reports.
    if status("Ready").is_none() {
        wanted.extend(have.iter().filter(|t| ours(t) && t.key == NOT_READY).map(|t| (NOT_READY, t.effect.as_str())));
    }
    let mut taints: Vec<Taint> =
        have.iter().filter(|t| !ours(t) || wanted.contains(&(&t.key, &t.effect))).cloned().collect();
    for (key, effect) in wanted {
        if !taints.iter().any(|t| t.key == key && t.effect == effect) {
            taints.push(Taint { key: key.into(), effect: effect.into(), value: None, time_added: Some(time(now)) });
        }
    }
    (taints != have).then_some(taints)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn node(ready: Option<&str>, taints: &[(&str, &str)], unschedulable: bool) -> Node {
        let taints: Vec<_> = taints.iter().map(|(key, effect)| json!({ "key": key, "effect": effect })).collect();
        let conditions: Vec<_> = ready.map(|status| json!({ "type": "Ready", "status": status })).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": { "name": "n" },
            "spec": { "taints": taints, "unschedulable": unschedulable },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn taints_follow_conditions() {
        let check = |node: Node, expected: Option<&[(&str, &str)]>| {
            let found = taints(&node, Eviction::Follow, now());
            let found =
                found.as_ref().map(|t| t.iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expected);
        };
        check(node(Some("True"), &[], false), None);
        check(node(Some("True"), &[("mine", "NoExecute")], false), None);
        check(node(Some("False"), &[], false), Some(&[(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]));
        check(
            node(Some("Unknown"), &[(NOT_READY, "NoExecute"), ("mine", "NoSchedule")], false),
            Some(&[("mine", "NoSchedule"), (UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        );
        check(node(Some("True"), &[(NOT_READY, "NoSchedule")], false), Some(&[]));
        check(node(Some("True"), &[], true), Some(&[(UNSCHEDULABLE, "NoSchedule")]));
        check(node(None, &[(NOT_READY, "NoSchedule")], false), None);
        let held = taints(&node(Some("False"), &[], false), Eviction::Hold, now()).unwrap();
        assert_eq!(held.iter().map(|t| t.effect.as_str()).collect::<Vec<_>>(), ["NoSchedule"]);
        let gone = taints(&node(Some("False"), &[(NOT_READY, "NoExecute")], false), Eviction::Withdraw, now()).unwrap();
        assert_eq!(gone.iter().map(|t| t.effect.as_str()).collect::<Vec<_>>(), ["NoSchedule"]);
    }

    #[test]
    fn silence_makes_conditions_unknown() {
        let conditions = silent(&node(Some("True"), &[], false), now()).unwrap();
        let ready = conditions.iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("Unknown", Some("NodeStatusUnknown")));
        assert_eq!(conditions.iter().filter(|c| c.reason.as_deref() == Some("NodeStatusNeverUpdated")).count(), 3);
        let mut quiet = node(None, &[], false);
        quiet.status.as_mut().unwrap().conditions = Some(conditions);
        assert_eq!(silent(&quiet, now()), None);
    }
}
