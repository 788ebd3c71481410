//! Reads stations from an object's metadata, managed fields, conditions and container states, and from events.
//! Called by the timeline, which puts them in order.
//! Pure; a time that does not parse is left out.

use serde_json::Value;

use super::{Station, container_statuses};
use crate::describe::{
    fields::{list, name, number, string, text, timestamp},
    sections::event_time,
};

fn station(time: &Value, rank: u8, what: impl Into<String>, source: &'static str) -> Option<Station> {
    let time = timestamp(time)?;
    Some(Station { time, rank, what: what.into(), who: String::new(), detail: String::new(), source })
}

pub fn of_object(object: &Value) -> Vec<Station> {
    let mut stations = Vec::new();
    let meta = &object["metadata"];
    let managed = list(&meta["managedFields"]);
    if let Some(mut created) = station(&meta["creationTimestamp"], 0, "created", "metadata") {
        let creator = managed
            .iter()
            .filter(|entry| string(&entry["subresource"]).is_empty())
            .min_by_key(|entry| timestamp(&entry["time"]));
        created.who = creator.map_or_else(String::new, writer);
        stations.push(created);
    }
    stations.extend(managed.iter().filter_map(|entry| managed_fields(entry, &meta["creationTimestamp"])));
    stations.extend(list(&object["status"]["conditions"]).iter().filter_map(condition));
    if string(&object["kind"]) == "Pod" {
        stations.extend(of_pod(object));
    }
    for (field, what) in
        [("startTime", "started"), ("completionTime", "completed"), ("lastScheduleTime", "last scheduled")]
    {
        let kind = string(&object["kind"]);
        if kind != "Pod" {
            stations.extend(station(&object["status"][field], 3, what, "status"));
        }
    }
    stations.extend(deletion(meta));
    stations
}

/// When deletion was asked for: the timestamp less the grace period it allows.
fn deletion(meta: &Value) -> Option<Station> {
    let mut asked = station(&meta["deletionTimestamp"], 9, "deletion asked for", "metadata")?;
    let grace = number(&meta["deletionGracePeriodSeconds"]);
    asked.time = asked.time.checked_sub(jiff::SignedDuration::from_secs(grace)).ok()?;
    let finalizers = list(&meta["finalizers"]).iter().map(text).collect::<Vec<_>>().join(", ");
    asked.detail = match (grace, finalizers.as_str()) {
        (0, "") => String::new(),
        (grace, "") => format!("grace period of {grace}s"),
        (_, finalizers) => format!("finalizers {finalizers}"),
    };
    Some(asked)
}

fn managed_fields(entry: &Value, created: &Value) -> Option<Station> {
    // The first write is the creation itself; a slow server notes it a second before it dates the object.
    if timestamp(&entry["time"]) <= timestamp(created) && string(&entry["subresource"]).is_empty() {
        return None;
    }
    let what = match (string(&entry["operation"]), string(&entry["subresource"])) {
        ("Apply", "") => "applied".to_string(),
        ("Apply", subresource) => format!("{subresource} applied"),
        (_, "") => "last changed".to_string(),
        (_, subresource) => format!("{subresource} last written"),
    };
    let mut found = station(&entry["time"], 8, what, "managedFields")?;
    found.who = writer(entry);
    Some(found)
}

/// Who wrote. A client without a name is recorded as unknown, which says nothing.
fn writer(entry: &Value) -> String {
    match string(&entry["manager"]) {
        "" | "unknown" => String::new(),
        manager => format!("by {manager}"),
    }
}

fn condition(condition: &Value) -> Option<Station> {
    let (kind, status) = (string(&condition["type"]), string(&condition["status"]));
    let what = match (kind, status) {
        ("PodScheduled", "True") => "scheduled".to_string(),
        ("PodReadyToStartContainers", "True") => "sandbox and network ready".to_string(),
        ("Initialized", "True") => "initialized".to_string(),
        ("ContainersReady", "True") => "containers ready".to_string(),
        ("Ready", "True") => "ready".to_string(),
        (kind, "True") => format!("{kind} became true"),
        (kind, "False") => format!("{kind} became false"),
        (kind, status) => format!("{kind} became {}", status.to_lowercase()),
    };
    let rank = match kind {
        "PodScheduled" => 1,
        "PodReadyToStartContainers" => 2,
        "Initialized" => 4,
        "ContainersReady" => 6,
        _ => 7,
    };
    let mut found = station(&condition["lastTransitionTime"], rank, what, "condition")?;
    let said = [string(&condition["reason"]), string(&condition["message"])];
    found.detail = said.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    Some(found)
}

fn of_pod(pod: &Value) -> Vec<Station> {
    let mut stations: Vec<Station> = Vec::new();
    if let Some(mut seen) = station(&pod["status"]["startTime"], 1, "seen by its kubelet", "status") {
        seen.detail = format!("node {}", text(&pod["spec"]["nodeName"]));
        stations.push(seen);
    }
    for (noun, status) in container_statuses(pod) {
        let container = text(&status["name"]);
        let restarts = number(&status["restartCount"]);
        for state in [&status["lastState"], &status["state"]] {
            stations.extend(
                station(&state["running"]["startedAt"], 5, format!("{noun} {container} started"), "container").map(
                    |mut found| {
                        if restarts > 0 {
                            found.detail = format!("restart {restarts}");
                        }
                        found
                    },
                ),
            );
            let ended = &state["terminated"];
            stations.extend(station(&ended["startedAt"], 5, format!("{noun} {container} started"), "container"));
            stations.extend(station(&ended["finishedAt"], 5, format!("{noun} {container} ended"), "container").map(
                |mut found| {
                    found.detail = format!("exit code {} {}", number(&ended["exitCode"]), text(&ended["reason"]))
                        .trim()
                        .to_string();
                    found
                },
            ));
        }
    }
    stations
}

pub fn of_events(events: &[Value]) -> Vec<Station> {
    let of_event = |event: &Value| {
        let component = match string(&event["source"]["component"]) {
            "" => text(&event["reportingComponent"]),
            component => component.to_string(),
        };
        let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        Some(Station {
            time: event_time(event)?,
            rank: 5,
            what: format!("{}{times}", text(&event["reason"])),
            who: component,
            detail: string(&event["message"]).trim().to_string(),
            source: "event",
        })
    };
    events.iter().filter_map(of_event).collect()
}

/// A pod as a station of its controller.
pub fn of_member(pod: &Value) -> Vec<Station> {
    let label = name(pod);
    let mut stations: Vec<Station> = Vec::new();
    stations.extend(station(&pod["metadata"]["creationTimestamp"], 3, format!("pod {label} created"), "metadata"));
    for found in list(&pod["status"]["conditions"]) {
        let what = match (string(&found["type"]), string(&found["status"])) {
            ("PodScheduled", "True") => format!("pod {label} scheduled"),
            ("Ready", "True") => format!("pod {label} ready"),
            _ => continue,
        };
        stations.extend(station(&found["lastTransitionTime"], 4, what, "condition"));
    }
    stations
}
