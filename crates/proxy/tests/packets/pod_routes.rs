//! Two nodes, a pod on each: reachable by routes and by VXLAN, and not after the other node is gone.
//! Part of the packet tests for their namespaces.
//! Nothing touches the machine's own namespace.

use std::collections::BTreeMap;

use proxy::{ClusterRanges, NodeNetwork, PodRoutesConfig, PodRoutesMode, apply_pod_routes, plan};

use crate::{inside, require_tools, shell};

struct Pair(String);

impl Pair {
    fn new(test: &str) -> Self {
        require_tools();
        let n = format!("minke-test-{test}-{}", std::process::id());
        let pair = Self(n.clone());
        for name in ["1", "2", "1p", "2p"] {
            let quick = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; \
                         echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
            shell(&format!(
                "ip netns add {n}-{name} && ip netns exec {n}-{name} sh -c '{quick}' && ip -n {n}-{name} link set lo up"
            ));
        }
        shell(&format!("ip -n {n}-1 link add up0 type veth peer name up0 netns {n}-2"));
        for node in ["1", "2"] {
            shell(&format!(
                "ip -n {n}-{node} addr add 192.0.2.{node}/24 dev up0 && \
                 ip -n {n}-{node} addr add 2001:db8::{node}/64 dev up0 nodad && ip -n {n}-{node} link set up0 up && \
                 ip -n {n}-{node} link add pod0 type veth peer name eth0 netns {n}-{node}p && \
                 ip -n {n}-{node} addr add 10.244.{node}.1/24 dev pod0 && \
                 ip -n {n}-{node} addr add fd0{node}::1/64 dev pod0 nodad && ip -n {n}-{node} link set pod0 up && \
                 ip -n {n}-{node}p addr add 10.244.{node}.2/24 dev eth0 && \
                 ip -n {n}-{node}p addr add fd0{node}::2/64 dev eth0 nodad && ip -n {n}-{node}p link set eth0 up && \
                 ip -n {n}-{node}p route add default via 10.244.{node}.1 && \
                 ip -n {n}-{node}p route add default via fd0{node}::1"
            ));
        }
        pair
    }

    fn apply(&self, mode: &PodRoutesMode, known: &[u8]) {
        let peer = |node: &u8| NodeNetwork {
            addresses: vec![format!("192.0.2.{node}").parse().unwrap(), format!("2001:db8::{node}").parse().unwrap()],
            pod_cidrs: vec![format!("10.244.{node}.0/24").parse().unwrap(), format!("fd0{node}::/64").parse().unwrap()],
            ..NodeNetwork::default()
        };
        let nodes: BTreeMap<String, NodeNetwork> = known.iter().map(|node| (node.to_string(), peer(node))).collect();
        for node in known {
            let pods = ["10.244.0.0/16", "fd00::/8"].map(|c| c.parse().unwrap()).to_vec();
            let ranges = ClusterRanges { pods, services: Vec::new() };
            let config =
                PodRoutesConfig { node_name: node.to_string(), mode: mode.clone(), route_protocol: 77, ranges };
            let nodes = nodes.clone();
            let run = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { apply_pod_routes(&config, &plan(&config, &nodes).unwrap().0).await.unwrap() });
            };
            inside(&format!("{}-{node}", self.0), run).join().unwrap();
        }
    }

    fn pings(&self, to: &str) -> bool {
        let command = format!("ip netns exec {}-1p ping -c1 -W2 {to} >/dev/null 2>&1 && echo yes || echo no", self.0);
        shell(&command).trim() == "yes"
    }

    /// A busy machine may take longer than one ping waits.
    fn reaches(&self, to: &str) -> bool {
        (0..60).any(|_| self.pings(to))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in ["1", "2", "1p", "2p"] {
            let _ = std::process::Command::new("ip").args(["netns", "del", &format!("{}-{name}", self.0)]).status();
        }
    }
}

fn check(test: &str, mode: PodRoutesMode) {
    let pair = Pair::new(test);
    assert!(!pair.pings("10.244.2.2"));
    for _ in 0..2 {
        pair.apply(&mode, &[1, 2]);
        assert!(pair.reaches("10.244.2.2"), "{mode:?}");
        assert!(pair.reaches("fd02::2"), "{mode:?}");
        if let PodRoutesMode::Vxlan { device, mtu, .. } = &mode {
            let link = shell(&format!("ip -n {}-1 link show dev {device}", pair.0));
            assert!(link.contains(&format!("mtu {mtu} ")), "{link}");
        }
    }
    pair.apply(&mode, &[1]);
    let routes = shell(&format!("ip -n {}-1 route show proto 77; ip -n {0}-1 -6 route show proto 77", pair.0));
    assert_eq!(routes.trim(), "", "{mode:?}");
    assert!(!pair.pings("10.244.2.2"), "{mode:?}");
}

#[test]
fn pods_across_nodes_by_routes() {
    check("routes", PodRoutesMode::Routes);
}

#[test]
fn pods_across_nodes_by_vxlan() {
    check("vxlan", PodRoutesMode::Vxlan { device: "mkvx".into(), vni: 4242, port: 8472, mtu: 1400 });
}
