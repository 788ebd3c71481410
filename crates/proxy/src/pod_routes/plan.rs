//! How this node reaches the pods of other nodes: plain routes or VXLAN, decided from the Node objects.
//! The pure half; `run` watches nodes and brings the kernel to the plan.
//! Every route carries a protocol number of ours, so that stale ones are known. Pure (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

use api::cluster_ranges::{ClusterRanges, NodeNetwork};

use super::node_networks::accepted_networks;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRoutesMode {
    /// Nodes share a link: the next hop is the other node.
    Routes,
    /// Any network between the nodes. The device's name must be free; its MTU is the network's less the outer headers,
    /// and the pods' is the same.
    Vxlan { device: String, vni: u32, port: u16, mtu: u32 },
}

#[derive(Debug, Clone)]
pub struct PodRoutesConfig {
    pub node_name: String,
    pub mode: PodRoutesMode,
    /// The routing protocol number that marks our routes.
    pub route_protocol: u8,
    /// Marked routes outside the pods' belong to another cluster on this machine.
    pub ranges: ClusterRanges,
}

/// What `network` does not say, a Node that is being made again, is as it was.
fn or_former(network: NodeNetwork, former: &NodeNetwork) -> NodeNetwork {
    let addresses = if network.addresses.is_empty() { former.addresses.clone() } else { network.addresses };
    let pod_cidrs = if network.pod_cidrs.is_empty() { former.pod_cidrs.clone() } else { network.pod_cidrs };
    NodeNetwork { addresses, pod_cidrs, ..network }
}

/// For the network between nodes IPv4 is preferred: it is there in nearly every cluster.
fn underlay(node: &NodeNetwork) -> Option<IpAddr> {
    node.addresses.iter().find(|ip| ip.is_ipv4()).or(node.addresses.first()).copied()
}

/// What the kernel should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub device: Option<Device>,
    /// Pod network and next hop.
    pub routes: BTreeMap<IpNet, IpAddr>,
    /// VXLAN only: next hop, its hardware address, and the node behind it.
    pub neighbours: BTreeMap<IpAddr, (String, IpAddr)>,
}

/// The VXLAN device of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub vni: u32,
    pub port: u16,
    pub mtu: u32,
    pub local: IpAddr,
    pub mac: String,
    pub addresses: BTreeSet<IpAddr>,
}

/// Takes in how a Node is now, or that it is gone. Our own pods live on when our Node object does not: what was known of
/// ourselves holds until it says something else.
pub fn record_node(
    config: &PodRoutesConfig,
    nodes: &mut BTreeMap<String, NodeNetwork>,
    name: String,
    node: Option<&Node>,
) {
    let own = name == config.node_name;
    match node.map(NodeNetwork::from_node) {
        Some(network) => {
            let former = nodes.get(&name).filter(|_| own).cloned().unwrap_or_default();
            nodes.insert(name, or_former(network, &former));
        }
        None if own => {}
        None => drop(nodes.remove(&name)),
    }
}

/// The plan for `config.node_name` among `nodes`, with what is not believed of them; none while too little is known of
/// that node, and what the kernel holds stays. Another node without a pod network or address is left out.
pub fn plan(config: &PodRoutesConfig, nodes: &BTreeMap<String, NodeNetwork>) -> Option<(Plan, Vec<String>)> {
    let mut plan = Plan::default();
    let (nodes, refused) = accepted_networks(&config.node_name, &config.ranges, nodes);
    let own = nodes.get(&config.node_name)?;
    if let PodRoutesMode::Vxlan { device, vni, port, mtu } = &config.mode {
        let (local, first) = (underlay(own)?, own.pod_cidrs.first()?);
        plan.device = Some(Device {
            name: device.clone(),
            vni: *vni,
            port: *port,
            mtu: *mtu,
            local,
            mac: mac(first),
            addresses: own.pod_cidrs.iter().map(IpNet::network).collect(),
        });
    }
    for peer in nodes.iter().filter(|(name, _)| **name != config.node_name).map(|(_, peer)| peer) {
        for cidr in &peer.pod_cidrs {
            match &config.mode {
                PodRoutesMode::Routes => {
                    let hop = peer.addresses.iter().find(|ip| ip.is_ipv4() == cidr.addr().is_ipv4());
                    plan.routes.extend(hop.map(|hop| (cidr.trunc(), *hop)));
                }
                PodRoutesMode::Vxlan { .. } => {
                    let (Some(remote), Some(first)) = (underlay(peer), peer.pod_cidrs.first()) else { continue };
                    plan.routes.insert(cidr.trunc(), cidr.network());
                    plan.neighbours.insert(cidr.network(), (mac(first), remote));
                }
            }
        }
    }
    Some((plan, refused))
}

/// FNV-1a: the same in every process, which the standard hasher does not promise.
pub fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The hardware address of a node's VXLAN device follows from its pod network: nobody has to be asked.
fn mac(cidr: &IpNet) -> String {
    let bytes = stable_hash(&cidr.trunc().to_string()).to_be_bytes();
    format!("0a:59:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2], bytes[3])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peer(addresses: &[&str], cidrs: &[&str]) -> NodeNetwork {
        NodeNetwork {
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            ..NodeNetwork::default()
        }
    }

    fn config(name: &str, mode: &PodRoutesMode) -> PodRoutesConfig {
        let pods = ["10.244.0.0/16", "fd00::/8"].map(|range| range.parse().unwrap()).to_vec();
        let ranges = ClusterRanges { pods, services: vec!["10.96.0.0/12".parse().unwrap()] };
        PodRoutesConfig { node_name: name.into(), mode: mode.clone(), route_protocol: 77, ranges }
    }

    fn nodes() -> BTreeMap<String, NodeNetwork> {
        BTreeMap::from([
            ("a".to_owned(), peer(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24", "fd01::/64"])),
            ("b".to_owned(), peer(&["192.0.2.2", "2001:db8::2"], &["10.244.1.0/24", "fd02::/64"])),
            ("new".to_owned(), peer(&["192.0.2.3"], &[])),
            ("v4".to_owned(), peer(&["192.0.2.4"], &["10.244.3.0/24", "fd04::/64"])),
        ])
    }

    fn check(mode: PodRoutesMode, expected: &[&str]) {
        let (plan, refused) = plan(&config("a", &mode), &nodes()).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        let routes: Vec<String> = plan.routes.iter().map(|(cidr, hop)| format!("{cidr} {hop}")).collect();
        assert_eq!(routes, expected);
    }

    #[test]
    fn routes_follow_nodes() {
        check(PodRoutesMode::Routes, &["10.244.1.0/24 192.0.2.2", "10.244.3.0/24 192.0.2.4", "fd02::/64 2001:db8::2"]);
        let vxlan = PodRoutesMode::Vxlan { device: "vx".into(), vni: 1, port: 8472, mtu: 1450 };
        check(
            vxlan.clone(),
            &["10.244.1.0/24 10.244.1.0", "10.244.3.0/24 10.244.3.0", "fd02::/64 fd02::", "fd04::/64 fd04::"],
        );
        let config = |name: &str| config(name, &vxlan);
        let (mine, theirs) = (plan(&config("a"), &nodes()).unwrap().0, plan(&config("b"), &nodes()).unwrap().0);
        let known = &theirs.neighbours[&"10.244.0.0".parse::<IpAddr>().unwrap()];
        assert_eq!(*known, (mine.device.unwrap().mac, "192.0.2.1".parse().unwrap()));
        assert_eq!(plan(&config("unknown"), &nodes()), None, "the kernel keeps what it has");
        assert_eq!(plan(&config("new"), &nodes()), None);
    }

    /// The Node objects come and go as watched; the plan of `a` after each.
    #[test]
    fn our_own_node_is_remembered_until_it_says_something_else() {
        let node = |address: &[&str], cidrs: &[&str]| -> Node {
            let addresses: Vec<_> = address.iter().map(|ip| json!({ "type": "InternalIP", "address": ip })).collect();
            let value = json!({ "spec": { "podCIDRs": cidrs }, "status": { "addresses": addresses } });
            serde_json::from_value(value).unwrap()
        };
        let vxlan = PodRoutesMode::Vxlan { device: "vx".into(), vni: 1, port: 8472, mtu: 1450 };
        for mode in [PodRoutesMode::Routes, vxlan] {
            let config = config("a", &mode);
            let mut nodes = BTreeMap::new();
            let mut after = |name: &str, node: Option<Node>| {
                record_node(&config, &mut nodes, name.into(), node.as_ref());
                plan(&config, &nodes).map(|(plan, _)| plan)
            };
            assert_eq!(after("b", Some(node(&["192.0.2.2"], &["10.244.1.0/24"]))), None, "{:?}", config.mode);
            let whole = after("a", Some(node(&["192.0.2.1"], &["10.244.0.0/24"])));
            assert_eq!(whole.as_ref().unwrap().routes.len(), 1);
            for (again, why) in [
                (None, "deleted"),
                (Some(node(&[], &[])), "made again, without range and addresses"),
                (Some(node(&["192.0.2.1"], &[])), "without range"),
                (None, "deleted once more"),
                (Some(node(&[], &["10.244.0.0/24"])), "without addresses"),
            ] {
                assert_eq!(after("a", again), whole, "{:?}: {why}", config.mode);
            }
            let moved = after("a", Some(node(&["192.0.2.9"], &["10.244.9.0/24"]))).unwrap();
            let local = moved.device.map_or("192.0.2.9".into(), |device| device.local.to_string());
            assert_eq!(local, "192.0.2.9");
            assert_eq!(after("b", None).unwrap().routes, BTreeMap::new(), "others are forgotten");
        }
    }

    /// Node objects of one node's credential: nothing that goes to `b` or out of the cluster goes elsewhere.
    #[test]
    fn a_node_does_not_route_what_is_not_its_own() {
        let vxlan = PodRoutesMode::Vxlan { device: "vx".into(), vni: 1, port: 8472, mtu: 1450 };
        for mode in [PodRoutesMode::Routes, vxlan] {
            let config = config("a", &mode);
            let before = plan(&config, &nodes()).unwrap().0;
            let mut nodes = nodes();
            let greedy = ["0.0.0.0/0", "10.0.0.0/8", "10.96.0.0/12", "10.244.1.0/24", "10.244.0.0/24", "fd02::/64"];
            nodes.insert("evil".into(), peer(&["192.0.2.2", "192.0.2.66"], &greedy));
            let (after, refused) = plan(&config, &nodes).unwrap();
            assert_eq!(after, before, "{mode:?}");
            assert_eq!(refused.len(), 7, "{refused:?}");
        }
    }
}
