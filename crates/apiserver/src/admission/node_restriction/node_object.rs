//! A node's own Node object: what the kubelet may say in it.
//! Asked by the plugin in `node_restriction`.
//! Pod ranges are the IPAM controller's alone, and a node takes no address that another node has. Every other node
//! routes by them.

use std::net::IpAddr;

use serde_json::Value;

use api::ApiError;

use super::target;
use crate::{
    admission::{Attributes, Operation},
    storage::cluster::Cluster,
};

/// Labels in Kubernetes' own name space a kubelet may set on its node.
const LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

pub fn check(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let name = target(a);
    if name != node {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify node {name:?}")));
    }
    match a.operation {
        Operation::Create => registration(node, a),
        Operation::Update => update(cluster, node, a),
        _ => Ok(()),
    }
}

fn registration(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    if is_set(&a.object["spec"]["configSource"]) {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to create pods with a non-nil configSource")));
    }
    let forbidden = changed_labels(&a.object, &Value::Null);
    if !forbidden.is_empty() {
        let why = format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", "));
        return Err(a.forbidden(&why));
    }
    match pod_ranges(&a.object).is_empty() {
        true => Ok(()),
        false => Err(a.forbidden(&format!("node {node:?} is not allowed to set podCIDR"))),
    }
}

fn update(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let (old, new) = (&a.old, &a.object);
    let source = &new["spec"]["configSource"];
    if is_set(source) && *source != old["spec"]["configSource"] {
        let why = format!("node {node:?} is not allowed to update configSource to a new non-nil configSource");
        return Err(a.forbidden(&why));
    }
    let list = |object: &Value, part: &str, field: &str| object[part][field].as_array().cloned().unwrap_or_default();
    if list(new, "spec", "taints") != list(old, "spec", "taints") {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify taints")));
    }
    if list(new, "metadata", "ownerReferences") != list(old, "metadata", "ownerReferences") {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify ownerReferences")));
    }
    let forbidden = changed_labels(new, old);
    if !forbidden.is_empty() {
        return Err(a.forbidden(&format!("is not allowed to modify labels: {}", forbidden.join(", "))));
    }
    if pod_ranges(new) != pod_ranges(old) {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify podCIDR")));
    }
    foreign_address(cluster, node, a)
}

/// Both fields that hold them: consumers read either.
fn pod_ranges(node: &Value) -> Vec<&str> {
    let spec = &node["spec"];
    let all = spec["podCIDRs"].as_array().into_iter().flatten().chain([&spec["podCIDR"]]);
    all.filter_map(Value::as_str).filter(|range| !range.is_empty()).collect()
}

/// A node that registers with an address of another is younger than that one, and believed by nobody about it
/// (`proxy::node_networks`). One that is here already might be older, so it may not take the address in the first place.
fn foreign_address(cluster: &Cluster, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let known = addresses(&a.old);
    let added: Vec<&str> = addresses(&a.object).into_iter().filter(|address| !known.contains(address)).collect();
    if added.is_empty() {
        return Ok(());
    }
    for other in cluster.list("nodes", "").iter().filter(|other| other.meta.name != node) {
        let value = other.value();
        let theirs: Vec<_> = addresses(&value).into_iter().map(spelled_once).collect();
        if let Some(taken) = added.iter().find(|address| theirs.contains(&spelled_once(address))) {
            let why = format!("node {node:?} is not allowed to take address {taken:?} of node {:?}", other.meta.name);
            return Err(a.forbidden(&why));
        }
    }
    Ok(())
}

/// Others parse what is written there: however it is spelled, it is the same address or name.
fn spelled_once(address: &str) -> String {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => address.trim_end_matches('.').to_ascii_lowercase(),
    }
}

fn addresses(node: &Value) -> Vec<&str> {
    let all = node["status"]["addresses"].as_array().into_iter().flatten();
    all.filter_map(|address| address["address"].as_str()).collect()
}

fn is_set(value: &Value) -> bool {
    value.as_object().is_some()
}

/// Labels that were changed and that a kubelet may not change.
fn changed_labels(new: &Value, old: &Value) -> Vec<String> {
    let labels = |o: &Value| o["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (new, old) = (labels(new), labels(old));
    let keys = new.keys().chain(old.keys().filter(|k| !new.contains_key(*k)));
    let mut forbidden: Vec<String> =
        keys.filter(|k| new.get(*k) != old.get(*k)).filter(|k| is_reserved(k)).cloned().collect();
    forbidden.sort();
    forbidden
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let below = |root: &str| domain == root || domain.ends_with(&format!(".{root}"));
    if below("node-restriction.kubernetes.io") {
        return true;
    }
    let own = below("kubernetes.io") || below("k8s.io");
    own && !LABELS.contains(&key) && !below("node.kubernetes.io") && !below("kubelet.kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_labels_are_for_others() {
        for (key, reserved) in [
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("app", false),
            ("example.com/x", false),
            ("node-restriction.kubernetes.io/x", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("foo.k8s.io/x", true),
        ] {
            assert_eq!(is_reserved(key), reserved, "{key}");
        }
    }
}
