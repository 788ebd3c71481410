//! NetworkPolicies between real pods: from their first packet, through Services, and for the node's own probes.

use e2e::{Namespace, eventually};

use crate::kubectl;

/// A server with a named port and a readiness probe, and who asks it.
fn pod(name: &str, image: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: {image}
    command: [sh, -c, "mkdir /www; echo hello > /www/index.html; httpd -f -p 8080 -h /www"]
    ports: [{{name: http, containerPort: 8080}}]
    readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1, timeoutSeconds: 30}}
---
"#
    )
}

fn reaches(ns: &Namespace, from: &str, to: &str) -> bool {
    let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {to}");
    ns.try_run(&["exec", from, "--", "sh", "-c", &ask], "").stdout.contains("hello")
}

fn check(ns: &Namespace, from: &str, to: &str, expected: bool) {
    let what = format!("{from} -> {to}: {expected}");
    eventually(&what, || if reaches(ns, from, to) == expected { Ok(()) } else { Err(!expected) });
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n"
    )
}

#[test]
fn policies_hold_from_the_first_packet() {
    let (ns, other) = (kubectl().namespace("policy"), kubectl().namespace("policy-other"));
    let deny = policy("deny", "podSelector: {}, policyTypes: [Ingress, Egress]");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: server}\nspec: {selector: {app: server}, \
                   ports: [{port: 80, targetPort: http}]}\n";
    ns.apply(&deny);
    let pods: String = ["server", "near", "far"].iter().map(|name| pod(name, e2e::BUSYBOX)).collect();
    ns.apply(&(pods + service));
    other.apply(&pod("other", e2e::BUSYBOX));
    // The kubelet's probes come from the node: no policy keeps them out.
    for (ns, names) in [(&ns, &["pod/server", "pod/near", "pod/far"][..]), (&other, &["pod/other"])] {
        let mut wait = vec!["wait", "--for=condition=Ready", "--timeout=180s"];
        wait.extend(names);
        ns.run(&wait);
    }
    let address = |ns: &Namespace, pod: &str| ns.run(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"]);
    let server = format!("{} 8080", address(&ns, "server"));
    assert!(!reaches(&ns, "near", &server) && !reaches(&other, "other", &server), "default deny");

    let allow = policy(
        "in",
        "podSelector: {matchLabels: {app: server}}, \
         ingress: [{from: [{podSelector: {matchLabels: {app: near}}}], ports: [{port: http}]}]",
    ) + &policy(
        "out",
        "podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}]}]",
    );
    ns.apply(&allow);
    check(&ns, "near", &server, true);
    check(&ns, "near", "server 80", true);
    assert!(!reaches(&ns, "far", &server) && !reaches(&other, "other", &server), "not among the peers");

    let spaces = format!("{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {}}}}}}}", other.name);
    let subjects = "podSelector: {matchLabels: {app: server}}";
    ns.apply(&policy("in", &format!("{subjects}, ingress: [{{from: [{spaces}]}}]")));
    check(&other, "other", &server, true);
    check(&ns, "near", &server, false);
    let block = format!("{{ipBlock: {{cidr: 10.18.0.0/16, except: [{}/32]}}}}", address(&other, "other"));
    ns.apply(&policy("in", &format!("{subjects}, ingress: [{{from: [{block}]}}]")));
    check(&other, "other", &server, false);
    check(&ns, "far", &server, true);
}
