//! Hints by `service.kubernetes.io/topology-mode: Auto`: each zone gets endpoints in proportion to its CPUs.
//! Called by `slice_plan`, with the shares that the controller takes from the nodes.
//! Invariant: pure (tidy: `pure_files`). Either every ready endpoint has a hint or none has: the proxies follow only such.

use std::collections::BTreeMap;

use api::quantity;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::{Endpoint, EndpointHints, ForZone},
};

use crate::{common::meta::Object, node::conditions};

const MODE: &str = "service.kubernetes.io/topology-mode";
/// Its name before.
const AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const ZONE: &str = "topology.kubernetes.io/zone";
/// By how much more than its share a zone's endpoints may be loaded.
const OVERLOAD_THRESHOLD: f64 = 0.2;

/// Each zone's part of the CPUs of all; empty where the nodes do not say enough.
pub type ZoneShares = BTreeMap<String, f64>;

pub fn is_auto(service: &Service) -> bool {
    let mode = service.annotation(AWARE_HINTS).or_else(|| service.annotation(MODE));
    matches!(mode, Some("Auto" | "auto"))
}

/// The node's zone and thousandths of a CPU, where it counts; `Err` where it says too little.
pub fn zone_capacity(node: &Node) -> Option<Result<(String, i64), ()>> {
    let excluded = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
    if conditions::ready(node) != "True" || excluded.iter().any(|label| node.label(label).is_some()) {
        return None;
    }
    let cpu = node.status.as_ref().and_then(|s| s.allocatable.as_ref()?.get("cpu").and_then(quantity::milli_value));
    let zone = node.label(ZONE).filter(|zone| !zone.is_empty());
    Some(zone.zip(cpu.filter(|cpu| *cpu > 0)).map(|(zone, cpu)| (zone.to_owned(), cpu)).ok_or(()))
}

pub fn zone_shares<'a>(nodes: impl Iterator<Item = &'a Node>) -> ZoneShares {
    let Ok(all) = nodes.filter_map(zone_capacity).collect::<Result<Vec<_>, ()>>() else { return ZoneShares::new() };
    let total: i64 = all.iter().map(|(_, cpu)| cpu).sum();
    let mut shares = ZoneShares::new();
    for (zone, cpu) in all {
        *shares.entry(zone).or_default() += cpu as f64 / total as f64;
    }
    if shares.len() < 2 { ZoneShares::new() } else { shares }
}

/// Gives the ready endpoints of one family their hints, or says why none gets any.
pub fn assign(endpoints: &mut [&mut Endpoint], shares: &ZoneShares, family: &str) -> Result<(), String> {
    for endpoint in endpoints.iter_mut() {
        endpoint.hints = None;
    }
    let ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready) != Some(false);
    let mut ready: Vec<&mut &mut Endpoint> = endpoints.iter_mut().filter(|endpoint| ready(endpoint)).collect();
    let desired = desired(ready.len(), shares).map_err(|why| format!("{why}, addressType: {family}"))?;
    if ready.iter().any(|endpoint| endpoint.zone.as_deref().is_none_or(str::is_empty)) {
        return Err(format!("One or more endpoints do not have a zone specified, addressType: {family}"));
    }
    // The same endpoints move every time.
    ready.sort_by(|a, b| a.addresses.cmp(&b.addresses));
    let zones: Vec<String> = ready.iter().filter_map(|endpoint| endpoint.zone.clone()).collect();
    for (endpoint, zone) in ready.iter_mut().zip(balanced(zones, &desired)) {
        endpoint.hints = Some(EndpointHints { for_zones: Some(vec![ForZone { name: zone }]), for_nodes: None });
    }
    Ok(())
}

/// How many endpoints each zone should have.
fn desired(count: usize, shares: &ZoneShares) -> Result<BTreeMap<&str, f64>, String> {
    if shares.is_empty() {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(why.into());
    }
    let numbers = format!("({count} endpoints, {} zones)", shares.len());
    if shares.len() > count {
        return Err(format!("Insufficient number of endpoints {numbers}"));
    }
    let minimum = |share: f64| (share * count as f64 / (1.0 + OVERLOAD_THRESHOLD)).ceil();
    if shares.values().map(|share| minimum(*share)).sum::<f64>() > count as f64 {
        let why = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(format!("{why} {numbers}"));
    }
    Ok(shares.iter().map(|(zone, share)| (zone.as_str(), (share * count as f64).max(minimum(*share)))).collect())
}

/// The zone that each endpoint is meant for: its own, unless another needs it more.
fn balanced(mut zones: Vec<String>, desired: &BTreeMap<&str, f64>) -> Vec<String> {
    let mut surplus: BTreeMap<String, f64> = desired.iter().map(|(zone, wanted)| (zone.to_string(), -wanted)).collect();
    for zone in &zones {
        *surplus.entry(zone.clone()).or_default() += 1.0;
    }
    loop {
        let most = surplus.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, number)| (zone.clone(), *number));
        let least = surplus.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, number)| (zone.clone(), -*number));
        let (Some((giving, give)), Some((receiving, need))) = (most, least) else { return zones };
        if give < 0.5 || need < 0.5 || give < 1.0 && need < 1.0 {
            return zones;
        }
        let Some(moved) = zones.iter_mut().rev().find(|zone| **zone == giving) else { return zones };
        moved.clone_from(&receiving);
        *surplus.entry(giving).or_default() -= 1.0;
        *surplus.entry(receiving).or_default() += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(zone: &str, cpu: &str, ready: &str, more: serde_json::Value) -> Node {
        let mut labels = json!({ ZONE: zone });
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": labels },
            "status": { "allocatable": { "cpu": cpu }, "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[test]
    fn shares_follow_the_cpus_of_ready_nodes() {
        let check = |nodes: &[Node], expected: &[(&str, f64)]| {
            let found: Vec<_> = zone_shares(nodes.iter()).into_iter().collect();
            assert_eq!(found, expected.iter().map(|(zone, share)| (zone.to_string(), *share)).collect::<Vec<_>>());
        };
        let none = json!({});
        let (a, b) = (node("a", "3", "True", none.clone()), node("b", "500m", "True", none.clone()));
        check(&[a.clone(), b.clone(), node("b", "500m", "True", none.clone())], &[("a", 0.75), ("b", 0.25)]);
        check(&[a.clone(), node("b", "1", "False", none.clone())], &[]);
        check(&[a.clone(), b.clone(), node("", "1", "True", none.clone())], &[]);
        check(&[a.clone(), b.clone(), node("c", "0", "True", none)], &[]);
        let plane = node("c", "8", "True", json!({ "node-role.kubernetes.io/control-plane": "" }));
        assert_eq!(zone_shares([a, b, plane].iter()).len(), 2);
    }

    #[test]
    fn zones_get_what_they_need() {
        let check = |shares: &[(&str, f64)], zones: &str, expected: Result<&str, &str>| {
            let shares: ZoneShares = shares.iter().map(|(zone, share)| (zone.to_string(), *share)).collect();
            let endpoint = |(index, zone): (usize, char)| -> Endpoint {
                let zone = (zone != '-').then(|| zone.to_string());
                serde_json::from_value(json!({ "addresses": [format!("10.0.0.{index:03}")], "zone": zone })).unwrap()
            };
            let mut endpoints: Vec<Endpoint> = zones.chars().enumerate().map(endpoint).collect();
            let mut all: Vec<&mut Endpoint> = endpoints.iter_mut().collect();
            let result = assign(&mut all, &shares, "IPv4");
            let hint = |endpoint: &Endpoint| Some(endpoint.hints.as_ref()?.for_zones.as_ref()?[0].name.clone());
            let hints: String = endpoints.iter().filter_map(hint).collect();
            match expected {
                Ok(text) => assert_eq!((result, hints.as_str()), (Ok(()), text), "{zones}"),
                Err(why) => {
                    assert!(result.as_ref().is_err_and(|found| found.starts_with(why)), "{zones}: {result:?}");
                    assert_eq!(hints, "", "{zones}");
                }
            }
        };
        let even = [("a", 0.5), ("b", 0.5)];
        check(&even, "aabb", Ok("aabb"));
        check(&even, "aaab", Ok("aabb"));
        check(&even, "aaaa", Ok("aabb"));
        // A zone without nodes gives all it has.
        check(&even, "ccab", Ok("baab"));
        check(&[("a", 0.75), ("b", 0.25)], "aaabbb", Ok("aaabba"));
        check(&even, "a", Err("Insufficient number of endpoints (1 endpoints, 2 zones)"));
        check(&even, "aab", Err("Unable to allocate minimum required endpoints"));
        check(&even, "a-bb", Err("One or more endpoints do not have a zone specified, addressType: IPv4"));
        check(&[], "ab", Err("Insufficient Node information"));
    }
}
