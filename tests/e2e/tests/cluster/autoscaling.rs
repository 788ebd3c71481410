//! A HorizontalPodAutoscaler scales by our own `metrics.k8s.io`, with nothing installed.

use e2e::{BUSYBOX, eventually};

use crate::kubectl;

#[test]
fn load_makes_pods() {
    let ns = kubectl().namespace("autoscaling");
    let manifest = format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: burner}}
spec:
  selector: {{matchLabels: {{app: burner}}}}
  template:
    metadata: {{labels: {{app: burner}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: spin
        image: {BUSYBOX}
        command: [sh, -c, 'while true; do :; done']
        resources: {{requests: {{cpu: 20m}}, limits: {{cpu: 100m}}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: burner}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: burner}}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{{type: Resource, resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 50}}}}}}]
"#
    );
    ns.apply(&manifest);
    eventually("the load brings a second pod", || {
        let found = ns.json(&["get", "deployment", "burner"]);
        if found["status"]["readyReplicas"] == 2 { Ok(()) } else { Err(ns.run(&["describe", "hpa", "burner"])) }
    });
    let described = ns.run(&["describe", "hpa", "burner"]);
    let reason = "New size: 2; reason: cpu resource utilization (percentage of request) above target";
    assert!(described.contains(reason), "{described}");
    eventually("it is at its limit", || {
        let found = ns.json(&["get", "hpa", "burner"]);
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let limited = |c: &serde_json::Value| c["type"] == "ScalingLimited" && c["reason"] == "TooManyReplicas";
        if conditions.iter().any(limited) { Ok(()) } else { Err(found.to_string()) }
    });
}
