//! Whether a pod may run on a node: node selector, required affinity, taints, host ports.
//! Used by daemon sets, which must know this before the scheduler does, and by the kubelet, which has the last word.
//! Invariant: pure; resources are not looked at.

use k8s_openapi::api::core::v1::{
    Container, Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

/// Node name, node selector and required node affinity.
pub fn matches(spec: &PodSpec, node: &Node) -> bool {
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && Some(name) != node.metadata.name.as_deref()) {
        return false;
    }
    if !spec.node_selector.iter().flatten().all(|(key, value)| label(node, key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|r| holds(r, label(node, &r.key)))
        && fields.iter().all(|r| r.key == "metadata.name" && holds(r, node.metadata.name.as_deref()))
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

/// Whether `toleration` tolerates `taint`.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

/// Whether the two pods can't be on one node, since both want a port of it.
pub fn ports_clash(one: &PodSpec, other: &PodSpec) -> bool {
    let any = |address: &str| address == "0.0.0.0";
    host_ports(one).any(|(address, protocol, port)| {
        host_ports(other).any(|(their_address, their_protocol, their_port)| {
            port == their_port
                && protocol == their_protocol
                && (address == their_address || any(address) || any(their_address))
        })
    })
}

/// Address, protocol and port of each port of the node that the pod takes, sidecars' too.
fn host_ports(spec: &PodSpec) -> impl Iterator<Item = (&str, &str, i32)> {
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar));
    containers.flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
        let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
        let number = port.host_port.filter(|number| *number > 0)?;
        Some((address, port.protocol.as_deref().unwrap_or("TCP"), number))
    })
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

    #[test]
    fn ports_of_a_node() {
        let pod = |port: serde_json::Value| -> PodSpec {
            serde_json::from_value(json!({ "containers": [{ "name": "c", "ports": [port] }] })).unwrap()
        };
        let check = |one: serde_json::Value, other: serde_json::Value, expected: bool| {
            assert_eq!(ports_clash(&pod(one.clone()), &pod(other.clone())), expected, "{one} {other}");
        };
        let port = |n: i32| json!({ "containerPort": n, "hostPort": n });
        let at = |ip: &str| json!({ "containerPort": 80, "hostPort": 80, "hostIP": ip });
        check(port(80), port(80), true);
        check(port(80), port(81), false);
        check(json!({ "containerPort": 80 }), json!({ "containerPort": 80 }), false);
        check(at("10.0.0.1"), at("10.0.0.2"), false);
        check(at("10.0.0.1"), at("10.0.0.1"), true);
        check(at("10.0.0.1"), port(80), true);
        check(port(80), json!({ "containerPort": 80, "hostPort": 80, "protocol": "UDP" }), false);
    }
}
