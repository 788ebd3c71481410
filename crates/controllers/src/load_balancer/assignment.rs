//! Which addresses the load balancer of a Service has: those of the nodes, or one of each family from the pool.
//! Called by the controller; what answers at the addresses is the proxy of every node.
//! Invariant: pure (tidy: `pure_files`). Of two Services that want the same port of the same address the older has it.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};

use super::address_pool::{AddressRange, first_free};
use crate::{common::meta::Object, node::conditions::ready};

/// What a Service has to say to be ours where it names a class.
pub const CLASS: &str = "minke.io/load-balancer";
/// Upstream's label on nodes that take no load balancer's traffic.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

pub fn is_ours(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"))
        && spec.and_then(|s| s.load_balancer_class.as_deref()).is_none_or(|class| class == CLASS)
        && !service.deleting()
}

pub fn is_local(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.external_traffic_policy.as_deref()) == Some("Local")
}

/// Protocol and number of each.
pub fn ports(service: &Service) -> BTreeSet<(String, i32)> {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".into()), port.port)).collect()
}

/// IPv4 or not, in the Service's order.
fn families(service: &Service) -> Vec<bool> {
    let families = service.spec.as_ref().and_then(|s| s.ip_families.as_ref());
    let mut families: Vec<bool> = families.into_iter().flatten().map(|family| family == "IPv4").collect();
    if families.is_empty() {
        families.push(true);
    }
    families
}

/// Whom a load balancer may send to: ready, and not told otherwise.
pub fn takes_traffic(node: &Node) -> bool {
    ready(node) == "True" && node.label(EXCLUDED).is_none() && !node.deleting()
}

/// The node's address of one family, the external one first.
fn address(node: &Node, ipv4: bool) -> Option<IpAddr> {
    let addresses = || node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let of = |kind: &str| {
        let ips = addresses().filter(|a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok());
        ips.into_iter().find(|ip| ip.is_ipv4() == ipv4)
    };
    of("ExternalIP").or_else(|| of("InternalIP"))
}

/// Names of nodes with a ready endpoint.
fn nodes_with_endpoints(slices: &[Arc<EndpointSlice>]) -> BTreeSet<&str> {
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false));
    ready.filter_map(|endpoint| endpoint.node_name.as_deref()).collect()
}

/// The addresses of all nodes that serve it.
pub fn of_nodes(service: &Service, nodes: &[Arc<Node>], slices: &[Arc<EndpointSlice>]) -> Vec<IpAddr> {
    let serving = nodes_with_endpoints(slices);
    let mut chosen: Vec<&Arc<Node>> = nodes.iter().filter(|node| takes_traffic(node)).collect();
    chosen.retain(|node| !is_local(service) || serving.contains(node.name()));
    chosen.sort_by_key(|node| node.name().to_owned());
    families(service).into_iter().flat_map(|ipv4| chosen.iter().filter_map(move |node| address(node, ipv4))).collect()
}

/// The node that announces the Service's addresses: the one that does, or else one that depends on the Service, so that
/// many Services are spread over all nodes.
pub fn announcer(
    service: &Service,
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
    current: Option<&str>,
) -> Option<String> {
    let serving = nodes_with_endpoints(slices);
    let able = |node: &&Arc<Node>| takes_traffic(node) && (!is_local(service) || serving.contains(node.name()));
    let weight = |node: &&Arc<Node>| {
        let mut hasher = DefaultHasher::new();
        (service.key(), node.name()).hash(&mut hasher);
        (current != Some(node.name()), hasher.finish())
    };
    nodes.iter().filter(able).min_by_key(weight).map(|node| node.name().to_owned())
}

/// Why a Service has no address.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another Service, or the node itself, has the port.
    PortInUse {
        protocol: String,
        port: i32,
        by: String,
    },
    NotInPool(IpAddr),
    AddressInUse {
        ip: IpAddr,
        by: String,
    },
    PoolExhausted {
        ipv4: bool,
    },
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PortInUse { protocol, port, by } => {
                write!(f, "{protocol} port {port} of the nodes is already used by {by}")
            }
            Self::NotInPool(ip) => write!(f, "{ip} is not in the pool of load balancer addresses"),
            Self::AddressInUse { ip, by } => write!(f, "{ip} is already the address of Service {by}"),
            Self::PoolExhausted { ipv4 } => {
                let family = if *ipv4 { "IPv4" } else { "IPv6" };
                write!(f, "the pool has no free {family} address: enlarge it with --load-balancer-pool")
            }
        }
    }
}

/// Who has one of the Service's ports before it: `reserved` are those of the node itself.
pub fn port_in_use(service: &Service, all: &[Arc<Service>], reserved: &[(i32, &'static str)]) -> Option<Refusal> {
    let wanted = ports(service);
    let own = wanted.iter().find_map(|(protocol, port)| {
        let by = reserved.iter().find(|(held, _)| protocol == "TCP" && held == port)?.1;
        Some(Refusal::PortInUse { protocol: protocol.clone(), port: *port, by: by.to_owned() })
    });
    let age = |service: &Service| (service.metadata.creation_timestamp.as_ref().map(|at| at.0), service.key());
    let older = all.iter().filter(|other| is_ours(other) && age(other) < age(service));
    own.or_else(|| {
        older.into_iter().find_map(|other| {
            let (protocol, port) = ports(other).intersection(&wanted).next()?.clone();
            Some(Refusal::PortInUse { protocol, port, by: format!("Service {}", other.key()) })
        })
    })
}

/// One address of each family: those it has, the one it asks for, or the first that are free. `taken` says whose one is.
pub fn from_pool(
    service: &Service,
    pool: &[AddressRange],
    taken: &HashMap<IpAddr, String>,
) -> Result<Vec<IpAddr>, Refusal> {
    let key = service.key();
    let held = current(service);
    let asked = service.spec.as_ref().and_then(|s| s.load_balancer_ip.as_deref()?.parse::<IpAddr>().ok());
    let others = |ip: IpAddr| taken.get(&ip).filter(|by| **by != key);
    let one = |ipv4: bool| {
        if let Some(ip) = asked.filter(|ip| ip.is_ipv4() == ipv4) {
            if !pool.iter().any(|range| range.contains(ip)) {
                return Err(Refusal::NotInPool(ip));
            }
            return others(ip).map_or(Ok(ip), |by| Err(Refusal::AddressInUse { ip, by: by.clone() }));
        }
        let kept = held
            .iter()
            .find(|ip| ip.is_ipv4() == ipv4 && pool.iter().any(|range| range.contains(**ip)) && others(**ip).is_none());
        let fresh = || first_free(pool, ipv4, |ip| others(ip).is_some()).ok_or(Refusal::PoolExhausted { ipv4 });
        kept.copied().map_or_else(fresh, Ok)
    };
    families(service).into_iter().map(one).collect()
}

/// What its status says.
pub fn current(service: &Service) -> Vec<IpAddr> {
    let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
    ingress.into_iter().flatten().filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, second: u8, spec: Value) -> Arc<Service> {
        let mut all = json!({ "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{ "port": 80 }] });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let meta = json!({ "name": name, "namespace": "d", "creationTimestamp": created });
        Arc::new(serde_json::from_value(json!({ "metadata": meta, "spec": all })).unwrap())
    }

    fn node(name: &str, ready: &str, addresses: &[(&str, &str)], labels: Value) -> Arc<Node> {
        let addresses: Vec<_> = addresses.iter().map(|(kind, ip)| json!({ "type": kind, "address": ip })).collect();
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "labels": labels },
                "status": { "conditions": [{ "type": "Ready", "status": ready }], "addresses": addresses },
            }))
            .unwrap(),
        )
    }

    fn slice(nodes: &[(&str, bool)]) -> Arc<EndpointSlice> {
        let endpoint = |(node, ready): &(&str, bool)| json!({ "addresses": ["10.0.0.1"], "nodeName": node, "conditions": { "ready": ready } });
        let endpoints: Vec<_> = nodes.iter().map(endpoint).collect();
        Arc::new(serde_json::from_value(json!({ "addressType": "IPv4", "endpoints": endpoints })).unwrap())
    }

    #[test]
    fn nodes_that_serve_lend_their_addresses() {
        let nodes = [
            node("b", "True", &[("InternalIP", "10.0.0.2"), ("InternalIP", "fd00::2")], json!({})),
            node("a", "True", &[("InternalIP", "10.0.0.1"), ("ExternalIP", "192.0.2.1")], json!({})),
            node("lost", "Unknown", &[("InternalIP", "10.0.0.3")], json!({})),
            node("out", "True", &[("InternalIP", "10.0.0.4")], json!({ EXCLUDED: "" })),
        ];
        let slices = [slice(&[("b", true), ("a", false), ("lost", true)])];
        let check = |spec: Value, expected: &[&str]| {
            let found = of_nodes(&service("s", 0, spec.clone()), &nodes, &slices);
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{spec}");
        };
        check(json!({}), &["192.0.2.1", "10.0.0.2"]);
        check(json!({ "ipFamilies": ["IPv6", "IPv4"] }), &["fd00::2", "192.0.2.1", "10.0.0.2"]);
        check(json!({ "externalTrafficPolicy": "Local" }), &["10.0.0.2"]);
    }

    #[test]
    fn one_node_announces_as_long_as_it_can() {
        let ready = |name: &str, ready: &str| node(name, ready, &[], json!({}));
        let (s, local) = (service("s", 0, json!({})), service("s", 0, json!({ "externalTrafficPolicy": "Local" })));
        let both = [ready("a", "True"), ready("b", "True")];
        let first = announcer(&s, &both, &[], None).unwrap();
        let other = if first == "a" { "b" } else { "a" };
        assert_eq!(announcer(&s, &both, &[], Some(other)).as_deref(), Some(other), "who has it keeps it");
        assert_eq!(announcer(&s, &both, &[], Some("gone")), Some(first.clone()));
        let lost = [ready(&first, "Unknown"), ready(other, "True")];
        assert_eq!(announcer(&s, &lost, &[], Some(&first)).as_deref(), Some(other));
        assert_eq!(announcer(&local, &both, &[slice(&[(other, true)])], Some(&first)).as_deref(), Some(other));
        assert_eq!(announcer(&local, &both, &[], Some(&first)), None);
        let spread: BTreeSet<_> =
            (0..20).map(|n| announcer(&service(&format!("s{n}"), 0, json!({})), &both, &[], None)).collect();
        assert_eq!(spread.len(), 2);
    }

    #[test]
    fn classes_of_others_are_theirs() {
        for (spec, expected) in [
            (json!({}), true),
            (json!({ "loadBalancerClass": CLASS }), true),
            (json!({ "loadBalancerClass": "example.com/other" }), false),
            (json!({ "type": "NodePort" }), false),
        ] {
            assert_eq!(is_ours(&service("s", 0, spec.clone())), expected, "{spec}");
        }
    }

    #[test]
    fn the_older_service_has_the_port() {
        let old = service("z", 1, json!({}));
        let udp = service("u", 2, json!({ "ports": [{ "port": 80, "protocol": "UDP" }] }));
        let new = service("a", 3, json!({ "ports": [{ "port": 443 }, { "port": 80 }] }));
        let all = [new.clone(), udp.clone(), old.clone()];
        assert_eq!(port_in_use(&old, &all, &[]), None);
        assert_eq!(port_in_use(&udp, &all, &[]), None);
        let refused = port_in_use(&new, &all, &[]).unwrap();
        assert_eq!(refused.to_string(), "TCP port 80 of the nodes is already used by Service d/z");
        assert!(port_in_use(&old, &all, &[(80, "the API server")]).is_some());
        assert_eq!(port_in_use(&udp, &all, &[(80, "the API server")]), None);
    }

    #[test]
    fn a_pool_hands_out_one_of_each_family() {
        let pool: Vec<AddressRange> = ["192.0.2.1-192.0.2.2", "fd00::1"].iter().map(|t| t.parse().unwrap()).collect();
        let taken = |all: &[(&str, &str)]| -> HashMap<IpAddr, String> {
            all.iter().map(|(ip, by)| (ip.parse().unwrap(), by.to_string())).collect()
        };
        let check = |spec: Value, taken: HashMap<IpAddr, String>, expected: Result<&str, &str>| {
            let found = from_pool(&service("s", 0, spec), &pool, &taken);
            let found = found.map(|ips| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            let found = found.map_err(|refusal| refusal.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        };
        check(json!({}), taken(&[]), Ok("192.0.2.1"));
        check(json!({}), taken(&[("192.0.2.1", "d/x")]), Ok("192.0.2.2"));
        check(json!({ "ipFamilies": ["IPv4", "IPv6"] }), taken(&[]), Ok("192.0.2.1 fd00::1"));
        let full = taken(&[("192.0.2.1", "d/x"), ("192.0.2.2", "d/y")]);
        let none = "the pool has no free IPv4 address: enlarge it with --load-balancer-pool";
        check(json!({}), full.clone(), Err(none));
        check(json!({ "loadBalancerIP": "192.0.2.2" }), taken(&[]), Ok("192.0.2.2"));
        check(json!({ "loadBalancerIP": "192.0.2.2" }), full, Err("192.0.2.2 is already the address of Service d/y"));
        let stranger = "198.51.100.1 is not in the pool of load balancer addresses";
        check(json!({ "loadBalancerIP": "198.51.100.1" }), taken(&[]), Err(stranger));
    }
}
