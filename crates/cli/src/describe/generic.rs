//! Describes an object of any kind from its fields alone: custom resources, Leases and all without a describer.
//! Neighbours: `sections`.
//! Every field but managed fields and what the head shows is printed.

use serde_json::{Map, Value};

use super::{
    Context, Related,
    sections::{labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};
use crate::template::go_format::sprint;

const SKIPPED: &[&str] =
    &[".metadata.managedFields", ".metadata.name", ".metadata.namespace", ".metadata.labels", ".metadata.annotations"];

pub fn describe(w: &mut Writer, object: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, object);
    labels_and_annotations(w, object);
    if let Some(fields) = object.as_object() {
        content(w, 0, fields, "");
    }
    Ok(())
}

fn content(w: &mut Writer, level: usize, fields: &Map<String, Value>, prefix: &str) {
    for (field, value) in fields {
        let path = format!("{prefix}.{field}");
        if SKIPPED.contains(&path.as_str()) {
            continue;
        }
        let label = smart_label(field);
        match value {
            Value::Object(inner) => {
                put!(w, level, "{label}:\n");
                content(w, level + 1, inner, &path);
            }
            Value::Array(items) => {
                put!(w, level, "{label}:\n");
                for item in items {
                    match item {
                        Value::Object(inner) => content(w, level + 1, inner, &path),
                        item => put!(w, level + 1, "{}\n", sprint(item)),
                    }
                }
            }
            value => put!(w, level, "{label}:\t{}\n", sprint(value)),
        }
    }
}

/// `lastTransitionTime` as `Last Transition Time`, with acronyms in capitals.
fn smart_label(field: &str) -> String {
    if field.chars().any(|c| !c.is_alphabetic() && c != '-') {
        return field.to_string();
    }
    let acronyms = ["API", "URL", "UID", "OSB", "GUID"];
    let word = |part: &String| {
        let upper = part.to_uppercase();
        if acronyms.contains(&upper.as_str()) {
            return upper;
        }
        let mut chars = part.chars();
        let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
        first + &chars.as_str().to_lowercase()
    };
    split_camel_case(field).iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Words begin at a change of case; the last capital of a run belongs to the word behind it.
fn split_camel_case(text: &str) -> Vec<String> {
    let class = |c: char| {
        if c.is_lowercase() {
            1
        } else if c.is_uppercase() {
            2
        } else {
            4
        }
    };
    let mut runs: Vec<(u8, String)> = Vec::new();
    for c in text.chars() {
        match runs.last_mut() {
            Some((kind, run)) if *kind == class(c) => run.push(c),
            _ => runs.push((class(c), c.to_string())),
        }
    }
    for i in 0..runs.len().saturating_sub(1) {
        if runs[i].0 == 2
            && runs[i + 1].0 == 1
            && let Some(capital) = runs[i].1.pop()
        {
            runs[i + 1].1.insert(0, capital);
        }
    }
    runs.into_iter().map(|(_, run)| run).filter(|run| !run.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::smart_label;

    #[test]
    fn labels_are_spelled_out() {
        let check = |field: &str, expected: &str| assert_eq!(smart_label(field), expected);
        check("apiVersion", "API Version");
        check("creationTimestamp", "Creation Timestamp");
        check("uid", "UID");
        check("podCIDRs", "Pod Cid Rs");
        check("some-thing", "Some - Thing");
        check("app.kubernetes.io", "app.kubernetes.io");
        check("IPv4", "IPv4");
    }
}
