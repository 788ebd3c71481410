//! Whether a pod may run on a node: node selector, required affinity, taints.
//! Used by daemon sets, which must know this before the scheduler does.
//! Invariant: pure; resources are not looked at.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint};

use crate::{
    meta::{Object, labels},
    node::tolerates,
};

/// Node name, node selector and required node affinity.
pub fn matches(spec: &PodSpec, node: &Node) -> bool {
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node.name()) {
        return false;
    }
    let have = labels(node.meta());
    if !spec.node_selector.iter().flatten().all(|(key, value)| have.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let have = labels(node.meta());
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|r| holds(r, have.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && holds(r, Some(node.name())))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|v| values.iter().any(|w| w == v));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(have, want)| have > want),
        "Lt" => numbers().is_some_and(|(have, want)| have < want),
        _ => false,
    }
}

/// Whether the pod tolerates every taint of the node that `counts`.
pub fn tolerated(spec: &PodSpec, node: &Node, counts: impl Fn(&Taint) -> bool) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    taints.into_iter().flatten().filter(|t| counts(t)).all(|taint| tolerations.iter().any(|t| tolerates(t, taint)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_for_a_pod() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": { "disk": "ssd", "cores": "8" } },
        }))
        .unwrap();
        let check = |spec: serde_json::Value, expected: bool| {
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(matches(&spec, &node), expected, "{spec:?}");
        };
        let affinity = |term: serde_json::Value| {
            json!({ "containers": [], "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } } })
        };
        check(json!({ "containers": [] }), true);
        check(json!({ "containers": [], "nodeName": "other" }), false);
        check(json!({ "containers": [], "nodeSelector": { "disk": "ssd" } }), true);
        check(json!({ "containers": [], "nodeSelector": { "disk": "hdd" } }), false);
        check(affinity(json!({ "matchExpressions": [{ "key": "cores", "operator": "Gt", "values": ["4"] }] })), true);
        check(
            affinity(json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["m"] }] })),
            false,
        );
        check(affinity(json!({})), false);
    }
}
