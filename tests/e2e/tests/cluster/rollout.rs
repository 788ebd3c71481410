//! A rolling update under load drops nothing: an endpoint is out of the rules before its server is told to stop.

use std::net::SocketAddr;

use e2e::{Cluster, Load, NGINX, Namespace, eventually, http_get, nginx_archive};

use crate::{kubectl, web};

/// Replaces every pod of the Deployment `web` while its Service is asked; nothing may fail.
fn update_under_load(ns: &Namespace, replicas: usize) {
    let address = ns.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let address: SocketAddr = format!("{address}:80").parse().expect("an address");
    eventually("the Service answers", || http_get(address).map_err(|e| e.to_string()));
    let load = Load::start(address);
    load.let_pass(100);
    ns.run(&["set", "env", "deployment/web", "VERSION=2"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    // The last of the old ones end after the rollout counts as done.
    eventually("the old pods are gone", || {
        let pods = ns.run(&["get", "pods", "-o", "name"]).lines().count();
        if pods == replicas { Ok(()) } else { Err(pods) }
    });
    load.let_pass(100);
    let outcome = load.finish();
    let failed = outcome.failures.len();
    assert!(outcome.failures.is_empty(), "{failed} of {} failed: {:?}", outcome.requests, outcome.failures);
    assert!(outcome.requests > 200, "{outcome:?}");
}

#[test]
fn a_rolling_update_under_load_drops_nothing() {
    let ns = kubectl().namespace("rollout");
    // The server of `web` ends at once when it is told to: whoever still reaches it then is refused.
    ns.apply(&web("web", 10));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    update_under_load(&ns, 10);
}

#[test]
fn nginx_is_updated_behind_its_service() {
    let ns = kubectl().namespace("nginx");
    Cluster::shared().import_bytes(&nginx_archive(NGINX));
    ns.apply(&format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: nginx
        image: {NGINX}
        ports: [{{containerPort: 80}}]
        readinessProbe: {{httpGet: {{path: /, port: 80}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
"#
    ));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    update_under_load(&ns, 3);
}
