//! Parts that several descriptions share: labels, annotations, taints, tolerations, events.
//! Used by the describer of every kind.
//! What it prints comes in order of keys, whatever order the object has.

use serde_json::Value;

use super::{
    Context,
    fields::{condition, controller, list, members, name, namespace, rfc1123, since, string, text, timestamp},
    writer::{Writer, put},
};

/// Annotations longer than this are broken over lines.
const ANNOTATION_LENGTH_MAX: usize = 140;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub fn name_and_namespace(w: &mut Writer, object: &Value) {
    put!(w, 0, "Name:\t{}\n", name(object));
    put!(w, 0, "Namespace:\t{}\n", namespace(object));
}

pub fn labels_and_annotations(w: &mut Writer, object: &Value) {
    labels(w, "Labels", &object["metadata"]["labels"]);
    annotations(w, "Annotations", &object["metadata"]["annotations"]);
}

pub fn labels(w: &mut Writer, title: &str, labels: &Value) {
    indented_labels(w, "", title, labels);
}

pub fn indented_labels(w: &mut Writer, indent: &str, title: &str, labels: &Value) {
    let lines = members(labels).map(|(key, value)| format!("{key}={}", text(value))).collect();
    multiline(w, indent, title, lines);
}

/// A title with one value on each line under each other.
pub fn multiline(w: &mut Writer, indent: &str, title: &str, lines: Vec<String>) {
    put!(w, 0, "{indent}{title}:\t");
    if lines.is_empty() {
        w.write(0, "<none>\n");
    }
    for (i, line) in lines.iter().enumerate() {
        let before = if i > 0 { format!("{indent}\t") } else { String::new() };
        put!(w, 0, "{before}{line}\n");
    }
}

pub fn annotations(w: &mut Writer, title: &str, annotations: &Value) {
    put!(w, 0, "{title}:\t");
    let shown: Vec<(&str, &Value)> = members(annotations).filter(|(key, _)| *key != LAST_APPLIED).collect();
    if shown.is_empty() {
        w.write(0, "<none>\n");
    }
    for (i, (key, value)) in shown.into_iter().enumerate() {
        let value = string(value).strip_suffix('\n').unwrap_or(string(value));
        let before = if i > 0 { "\t" } else { "" };
        if value.len() + key.len() + 2 <= ANNOTATION_LENGTH_MAX && !value.contains('\n') {
            put!(w, 0, "{before}{key}: {value}\n");
            continue;
        }
        put!(w, 0, "{before}{key}:\n");
        for line in value.split('\n') {
            put!(w, 0, "\t  {}\n", shorten(line, ANNOTATION_LENGTH_MAX - 2));
        }
    }
}

/// Cuts at bytes as upstream does, but never inside a character.
pub fn shorten(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_string();
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &text[..end])
}

pub fn controlled_by(w: &mut Writer, object: &Value) {
    if let Some(owner) = controller(object) {
        put!(w, 0, "Controlled By:\t{}/{}\n", text(&owner["kind"]), text(&owner["name"]));
    }
}

pub fn taints(w: &mut Writer, taints: &Value) {
    let mut sorted: Vec<&Value> = list(taints).iter().collect();
    sorted.sort_by_key(|taint| format!("{},{}", string(&taint["effect"]), string(&taint["key"])));
    let lines = sorted.into_iter().map(taint_text).collect();
    multiline(w, "", "Taints", lines);
}

pub fn taint_text(taint: &Value) -> String {
    let (key, value, effect) = (string(&taint["key"]), string(&taint["value"]), string(&taint["effect"]));
    match (value, effect) {
        ("", "") => key.to_string(),
        ("", effect) => format!("{key}:{effect}"),
        (value, "") => format!("{key}={value}:"),
        (value, effect) => format!("{key}={value}:{effect}"),
    }
}

pub fn tolerations(w: &mut Writer, title: &str, tolerations: &Value) {
    let mut sorted: Vec<&Value> = list(tolerations).iter().collect();
    sorted.sort_by_key(|toleration| string(&toleration["key"]));
    let line = |toleration: &Value| {
        let (key, value) = (string(&toleration["key"]), string(&toleration["value"]));
        let effect = string(&toleration["effect"]);
        let mut line = key.to_string();
        if !value.is_empty() {
            line.push_str(&format!("={value}"));
        }
        if !effect.is_empty() {
            line.push_str(&format!(":{effect}"));
        }
        if string(&toleration["operator"]) == "Exists" && value.is_empty() {
            line.push_str(if line.is_empty() { "op=Exists" } else { " op=Exists" });
        }
        if let Some(seconds) = toleration["tolerationSeconds"].as_i64() {
            line.push_str(&format!(" for {seconds}s"));
        }
        line
    };
    multiline(w, "", title, sorted.into_iter().map(line).collect());
}

/// Type, status and reason of each condition.
pub fn conditions_with_reason(w: &mut Writer, object: &Value) {
    let conditions = list(&object["status"]["conditions"]);
    if conditions.is_empty() {
        return;
    }
    w.write(0, "Conditions:\n  Type\tStatus\tReason\n");
    w.write(1, "----\t------\t------\n");
    for c in conditions {
        put!(w, 1, "{} \t{}\t{}\n", text(&c["type"]), text(&c["status"]), text(&c["reason"]));
    }
}

/// Conditions with the time of their last transition, reason and message.
pub fn conditions_with_times(w: &mut Writer, object: &Value, context: &Context) {
    w.write(1, "Type\tStatus\tLastTransitionTime\tReason\tMessage\n");
    w.write(1, "----\t------\t------------------\t------\t-------\n");
    for c in list(&object["status"]["conditions"]) {
        let time = rfc1123(&c["lastTransitionTime"], &context.zone);
        let (kind, status) = (text(&c["type"]), text(&c["status"]));
        put!(w, 1, "{kind}\t{status}\t{time}\t{}\t{}\n", text(&c["reason"]), text(&c["message"]));
    }
}

/// The status of a condition, for readiness gates.
pub fn condition_status(object: &Value, kind: &str) -> String {
    match condition(object, kind) {
        Value::Null => "<none>".to_string(),
        condition => text(&condition["status"]),
    }
}

/// When an event was last seen.
pub fn event_time(event: &Value) -> Option<jiff::Timestamp> {
    timestamp(&event["series"]["lastObservedTime"])
        .or_else(|| timestamp(&event["lastTimestamp"]))
        .or_else(|| timestamp(&event["eventTime"]))
}

pub fn events(w: &mut Writer, events: &[Value], context: &Context) {
    if events.is_empty() {
        w.write(0, "Events:\t<none>\n");
        return;
    }
    w.flush();
    let mut sorted: Vec<&Value> = events.iter().collect();
    sorted.sort_by_key(|event| event_time(event));
    w.write(0, "Events:\n  Type\tReason\tAge\tFrom\tMessage\n");
    w.write(1, "----\t------\t----\t----\t-------\n");
    for event in sorted {
        let first = match &event["eventTime"] {
            Value::Null => since(&event["firstTimestamp"], context.now),
            time => since(time, context.now),
        };
        let count = event["count"].as_i64().unwrap_or(0);
        let interval = if event["series"].is_object() {
            let last = since(&event["series"]["lastObservedTime"], context.now);
            format!("{last} (x{} over {first})", text(&event["series"]["count"]))
        } else if count > 1 {
            format!("{} (x{count} over {first})", since(&event["lastTimestamp"], context.now))
        } else {
            first
        };
        let source = match string(&event["source"]["component"]) {
            "" => string(&event["reportingComponent"]),
            component => component,
        };
        let mut message = string(&event["message"]).trim().to_string();
        let path = string(&event["involvedObject"]["fieldPath"]);
        if !path.is_empty() {
            message = format!("{path}: {message}");
        }
        put!(w, 1, "{}\t{}\t{interval}\t{source}\t{message}\n", text(&event["type"]), text(&event["reason"]));
    }
}
