//! Probes: what they ask, when they restart a container, and when they keep it from being ready.

use super::{apply, container, phase, until};
use crate::kubectl;

#[test]
fn liveness_restarts_what_fails_and_leaves_the_rest() {
    let ns = kubectl().namespace("liveness");
    let probed = |name: &str, command: &str, probe: &str| {
        format!(
            "  - name: {name}\n    image: IMAGE\n    command: [sh, -c, '{command}']\n    livenessProbe: \
             {{{probe}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1, initialDelaySeconds: 2, terminationGracePeriodSeconds: 1}}\n"
        )
    };
    let web = |port: u16, dies: bool| {
        let end = if dies { "; sleep 6; rm /www/healthz" } else { "" };
        format!("mkdir /www; echo ok > /www/healthz; httpd -p {port} -h /www{end}; sleep 1000")
    };
    let containers = [
        probed(
            "by-command",
            "touch /tmp/health; sleep 6; rm /tmp/health; sleep 1000",
            "exec: {command: [cat, /tmp/health]}",
        ),
        probed("by-request", &web(8081, true), "httpGet: {path: /healthz, port: 8081}"),
        probed("by-connection", "httpd -p 8082; sleep 6; busybox killall httpd; sleep 1000", "tcpSocket: {port: 8082}"),
        probed("well-command", "touch /tmp/health; sleep 1000", "exec: {command: [cat, /tmp/health]}"),
        probed("well-request", &web(8083, false), "httpGet: {path: /healthz, port: 8083}"),
        probed("well-connection", "httpd -p 8084; sleep 1000", "tcpSocket: {port: 8084}"),
    ];
    let pod = |name: &str, containers: &str| {
        let head = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n");
        apply(&ns, &format!("{head}spec:\n  terminationGracePeriodSeconds: 0\n  containers:\n{containers}"));
    };
    pod("live", &containers.concat());
    // A pod of its own: a node says only so much about one.
    let by_call = [
        probed("by-grpc", "exec net grpc 8085 6", "grpc: {port: 8085}"),
        probed("well-grpc", "exec net grpc 8086", "grpc: {port: 8086, service: liveness}"),
    ];
    pod("called", &by_call.concat());
    let restarted = until(&ns, "live", "was restarted where it failed", |pod| {
        ["by-command", "by-request", "by-connection"]
            .iter()
            .all(|name| container(pod, name)["restartCount"].as_u64().unwrap_or(0) >= 1)
    });
    for name in ["well-command", "well-request", "well-connection"] {
        assert_eq!(container(&restarted, name)["restartCount"], 0, "{name}");
    }
    super::faults::event(&ns, "live", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 404");
    super::faults::event(&ns, "live", "Killing", "failed liveness probe, will be restarted");
    let called = until(&ns, "called", "was restarted where it failed", |pod| {
        container(pod, "by-grpc")["restartCount"].as_u64().unwrap_or(0) >= 1
    });
    assert_eq!(container(&called, "well-grpc")["restartCount"], 0);
    let unhealthy = "Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    super::faults::event(&ns, "called", "Unhealthy", unhealthy);
}

#[test]
fn readiness_waits_and_never_restarts() {
    let ns = kubectl().namespace("readiness");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: ready}
spec:
  terminationGracePeriodSeconds: 0
  readinessGates: [{conditionType: example.com/gate}]
  containers:
  - name: never
    image: IMAGE
    command: [sleep, '1000']
    readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}
  - name: later
    image: IMAGE
    command: [sleep, '1000']
    readinessProbe: {exec: {command: ['true']}, initialDelaySeconds: 3, periodSeconds: 1, timeoutSeconds: 30}
  - name: started
    image: IMAGE
    command: [sh, -c, 'sleep 2; touch /tmp/up; sleep 1000']
    startupProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}
    livenessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}
",
    );
    let running = phase(&ns, "ready", "Running");
    assert_eq!(container(&running, "later")["ready"], false, "before its delay");
    let settled = until(&ns, "ready", "is ready where it can be", |pod| {
        container(pod, "later")["ready"] == true && container(pod, "started")["ready"] == true
    });
    for name in ["never", "later", "started"] {
        assert_eq!(container(&settled, name)["restartCount"], 0, "{name}");
    }
    assert_eq!(container(&settled, "never")["ready"], false);
    let conditions = settled["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|c| c["type"] == "Ready").cloned().unwrap_or_default();
    assert_eq!(ready["reason"], "ContainersNotReady", "{ready}");
}
