//! What the conformance texts of [sig-network] ask of the API: endpoints that follow pods, the API server's own
//! Service, proxies through it, and every operation on the network's kinds.

use std::process::Command;

use e2e::{Namespace, eventually};

use crate::{
    kubectl,
    services::{answers, field, ready, server},
};

#[track_caller]
fn becomes(ns: &Namespace, arguments: &[&str], expected: &str) {
    eventually(&format!("{arguments:?} shows {expected:?}"), || {
        let said = ns.try_run(arguments, "");
        if said.ok && said.stdout.trim() == expected { Ok(()) } else { Err((said.stdout, said.stderr)) }
    });
}

#[test]
fn endpoints_and_slices_follow_pods() {
    let ns = kubectl().namespace("follow");
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: a}, ports: [{name: http, port: 80, targetPort: web}, {name: http2, port: 81, targetPort: 8081}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
"#,
    );
    let slice = "kubernetes.io/service-name=web";
    let addresses = ["get", "endpoints", "web", "-o", "jsonpath={.subsets[*].addresses[*].ip}"];
    let in_slices = ["get", "endpointslices", "-l", slice, "-o", "jsonpath={.items[*].endpoints[*].addresses[*]}"];
    let nobody = ["get", "endpointslices", "-l", "kubernetes.io/service-name=nobody", "-o", "name"];
    eventually("a slice for a Service without pods", || match ns.run(&nobody).lines().count() {
        1 => Ok(()),
        count => Err(count),
    });
    becomes(&ns, &["get", "endpoints", "nobody", "-o", "jsonpath={.subsets}"], "");
    server(&ns, "a", "'8080', '8081'", "");
    ready(&ns, &["a"]);
    let ip = field(&ns, "pod", "a", ".status.podIP");
    becomes(&ns, &addresses, &ip);
    becomes(&ns, &in_slices, &ip);
    let ports = ["get", "endpointslices", "-l", slice, "-o", "jsonpath={.items[*].ports[*].port}"];
    eventually("the slice has both ports", || {
        let mut found: Vec<String> = ns.run(&ports).split(' ').map(str::to_string).collect();
        found.sort();
        if found == ["8080", "8081"] { Ok(()) } else { Err(found) }
    });
    ns.run(&["delete", "pod", "a"]);
    becomes(&ns, &addresses, "");
    becomes(&ns, &in_slices, "");
    ns.run(&["delete", "service", "web", "nobody"]);
    becomes(&ns, &["get", "endpoints,endpointslices", "-o", "name"], "");
}

#[test]
fn the_api_server_is_a_service_too() {
    let ns = kubectl().namespace("api");
    server(&ns, "a", "'8080'", "");
    ready(&ns, &["a"]);
    let read = |arguments: &[&str]| kubectl().run(&[&["-n", "default", "get"], arguments].concat());
    let ip = read(&["service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]);
    let endpoint =
        read(&["endpoints", "kubernetes", "-o", "jsonpath={.subsets[0].addresses[0].ip} {.subsets[0].ports[0].port}"]);
    let selector = "kubernetes.io/service-name=kubernetes";
    let format = "jsonpath={.items[0].endpoints[0].addresses[0]} {.items[0].ports[0].port}";
    assert_eq!(read(&["endpointslices", "-l", selector, "-o", format]), endpoint);

    // A pod's token and authority are good for it, by its name.
    let secret = |file: &str| {
        ns.run(&["exec", "a", "--", "cat", &format!("/var/run/secrets/kubernetes.io/serviceaccount/{file}")])
    };
    let authority = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(authority.path(), secret("ca.crt")).expect("written");
    let curl = Command::new("curl")
        .args(["--silent", "--max-time", "60", "--resolve", &format!("kubernetes.default.svc:443:{ip}"), "--cacert"])
        .arg(authority.path())
        .args(["-H", &format!("Authorization: Bearer {}", secret("token").trim())])
        .arg("https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .args(["-H", "Content-Type: application/json", "-d"])
        .arg(r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#)
        .output()
        .expect("curl runs");
    let said = String::from_utf8_lossy(&curl.stdout);
    assert!(said.contains(&format!("system:serviceaccount:{}:default", ns.name)), "{said} {curl:?}");
    // And the pod gets there: the server refuses plain text with a TLS alert.
    eventually("the pod gets to the server", || {
        let asked = ns.try_run(&["exec", "a", "--", "net", "get", "kubernetes.default.svc:443"], "");
        if !asked.ok && asked.stderr.contains("answered \"\\u{15}") { Ok(()) } else { Err(asked) }
    });
}

#[test]
fn pods_services_and_nodes_are_reached_through_the_api_server() {
    let ns = kubectl().namespace("proxy");
    server(&ns, "a", "'8080', '8081'", "");
    ready(&ns, &["a"]);
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: a}, ports: [{name: one, port: 80, targetPort: web}, {name: two, port: 81, targetPort: other}]}
"#,
    );
    let base = format!("/api/v1/namespaces/{}", ns.name);
    for (path, expected) in [
        ("pods/a:8080/proxy/", "a 8080"),
        ("pods/http:a:8081/proxy/some/path", "a 8081"),
        ("services/web:one/proxy/", "a 8080"),
        ("services/web:81/proxy/", "a 8081"),
        ("services/http:web:two/proxy/some/path", "a 8081"),
    ] {
        eventually(&format!("{path} gives {expected}"), || {
            let said = ns.try_run(&["get", "--raw", &format!("{base}/{path}")], "");
            if said.stdout.starts_with(expected) { Ok(()) } else { Err((said.stdout, said.stderr)) }
        });
    }
    let of_node = |page: &str| ns.run(&["get", "--raw", &format!("/api/v1/nodes/e2e/proxy/{page}")]);
    assert!(of_node("pods").contains(&ns.name));
    assert!(of_node("runningpods/").contains(&ns.name));
    assert!(of_node("configz").contains("\"clusterDomain\":\"cluster.local\""));
    assert!(of_node("logs/").contains("<a href=\"pods/\">pods/</a>"));
}

#[test]
fn one_port_for_two_protocols() {
    let ns = kubectl().namespace("protocols");
    server(&ns, "a", "'8080'", "");
    ready(&ns, &["a"]);
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: a}
  ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, port: 80, targetPort: 8080, protocol: UDP}]
"#,
    );
    answers(&ns, "a", "get", "web:80", "a 8080");
    answers(&ns, "a", "udp", "web:80", "a 8080");
    let only = r#"[{"op": "replace", "path": "/spec/ports", "value": [{"name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP"}]}]"#;
    ns.run(&["patch", "service", "web", "--type=json", "-p", only]);
    eventually("TCP is refused, UDP goes on", || {
        let tcp = ns.try_run(&["exec", "a", "--", "net", "get", "web:80"], "");
        if tcp.stderr.contains("refused") { Ok(()) } else { Err((tcp.stdout, tcp.stderr)) }
    });
    answers(&ns, "a", "udp", "web:80", "a 8080");
}

#[test]
fn every_operation_on_the_kinds_of_the_network() {
    let ns = kubectl().namespace("kinds");
    let (name, label) = (format!("k{}", std::process::id()), format!("test={}", ns.name));
    let manifest = |kind: &str, version: &str, name: &str, body: &str| {
        format!(
            "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: '{name}', labels: {{test: '{}'}}}}, {body}}}",
            ns.name
        )
    };
    let number = 200 + std::process::id() % 50;
    let (cidr, ip) = (format!("10.250.{number}.0/24"), format!("10.250.{number}.7"));
    for (kind, version, name, body) in [
        (
            "Ingress",
            "networking.k8s.io/v1",
            name.as_str(),
            "spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}".to_string(),
        ),
        ("IngressClass", "networking.k8s.io/v1", &name, "spec: {controller: example.com/controller}".into()),
        (
            "EndpointSlice",
            "discovery.k8s.io/v1",
            &name,
            "addressType: IPv4, endpoints: [{addresses: [192.0.2.9]}], ports: [{port: 80}]".into(),
        ),
        ("ServiceCIDR", "networking.k8s.io/v1", &name, format!("spec: {{cidrs: ['{cidr}']}}")),
        (
            "IPAddress",
            "networking.k8s.io/v1",
            &ip,
            format!("spec: {{parentRef: {{group: '', resource: services, namespace: {}, name: web}}}}", ns.name),
        ),
        ("Service", "v1", &name, "spec: {ports: [{port: 80}]}".into()),
    ] {
        ns.apply(&manifest(kind, version, name, &body));
        assert_eq!(field(&ns, kind, name, ".metadata.name"), name);
        ns.run(&["annotate", kind, name, "patched=yes"]);
        assert_eq!(field(&ns, kind, name, ".metadata.annotations.patched"), "yes");
        let all = ns.run(&["get", kind, "--all-namespaces", "-l", &label, "-o", "name"]);
        assert_eq!(all.lines().count(), 1, "{kind}: {all}");
        ns.run(&["delete", kind, "-l", &label]);
        becomes(&ns, &["get", kind, "-l", &label, "-o", "name"], "");
    }
    // A Service's status has a life of its own; of a foreign class, so that our load balancer leaves it alone.
    let spec = "spec: {type: LoadBalancer, loadBalancerClass: example.com/other, ports: [{port: 80}]}";
    ns.apply(&manifest("Service", "v1", &name, spec));
    let status = r#"{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"}]}}}"#;
    ns.run(&["patch", "service", &name, "--subresource=status", "--type=merge", "-p", status]);
    assert_eq!(field(&ns, "service", &name, ".status.loadBalancer.ingress[0].ip"), "203.0.113.1");
}

#[test]
fn a_node_may_not_speak_for_others() {
    let kubectl = kubectl();
    let allowed = |verb: &str, what: &str, part: &str| {
        let node = ["--as", "system:node:e2e", "--as-group", "system:nodes", "--subresource", part];
        kubectl.try_run(&[&["auth", "can-i", verb, what, "-n", "kube-system"], &node[..]].concat(), "").ok
    };
    for verb in ["create", "update", "patch", "delete"] {
        assert!(!allowed(verb, "endpointslices.discovery.k8s.io", ""), "{verb}");
        assert!(!allowed(verb, "services", ""), "{verb}");
    }
    // Nodes ask each other about endpoints before they stop a pod, and nothing else.
    assert!(allowed("get", "nodes", "withdrawn"));
    assert!(!allowed("get", "nodes", "proxy") && !allowed("get", "nodes", "pods"));
}
