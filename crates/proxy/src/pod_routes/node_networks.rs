//! Which of the addresses and pod ranges that Node objects name count.
//! Asked by `plan`, and outside by all that go by what a node says of itself.
//! Invariant: what one node says never changes where another node's traffic goes (test:
//! `a_node_does_not_route_what_is_not_its_own`).

use std::{collections::BTreeMap, net::IpAddr};

use api::cluster_ranges::{ClusterRanges, NodeNetwork, overlap};
use ipnet::IpNet;

/// The nodes with what counts of each, and a sentence for everything that does not.
///
/// Our own node comes first, and counts as it is: its pods are here, and no other node may write it. Of the others the
/// one that was created first keeps a range that several name. With addresses a node that is not Ready comes after all that are, so that a machine that joined again under
/// another name is reached; `NodeRestriction` sees to it that no node takes the address of one that is down.
pub fn accepted_networks(
    own: &str,
    ranges: &ClusterRanges,
    nodes: &BTreeMap<String, NodeNetwork>,
) -> (BTreeMap<String, NodeNetwork>, Vec<String>) {
    let mut refused = Vec::new();
    let mut peers: BTreeMap<String, NodeNetwork> = BTreeMap::new();
    for (name, network) in nodes {
        let kept = NodeNetwork { addresses: Vec::new(), pod_cidrs: Vec::new(), ..network.clone() };
        peers.insert(name.clone(), kept);
    }
    let mut order: Vec<(&String, &NodeNetwork)> = nodes.iter().collect();

    order.sort_by_key(|(name, network)| (*name != own, network.created, *name));
    let mut taken: Vec<(IpNet, &String)> = Vec::new();
    for (name, network) in &order {
        for range in &network.pod_cidrs {
            let holder = taken.iter().find(|(other, _)| overlap(other, range));
            let problem = ranges.range_problem(range).filter(|_| *name != own);
            let problem = problem.or_else(|| holder.map(|(other, by)| format!("overlaps with {other} of node {by}")));
            match problem {
                Some(problem) => refused.push(format!("podCIDR {range} of node {name} {problem}")),
                None => {
                    taken.push((*range, name));
                    peers.entry((*name).clone()).or_default().pod_cidrs.push(*range);
                }
            }
        }
    }

    order.sort_by_key(|(name, network)| (*name != own, !network.ready, network.created, *name));
    let mut taken: BTreeMap<IpAddr, &String> = BTreeMap::new();
    for (name, network) in &order {
        for address in &network.addresses {
            let holder = taken.get(address).filter(|holder| *holder != name);
            let problem = ranges.address_problem(*address).filter(|_| *name != own).map(str::to_string);
            match problem.or_else(|| holder.map(|holder| format!("is that of node {holder}"))) {
                Some(problem) => refused.push(format!("address {address} of node {name} {problem}")),
                None => {
                    taken.insert(*address, name);
                    peers.entry((*name).clone()).or_default().addresses.push(*address);
                }
            }
        }
    }
    (peers, refused)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn network(created: i64, ready: bool, addresses: &[&str], pod_cidrs: &[&str]) -> NodeNetwork {
        NodeNetwork {
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            pod_cidrs: pod_cidrs.iter().map(|range| range.parse().unwrap()).collect(),
            ready,
            created: Some(Timestamp::from_second(created).unwrap()),
        }
    }

    /// `a` is ours, `b` the node that others try to take over; what is believed of `evil`, and what of `b`.
    fn check(evil: NodeNetwork, addresses: &[&str], ranges: &[&str], refused: &[&str]) {
        let cluster = ClusterRanges {
            pods: ["10.244.0.0/16", "fd01::/48"].map(|range| range.parse().unwrap()).to_vec(),
            services: ["10.96.0.0/12", "10.244.240.0/24"].map(|range| range.parse().unwrap()).to_vec(),
        };
        let ours = network(50, true, &["192.0.2.1"], &["10.244.0.0/24"]);
        let b = network(10, true, &["192.0.2.2"], &["10.244.1.0/24", "fd01:0:0:1::/64"]);
        let nodes: BTreeMap<String, NodeNetwork> =
            [("a", ours.clone()), ("b", b.clone()), ("evil", evil)].map(|(n, c)| (n.to_string(), c)).into();
        let (found, said) = accepted_networks("a", &cluster, &nodes);
        assert_eq!((&found["a"], &found["b"]), (&ours, &b), "nobody else is touched");
        let texts = |items: Vec<String>| items.join(" ");
        let evil = &found["evil"];
        assert_eq!(texts(evil.addresses.iter().map(ToString::to_string).collect()), addresses.join(" "));
        assert_eq!(texts(evil.pod_cidrs.iter().map(ToString::to_string).collect()), ranges.join(" "));
        assert_eq!(said, refused);
    }

    #[test]
    fn a_range_counts_inside_the_clusters_and_for_one_node_only() {
        for (range, why) in [
            ("0.0.0.0/0", "is not inside the cluster's pod range"),
            ("10.0.0.0/8", "is not inside the cluster's pod range"),
            ("192.0.2.0/24", "is not inside the cluster's pod range"),
            ("10.96.0.0/24", "is not inside the cluster's pod range"),
            ("10.244.240.0/25", "overlaps with the Service range 10.244.240.0/24"),
            ("10.244.1.0/24", "overlaps with 10.244.1.0/24 of node b"),
            ("10.244.1.128/25", "overlaps with 10.244.1.0/24 of node b"),
            ("10.244.0.0/23", "overlaps with 10.244.0.0/24 of node a"),
        ] {
            let evil = network(20, true, &["192.0.2.3"], &[range, "10.244.3.0/24"]);
            let refused = format!("podCIDR {range} of node evil {why}");
            check(evil, &["192.0.2.3"], &["10.244.3.0/24"], &[&refused]);
        }
        // Even the oldest takes nothing of ours: our pods are here.
        let evil = network(1, true, &["192.0.2.3"], &["10.244.0.0/24"]);
        check(evil, &["192.0.2.3"], &[], &["podCIDR 10.244.0.0/24 of node evil overlaps with 10.244.0.0/24 of node a"]);
    }

    #[test]
    fn an_address_counts_for_one_node_only() {
        for (address, why) in [
            ("127.0.0.1", "is of no use outside the node"),
            ("169.254.169.254", "is of no use outside the node"),
            ("::1", "is of no use outside the node"),
            ("fe80::1", "is of no use outside the node"),
            ("::ffff:192.0.2.2", "is of no use outside the node"),
            ("0.0.0.0", "is of no use outside the node"),
            ("10.244.1.7", "is inside the cluster's pod range"),
            ("10.96.0.1", "is inside the cluster's Service range"),
            ("192.0.2.2", "is that of node b"),
            ("192.0.2.1", "is that of node a"),
        ] {
            let evil = network(20, true, &[address, "192.0.2.3"], &["10.244.3.0/24"]);
            let refused = format!("address {address} of node evil {why}");
            check(evil, &["192.0.2.3"], &["10.244.3.0/24"], &[&refused]);
        }
        // Being older does not help one that is down.
        let evil = network(1, false, &["192.0.2.2"], &["10.244.3.0/24"]);
        check(evil, &[], &["10.244.3.0/24"], &["address 192.0.2.2 of node evil is that of node b"]);
    }
}
