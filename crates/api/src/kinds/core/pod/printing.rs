//! What `kubectl get pods` shows.
//! Used by `pod`.
//! Invariant: pure; the time is an argument (tidy: `pure_files`).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::{
        Column,
        common::{
            access::{flag, int_at, items, part, text},
            columns::{age, age_of, condition, condition_is_true, deleting, name, name_of, or, string, wide},
        },
    },
    printing,
};

pub const COLUMNS: [Column; 9] = [
    name(),
    string("Ready", "Ready containers of all that run."),
    string("Status", "What the pod as a whole is doing."),
    string("Restarts", "Restarts of its containers, and when the last one was."),
    age(),
    wide("IP", "Address of the pod."),
    wide("Node", "Node it is bound to."),
    wide("Nominated Node", "Node that preemption makes room on."),
    wide("Readiness Gates", "Readiness gates that are true."),
];

pub fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let summary = summarize(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, printing::age(Some(last), now))
        }
        _ => summary.restarts.to_string(),
    };
    let ip = items(status, "podIPs").first().map_or(text(status, "podIP"), |ip| text(ip, "ip"));
    vec![
        name_of(pod),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(restarts),
        age_of(pod, now),
        json!(or(ip, "<none>")),
        json!(or(text(spec, "nodeName"), "<none>")),
        json!(or(text(status, "nominatedNodeName"), "<none>")),
        json!(readiness_gates(pod)),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = items(&pod["spec"], "readinessGates");
    if gates.is_empty() {
        return "<none>".to_string();
    }
    let open = gates.iter().filter(|gate| condition_is_true(pod, text(gate, "conditionType"))).count();
    format!("{open}/{}", gates.len())
}

struct Summary<'a> {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<&'a str>,
}

fn summarize(pod: &Value) -> Summary<'_> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let sidecars: Vec<&str> = items(spec, "initContainers")
        .iter()
        .filter(|c| text(c, "restartPolicy") == "Always")
        .map(|c| text(c, "name"))
        .collect();
    let mut summary = Summary {
        ready: 0,
        total: items(spec, "containers").len() + sidecars.len(),
        reason: or(text(status, "reason"), text(status, "phase")).to_string(),
        restarts: 0,
        last_restart: None,
    };
    if condition(pod, "PodScheduled").is_some_and(|c| text(c, "reason") == "SchedulingGated") {
        summary.reason = "SchedulingGated".to_string();
    }
    let (initializing, sidecar_restarts, sidecar_last) = init_containers(pod, &sidecars, &mut summary);
    if !initializing || condition_is_true(pod, "Initialized") {
        summary.restarts = sidecar_restarts;
        summary.last_restart = sidecar_last;
        containers(pod, &mut summary);
    }
    if deleting(pod) {
        if text(status, "reason") == "NodeLost" {
            summary.reason = "Unknown".to_string();
        } else if !matches!(text(status, "phase"), "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_string();
        }
    }
    summary
}

fn last_finish(container: &Value) -> Option<&str> {
    container["lastState"]["terminated"]["finishedAt"].as_str()
}

/// Says whether init containers are still at work, and how often the sidecars among them restarted.
fn init_containers<'a>(pod: &'a Value, sidecars: &[&str], summary: &mut Summary<'a>) -> (bool, i64, Option<&'a str>) {
    let (mut restarts, mut last) = (0, None);
    for (index, container) in items(&pod["status"], "initContainerStatuses").iter().enumerate() {
        let sidecar = sidecars.contains(&text(container, "name"));
        summary.restarts += int_at(container, "restartCount");
        summary.last_restart = summary.last_restart.max(last_finish(container));
        if sidecar {
            restarts += int_at(container, "restartCount");
            last = last.max(last_finish(container));
        }
        let terminated = part(&container["state"], "terminated");
        if terminated.is_some_and(|t| int_at(t, "exitCode") == 0) {
            continue;
        }
        if sidecar && flag(container, "started") {
            summary.ready += usize::from(flag(container, "ready"));
            continue;
        }
        let waiting = text(&container["state"]["waiting"], "reason");
        summary.reason = match terminated {
            Some(terminated) => format!("Init:{}", ending(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", items(&pod["spec"], "initContainers").len()),
        };
        return (true, restarts, last);
    }
    (false, restarts, last)
}

fn ending(terminated: &Value) -> String {
    match (text(terminated, "reason"), int_at(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", int_at(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_string(),
    }
}

fn containers<'a>(pod: &'a Value, summary: &mut Summary<'a>) {
    let (mut running, mut failure) = (false, None);
    for container in items(&pod["status"], "containerStatuses").iter().rev() {
        summary.restarts += int_at(container, "restartCount");
        summary.last_restart = summary.last_restart.max(last_finish(container));
        let state = &container["state"];
        let waiting = text(&state["waiting"], "reason");
        if !waiting.is_empty() {
            summary.reason = waiting.to_string();
        } else if let Some(terminated) = part(state, "terminated") {
            summary.reason = ending(terminated);
            if int_at(terminated, "exitCode") != 0 {
                failure = Some(summary.reason.clone());
            }
        } else if flag(container, "ready") && part(state, "running").is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        if running && condition_is_true(pod, "Ready") {
            summary.reason = "Running".to_string();
        } else if let Some(failure) = failure {
            summary.reason = failure;
        } else if running {
            summary.reason = "NotReady".to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Value, extra: Value, ready: &str, reason: &str, restarts: &str) {
        let mut pod = json!({
            "metadata": { "name": "p", "creationTimestamp": "2024-01-01T00:00:00Z" },
            "spec": { "containers": [{ "name": "c" }], "initContainers": [{ "name": "i" }] },
            "status": status,
        });
        if let Some(map) = extra.as_object() {
            for (key, value) in map {
                pod["metadata"][key] = value.clone();
            }
        }
        let now: Timestamp = "2024-01-01T00:05:00Z".parse().unwrap();
        let cells = cells(&pod, now);
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(
            (cells[1].as_str(), cells[2].as_str(), cells[3].as_str()),
            (Some(ready), Some(reason), Some(restarts))
        );
        assert_eq!(cells[4], "5m");
    }

    #[test]
    fn statuses() {
        let no = json!({});
        check(json!({ "phase": "Pending" }), no.clone(), "0/1", "Pending", "0");
        check(
            json!({ "phase": "Running", "containerStatuses": [{ "ready": true, "restartCount": 0, "state": { "running": {} } }] }),
            no.clone(),
            "1/1",
            "Running",
            "0",
        );
        let crash = json!({ "phase": "Running", "containerStatuses": [{
            "ready": false, "restartCount": 3, "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "finishedAt": "2024-01-01T00:03:00Z" } },
        }] });
        check(crash.clone(), no.clone(), "0/1", "CrashLoopBackOff", "3 (2m ago)");
        check(crash, json!({ "deletionTimestamp": "2024-01-01T00:04:00Z" }), "0/1", "Terminating", "3 (2m ago)");
        check(
            json!({ "phase": "Pending", "initContainerStatuses": [{ "name": "i", "state": { "running": {} } }] }),
            no.clone(),
            "0/1",
            "Init:0/1",
            "0",
        );
        check(
            json!({ "phase": "Pending", "initContainerStatuses": [{ "name": "i", "state": { "terminated": { "exitCode": 2 } } }] }),
            no.clone(),
            "0/1",
            "Init:ExitCode:2",
            "0",
        );
        check(
            json!({ "phase": "Succeeded", "containerStatuses": [{ "state": { "terminated": { "exitCode": 0, "reason": "Completed" } } }] }),
            no.clone(),
            "0/1",
            "Completed",
            "0",
        );
        check(json!({ "phase": "Failed", "reason": "Evicted" }), no, "0/1", "Evicted", "0");
    }
}
