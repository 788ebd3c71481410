//! Whether a pod may run on a node: node selector, required affinity, taints, host ports.
//! Used by the scheduler, by daemon sets, which must know before it does, and by the kubelet, which has the last word.
//! Invariant: pure; resources are not looked at (tidy: `pure_files`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

use crate::pod_resources::is_sidecar;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Node name, node selector and required node affinity.
pub fn matches(spec: &PodSpec, node: &Node) -> bool {
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && Some(name) != node.metadata.name.as_deref()) {
        return false;
    }
    let (name, labels) = (node.metadata.name.as_deref(), node.metadata.labels.as_ref());
    selects(spec, name.unwrap_or_default(), labels.unwrap_or(&NO_LABELS))
}

/// Node selector and required node affinity alone.
pub fn selects(spec: &PodSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    if !spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_selects(term, name, labels)))
}

/// An empty term selects nothing.
pub fn term_selects(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|r| holds(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && holds(r, Some(name)))
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
    let given = |text: &&str| !text.is_empty();
    let (effect, key) = (toleration.effect.as_deref().filter(given), toleration.key.as_deref().filter(given));
    if effect.is_some_and(|effect| effect != taint.effect) || key.is_some_and(|key| key != taint.key) {
        return false;
    }
    let (value, wanted) = (taint.value.as_deref().unwrap_or_default(), toleration.value.as_deref().unwrap_or_default());
    let numbers = || value.parse::<i64>().ok().zip(wanted.parse::<i64>().ok());
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => key.is_some() && value == wanted,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(taint, limit)| taint < limit),
        "Gt" => numbers().is_some_and(|(taint, limit)| taint > limit),
        _ => false,
    }
}

/// A port of the node that a pod takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub address: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Two pods can't both have these on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let any = |address: &str| address == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || any(&self.address) || any(&other.address))
    }
}

/// Each port of the node that the pod takes, sidecars' too.
pub fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
    let given = |text: &Option<String>, default: &str| {
        text.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_string())
    };
    containers
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let (address, protocol) = (given(&port.host_ip, "0.0.0.0"), given(&port.protocol, "TCP"));
            Some(HostPort { address, protocol, port: number })
        })
        .collect()
}

/// Whether two pods with these ports can't be on one node.
pub fn conflict(one: &[HostPort], other: &[HostPort]) -> bool {
    one.iter().any(|port| other.iter().any(|their| port.conflicts(their)))
}

/// Whether the two pods can't be on one node, since both want a port of it.
pub fn ports_clash(one: &PodSpec, other: &PodSpec) -> bool {
    conflict(&host_ports(one), &host_ports(other))
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
