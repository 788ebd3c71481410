//! What each kind of Service becomes, as data.

use serde_json::{Value as Json, json};

use super::*;
use crate::nftables::render;

fn config() -> NodeConfig {
    NodeConfig {
        node_name: "here".into(),
        node_addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        node_port_addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        localhost_node_ports: false,
        masquerade_all: false,
        pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        zone: Some("a".into()),
    }
}

/// The pod with this address.
fn uid(ip: &str) -> String {
    format!("00000000-0000-4000-8000-{:0>12}", ip.rsplit(['.', ':']).next().unwrap())
}

/// `ip`, then any of: `local`, `nowhere` (no node is named), `unready`, `leaving` (serving while terminating), `dead`,
/// `node=` and `zone=` (hints, any number).
fn slice(endpoints: &[&str]) -> Json {
    let endpoint = |text: &&str| {
        let mut words = text.split(' ');
        let ip = words.next().unwrap();
        let words: Vec<&str> = words.collect();
        let has = |word| words.contains(&word);
        let hints = |kind: &str| -> Vec<Json> {
            words.iter().filter_map(|word| Some(json!({ "name": word.strip_prefix(kind)? }))).collect()
        };
        json!({
            "hints": { "forNodes": hints("node="), "forZones": hints("zone=") },
            "addresses": [ip],
            "nodeName": if has("local") { Some("here") } else if has("nowhere") { None } else { Some("there") },
            "targetRef": { "kind": "Pod", "uid": uid(ip) },
            "conditions": {
                "ready": !(has("unready") || has("leaving") || has("dead")),
                "serving": !(has("unready") || has("dead")),
                "terminating": has("leaving") || has("dead"),
            },
        })
    };
    json!({
        "metadata": { "name": "s-1", "namespace": "d", "labels": { "kubernetes.io/service-name": "s" } },
        "addressType": if endpoints.first().is_some_and(|e| e.contains(':')) { "IPv6" } else { "IPv4" },
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn state(spec: &Json, endpoints: &[&str]) -> State {
    let mut full = json!({ "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{ "port": 80 }] });
    for (field, value) in spec.as_object().unwrap() {
        full[field] = value.clone();
    }
    let service = json!({ "metadata": { "name": "s", "namespace": "d" }, "spec": full });
    let mut state = State::default();
    state.apply_service("d/s", Some(&serde_json::from_value(service).unwrap()));
    let slice = serde_json::from_value(slice(endpoints)).unwrap();
    state.apply_slice("d/s-1", Some(&slice), &config());
    state
}

#[test]
fn services_and_slices_of_others_are_left_to_them() {
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        let labelled = |mut object: Json| {
            object["metadata"]["labels"][label] = json!("");
            object
        };
        let mut state = state(&json!({}), &["10.0.0.1"]);
        let plain = json!({ "metadata": { "name": "s", "namespace": "d" }, "spec": { "clusterIP": "10.96.0.1" } });
        assert!(state.apply_service("d/s", Some(&serde_json::from_value(labelled(plain)).unwrap())), "{label}");
        assert!(!all(&rules(&state, &config())).contains("10.96.0.1"), "{label}");
        let taken = serde_json::from_value(labelled(slice(&["10.0.0.1"]))).unwrap();
        assert_eq!(state.apply_slice("d/s-1", Some(&taken), &config()), ["d/s"], "{label}");
    }
}

fn all(ruleset: &Ruleset) -> String {
    ruleset.everything().map(|piece| render::transaction(&piece, "t")).collect()
}

/// The elements and chains as a reader would write them, without the parts every Service has.
fn check(spec: Json, endpoints: &[&str], expected: &[&str]) {
    let ruleset = rules(&state(&spec, endpoints), &config());
    let mut lines = Vec::new();
    for line in all(&ruleset).lines() {
        let line = line.replace(" ip t ", " ").replace(" ip6 t ", " ");
        if let Some(elements) = line.strip_prefix("add element ") {
            let (map, list) = elements.split_once(" { ").unwrap();
            let items = list.trim_end_matches(" }").split(", ");
            lines.extend(items.map(|item| format!("{map} {item}")));
        } else if let Some(rule) = line.strip_prefix("add rule ").or_else(|| line.strip_prefix("add set ")) {
            lines.push(rule.to_owned());
        }
    }
    lines.retain(|line| {
        !line.starts_with("balance-") && !line.starts_with("masquerade-") && !line.starts_with("cluster-ips")
    });
    lines.sort();
    let mut expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    expected.sort();
    assert_eq!(lines, expected, "{spec} {endpoints:?}");
}

const E1: &str = "endpoints 10.96.0.1 . tcp . 80 . 0 : 10.244.0.2 . 8080";

#[test]
fn cluster_ips() {
    check(
        json!({}),
        &["10.244.0.2", "10.244.0.3"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto balance-2",
            E1,
            "endpoints 10.96.0.1 . tcp . 80 . 1 : 10.244.0.3 . 8080",
        ],
    );
    check(json!({}), &[], &["unserved 10.96.0.1 . tcp . 80 : goto refuse"]);
    check(json!({}), &["10.244.0.9 unready"], &["unserved 10.96.0.1 . tcp . 80 : goto refuse"]);
    check(json!({ "clusterIP": "None", "clusterIPs": ["None"] }), &["10.244.0.2"], &[]);
    check(json!({ "type": "ExternalName", "clusterIP": null, "clusterIPs": null }), &[], &[]);
    check(
        json!({ "clusterIP": "fd00::1", "clusterIPs": ["fd00::1"] }),
        &["fd01::2"],
        &["services fd00::1 . tcp . 80 : goto balance-1", "endpoints fd00::1 . tcp . 80 . 0 : fd01::2 . 8080"],
    );
    // The endpoints have a port of another name.
    check(
        json!({ "ports": [{ "name": "web", "port": 80 }] }),
        &["10.244.0.2"],
        &["unserved 10.96.0.1 . tcp . 80 : goto refuse"],
    );
}

/// Which endpoints get what is sent to the ClusterIP.
fn check_hints(endpoints: &[&str], expected: &[&str]) {
    let service = rules(&state(&json!({}), endpoints), &config()).service("d/s").unwrap().endpoints.clone();
    let used: Vec<String> = service.iter().map(ToString::to_string).collect();
    assert_eq!(used, expected, "{endpoints:?}");
}

#[test]
fn hints_are_followed_when_all_have_them_and_one_is_for_us() {
    check_hints(&["10.0.0.2 zone=a", "10.0.0.3 zone=b", "10.0.0.4 zone=b zone=a"], &["10.0.0.2", "10.0.0.4"]);
    // One has none; or none is for here.
    check_hints(&["10.0.0.2 zone=a", "10.0.0.3"], &["10.0.0.2", "10.0.0.3"]);
    check_hints(&["10.0.0.2 zone=b", "10.0.0.3 zone=c"], &["10.0.0.2", "10.0.0.3"]);
    // The node before the zone, if it can be had.
    check_hints(&["10.0.0.2 node=here zone=a", "10.0.0.3 node=there zone=a"], &["10.0.0.2"]);
    check_hints(&["10.0.0.2 node=x zone=a", "10.0.0.3 node=there zone=b"], &["10.0.0.2"]);
    check_hints(&["10.0.0.2 node=here zone=a", "10.0.0.3 zone=a"], &["10.0.0.2", "10.0.0.3"]);
    // Those that are not ready count for nothing, and without ready ones hints do.
    check_hints(&["10.0.0.2 zone=b", "10.0.0.3 zone=a unready"], &["10.0.0.2"]);
    check_hints(&["10.0.0.2 zone=a", "10.0.0.3 leaving"], &["10.0.0.2"]);
    check_hints(&["10.0.0.2 zone=a leaving", "10.0.0.3 zone=b leaving"], &["10.0.0.2", "10.0.0.3"]);
    // Policy Local asks where an endpoint is, not for whom it is meant.
    check(
        json!({ "internalTrafficPolicy": "Local" }),
        &["10.244.0.2 local zone=b", "10.244.0.3 zone=a"],
        &["services 10.96.0.1 . tcp . 80 : goto balance-1", E1, "hairpin 10.244.0.2 . 10.244.0.2"],
    );
}

#[test]
fn terminating_endpoints_serve_only_when_nobody_else_does() {
    check(json!({}), &["10.244.0.2", "10.244.0.3 leaving"], &["services 10.96.0.1 . tcp . 80 : goto balance-1", E1]);
    check(
        json!({}),
        &["10.244.0.2 leaving", "10.244.0.3 dead"],
        &["services 10.96.0.1 . tcp . 80 : goto balance-1", E1],
    );
}

#[test]
fn the_health_check_counts_local_endpoints_that_are_ready() {
    let check = |endpoints: &[&str], expected: usize| {
        let spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "ports": [{ "name": "", "port": 80 }, { "name": "", "port": 81 }],
        });
        let rules = service_rules("d/s", &state(&spec, endpoints), &config(), None).unwrap();
        assert_eq!(rules.health, Some((32000, expected)), "{endpoints:?}");
    };
    check(&["10.244.0.2 local", "10.244.0.3 local", "10.244.0.4"], 2);
    check(&["10.244.0.2 local", "10.244.0.3 local leaving"], 1);
    check(&["10.244.0.2 local leaving", "10.244.0.3"], 0);
    check(&["10.244.0.2 local unready"], 0);
    check(&["10.244.0.2 local", "fd01::2 local", "10.244.0.3 local"], 2);
}

#[test]
fn hairpin_is_for_pods_that_may_be_here() {
    let with = ["services 10.96.0.1 . tcp . 80 : goto balance-1", E1, "hairpin 10.244.0.2 . 10.244.0.2"];
    check(json!({}), &["10.244.0.2 local"], &with);
    check(json!({}), &["10.244.0.2 nowhere"], &with);
    check(json!({}), &["10.244.0.2"], &with[..2]);
}

#[test]
fn traffic_from_outside() {
    let node_port = json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }] });
    check(
        node_port.clone(),
        &["10.244.0.2"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto balance-1",
            "services 192.0.2.1 . tcp . 30080 : goto masquerade-1",
            E1,
            "endpoints 192.0.2.1 . tcp . 30080 . 0 : 10.244.0.2 . 8080",
            "unserved 2001:db8::1 . tcp . 30080 : goto refuse",
        ],
    );
    let mut local = node_port;
    local["externalTrafficPolicy"] = json!("Local");
    check(
        local,
        &["10.244.0.2"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto balance-1",
            "services 192.0.2.1 . tcp . 30080 : goto ext/d/s/tcp/80",
            E1,
            "unserved 2001:db8::1 . tcp . 30080 : goto refuse",
            "ext/d/s/tcp/80 ip saddr 10.244.0.0/16 goto svc/d/s/tcp/80",
            "ext/d/s/tcp/80 fib saddr type local meta mark set meta mark or 0x4000 goto svc/d/s/tcp/80",
            "ext/d/s/tcp/80 drop",
            "svc/d/s/tcp/80 meta l4proto tcp dnat ip to numgen random mod 1 map { 0 : 10.244.0.2 . 8080 }",
        ],
    );
    let service = json!({ "externalIPs": ["198.51.100.7"] });
    check(
        service,
        &["10.244.0.2"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto balance-1",
            "services 198.51.100.7 . tcp . 80 : goto masquerade-1",
            E1,
            "endpoints 198.51.100.7 . tcp . 80 . 0 : 10.244.0.2 . 8080",
        ],
    );
}

#[test]
fn internal_traffic_policy_local() {
    let spec = json!({ "internalTrafficPolicy": "Local" });
    check(
        spec.clone(),
        &["10.244.0.2", "10.244.0.3 local"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto balance-1",
            "endpoints 10.96.0.1 . tcp . 80 . 0 : 10.244.0.3 . 8080",
            "hairpin 10.244.0.3 . 10.244.0.3",
        ],
    );
    check(spec.clone(), &["10.244.0.2"], &["unserved 10.96.0.1 . tcp . 80 : drop"]);
    check(spec, &[], &["unserved 10.96.0.1 . tcp . 80 : goto refuse"]);
}

#[test]
fn session_affinity() {
    let spec =
        json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 5 } } });
    let endpoint = "ep/d/s/tcp/80/5/10.244.0.2/8080";
    check(
        spec,
        &["10.244.0.2"],
        &[
            "services 10.96.0.1 . tcp . 80 : goto svc/d/s/tcp/80",
            &format!("svc/d/s/tcp/80 ip saddr @{endpoint} goto {endpoint}"),
            &format!("svc/d/s/tcp/80 numgen random mod 1 vmap {{ 0 : goto {endpoint} }}"),
            &format!("{endpoint} {{ type ipv4_addr; flags dynamic,timeout; timeout 5s; }}"),
            &format!("{endpoint} update @{endpoint} {{ ip saddr }}"),
            &format!("{endpoint} meta l4proto tcp dnat ip to 10.244.0.2:8080"),
        ],
    );
}

#[test]
fn source_ranges_fence_the_load_balancer_only() {
    let check = |ranges: &[&str], fence: &str| {
        let mut service = json!({ "metadata": { "name": "s", "namespace": "d" } });
        service["spec"] = json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }],
            "loadBalancerSourceRanges": ranges,
        });
        service["status"] = json!({ "loadBalancer": { "ingress": [
            { "ip": "198.51.100.8" }, { "ip": "198.51.100.9", "ipMode": "Proxy" },
        ] } });
        let mut state = state(&json!({}), &["10.244.0.2"]);
        state.apply_service("d/s", Some(&serde_json::from_value(service).unwrap()));
        let ruleset = rules(&state, &config());
        let text = all(&ruleset);
        assert!(text.contains(&format!("add rule ip t fw/d/s/tcp/80 {fence}\n")), "{ranges:?}: {text}");
        assert!(text.contains("198.51.100.8 . tcp . 80 : goto fw/d/s/tcp/80"), "{text}");
        assert!(!text.contains("198.51.100.9"), "{text}");
    };
    check(&["203.0.113.0/24", "203.0.113.7/32", "2001:db8::/32"], "ip saddr != { 203.0.113.0/24 } drop");
    check(&["2001:db8::/32"], "drop");
    // As the API server takes them; and what it did not take is no reason to let everybody in.
    check(&[" 203.0.113.0/024 "], "ip saddr != { 203.0.113.0/24 } drop");
    check(&["203.0.113.0"], "drop");
    // This node is inside, and calls the balancer's address from that address if it has it.
    check(&["192.0.2.0/24"], "ip saddr != { 192.0.2.0/24, 198.51.100.8/32 } drop");
}

#[test]
fn a_change_touches_only_its_own_elements() {
    let endpoints: Vec<String> = (2..100).map(|last| format!("10.244.0.{last}")).collect();
    let all: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let before = state(&json!({}), &all);
    let mut ruleset = rules(&before, &config());
    // One from the middle leaves: the last takes its index.
    let fewer: Vec<&str> = all.iter().copied().filter(|ip| *ip != "10.244.0.50").collect();
    let after = state(&json!({}), &fewer);
    let new = service_rules("d/s", &after, &config(), ruleset.service("d/s"));
    let changes = ruleset.replace("d/s", new);
    assert_eq!(changes.elements.len(), 3, "{changes:?}");
    let none = ruleset.replace("d/s", ruleset.service("d/s").cloned());
    assert!(none.is_empty(), "{none:?}");
    let gone = ruleset.replace("d/s", None);
    assert_eq!(gone.elements.len(), 1 + 1 + 97);
    assert!(ruleset.everything().all(|piece| piece.elements.is_empty()));
}

#[test]
fn the_first_owner_of_an_address_keeps_it() {
    let mut state = state(&json!({}), &["10.244.0.2"]);
    let other = json!({
        "metadata": { "name": "z", "namespace": "d" },
        "spec": { "clusterIP": "10.96.0.9", "externalIPs": ["10.96.0.1"], "ports": [{ "port": 80 }] },
    });
    state.apply_service("d/z", Some(&serde_json::from_value(other).unwrap()));
    let mut ruleset = rules(&state, &config());
    let frontend = Frontend { ip: "10.96.0.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    assert!(matches!(ruleset.get(&Key::Service(frontend)), Some(Value::Balance { count: 1, .. })));
    ruleset.replace("d/s", None);
    assert_eq!(ruleset.get(&Key::Service(frontend)), None);
    assert_eq!(ruleset.get(&Key::Unserved(frontend)), Some(&Value::Reject));
}

fn udp_state(extra: &Json, endpoints: &[&str], target_port: u16) -> State {
    let mut udp = json!({ "ports": [{ "port": 53, "protocol": "UDP", "nodePort": 30053 }] });
    for (field, value) in extra.as_object().unwrap() {
        udp[field] = value.clone();
    }
    let mut state = state(&udp, &[]);
    let mut slice = slice(endpoints);
    slice["ports"] = json!([{ "name": "", "port": target_port, "protocol": "UDP" }]);
    state.apply_slice("d/s-1", Some(&serde_json::from_value(slice).unwrap()), &config());
    state
}

/// The UDP frontends whose flows are looked at when `before` becomes `after`, each with the targets that keep theirs.
fn check_flows(before: &State, after: &State, expected: &[&str]) {
    let mut ruleset = rules(before, &config());
    let new = service_rules("d/s", after, &config(), ruleset.service("d/s"));
    let changes = ruleset.replace("d/s", new);
    let kept = changes.moved.iter().map(|frontend| {
        let targets = ruleset.flows(*frontend);
        let targets: Vec<String> = targets.iter().map(|target| format!("{}:{}", target.ip, target.port)).collect();
        format!("{}:{} {}", frontend.ip, frontend.port, targets.join(" "))
    });
    assert_eq!(kept.collect::<Vec<_>>(), expected);
}

#[test]
fn udp_flows_stay_with_whoever_serves() {
    let state = |endpoints: &[&str]| udp_state(&json!({}), endpoints, 53);
    let both = |kept: &str| [format!("10.96.0.1:53 {kept}"), format!("192.0.2.1:30053 {kept}")];
    let check = |before: &[&str], after: &[&str], kept: Option<&str>| {
        let expected = kept.map(both);
        let expected: Vec<&str> = expected.iter().flatten().map(String::as_str).collect();
        check_flows(&state(before), &state(after), &expected);
    };
    let (a, b) = ("10.244.0.2", "10.244.0.3");
    check(&[a, b], &[b], Some("10.244.0.3:53"));
    // Who ends goes on serving the clients it has, also when no new ones come.
    check(&[a, b], &["10.244.0.2 leaving", b], None);
    check(&["10.244.0.2 leaving", b], &["10.244.0.2 dead", b], Some("10.244.0.3:53"));
    // Not ready for a moment and the only one: as good as before. Gone: its clients are refused.
    check(&[a], &["10.244.0.2 unready"], Some("10.244.0.2:53"));
    check(&[a, "10.244.0.3 unready"], &[a], None);
    check(&[a], &[], Some(""));
    check(&[], &[a], Some("10.244.0.2:53"));
    // Another address asked by the same clients.
    let (one, two) = (json!({}), json!({ "externalIPs": ["198.51.100.7"] }));
    check_flows(&udp_state(&one, &[a], 53), &udp_state(&two, &[a], 53), &["198.51.100.7:53 10.244.0.2:53"]);
    check_flows(&udp_state(&two, &[a], 53), &udp_state(&one, &[a], 53), &["198.51.100.7:53 "]);
    // Policies are for new connections.
    let local = json!({ "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local" });
    check_flows(&udp_state(&one, &[a, "10.244.0.3 local"], 53), &udp_state(&local, &[a, "10.244.0.3 local"], 53), &[]);
    // TCP is left alone.
    check_flows(&super::tests::state(&one, &[a, b]), &super::tests::state(&one, &[b]), &[]);
}

#[test]
fn udp_flows_are_told_apart_by_port_too() {
    let state = |port| udp_state(&json!({}), &["10.244.0.2"], port);
    check_flows(&state(53), &state(54), &["10.96.0.1:53 10.244.0.2:54", "192.0.2.1:30053 10.244.0.2:54"]);
}

#[test]
fn pods_that_end_are_not_used_but_for_want_of_better() {
    let check = |spec: Json, endpoints: &[&str], used: &[&str]| {
        let rules = service_rules("d/s", &state(&spec, endpoints), &config(), None).unwrap();
        assert_eq!(rules.pods.len(), endpoints.len(), "{endpoints:?}");
        let wanted: Vec<_> = used.iter().map(|ip| PodUid::parse(&uid(ip)).unwrap()).collect();
        let found: Vec<_> = rules.pods.iter().filter(|(_, used)| *used).map(|(pod, _)| *pod).collect();
        assert_eq!(found, wanted, "{spec} {endpoints:?}");
    };
    check(json!({}), &["10.244.0.2", "10.244.0.3 unready"], &["10.244.0.2"]);
    check(json!({}), &["10.244.0.2 leaving", "10.244.0.3"], &["10.244.0.3"]);
    check(json!({}), &["10.244.0.2 leaving", "10.244.0.3 dead"], &[]);
    check(json!({ "internalTrafficPolicy": "Local" }), &["10.244.0.2 local leaving", "10.244.0.3"], &[]);
    check(json!({ "internalTrafficPolicy": "Local" }), &["10.244.0.2 local", "10.244.0.3"], &["10.244.0.2"]);
}

/// What one change writes does not depend on how many Services there are.
#[test]
fn a_change_costs_the_same_among_many() {
    let written = |services: usize| {
        let mut state = State::default();
        let service = |index: usize| {
            let ip = format!("10.96.{}.{}", index / 250, index % 250);
            json!({ "metadata": {}, "spec": { "clusterIP": ip, "ports": [{ "port": 80 }] } })
        };
        let labelled = |index: usize, endpoints: &[&str]| {
            let mut slice = slice(endpoints);
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(format!("s{index}"));
            serde_json::from_value(slice).unwrap()
        };
        for index in 0..services {
            state.apply_service(&format!("d/s{index}"), Some(&serde_json::from_value(service(index)).unwrap()));
            let slice = labelled(index, &["10.244.0.2", "10.244.0.3"]);
            state.apply_slice(&format!("d/s{index}-1"), Some(&slice), &config());
        }
        let mut ruleset = rules(&state, &config());
        state.apply_slice("d/s1-1", Some(&labelled(1, &["10.244.0.2"])), &config());
        let new = service_rules("d/s1", &state, &config(), ruleset.service("d/s1"));
        render::transaction(&ruleset.replace("d/s1", new), "t")
    };
    let few = written(2);
    assert!(few.lines().count() <= 4, "{few}");
    assert_eq!(written(500), few);
}
