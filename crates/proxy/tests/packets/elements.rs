//! Elements that were changed one by one, straight in the kernel, are those that `nft` writes from nothing.
//! Part of the packet tests.
//! Compares what `nft` itself lists.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Node, service, slice};

/// Every element of the proxy's maps and sets, as `nft` reads them.
fn elements(node: &Node) -> BTreeSet<String> {
    let listed: Value = serde_json::from_str(&node.nft("-j list ruleset")).unwrap();
    let objects = listed["nftables"].as_array().unwrap();
    let sets = objects.iter().filter_map(|object| object.get("map").or_else(|| object.get("set")));
    let named = sets.filter(|set| set["table"] == "mk-proxy").flat_map(|set| {
        let of = format!("{} {}", set["family"], set["name"]);
        let held = set["elem"].as_array().cloned().unwrap_or_default();
        held.into_iter().map(move |element| format!("{of} {element}"))
    });
    named.collect()
}

#[test]
fn elements_changed_one_by_one_are_those_written_at_once() {
    let mut node = Node::new("elements");
    let both =
        json!({ "externalIPs": ["198.51.100.5"], "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }] });
    node.service("web", "10.96.0.10", both);
    node.service("name", "10.96.0.11", json!({ "ports": [{ "port": 53, "protocol": "UDP" }] }));
    node.service("stream", "10.96.0.12", json!({ "ports": [{ "port": 90, "protocol": "SCTP" }] }));
    node.service("six", "fd96::10", json!({}));
    node.service("empty", "fd96::11", json!({}));
    node.service("gone", "10.96.0.13", json!({}));
    node.service("local", "10.96.0.14", json!({ "internalTrafficPolicy": "Local" }));
    for endpoints in [&["10.244.0.2"][..], &["10.244.0.2", "10.244.0.3", "10.244.0.4 there"], &["10.244.0.3"]] {
        for (service, protocol) in [("web", "TCP"), ("name", "UDP"), ("stream", "SCTP"), ("gone", "TCP")] {
            node.endpoints(service, protocol, endpoints);
        }
    }
    node.endpoints("local", "TCP", &["10.244.0.4 there"]);
    for endpoints in [&["fd97::2"][..], &["fd97::3", "fd97::2"]] {
        node.endpoints("six", "TCP", endpoints);
    }
    // Many at once: still a change of elements, and one of more than fit a message.
    let many: Vec<String> = (1..=100).map(|last| format!("10.244.1.{last} there")).collect();
    node.change("endpointslices", slice("web", "TCP", 8080, &many.iter().map(String::as_str).collect::<Vec<_>>()));
    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3"]);
    node.change("services", {
        let mut gone = service("gone", "10.96.0.13", &json!({}));
        gone["spec"]["type"] = "ExternalName".into();
        gone
    });
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");

    let changed = elements(&node);
    for word in ["198.51.100.5", "udp", "sctp", "fd96::10", "fd97::3", "balance-2", "refuse", "drop"] {
        assert!(changed.iter().any(|element| element.contains(word)), "{word}: {changed:#?}");
    }
    node.stop();
    node.start();
    assert_eq!(changed, elements(&node));
}
