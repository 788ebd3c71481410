//! A rolling update under load drops nothing: an endpoint is out of the rules before its server is told to stop.

use e2e::{Cluster, NGINX, nginx_archive, update_under_load};

use crate::{kubectl, web};

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
        readinessProbe: {{httpGet: {{path: /, port: 80}}, periodSeconds: 1, timeoutSeconds: 30}}
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
