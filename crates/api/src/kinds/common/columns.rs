//! Building blocks of tables: columns, and the texts that many kinds' cells share.
//! Used by every kind beside this file.
//! What kubectl prints from these is what it prints from upstream's.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    kinds::{
        Column,
        common::access::{entries, items, text, text_at, texts},
    },
    printing,
};

const fn column(
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    description: &'static str,
    priority: i32,
) -> Column {
    Column { name, kind, format, description, priority }
}

pub const fn name() -> Column {
    column("Name", "string", "name", "Unique within the namespace.", 0)
}

pub const fn age() -> Column {
    column("Age", "string", "", "Time since the object was created.", 0)
}

pub const fn string(name: &'static str, description: &'static str) -> Column {
    column(name, "string", "", description, 0)
}

pub const fn integer(name: &'static str, description: &'static str) -> Column {
    column(name, "integer", "", description, 0)
}

pub const fn boolean(name: &'static str, description: &'static str) -> Column {
    column(name, "boolean", "", description, 0)
}

/// Shown with `-o wide` only.
pub const fn wide(name: &'static str, description: &'static str) -> Column {
    column(name, "string", "", description, 1)
}

pub const CONTAINERS: Column = wide("Containers", "Containers of the template.");
pub const IMAGES: Column = wide("Images", "Images of the template's containers.");
pub const SELECTOR: Column = wide("Selector", "Which pods belong to it.");

pub fn name_of(object: &Value) -> Value {
    json!(text_at(object, "metadata.name"))
}

pub fn age_of(object: &Value, now: Timestamp) -> Value {
    json!(printing::age(object["metadata"]["creationTimestamp"].as_str(), now))
}

pub fn deleting(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some_and(Value::is_string)
}

/// Names and images of the containers of a pod specification.
pub fn containers(pod_spec: &Value) -> (Value, Value) {
    let join = |field: &str| {
        let all: Vec<&str> = items(pod_spec, "containers").iter().map(|c| text(c, field)).collect();
        json!(all.join(","))
    };
    (join("name"), join("image"))
}

/// `a=b,c=d`, or `<none>`.
pub fn labels(owner: &Value, field: &str) -> Value {
    let all: Vec<String> =
        entries(owner, field).map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or(""))).collect();
    if all.is_empty() { json!("<none>") } else { json!(all.join(",")) }
}

/// A label selector as `kubectl` shows it, `<none>` when it selects everything.
pub fn selector(owner: &Value, field: &str) -> Value {
    let shown = selector_text(owner.get(field).unwrap_or(&Value::Null));
    if shown.is_empty() { json!("<none>") } else { json!(shown) }
}

/// A label selector in the form that the `labelSelector` parameter takes.
pub fn selector_text(selector: &Value) -> String {
    let mut all: Vec<(String, String)> = entries(selector, "matchLabels")
        .map(|(key, value)| (key.to_string(), format!("{key}={}", value.as_str().unwrap_or(""))))
        .collect();
    for expression in items(selector, "matchExpressions") {
        let key = text(expression, "key");
        let mut values: Vec<&str> = texts(expression, "values").collect();
        values.sort_unstable();
        let values = values.join(",");
        let shown = match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_string(),
            _ => format!("!{key}"),
        };
        all.push((key.to_string(), shown));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().map(|(_, shown)| shown).collect::<Vec<_>>().join(",")
}

/// The condition of a type in `status.conditions`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(&object["status"], "conditions").iter().find(|c| text(c, "type") == kind)
}

pub fn condition_is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| text(c, "status") == "True")
}

/// The first three, and how many more.
pub fn list_with_more(all: &[String], empty: &str) -> String {
    const SHOWN: usize = 3;
    if all.len() > SHOWN {
        format!("{} + {} more...", all[..SHOWN].join(","), all.len() - SHOWN)
    } else if all.is_empty() {
        empty.to_string()
    } else {
        all.join(",")
    }
}

/// An int-or-string or a quantity, as text.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Addresses of a load balancer, sorted.
pub fn load_balancer(status: &Value) -> String {
    let mut all: Vec<&str> = items(&status["loadBalancer"], "ingress")
        .iter()
        .map(|ingress| Some(text(ingress, "ip")).filter(|ip| !ip.is_empty()).unwrap_or(text(ingress, "hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

pub fn or<'a>(text: &'a str, empty: &'a str) -> &'a str {
    if text.is_empty() { empty } else { text }
}
