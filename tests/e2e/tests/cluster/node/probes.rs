//! Probes: what they ask, when they restart a container, and when they keep it from being ready.

use super::{apply, container, until};
use crate::kubectl;

/// What is probed: how a container starts, what is asked of it, and what makes it ill.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("by-command", "touch /tmp/health; sleep 1000", "exec: {command: [cat, /tmp/health]}", "rm /tmp/health"),
    (
        "by-request",
        "mkdir /www; echo ok > /www/healthz; httpd -p PORT -h /www; sleep 1000",
        "httpGet: {path: /healthz, port: PORT}",
        "rm /www/healthz",
    ),
    ("by-connection", "httpd -p PORT; sleep 1000", "tcpSocket: {port: PORT}", "busybox killall httpd"),
    ("by-grpc", "exec net grpc PORT /tmp/ill", "grpc: {port: PORT SERVICE}", "touch /tmp/ill"),
];

#[test]
fn liveness_restarts_what_fails_and_leaves_the_rest() {
    let ns = kubectl().namespace("liveness");
    // Alive is asked only of what has been seen alive, however long its start takes; and seldom before that, since a
    // node says only so much about one pod.
    let container_of = |name: &str, command: &str, probe: &str| {
        format!(
            "  - name: {name}\n    image: IMAGE\n    command: [sh, -c, '{command}']\n    startupProbe: \
             {{{probe}, initialDelaySeconds: 2, periodSeconds: 3, timeoutSeconds: 30, failureThreshold: 60}}\n    livenessProbe: \
             {{{probe}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1, terminationGracePeriodSeconds: 1}}\n"
        )
    };
    for (name, command, probe, _) in KINDS {
        let containers = [("ill", "8081", ""), ("well", "8082", ", service: liveness")].map(|(who, port, service)| {
            let filled = |text: &str| text.replace("PORT", port).replace("SERVICE", service);
            container_of(who, &filled(command), &filled(probe))
        });
        let head = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n");
        let containers = containers.concat();
        apply(&ns, &format!("{head}spec:\n  terminationGracePeriodSeconds: 0\n  containers:\n{containers}"));
    }
    for (name, _, _, illness) in KINDS {
        until(&ns, name, "has started", |pod| ["ill", "well"].iter().all(|who| container(pod, who)["started"] == true));
        ns.run(&["exec", name, "-c", "ill", "--", "sh", "-c", illness]);
    }
    for (name, ..) in KINDS {
        let restarted = until(&ns, name, "was restarted where it failed", |pod| {
            container(pod, "ill")["restartCount"].as_u64().unwrap_or(0) >= 1
        });
        assert_eq!(container(&restarted, "well")["restartCount"], 0, "{name}");
        super::faults::event(&ns, name, "Killing", "failed liveness probe, will be restarted");
    }
    for (name, message) in [
        ("by-request", "Liveness probe failed: HTTP probe failed with statuscode: 404"),
        ("by-grpc", "Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")"),
    ] {
        super::faults::event(&ns, name, "Unhealthy", message);
    }
}

/// The second of the day of a time as the API writes it.
fn second(time: &serde_json::Value) -> i64 {
    let time = time.as_str().unwrap_or_else(|| panic!("{time} is a time"));
    let clock = time.split(['T', 'Z']).nth(1).expect("a time of the day");
    clock.split(':').fold(0, |sum, part| sum * 60 + part.parse::<i64>().expect("a number"))
}

fn condition(pod: &serde_json::Value, name: &str) -> serde_json::Value {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == name).unwrap_or_default()
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
  - name: started
    image: IMAGE
    command: [sh, -c, 'sleep 2; touch /tmp/up; sleep 1000']
    startupProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}
    livenessProbe: {exec: {command: [cat, /tmp/up]}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: later}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sleep, '1000']
    readinessProbe: {exec: {command: ['true']}, initialDelaySeconds: 3, periodSeconds: 1, timeoutSeconds: 30}
",
    );
    let later = until(&ns, "later", "is ready", |pod| container(pod, "c")["ready"] == true);
    let since = second(&condition(&later, "Ready")["lastTransitionTime"]);
    let waited = (since - second(&container(&later, "c")["state"]["running"]["startedAt"])).rem_euclid(24 * 60 * 60);
    assert!(waited >= 3, "not ready before its delay: {}", later["status"]);
    let settled = until(&ns, "ready", "is ready where it can be", |pod| container(pod, "started")["ready"] == true);
    for name in ["never", "started"] {
        assert_eq!(container(&settled, name)["restartCount"], 0, "{name}");
    }
    assert_eq!(container(&settled, "never")["ready"], false);
    let ready = condition(&settled, "Ready");
    assert_eq!(ready["reason"], "ContainersNotReady", "{ready}");
}
