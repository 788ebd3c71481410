//! The index with hand-made objects: what has to be written after each change.

use serde_json::{Value as Json, json};

use super::*;

#[derive(Default)]
struct Cluster(PolicyIndex);

impl Cluster {
    fn pod(&mut self, name: &str, app: &str, ips: &[&str]) -> Vec<String> {
        self.pod_at("here", name, app, ips)
    }

    fn pod_at(&mut self, node: &str, name: &str, app: &str, ips: &[&str]) -> Vec<String> {
        let (namespace, short) = name.split_once('/').unwrap();
        let pod = json!({
            "metadata": { "name": short, "namespace": namespace, "uid": name, "labels": { "app": app } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": 8080 }] }] },
            "status": { "podIPs": ips.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>() },
        });
        let pod = PodInfo::read(&serde_json::from_value(pod).unwrap(), "here");
        self.0.apply_pod(name, pod);
        self.changes()
    }

    fn policy(&mut self, name: &str, spec: Json) -> Vec<String> {
        let namespace = name.split_once('/').unwrap().0;
        let policy = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
        self.0.apply_policy(name, PolicyInfo::read(&serde_json::from_value(policy).unwrap()));
        self.changes()
    }

    fn namespace(&mut self, name: &str, labels: &[(&str, &str)]) -> Vec<String> {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        self.0.apply_namespace(name, Some(labels));
        self.changes()
    }

    /// In short; `+` is new, `-` is gone. Chains and sets by their name alone.
    fn changes(&mut self) -> Vec<String> {
        let changes = self.0.take_changes();
        let sign = |before: bool| if before { "-" } else { "+" };
        let sets = changes.sets.iter().map(|((_, name), (before, _))| format!("{}set {name}", sign(before.is_some())));
        let chains = changes.chains.iter().filter(|((_, name), _)| !name.ends_with("-reply"));
        let chains = chains.map(|((_, name), (before, _))| format!("{}chain {name}", sign(before.is_some())));
        let elements =
            changes.elements.iter().filter(|((_, name, _), _)| !name.ends_with("-reply") && **name != *ITSELF);
        let elements = elements.map(|((_, set, key), (before, after))| match (before, after) {
            (_, None) => format!("-{set} {}", text(key)),
            (_, Some(Value::Jump(chain))) => format!("+{set} {} {chain}", text(key)),
            (_, Some(Value::Member)) => format!("+{set} {}", text(key)),
        });
        sets.chain(chains).chain(elements).collect()
    }
}

fn text(key: &Key) -> String {
    match key {
        Key::Address(ip) | Key::Itself(ip) => ip.to_string(),
        Key::AddressPort(ip, protocol, port) => format!("{ip}:{port}/{}", protocol.name()),
    }
}

fn admit(app: &str, peer: Json) -> Json {
    json!({ "podSelector": { "matchLabels": { "app": app } }, "policyTypes": ["Ingress"], "ingress": [{ "from": [peer] }] })
}

fn app(name: &str) -> Json {
    json!({ "podSelector": { "matchLabels": { "app": name } } })
}

const NONE: [&str; 0] = [];

#[test]
fn pods_are_elements() {
    let mut all = Cluster::default();
    assert_eq!(all.pod("d/a", "web", &["10.0.0.1"]), NONE);
    assert_eq!(all.pod_at("there", "d/b", "client", &["10.0.1.1"]), NONE);
    let written = all.policy("d/p", admit("web", app("client")));
    assert_eq!(written, ["+set peers-1", "+chain ingress-1", "+ingress 10.0.0.1 ingress-1", "+peers-1 10.0.1.1"]);
    // More peers and more subjects.
    assert_eq!(all.pod_at("there", "d/c", "client", &["10.0.1.2"]), ["+peers-1 10.0.1.2"]);
    assert_eq!(all.pod("d/e", "web", &["10.0.0.2"]), ["+ingress 10.0.0.2 ingress-1"]);
    assert_eq!(all.pod("d/e", "client", &["10.0.0.2"]), ["-ingress 10.0.0.2", "+peers-1 10.0.0.2"]);
    assert_eq!(all.pod("d/e", "client", &["10.0.0.2"]), NONE);
    // Subjects of other nodes are theirs to isolate; a pod of another namespace is none of these peers.
    assert_eq!(all.pod_at("there", "d/f", "web", &["10.0.1.3"]), NONE);
    assert_eq!(all.pod_at("there", "x/b", "client", &["10.0.1.4"]), NONE);
    // A second policy that says the same needs nothing.
    assert_eq!(all.policy("d/q", admit("web", app("client"))), NONE);
    all.0.apply_policy("d/q", None);
    assert_eq!(all.changes(), NONE);
    // One of two families, and an address that goes.
    let both = all.pod("d/a", "web", &["10.0.0.1", "fd00::1"]);
    assert_eq!(both, ["+set peers-2", "+chain ingress-2", "+ingress fd00::1 ingress-2"]);
    let one = all.pod("d/a", "web", &["10.0.0.1"]);
    assert_eq!(one, ["-set peers-2", "-chain ingress-2", "-ingress fd00::1"]);
    all.0.apply_pod("d/a", None);
    assert_eq!(all.changes(), ["-set peers-1", "-chain ingress-1", "-ingress 10.0.0.1"]);
    assert!(all.0.everything().is_empty());
}

#[test]
fn an_address_of_two_pods_stays_with_the_second() {
    let mut all = Cluster::default();
    all.pod("d/a", "web", &["10.0.0.1"]);
    all.policy("d/p", admit("web", app("client")));
    assert_eq!(all.pod_at("there", "d/b", "client", &["10.0.1.1"]), ["+peers-1 10.0.1.1"]);
    assert_eq!(all.pod_at("there", "d/c", "client", &["10.0.1.1"]), NONE);
    all.0.apply_pod("d/b", None);
    assert_eq!(all.changes(), NONE);
    all.0.apply_pod("d/c", None);
    assert_eq!(all.changes(), ["-peers-1 10.0.1.1"]);
}

#[test]
fn namespaces_are_matched_by_their_labels() {
    let mut all = Cluster::default();
    all.pod("d/a", "web", &["10.0.0.1"]);
    all.pod_at("there", "x/b", "client", &["10.0.1.1"]);
    all.pod_at("there", "y/c", "client", &["10.0.1.2"]);
    all.namespace("x", &[("team", "x")]);
    let peer = json!({ "namespaceSelector": { "matchLabels": { "team": "x" } } });
    let written = all.policy("d/p", admit("web", peer));
    assert_eq!(written, ["+set peers-1", "+chain ingress-1", "+ingress 10.0.0.1 ingress-1", "+peers-1 10.0.1.1"]);
    assert_eq!(all.namespace("y", &[("team", "x")]), ["+peers-1 10.0.1.2"]);
    assert_eq!(all.namespace("x", &[("team", "z")]), ["-peers-1 10.0.1.1"]);
    all.0.apply_namespace("y", None);
    assert_eq!(all.changes(), ["-peers-1 10.0.1.2"]);
}

#[test]
fn named_ports_are_those_of_who_is_called() {
    let mut all = Cluster::default();
    all.pod("d/a", "web", &["10.0.0.1"]);
    all.pod_at("there", "x/b", "client", &["10.0.1.1"]);
    let to = json!({
        "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "ports": [{ "port": "http" }] }],
    });
    let written = all.policy("d/p", to);
    let expected =
        ["+set named-ports-1", "+chain egress-1", "+egress 10.0.0.1 egress-1", "+named-ports-1 10.0.0.1:8080/tcp"];
    assert_eq!(written[..4], expected, "{written:?}");
    assert_eq!(written[4..], ["+named-ports-1 10.0.1.1:8080/tcp"]);
}

#[test]
fn a_claim_says_whose_an_address_is() {
    let mut all = Cluster::default();
    assert!(all.0.covers("d/a", "d/a"), "no policy, no question");
    all.policy("d/p", json!({ "podSelector": { "matchLabels": { "app": "web" } } }));
    assert!(!all.0.covers("d/a", "d/a"), "nobody knows its labels yet");
    all.0.claim("d/a", "d/a", &["10.0.0.1".parse().unwrap()]);
    assert_eq!(all.changes(), NONE);
    assert_eq!(all.pod("d/a", "web", &[]), ["+chain ingress-1", "+ingress 10.0.0.1 ingress-1"]);
    assert!(all.0.covers("d/a", "d/a") && !all.0.covers("d/a", "another"));
    assert_eq!(all.pod("d/a", "web", &["10.0.0.1"]), NONE, "its status says the same");
    // Its sandbox ended and the address was given on, before anybody heard of its end.
    all.0.claim("d/b", "d/b", &["10.0.0.1".parse().unwrap()]);
    assert_eq!(all.pod("d/b", "free", &[]), ["-chain ingress-1", "-ingress 10.0.0.1"]);
    all.0.apply_pod("d/a", None);
    assert_eq!(all.changes(), NONE);
    // A namesake's claim is not the former's.
    all.0.claim("d/b", "new", &["10.0.0.2".parse().unwrap()]);
    all.0.apply_pod("d/b", None);
    assert_eq!(all.changes(), NONE);
    assert!(all.0.claims.contains_key("d/b"), "it will come");
}

/// A node writes the status of its own pods: it must not make one of ours a friend of everybody that its pod is a friend of.
#[test]
fn another_node_does_not_give_its_pods_labels_to_an_address_of_ours() {
    let mut all = Cluster::default();
    all.pod("d/a", "web", &["10.0.0.1"]);
    all.policy("d/p", admit("web", app("client")));
    assert_eq!(all.pod_at("there", "d/early", "client", &["10.0.0.8", "10.0.1.1"]).len(), 2, "nobody knows better");
    for (name, ip) in [("d/x", "10.0.0.7"), ("d/y", "10.0.0.8")] {
        all.0.claim(name, name, &[ip.parse().unwrap()]);
        all.pod(name, "attacker", &[ip]);
    }
    assert_eq!(all.pod_at("there", "d/late", "client", &["10.0.0.7", "10.0.1.2"]), ["+peers-1 10.0.1.2"]);
    all.0.apply_pod("d/late", None);
    assert_eq!(all.changes(), ["-peers-1 10.0.1.2"]);
    all.0.apply_pod("d/early", None);
    assert_eq!(all.changes(), ["-peers-1 10.0.1.1"], "the other one has gone when it was given to d/y");
}

#[test]
fn who_has_ended_or_is_on_the_host_is_nobody() {
    let read = |spec: Json, phase: &str| {
        let pod = json!({ "metadata": { "name": "a", "namespace": "d" }, "spec": spec,
            "status": { "phase": phase, "podIP": "10.0.0.1" } });
        PodInfo::read(&serde_json::from_value(pod).unwrap(), "here")
    };
    let spec = json!({ "containers": [] });
    assert_eq!(read(spec.clone(), "Running").unwrap().ips, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(read(spec.clone(), phase), None);
    }
    assert_eq!(read(json!({ "containers": [], "hostNetwork": true }), "Running"), None);
}
