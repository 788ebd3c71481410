//! Policies in, the rules of one pod's chain out.

use serde_json::{Value, json};

use super::*;

fn pod() -> PodInfo {
    let pod = json!({
        "metadata": { "name": "web", "namespace": "d", "uid": "u" },
        "spec": { "nodeName": "here", "containers": [{ "name": "c", "ports": [
            { "name": "http", "containerPort": 8080 }, { "name": "dns", "containerPort": 53, "protocol": "UDP" },
        ] }] },
    });
    PodInfo::read(&serde_json::from_value(pod).unwrap(), "here").unwrap()
}

/// The rules of ingress (`reply` or not) and egress, sets named by what they select.
fn rules(direction: Direction, reply: bool, specs: &[Value]) -> Vec<String> {
    let policies: Vec<PolicyInfo> = specs
        .iter()
        .map(|spec| json!({ "metadata": { "name": "p", "namespace": "d" }, "spec": spec }))
        .map(|policy| PolicyInfo::read(&serde_json::from_value(policy).unwrap()).unwrap())
        .collect();
    let class = IsolationClass::new(Family::V4, direction, policies.iter(), &pod());
    let sets: Vec<PeerSetKey> = class.peer_sets().into_iter().collect();
    let names: Vec<String> = (0..sets.len()).map(|index| format!("set-{index}")).collect();
    let name = |key: &PeerSetKey| names[sets.iter().position(|set| set == key).expect("a set of its own")].as_str();
    let chains = class.chains("chain", reply, name);
    let line = |(chain, rules): (Arc<str>, Arc<[String]>)| {
        rules
            .iter()
            .map(|rule| if &*chain == "chain" { rule.clone() } else { format!("{chain}: {rule}") })
            .collect::<Vec<_>>()
    };
    chains.into_iter().flat_map(line).collect()
}

fn check(direction: Direction, specs: &[Value], expected: &[&str]) {
    assert_eq!(rules(direction, false, specs), expected, "{specs:#?}");
}

fn from(peers: Value, ports: Value) -> Value {
    json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": peers, "ports": ports }] })
}

fn to(peers: Value, ports: Value) -> Value {
    json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": peers, "ports": ports }] })
}

#[test]
fn policies_become_rules() {
    use Direction::{Egress, Ingress};
    let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
    let web = json!([{ "podSelector": { "matchLabels": { "app": "web" } } }]);
    check(Ingress, std::slice::from_ref(&deny), &["goto deny"]);
    check(Egress, std::slice::from_ref(&deny), &["goto deny"]);
    check(Ingress, &[deny.clone(), from(json!([]), json!([]))], &["return", "goto deny"]);
    check(Ingress, &[deny, from(web.clone(), json!([]))], &["ip saddr @set-0 return", "goto deny"]);
    check(
        Egress,
        &[to(web.clone(), json!([{ "port": 80 }]))],
        &["ip daddr @set-0 meta l4proto . th dport { tcp . 80 } return", "goto deny"],
    );
    // Every port of one protocol; ranges that overlap; a name that the pod has, and one that it has not.
    let many = json!([
        { "protocol": "SCTP" }, { "port": 80, "endPort": 90 }, { "port": 85, "endPort": 100 }, { "port": "http" },
        { "port": "dns", "protocol": "UDP" }, { "port": "dns" },
    ]);
    check(
        Ingress,
        &[from(json!([]), many)],
        &["meta l4proto . th dport { tcp . 80-100, tcp . 8080, udp . 53, sctp . 0-65535 } return", "goto deny"],
    );
    check(Ingress, &[from(web.clone(), json!([{ "port": "unknown" }]))], &["goto deny"]);
    check(
        Egress,
        &[to(web.clone(), json!([{ "port": "http" }, { "port": 1 }]))],
        &[
            "ip daddr . meta l4proto . th dport @set-1 return",
            "ip daddr @set-0 meta l4proto . th dport { tcp . 1 } return",
            "goto deny",
        ],
    );
    let block = json!([
        { "ipBlock": { "cidr": "10.0.0.0/24", "except": ["10.0.0.128/25"] } },
        { "ipBlock": { "cidr": "fd00::/8" } }, { "ipBlock": { "cidr": "10.0.1.0/24" } },
    ]);
    check(
        Ingress,
        &[from(block, json!([]))],
        &["ip saddr { 10.0.0.0-10.0.0.127, 10.0.1.0-10.0.1.255 } return", "goto deny"],
    );
    // An IPv6 block alone admits nothing over IPv4.
    check(Ingress, &[from(json!([{ "ipBlock": { "cidr": "fd00::/8" } }]), json!([]))], &["goto deny"]);
    // Two policies for the same ports share one rule and one set.
    let other = json!([{ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "other" } } }]);
    check(
        Ingress,
        &[from(web, json!([{ "port": 80 }])), from(other, json!([{ "port": 80 }]))],
        &["ip saddr @set-0 meta l4proto . th dport { tcp . 80 } return", "goto deny"],
    );
}

#[test]
fn answers_are_judged_from_the_other_side() {
    let web = json!([{ "podSelector": {} }]);
    let ports = json!([{ "port": 80 }]);
    assert_eq!(
        rules(Direction::Ingress, true, &[from(web.clone(), ports.clone())]),
        ["ip daddr @set-0 meta l4proto . th sport { tcp . 80 } return", "goto deny",]
    );
    assert_eq!(
        rules(Direction::Egress, true, &[to(web, ports)]),
        ["ip saddr @set-0 meta l4proto . th sport { tcp . 80 } return", "goto deny",]
    );
}

#[test]
fn many_ports_are_one_lookup() {
    let policy = |first: u16, last: u16, app: &str| {
        let peers = json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
        from(peers, json!([{ "port": first, "endPort": last }]))
    };
    let mut specs: Vec<Value> = (1..=1000).map(|port| policy(port, port, "a")).collect();
    specs.push(policy(500, 501, "b"));
    let found = rules(Direction::Ingress, false, &specs);
    assert_eq!(found.len(), 6, "{found:#?}");
    let map = found.iter().find(|rule| rule.contains("vmap")).unwrap();
    for entry in ["tcp . 1 : goto chain-port-0", "tcp . 500 : goto chain-port-1", "tcp . 501 : goto chain-port-1"] {
        assert!(map.contains(entry), "{map}");
    }
    assert!(map.contains("tcp . 1000 : goto chain-port-0"), "{map}");
}
