//! An application of several tiers that find each other by name: what is written at its front is read back there.

use e2e::{BUSYBOX, eventually};

use crate::kubectl;

/// One tier: a Deployment of busybox's web server with the scripts below, and its Service.
fn tier(name: &str, replicas: u32, before: &str) -> String {
    format!(
        r#"
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: guestbook, tier: {name}}}}}
  template:
    metadata: {{labels: {{app: guestbook, tier: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{name: scripts, configMap: {{name: scripts, defaultMode: 0755}}}}]
      containers:
      - name: web
        image: {BUSYBOX}
        command: [sh, -c, "touch /www/data; {before} httpd -f -p 8080 -h /www"]
        volumeMounts: [{{name: scripts, mountPath: /www/cgi-bin}}]
        readinessProbe: {{httpGet: {{path: /data, port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: guestbook, tier: {name}}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#
    )
}

/// The frontend writes to the primary and reads from the replicas, which copy it.
const SCRIPTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  store: |
    #!/bin/sh
    echo "Content-Type: text/plain"
    echo
    echo "$QUERY_STRING" >> /www/data
    echo stored
  write: |
    #!/bin/sh
    echo "Content-Type: text/plain"
    echo
    wget -q -O - "http://primary/cgi-bin/store?$QUERY_STRING"
  read: |
    #!/bin/sh
    echo "Content-Type: text/plain"
    echo
    wget -q -O - http://replica/data
"#;

#[test]
fn an_application_of_several_tiers() {
    let ns = kubectl().namespace("guestbook");
    let copy =
        "while true; do wget -q -O /www/new http://primary/data && busybox mv /www/new /www/data; sleep 0.2; done &";
    let tiers = [tier("primary", 1, ""), tier("replica", 2, copy), tier("frontend", 3, "")].concat();
    ns.apply(&format!("{SCRIPTS}{tiers}"));
    for name in ["primary", "replica", "frontend"] {
        ns.run(&["rollout", "status", &format!("deployment/{name}"), "--timeout=180s"]);
    }
    // As a user would through the API server, without knowing where anything runs.
    let ask = |script: &str| {
        let path = format!("/api/v1/namespaces/{}/services/frontend:80/proxy/cgi-bin/{script}", ns.name);
        let answer = ns.try_run(&["get", "--raw", &path], "");
        if answer.ok { Ok(answer.stdout) } else { Err(answer.stderr) }
    };
    eventually("the frontend has no entries", || match ask("read") {
        Ok(text) if text.is_empty() => Ok(()),
        other => Err(other),
    });
    // Each attempt writes another entry: one may be stored though its answer is lost.
    let mut attempt = 0;
    let entry = eventually("an entry is taken", || {
        attempt += 1;
        let entry = format!("entry=TestEntry{attempt}");
        match ask(&format!("write?{entry}")) {
            Ok(text) if text == "stored\n" => Ok(entry),
            other => Err(other),
        }
    });
    eventually("the entry is read back", || match ask("read") {
        Ok(text) if text.lines().any(|line| line == entry) => Ok(()),
        other => Err(other),
    });
    ns.run(&["delete", "deployment,service", "primary", "replica", "frontend", "--timeout=180s"]);
    eventually("it is stopped", || {
        let left = ns.run(&["get", "pods", "-l", "app=guestbook", "-o", "name"]);
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    });
}
