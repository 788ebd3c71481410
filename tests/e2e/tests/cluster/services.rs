//! What the conformance texts of [sig-network] ask of Services, with real packets: TCP and UDP, from pods and from
//! the node.

use e2e::{BUSYBOX, Namespace, eventually, free_port};

use crate::kubectl;

/// Pods of our own server, Ready: HTTP and UDP on every port.
pub fn server(ns: &Namespace, name: &str, ports: &str, extra: &str) {
    ns.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}, tier: net}}}}
spec:
  terminationGracePeriodSeconds: 2
  {extra}
  containers:
  - name: net
    image: {BUSYBOX}
    command: [net, serve, {ports}]
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
    ports: [{{name: web, containerPort: 8080}}, {{name: other, containerPort: 8081}}]
"#
    ));
}

/// A client in the node's own network.
fn on_node(ns: &Namespace, name: &str) {
    ns.apply(&format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{hostNetwork: true, \
         terminationGracePeriodSeconds: 0, containers: [{{name: c, image: '{BUSYBOX}', command: [sleep, '100000']}}]}}}}"
    ));
}

pub fn ready(ns: &Namespace, pods: &[&str]) {
    for pod in pods {
        ns.run(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=180s"]);
    }
}

/// One question from within a pod; `how` is `get` or `udp`.
fn ask(ns: &Namespace, from: &str, how: &str, target: &str) -> Result<String, String> {
    let output = ns.try_run(&["exec", from, "--", "net", how, target], "");
    if output.ok { Ok(output.stdout.trim().to_string()) } else { Err(output.stderr) }
}

#[track_caller]
pub fn answers(ns: &Namespace, from: &str, how: &str, target: &str, expected: &str) {
    eventually(&format!("{how} {target} from {from} gives {expected:?}"), || match ask(ns, from, how, target) {
        Ok(text) if text.starts_with(expected) => Ok(()),
        other => Err(other),
    });
}

#[track_caller]
fn refuses(ns: &Namespace, from: &str, target: &str) {
    eventually(&format!("{target} refuses"), || match ask(ns, from, "get", target) {
        Err(text) if text.contains("refused") => Ok(()),
        other => Err(other),
    });
}

pub fn field(ns: &Namespace, kind: &str, name: &str, path: &str) -> String {
    ns.run(&["get", kind, name, "-o", &format!("jsonpath={{{path}}}")])
}

/// Where the node answers for its ports.
pub fn node_address(ns: &Namespace) -> String {
    field(ns, "node", "e2e", ".status.addresses[?(@.type==\"InternalIP\")].address")
}

#[test]
fn pods_and_nodes_reach_pods_over_tcp_and_udp() {
    let ns = kubectl().namespace("reach");
    server(&ns, "a", "'8080'", "");
    server(&ns, "b", "'8080'", "");
    on_node(&ns, "on-node");
    ready(&ns, &["a", "b", "on-node"]);
    let (a, b) = (field(&ns, "pod", "a", ".status.podIP"), field(&ns, "pod", "b", ".status.podIP"));
    for how in ["get", "udp"] {
        answers(&ns, "a", how, &format!("{b}:8080"), &format!("b 8080 {a}"));
        answers(&ns, "a", how, &format!("{a}:8080"), "a 8080");
        answers(&ns, "on-node", how, &format!("{b}:8080"), "b 8080");
    }
}

#[test]
fn services_balance_map_ports_and_change_their_type() {
    let ns = kubectl().namespace("types");
    server(&ns, "a", "'8080', '8081'", "");
    server(&ns, "b", "'8080', '8081'", "");
    ready(&ns, &["a", "b"]);
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  selector: {tier: net}
  ports:
  - {name: one, port: 80, targetPort: web}
  - {name: two, port: 81, targetPort: 8081}
  - {name: talk, port: 82, targetPort: 8081, protocol: UDP}
  - {name: wrong, port: 83, targetPort: nobody-has-it}
"#,
    );
    let ip = field(&ns, "service", "both", ".spec.clusterIP");
    for pod in ["a", "b"] {
        answers(&ns, "a", "get", &format!("{ip}:80"), &format!("{pod} 8080"));
        answers(&ns, "a", "get", &format!("{ip}:81"), &format!("{pod} 8081"));
        answers(&ns, "a", "udp", &format!("{ip}:82"), &format!("{pod} 8081"));
    }
    // A port that nothing has, and one that the Service has not.
    refuses(&ns, "a", &format!("{ip}:83"));
    refuses(&ns, "a", &format!("{ip}:84"));

    // ClusterIP to NodePort: the node answers for it.
    ns.run(&["patch", "service", "both", "-p", r#"{"spec":{"type":"NodePort"}}"#]);
    let node = node_address(&ns);
    for (how, port) in [("get", "one"), ("udp", "talk")] {
        let port = field(&ns, "service", "both", &format!(".spec.ports[?(@.name==\"{port}\")].nodePort"));
        for pod in ["a", "b"] {
            answers(&ns, "a", how, &format!("{node}:{port}"), pod);
        }
    }
    // To ExternalName: its address and ports are gone, its name leads elsewhere.
    let port = field(&ns, "service", "both", ".spec.ports[0].nodePort");
    let away = r#"{"spec":{"type":"ExternalName","externalName":"a.example","clusterIP":null,"clusterIPs":null,
        "ports":null,"selector":null}}"#;
    ns.run(&["patch", "service", "both", "--type=merge", "-p", away]);
    refuses(&ns, "a", &format!("{node}:{port}"));
    // To NodePort, and then to an address inside only.
    ns.run(&["patch", "service", "both", "--type=merge", "-p",
        r#"{"spec":{"type":"NodePort","externalName":null,"selector":{"app":"b"},"ports":[{"port":80,"targetPort":8080}]}}"#]);
    let port = field(&ns, "service", "both", ".spec.ports[0].nodePort");
    answers(&ns, "a", "get", &format!("{node}:{port}"), "b 8080");
    ns.run(&["patch", "service", "both", "--type=merge", "-p", away]);
    refuses(&ns, "a", &format!("{node}:{port}"));
    // And back.
    ns.run(&["patch", "service", "both", "--type=merge", "-p",
        r#"{"spec":{"type":"ClusterIP","externalName":null,"selector":{"app":"a"},"ports":[{"port":80,"targetPort":8080}]}}"#]);
    let ip = field(&ns, "service", "both", ".spec.clusterIP");
    answers(&ns, "b", "get", &format!("{ip}:80"), "a 8080");
    answers(&ns, "b", "get", "both:80", "a 8080");
    // Without endpoints it refuses at once.
    ns.run(&["patch", "service", "both", "-p", r#"{"spec":{"selector":{"app":"nobody"}}}"#]);
    refuses(&ns, "b", &format!("{ip}:80"));
}

#[test]
fn session_affinity_is_switched_on_and_off() {
    let ns = kubectl().namespace("affinity");
    for pod in ["a", "b", "c"] {
        server(&ns, pod, "'8080'", "");
    }
    ready(&ns, &["a", "b", "c"]);
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  type: NodePort
  selector: {tier: net}
  sessionAffinity: ClientIP
  ports: [{port: 80, targetPort: 8080}]
"#,
    );
    let ip = field(&ns, "service", "sticky", ".spec.clusterIP");
    let node = node_address(&ns);
    let port = field(&ns, "service", "sticky", ".spec.ports[0].nodePort");
    let seen = |target: &str| -> std::collections::BTreeSet<String> {
        let pod = |_| eventually("an answer", || ask(&ns, "a", "get", target)).split(' ').next().map(str::to_string);
        (0..12).filter_map(pod).collect()
    };
    for target in [format!("{ip}:80"), format!("{node}:{port}")] {
        eventually(&format!("{target} keeps its clients"), || match seen(&target).len() {
            1 => Ok(()),
            count => Err(count),
        });
    }
    ns.run(&["patch", "service", "sticky", "-p", r#"{"spec":{"sessionAffinity":"None"}}"#]);
    eventually("clients are spread again", || match seen(&format!("{ip}:80")).len() {
        1 => Err("one pod only"),
        _ => Ok(()),
    });
}

#[test]
fn slices_and_endpoints_that_people_write_are_followed() {
    let ns = kubectl().namespace("slices");
    server(&ns, "a", "'8080', '8081'", "");
    server(&ns, "b", "'8080', '8081'", "");
    ready(&ns, &["a", "b"]);
    let (a, b) = (field(&ns, "pod", "a", ".status.podIP"), field(&ns, "pod", "b", ".status.podIP"));
    // One Service, two slices with other addresses and other ports.
    ns.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: custom}}
spec:
  ports: [{{name: one, port: 80}}, {{name: two, port: 81}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: custom-1, labels: {{kubernetes.io/service-name: custom}}}}
addressType: IPv4
endpoints: [{{addresses: ["{a}"]}}]
ports: [{{name: one, port: 8080}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: custom-2, labels: {{kubernetes.io/service-name: custom}}}}
addressType: IPv4
endpoints: [{{addresses: ["{b}"]}}]
ports: [{{name: one, port: 8080}}, {{name: two, port: 8081}}]
---
apiVersion: v1
kind: Service
metadata: {{name: mirrored}}
spec:
  ports: [{{port: 80}}]
---
apiVersion: v1
kind: Endpoints
metadata: {{name: mirrored}}
subsets: [{{addresses: [{{ip: "{a}"}}], ports: [{{port: 8081}}]}}]
"#
    ));
    for (target, answer) in [("custom:80", "a 8080"), ("custom:80", "b 8080"), ("custom:81", "b 8081")] {
        answers(&ns, "a", "get", target, answer);
    }
    answers(&ns, "a", "get", "mirrored:80", "a 8081");
    let moved = format!(r#"{{"subsets":[{{"addresses":[{{"ip":"{b}"}}],"ports":[{{"port":8080}}]}}]}}"#);
    ns.run(&["patch", "endpoints", "mirrored", "--type=merge", "-p", &moved]);
    answers(&ns, "a", "get", "mirrored:80", "b 8080");
    ns.run(&["delete", "endpoints", "mirrored"]);
    refuses(&ns, "a", "mirrored:80");
}

#[test]
fn host_ports_differ_by_address_and_protocol() {
    let ns = kubectl().namespace("hostport");
    let port = free_port();
    let node = node_address(&ns);
    let pod = |name: &str, ip: &str, protocol: &str| {
        ns.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: net
    image: {BUSYBOX}
    command: [net, serve, '8080']
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
    ports: [{{containerPort: 8080, hostPort: {port}, hostIP: "{ip}", protocol: {protocol}}}]
"#
        ));
    };
    pod("first", "127.0.0.1", "TCP");
    pod("second", &node, "TCP");
    pod("third", &node, "UDP");
    on_node(&ns, "asker");
    ready(&ns, &["first", "second", "third", "asker"]);
    answers(&ns, "asker", "get", &format!("127.0.0.1:{port}"), "first 8080");
    answers(&ns, "asker", "get", &format!("{node}:{port}"), "second 8080");
    answers(&ns, "asker", "udp", &format!("{node}:{port}"), "third 8080");
    // The same once more can't be placed, and says so.
    pod("clash", &node, "UDP");
    eventually("the clash is told", || {
        let events =
            ns.run(&["get", "events", "--field-selector", "involvedObject.name=clash", "-o", "jsonpath={..message}"]);
        if events.contains("free ports for the requested pod ports") { Ok(()) } else { Err(events) }
    });
}

#[test]
fn node_ports_are_given_once() {
    let ns = kubectl().namespace("clash");
    let service = |name: &str, port: u32| {
        format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{type: NodePort, ports: [{{port: 80, nodePort: {port}}}]}}
"#
        )
    };
    ns.run(&["create", "service", "nodeport", "first", "--tcp=80:80"]);
    let port: u32 = field(&ns, "service", "first", ".spec.ports[0].nodePort").parse().expect("a port");
    let said = ns.refused(&["apply", "-f", "-"], &service("second", port));
    assert!(said.contains("provided port is already allocated"), "{said}");
    let said = ns.refused(&["apply", "-f", "-"], &service("third", 80));
    assert!(said.contains("not in the valid range"), "{said}");
}
