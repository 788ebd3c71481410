//! What the conformance texts of [sig-network] DNS ask, from within pods: every kind of name, and the files that
//! resolvers read.

use e2e::{BUSYBOX, Namespace, eventually};

use crate::{
    kubectl,
    services::{answers, field, ready, server},
};

/// What `nslookup` says about a name, asked in a pod.
fn lookup(ns: &Namespace, kind: &str, name: &str) -> String {
    let output = ns.try_run(&["exec", "asker", "--", "nslookup", &format!("-type={kind}"), name], "");
    format!("{}{}", output.stdout, output.stderr)
}

#[track_caller]
fn finds(ns: &Namespace, kind: &str, name: &str, expected: &str) {
    eventually(&format!("{kind} {name} gives {expected}"), || {
        let said = lookup(ns, kind, name);
        if said.contains(expected) { Ok(()) } else { Err(said) }
    });
}

/// The name under which an IPv4 address is looked up.
fn reverse(ip: &str) -> String {
    let parts: Vec<&str> = ip.split('.').rev().collect();
    format!("{}.in-addr.arpa", parts.join("."))
}

#[test]
fn names_of_services_and_pods() {
    let ns = kubectl().namespace("names");
    ns.run(&["run", "asker", "--image", BUSYBOX, "--restart=Never", "--", "sleep", "100000"]);
    server(&ns, "querier", "'8080'", "hostname: one\n  subdomain: sub");
    ns.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: sub}
spec: {clusterIP: None, selector: {app: querier}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec: {selector: {app: querier}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: foo.example.com}
"#,
    );
    ready(&ns, &["asker", "querier"]);
    let (domain, pod) = (format!("{}.svc.cluster.local", ns.name), field(&ns, "pod", "querier", ".status.podIP"));
    let ip = field(&ns, "service", "plain", ".spec.clusterIP");
    for name in
        ["plain".to_string(), format!("plain.{}", ns.name), format!("plain.{}.svc", ns.name), format!("plain.{domain}")]
    {
        answers(&ns, "asker", "get", &format!("{name}:80"), "one 8080");
    }
    finds(&ns, "a", &format!("plain.{domain}"), &ip);
    finds(&ns, "srv", &format!("_http._tcp.plain.{domain}"), &format!("plain.{domain}"));
    finds(&ns, "ptr", &reverse(&ip), &format!("plain.{domain}"));
    finds(&ns, "a", &format!("sub.{domain}"), &pod);
    finds(&ns, "a", &format!("one.sub.{domain}"), &pod);
    finds(&ns, "srv", &format!("_http._tcp.sub.{domain}"), &format!("one.sub.{domain}"));
    finds(&ns, "ptr", &reverse(&pod), &format!("one.sub.{domain}"));
    finds(&ns, "a", &format!("{}.{}.pod.cluster.local", pod.replace('.', "-"), ns.name), &pod);
    finds(&ns, "cname", &format!("outside.{domain}"), "foo.example.com");
    finds(&ns, "a", "kubernetes.default.svc.cluster.local", "10.19.0.1");
    finds(&ns, "a", &format!("absent.{domain}"), "NXDOMAIN");

    // An ExternalName that moves, and one that becomes an ordinary Service.
    ns.run(&["patch", "service", "outside", "-p", r#"{"spec":{"externalName":"bar.example.com"}}"#]);
    finds(&ns, "cname", &format!("outside.{domain}"), "bar.example.com");
    let ordinary = r#"{"spec":{"type":"ClusterIP","externalName":null,"ports":[{"port":80}]}}"#;
    ns.run(&["patch", "service", "outside", "--type=merge", "-p", ordinary]);
    let ip = field(&ns, "service", "outside", ".spec.clusterIP");
    finds(&ns, "a", &format!("outside.{domain}"), &ip);

    // The pod knows its own full name.
    let hosts = ns.run(&["exec", "querier", "--", "cat", "/etc/hosts"]);
    assert!(hosts.contains(&format!("{pod}\tone.sub.{domain}\tone")), "{hosts}");
    assert_eq!(ns.run(&["exec", "querier", "--", "hostname"]).trim(), "one");
    ns.run(&["delete", "pod", "asker", "--grace-period=0", "--force"]);
}

#[test]
fn resolvers_are_configured_as_pods_ask() {
    let ns = kubectl().namespace("resolv");
    let check = |name: &str, spec: &str, expected: &[&str]| {
        ns.apply(&format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, {spec}, containers: \
             [{{name: c, image: '{BUSYBOX}', command: [cat, /etc/resolv.conf]}}]}}}}"
        ));
        ns.run(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &format!("pod/{name}"), "--timeout=180s"]);
        let said = ns.run(&["logs", name]);
        for line in expected {
            assert!(said.lines().any(|l| l == *line), "{name}: {line:?} in {said}");
        }
        said
    };
    let search = format!("search {}.svc.cluster.local svc.cluster.local cluster.local", ns.name);
    let said = check("first", "dnsPolicy: ClusterFirst", &["nameserver 10.19.0.10", "options ndots:5"]);
    assert!(said.contains(&search), "{said}");
    let said = check("host", "dnsPolicy: ClusterFirstWithHostNet, hostNetwork: true", &["nameserver 10.19.0.10"]);
    assert!(said.contains(&search), "{said}");
    // The node's own, also for who asks for the cluster's in the node's network without saying that it means it.
    for (name, spec) in [("plain", "dnsPolicy: Default"), ("host-plain", "dnsPolicy: ClusterFirst, hostNetwork: true")]
    {
        let said = check(name, spec, &[]);
        assert!(!said.contains("10.19.0.10"), "{said}");
    }
    let said = check(
        "own",
        "dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.53], searches: [one.test, two.test], options: [{name: ndots, value: '2'}, {name: edns0}]}",
        &["nameserver 192.0.2.53", "search one.test two.test", "options ndots:2 edns0"],
    );
    assert!(!said.contains("10.19.0.10"), "{said}");
}
