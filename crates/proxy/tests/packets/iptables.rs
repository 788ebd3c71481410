//! The same packets where rules are iptables': what Services do must not depend on it.
//! Part of the packet tests.

use std::collections::BTreeSet;

use proxy::ProxyMode;
use serde_json::json;

use crate::{Node, eventually, shell};

#[test]
fn services_are_reached_by_iptables_too() {
    let mut node = Node::with_mode("iptables", ProxyMode::Iptables);
    node.serve("a");
    node.serve("b");
    let ports = json!([{ "port": 80, "nodePort": 30080 }]);
    node.service("web", "10.96.0.10", json!({ "type": "NodePort", "ports": ports, "externalIPs": ["198.51.100.5"] }));
    let check = |node: &Node, from: &str, to: &str, seen: &str| assert_eq!(node.ask(from, to), seen, "{from} -> {to}");
    for (from, to) in [("-b", "10.96.0.10:80"), ("", "10.96.0.10:80"), ("-out", "192.0.2.1:30080")] {
        check(&node, from, to, "ConnectionRefused");
    }
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    check(&node, "-b", "10.96.0.10:80", "a 10.244.0.3");
    check(&node, "-a", "10.96.0.10:80", "a 10.244.0.1");
    check(&node, "", "10.96.0.10:80", "a 10.244.0.1");
    check(&node, "-out", "192.0.2.1:30080", "a 10.244.0.1");
    check(&node, "-out", "198.51.100.5:80", "a 10.244.0.1");
    check(&node, "", "127.0.0.1:30080", "a 10.244.0.1");
    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let seen: BTreeSet<String> = (0..60).map(|_| node.ask("", "10.96.0.10:80")).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");

    node.service("six", "fd96::10", json!({}));
    node.endpoints("six", "TCP", &["fd97::2"]);
    check(&node, "-b", "[fd96::10]:80", "a fd97::3");

    // Policy Local keeps the client's address, and drops where there is no endpoint here.
    let local =
        json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30081 }], "externalTrafficPolicy": "Local" });
    node.service("local", "10.96.0.11", local);
    node.endpoints("local", "TCP", &["10.244.0.2"]);
    check(&node, "-out", "192.0.2.1:30081", "a 192.0.2.2");
    node.endpoints("local", "TCP", &["10.244.0.2 there"]);
    assert!(node.is_dropped("-out", "192.0.2.1:30081"));

    let sticky =
        json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } });
    node.service("sticky", "10.96.0.12", sticky);
    node.endpoints("sticky", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let seen: BTreeSet<String> = (0..20).map(|_| node.ask("", "10.96.0.12:80")).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");

    // A restart writes the same rules; a Service that is gone leaves nothing.
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    node.stop();
    node.start();
    check(&node, "-b", "10.96.0.10:80", "a 10.244.0.3");
    let generation = node.generation();
    node.feed.remove("endpointslices", "d/web-1");
    node.feed.remove("services", "d/web");
    node.applied(generation);
    let name = node.name.clone();
    let saved = || shell(&format!("ip netns exec {name} iptables-save"));
    eventually("the Service's chains go", || {
        (!saved().contains("30080") && !saved().contains("10.96.0.10/")).then_some(())
    });
    assert!(saved().contains("KUBE-SVC-"), "others stay");
    node.stop();
    crate::inside(&node.name, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(proxy::remove_iptables()).unwrap();
    })
    .join()
    .unwrap();
    assert!(!saved().contains("KUBE-"), "{}", saved());
    assert!(node.nft("list tables").lines().all(|table| !table.contains("mk-proxy")), "no table of nftables' own");
}
