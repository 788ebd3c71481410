//! Who may use a Service, and which of its endpoints: traffic policies, source ranges, affinity, endpoints that end.
//! Part of the packet tests.
//! What is dropped here is asked for a second time from where it is served.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{Node, eventually, service, shell, slice, trouble::http};

fn node(test: &str) -> Node {
    let node = Node::new(test);
    node.serve("a");
    node.serve("b");
    node
}

/// All who answer when asked often.
fn answers(node: &Node, from: &str, to: &str) -> BTreeSet<String> {
    (0..20).map(|_| node.ask(from, to)).collect()
}

fn only(text: &str) -> BTreeSet<String> {
    BTreeSet::from([text.to_owned()])
}

#[test]
fn load_balancer_addresses_admit_their_source_ranges() {
    let node = node("fence");
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    let balanced = |ranges: &[&str]| {
        let mut service =
            service("web", "10.96.0.10", &json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges }));
        service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "198.51.100.8" }] } });
        node.change("services", service);
    };
    let balancer = "198.51.100.8:80";
    balanced(&[]);
    for (from, seen) in [("-out", "a 10.244.0.1"), ("-b", "a 10.244.0.1"), ("", "a 10.244.0.1")] {
        assert_eq!(node.ask(from, balancer), seen, "{from}");
    }
    balanced(&["192.0.2.2/32"]);
    assert_eq!(node.ask("-out", balancer), "a 10.244.0.1");
    assert!(node.is_dropped("-b", balancer) && node.is_dropped("", balancer));
    assert_eq!(node.ask("-b", "10.96.0.10:80"), "a 10.244.0.3", "the cluster's own address has no fence");

    // The balancer put its address on the node as well: the node is its own client, under that address.
    shell(&format!("ip -n {} addr add 198.51.100.8/32 dev lo", node.name));
    assert!(node.is_dropped("", balancer));
    balanced(&["192.0.2.0/24"]);
    assert_eq!(node.ask("", balancer), "a 10.244.0.1");
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}

#[test]
fn hints_are_followed_where_the_node_is() {
    let node = node("zone");
    node.service("web", "10.96.0.10", json!({ "trafficDistribution": "PreferSameZone" }));
    let mut slice = slice("web", "TCP", 8080, &["10.244.0.2", "10.244.0.3 there"]);
    for (endpoint, zone) in ["east", "west"].into_iter().enumerate() {
        slice["endpoints"][endpoint]["hints"] = json!({ "forZones": [{ "name": zone }] });
    }
    node.change("endpointslices", slice);
    let used = || ["10.244.0.2", "10.244.0.3"].map(|ip| node.uses(ip));
    assert_eq!(used(), [true, true], "nobody knows where the node is");
    for (zone, expected, pod) in [("east", [true, false], "a"), ("west", [false, true], "b")] {
        let labels = json!({ "topology.kubernetes.io/zone": zone });
        node.feed.put("nodes", json!({ "metadata": { "name": "here", "labels": labels } }));
        eventually(zone, || (used() == expected).then_some(()));
        assert_eq!(node.ask("", "10.96.0.10:80").split(' ').next(), Some(pod), "{zone}");
    }
    node.feed.put("nodes", json!({ "metadata": { "name": "here", "labels": {} } }));
    eventually("without a zone", || (used() == [true, true]).then_some(()));
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}

#[test]
fn internal_traffic_policy_local_stays_here() {
    let node = node("internal");
    node.service("web", "10.96.0.10", json!({ "internalTrafficPolicy": "Local" }));
    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3 there"]);
    assert_eq!(answers(&node, "-b", "10.96.0.10:80"), only("a 10.244.0.3"));
    assert_eq!(answers(&node, "", "10.96.0.10:80"), only("a 10.244.0.1"));
    // Served elsewhere, but not here.
    node.endpoints("web", "TCP", &["10.244.0.3 there"]);
    assert!(node.is_dropped("-a", "10.96.0.10:80") && node.is_dropped("", "10.96.0.10:80"));
    node.endpoints("web", "TCP", &[]);
    assert_eq!(node.ask("-a", "10.96.0.10:80"), "ConnectionRefused");
    node.endpoints("web", "TCP", &["10.244.0.3"]);
    assert_eq!(node.ask("-a", "10.96.0.10:80"), "b 10.244.0.2");
}

#[test]
fn external_traffic_policy_local_drops_strangers_where_nobody_is() {
    let node = node("external");
    node.service(
        "web",
        "10.96.0.10",
        json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "ports": [{ "port": 80, "nodePort": 30080 }],
        }),
    );
    let at = "192.0.2.1:30080";
    let health = || http(&node, "-out", "192.0.2.1:32000", "/healthz");
    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3 there"]);
    assert_eq!(answers(&node, "-out", at), only("a 192.0.2.2"));
    assert!(health().starts_with("HTTP/1.1 200 OK"), "{}", health());

    // The last one here ends: it serves who still comes, and the load balancer is told to send nobody.
    node.endpoints("web", "TCP", &["10.244.0.2 leaving", "10.244.0.3 there"]);
    assert_eq!(answers(&node, "-out", at), only("a 192.0.2.2"));
    let said = health();
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("\"localEndpoints\":0"), "{said}");

    node.endpoints("web", "TCP", &["10.244.0.3 there"]);
    assert!(node.is_dropped("-out", at));
    assert_eq!(node.ask("-a", at), "b 10.244.0.2", "pods are inside");
    assert_eq!(node.ask("", at), "b 10.244.0.1", "so is the node");
    assert_eq!(node.ask("-a", "10.96.0.10:80"), "b 10.244.0.2");
    assert!(health().starts_with("HTTP/1.1 503"), "{}", health());
}

#[test]
fn endpoints_that_end_are_used_for_want_of_better() {
    let node = node("leaving");
    node.service("web", "10.96.0.10", json!({}));
    node.endpoints("web", "TCP", &["10.244.0.2 leaving", "10.244.0.3"]);
    assert_eq!(answers(&node, "", "10.96.0.10:80"), only("b 10.244.0.1"));
    node.endpoints("web", "TCP", &["10.244.0.2 leaving"]);
    assert_eq!(answers(&node, "", "10.96.0.10:80"), only("a 10.244.0.1"));
    node.endpoints("web", "TCP", &[]);
    assert_eq!(node.ask("", "10.96.0.10:80"), "ConnectionRefused");
}

#[test]
fn session_affinity_ends_with_its_timeout() {
    let node = node("timeout");
    node.service(
        "web",
        "10.96.0.10",
        json!({
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 1 } },
        }),
    );
    node.endpoints("web", "TCP", &["10.244.0.2", "10.244.0.3"]);
    let remembered = || {
        let clients = ["10.244.0.2", "10.244.0.3"]
            .map(|ip| node.nft(&format!("list set ip mk-proxy ep/d/web/tcp/80/1/{ip}/8080")));
        clients.iter().any(|set| set.contains("elements"))
    };
    let mut seen = BTreeSet::new();
    eventually("asked both, one at a time", || {
        seen.insert(node.ask("", "10.96.0.10:80"));
        eventually("forgotten", || (!remembered()).then_some(()));
        (seen.len() == 2).then_some(())
    });
}

#[test]
fn addresses_of_no_service_lead_nowhere() {
    let node = node("nowhere");
    node.service("web", "10.96.0.10", json!({}));
    // Whoever is beyond the default route has such addresses too.
    let out = format!("{}-out", node.name);
    shell(&format!(
        "ip -n {out} addr add 10.96.0.99/32 dev lo && ip -n {out} route add 10.244.0.0/16 via 192.0.2.1 && \
         ip -n {out} -6 addr add fd98::2/64 dev up0 nodad && ip -n {out} -6 addr add fd96::99/128 dev up0 nodad"
    ));
    node.serve("out");
    let (four, six) = ("10.96.0.99:8080", "[fd96::99]:8080");
    let leaks = || {
        for (from, to, seen) in [("-a", four, "out 10.244.0.2"), ("", four, "out 192.0.2.1"), ("", six, "out fd98::1")]
        {
            assert_eq!(node.ask(from, to), seen, "{from} -> {to}");
        }
    };
    leaks();
    let range = |name: &str, cidrs: &[&str]| {
        node.change("servicecidrs", json!({ "metadata": { "name": name }, "spec": { "cidrs": cidrs } }));
    };
    range("kubernetes", &["10.96.0.0/16", "fd96::/64"]);
    range("inside-another", &["10.96.0.0/24"]);
    for (from, to) in [("-a", four), ("", four), ("", six)] {
        assert!(node.is_dropped(from, to), "{from} -> {to}");
    }
    // Services go on as before, with and without endpoints.
    assert_eq!(node.ask("-a", "10.96.0.10:80"), "ConnectionRefused");
    node.endpoints("web", "TCP", &["10.244.0.3"]);
    assert_eq!(node.ask("-a", "10.96.0.10:80"), "b 10.244.0.2");
    assert_eq!(node.ask("-a", "10.96.0.10:81"), "ConnectionRefused");
    range("inside-another", &["10.97.0.0/24"]);
    range("kubernetes", &["10.97.0.0/16"]);
    leaks();
    assert_eq!(node.applied_state.full_writes(), 1, "all changes were incremental");
}
