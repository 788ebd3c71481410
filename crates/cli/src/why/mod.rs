//! `minke why TYPE/NAME`: what is wrong with an object, from what the cluster publishes about it.
//! `KINDS` is the table; each file explains one family. Works with any Kubernetes API server; a server of ours is also
//! asked for the scheduler's verdict on each node.
//! Reads only; a sentence is never a guess without the evidence under it.

mod claims;
mod containers;
mod namespaces;
mod nodes;
mod other;
mod pending;
mod pods;
mod services;
mod terminating;
#[cfg(test)]
mod tests;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    describe::{
        event_queries,
        fields::{name, namespace, since, string, text, timestamp},
        sections::event_time,
    },
    object_reader::ObjectReader,
};

/// Shown events of one kind of trouble.
const EVENTS_SHOWN_MAX: usize = 3;

/// What is wrong, or that nothing is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    pub wrong: bool,
    /// One word for programs, in the API's own style: `Unschedulable`, `ImagePull`, `CrashLoop`.
    pub reason: String,
    /// One or two sentences for people.
    pub cause: String,
    pub evidence: Vec<String>,
    /// Commands that show more or that help.
    pub commands: Vec<String>,
}

impl Verdict {
    pub fn wrong(reason: &str, cause: impl Into<String>) -> Self {
        Self { wrong: true, reason: reason.to_string(), cause: cause.into(), ..Self::default() }
    }

    pub fn fine(reason: &str, cause: impl Into<String>) -> Self {
        Self { wrong: false, ..Self::wrong(reason, cause) }
    }

    pub fn because(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    pub fn with_events<'a>(mut self, events: impl IntoIterator<Item = &'a Value>, now: Timestamp) -> Self {
        let shown = events.into_iter().take(EVENTS_SHOWN_MAX).map(|event| event_line(event, now));
        self.evidence.extend(shown);
        self
    }

    pub fn try_command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    pub fn exit_code(&self) -> u8 {
        u8::from(self.wrong)
    }

    pub fn to_json(&self, object: &Value) -> Value {
        json!({
            "object": {
                "apiVersion": object["apiVersion"], "kind": object["kind"],
                "namespace": object["metadata"]["namespace"], "name": object["metadata"]["name"],
            },
            "wrong": self.wrong, "reason": self.reason, "cause": self.cause,
            "evidence": self.evidence, "commands": self.commands,
        })
    }

    pub fn to_text(&self, object: &Value) -> String {
        let kind = string(&object["kind"]).to_lowercase();
        let place = match namespace(object) {
            "" => String::new(),
            namespace => format!(" in namespace {namespace}"),
        };
        let mut text = format!("{kind}/{}{place}: {}\n", name(object), self.cause);
        if !self.evidence.is_empty() {
            text.push_str("\nEvidence:\n");
            self.evidence.iter().for_each(|line| text.push_str(&format!("  - {line}\n")));
        }
        if !self.commands.is_empty() {
            text.push_str("\nTry:\n");
            self.commands.iter().for_each(|command| text.push_str(&format!("  {command}\n")));
        }
        text
    }
}

/// What an explanation reads with, and when.
pub struct Inquiry<'r, R> {
    pub reader: &'r R,
    pub now: Timestamp,
}

impl<R: ObjectReader> Inquiry<'_, R> {
    /// The events of an object, newest first.
    pub async fn events(&self, object: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        for query in event_queries(object) {
            events.extend(self.reader.read(query).await.unwrap_or_default());
        }
        events.sort_by_key(|event| std::cmp::Reverse(event_time(event)));
        events
    }

    pub fn ago(&self, time: &Value) -> String {
        format!("{} ago", since(time, self.now))
    }

    pub fn seconds_since(&self, time: &Value) -> Option<i64> {
        timestamp(time).map(|time| self.now.as_second() - time.as_second())
    }
}

/// Why an object is as it is.
pub async fn why<R: ObjectReader>(object: &Value, reader: &R, now: Timestamp) -> Verdict {
    let inquiry = Inquiry { reader, now };
    if string(&object["kind"]) == "Namespace" {
        return namespaces::explain(&inquiry, object).await;
    }
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return terminating::explain(&inquiry, object).await;
    }
    let group = string(&object["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
    match (group, string(&object["kind"])) {
        ("", "Pod") => pods::explain(&inquiry, object).await,
        ("apps", "Deployment") => workloads::deployment(&inquiry, object).await,
        ("apps", "ReplicaSet" | "StatefulSet" | "DaemonSet") | ("", "ReplicationController") => {
            workloads::pod_controller(&inquiry, object).await
        }
        ("batch", "Job") => workloads::job(&inquiry, object).await,
        ("", "Service") => services::explain(&inquiry, object).await,
        ("", "PersistentVolumeClaim") => claims::explain(&inquiry, object).await,
        ("", "Node") => nodes::explain(&inquiry, object).await,
        _ => other::explain(&inquiry, object).await,
    }
}

pub fn event_line(event: &Value, now: Timestamp) -> String {
    let age = match event_time(event) {
        Some(time) => format!("{} ago", api::printing::human_duration(now.as_second() - time.as_second())),
        None => "at an unknown time".to_string(),
    };
    let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
    let times = if count > 1 { format!(", {count} times") } else { String::new() };
    let source = match string(&event["source"]["component"]) {
        "" => string(&event["reportingComponent"]),
        component => component,
    };
    format!("event {} from {source}, {age}{times}: {}", text(&event["reason"]), string(&event["message"]).trim())
}

pub fn condition_line(condition: &Value, now: Timestamp) -> String {
    let (kind, status) = (text(&condition["type"]), text(&condition["status"]));
    let age = match &condition["lastTransitionTime"] {
        Value::Null => String::new(),
        time => format!(" for {}", since(time, now)),
    };
    let said = [string(&condition["reason"]), string(&condition["message"])].map(str::trim);
    let said: Vec<&str> = said.into_iter().filter(|part| !part.is_empty()).collect();
    if said.is_empty() {
        return format!("condition {kind} is {status}{age}");
    }
    format!("condition {kind} is {status}{age}: {}", said.join(": "))
}

/// Events with one of these reasons.
pub fn with_reason<'e>(events: &'e [Value], reasons: &[&str]) -> Vec<&'e Value> {
    events.iter().filter(|event| reasons.contains(&string(&event["reason"]))).collect()
}

/// `-n NAMESPACE`, or nothing for objects of the cluster.
pub fn namespace_flag(object: &Value) -> String {
    match namespace(object) {
        "" => String::new(),
        namespace => format!(" -n {namespace}"),
    }
}

/// A sentence from a message: without the full stop at its end.
pub fn clause(message: &str) -> &str {
    message.trim().trim_end_matches('.')
}

/// `1 pod`, `2 pods`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `a`, `a and b`, `a, b and c`.
pub fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
