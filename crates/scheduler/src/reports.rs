//! What users are told about a pod: events and the PodScheduled condition.
//! Used by `scheduler`; written by tasks of its own so that deciding never waits.
//! A condition that already says the same is not written again.

use std::{collections::BTreeMap, sync::Arc};

use client::{Client, EventRecorder, EventType, Patch};
use env::Env;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use crate::pod_info::{PendingPod, PodInfo};

/// Upstream's limit on the note of an event.
const EVENT_NOTE_BYTES_MAX: usize = 1024;

#[derive(Clone)]
pub struct Reports {
    pub client: Client,
    pub env: Env,
    /// One voice per profile.
    recorders: Arc<BTreeMap<String, EventRecorder>>,
}

impl Reports {
    pub fn new<'a>(client: Client, env: Env, profiles: impl Iterator<Item = &'a String>) -> Self {
        let recorder = |name: &String| (name.clone(), EventRecorder::new(client.clone(), env.clone(), name, ""));
        let recorders = Arc::new(profiles.map(recorder).collect());
        Self { client, env, recorders }
    }

    /// Says something about `pod` in the voice of the profile that schedules `on_behalf_of`.
    pub fn say(&self, kind: EventType, pod: &PodInfo, on_behalf_of: &PodInfo, reason: &str, message: String) {
        if let Some(recorder) = self.recorders.get(on_behalf_of.scheduler_name()) {
            recorder.event(&pod.reference(), kind, reason, message);
        }
    }

    pub fn scheduled(&self, pod: &PodInfo, node: &str) {
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.say(EventType::Normal, pod, pod, "Scheduled", message);
    }

    /// `nominated` of `Some("")` takes a nomination back.
    pub fn failed(&self, pod: &PendingPod, reason: &str, message: &str, nominated: Option<&str>) {
        let mut note = message.to_string();
        if note.len() > EVENT_NOTE_BYTES_MAX {
            let end = (0..=EVENT_NOTE_BYTES_MAX - 4).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
            note.truncate(end);
            note.push_str(" ...");
        }
        self.say(EventType::Warning, pod, pod, "FailedScheduling", note);
        self.condition(pod, reason, message, nominated);
    }

    /// Tells the server which node the pod is about to be bound to.
    pub fn nominate(&self, pod: &PodInfo, node: &str) {
        self.patch(pod, json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": node}}));
    }

    /// Tells the server that no room is being made for the pod any more.
    pub fn withdraw_nomination(&self, pod: &PodInfo) {
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": null}});
        self.patch(pod, patch);
    }

    fn condition(&self, pod: &PendingPod, reason: &str, message: &str, nominated: Option<&str>) {
        let nominated = nominated.filter(|node| pod.nominated_node_name().unwrap_or_default() != *node);
        let Some(patch) = status_patch(&pod.pod, reason, message, nominated, self.env.now()) else { return };
        self.patch(pod, patch);
    }

    fn patch(&self, pod: &PodInfo, patch: Value) {
        let pods = self.client.namespaced::<Pod>(pod.namespace());
        let name = pod.name().to_string();
        self.env.spawn(async move {
            match pods.patch_status(&name, &Patch::Strategic(patch)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => tracing::warn!(pod = name, %error, "couldn't update the status of an unscheduled pod"),
            }
        });
    }
}

fn status_patch(pod: &Pod, reason: &str, message: &str, nominated: Option<&str>, now: Timestamp) -> Option<Value> {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let before: Option<&PodCondition> = conditions.iter().find(|c| c.type_ == "PodScheduled");
    let same = before.is_some_and(|c| {
        c.status == "False" && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message)
    });
    if same && nominated.is_none() {
        return None;
    }
    let stands_since = before.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.as_ref());
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastProbeTime": null,
        "lastTransitionTime": match stands_since {
            Some(time) => json!(time),
            None => json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        },
    });
    if let Some(generation) = pod.metadata.generation {
        condition["observedGeneration"] = json!(generation);
    }
    let mut status = json!({"conditions": [condition]});
    if let Some(node) = nominated {
        status["nominatedNodeName"] = if node.is_empty() { Value::Null } else { json!(node) };
    }
    let mut patch = json!({"status": status});
    if let Some(uid) = &pod.metadata.uid {
        patch["metadata"] = json!({"uid": uid});
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(condition: Value, reason: &str, message: &str, wanted: Option<&str>) {
        let pod = json!({"metadata": {"name": "p"}, "status": {"conditions": [condition]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let patch = status_patch(&pod, reason, message, None, now);
        let time = patch.map(|p| p["status"]["conditions"][0]["lastTransitionTime"].as_str().unwrap().to_string());
        assert_eq!(time.as_deref(), wanted);
    }

    #[test]
    fn the_condition_is_written_when_it_says_something_new() {
        let old = |status: &str| {
            json!({"type": "PodScheduled", "status": status, "reason": "Unschedulable", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        check(old("False"), "Unschedulable", "m", None);
        check(old("False"), "Unschedulable", "other", Some("2026-01-01T00:00:00Z"));
        check(old("True"), "Unschedulable", "m", Some("2026-01-02T00:00:00Z"));
    }
}
