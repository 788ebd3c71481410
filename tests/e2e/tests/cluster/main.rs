//! Tests that share one running cluster, each in a namespace of its own.

mod access;
mod autoscaling;
mod cis_benchmark;
mod file_modes;
mod guestbook;
mod ingress;
mod journey;
mod kubectl_client;
mod kubectl_compare;
mod kubectl_terminal;
mod names;
mod network;
mod network_kinds;
mod network_policy;
mod node;
mod pull;
mod python;
mod rollout;
mod services;
mod workloads;

use std::sync::OnceLock;

use e2e::{Cluster, Kubectl};

/// The shared cluster with the test image imported.
fn kubectl() -> Kubectl {
    static IMPORTED: OnceLock<()> = OnceLock::new();
    let cluster = Cluster::shared();
    IMPORTED.get_or_init(|| cluster.import_busybox());
    cluster.kubectl()
}

/// A Deployment of busybox's web server that answers with its host name.
fn web(name: &str, replicas: u32) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: web
        image: {image}
        command: [sh, -c, "mkdir /www; hostname > /www/index.html; echo started; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait"]
        ports: [{{containerPort: 8080}}]
        readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{port: 80, targetPort: 8080}}]
"#,
        image = e2e::BUSYBOX
    )
}
