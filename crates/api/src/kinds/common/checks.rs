//! Checks that many kinds share, in upstream's words.
//! Used by the validation of every kind beside this file.
//! Each adds every error it finds and returns nothing else.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::{entries, int, items, text, texts},
    names,
    selectors::LabelSelector,
};

pub const IMMUTABLE: &str = "field is immutable";
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// One error per complaint of a function of `names`.
pub fn complaints(errors: &mut ErrorList, path: &Path, value: &str, complaints: Vec<String>) {
    for complaint in complaints {
        errors.invalid(path, value, complaint);
    }
}

/// A field that must be there and be legal.
pub fn required_name(
    errors: &mut ErrorList,
    path: &Path,
    owner: &Value,
    field: &str,
    check: impl Fn(&str) -> Vec<String>,
) {
    match text(owner, field) {
        "" => errors.required(&path.child(field), ""),
        name => optional(errors, path, name, field, check(name)),
    }
}

/// A field that must be legal if it is there.
pub fn optional_name(
    errors: &mut ErrorList,
    path: &Path,
    owner: &Value,
    field: &str,
    check: impl Fn(&str) -> Vec<String>,
) {
    match text(owner, field) {
        "" => {}
        name => optional(errors, path, name, field, check(name)),
    }
}

/// A field that Go holds as a pointer: an empty text is said, and must be legal too.
pub fn said_name(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str, check: impl Fn(&str) -> Vec<String>) {
    if let Some(name) = owner.get(field).and_then(Value::as_str) {
        complaints(errors, &path.child(field), name, check(name));
    }
}

fn optional(errors: &mut ErrorList, path: &Path, name: &str, field: &str, found: Vec<String>) {
    if !found.is_empty() {
        complaints(errors, &path.child(field), name, found);
    }
}

pub fn required(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    if !crate::kinds::common::access::is_set(owner, field) {
        errors.required(&path.child(field), "");
    }
}

/// Integer fields that may be absent but not below zero.
pub fn not_negative(errors: &mut ErrorList, path: &Path, owner: &Value, fields: &[&str]) {
    for field in fields {
        if let Some(number) = int(owner, field).filter(|n| *n < 0) {
            errors.invalid(&path.child(field), number, NOT_NEGATIVE);
        }
    }
}

pub fn positive(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    let number = int(owner, field).unwrap_or(0);
    if number <= 0 {
        errors.invalid(&path.child(field), number, "must be greater than zero");
    }
}

/// An enumerated field that must be there. `supported` is in upstream's order.
pub fn one_of(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str, supported: &[&str]) {
    match text(owner, field) {
        "" => errors.required(&path.child(field), ""),
        value if !supported.contains(&value) => errors.not_supported_as_listed(&path.child(field), value, supported),
        _ => {}
    }
}

/// An enumerated field that may be absent. `supported` is in upstream's order.
pub fn optional_one_of(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str, supported: &[&str]) {
    if let Some(value) = owner.get(field).and_then(Value::as_str).filter(|value| !supported.contains(value)) {
        errors.not_supported_as_listed(&path.child(field), value, supported);
    }
}

/// A map of labels, or a selector by equality.
pub fn labels(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    for (key, value) in entries(owner, field) {
        let (bad_key, value) = (names::qualified_name(key), value.as_str().unwrap_or(""));
        let bad_value = names::label_value(value);
        if !bad_key.is_empty() || !bad_value.is_empty() {
            let path = path.child(field);
            complaints(errors, &path, key, bad_key);
            complaints(errors, &path, value, bad_value);
        }
    }
}

pub fn label_key(errors: &mut ErrorList, path: &Path, key: &str) {
    complaints(errors, path, key, names::qualified_name(key));
}

/// `path` is that of the selector itself.
pub fn label_selector(errors: &mut ErrorList, path: &Path, selector: &Value) {
    labels(errors, path, selector, "matchLabels");
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = items(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Exists" | "DoesNotExist" => {}
            operator => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
        }
        label_key(errors, &path.child("key"), text(expression, "key"));
        for (index, value) in texts(expression, "values").enumerate() {
            complaints(errors, &path.child("values").index(index), value, names::label_value(value));
        }
    }
}

pub fn selector_is_empty(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none() && items(selector, "matchExpressions").is_empty()
}

/// Whether labels match a label selector.
pub fn selector_matches(selector: &Value, labels: &Value) -> bool {
    let labels: BTreeMap<String, String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or("").to_string()))
        .collect();
    LabelSelector::from_value(selector).is_ok_and(|selector| selector.matches(&labels))
}

/// A port by number or name.
pub fn port_or_name(errors: &mut ErrorList, path: &Path, port: &Value) {
    match port {
        Value::String(name) => complaints(errors, path, name, names::port_name(name)),
        number => port_number(errors, path, number.as_i64().unwrap_or(0)),
    }
}

pub fn port_number(errors: &mut ErrorList, path: &Path, number: i64) {
    for complaint in names::port_number(number) {
        errors.invalid(path, number, complaint);
    }
}

/// A count or a percentage, not below zero.
pub fn int_or_percent(errors: &mut ErrorList, path: &Path, value: &Value) {
    match value {
        Value::String(text) => complaints(errors, path, text, names::percent(text)),
        Value::Number(number) if number.as_i64().is_some_and(|n| n < 0) => {
            errors.invalid(path, value.clone(), NOT_NEGATIVE);
        }
        _ => {}
    }
}

pub fn at_most_100_percent(errors: &mut ErrorList, path: &Path, value: &Value) {
    if percent_of(value).is_some_and(|percent| percent > 100) {
        errors.invalid(path, value.clone(), "must not be greater than 100%");
    }
}

fn percent_of(value: &Value) -> Option<u64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// Zero, as a count or a percentage.
pub fn is_zero(value: &Value) -> bool {
    // What is no number and no percentage counts for nothing.
    let of_text = || value.as_str().map(|text| text.parse().unwrap_or(0));
    percent_of(value).or(value.as_u64()).or_else(of_text) == Some(0)
}

pub fn immutable(errors: &mut ErrorList, path: &Path, new: &Value, old: &Value, field: &str) {
    let value = |object: &Value| object.get(field).cloned().unwrap_or_default();
    if !same(&value(new), &value(old)) {
        errors.invalid(&path.child(field), value(new), IMMUTABLE);
    }
}

/// Equal as upstream sees it: what is unset equals what is empty.
pub fn same(a: &Value, b: &Value) -> bool {
    fn empty(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.values().all(empty),
            _ => false,
        }
    }
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(key, value)| same(value, y.get(key).unwrap_or(&Value::Null)))
                && y.iter().all(|(key, value)| x.contains_key(key) || empty(value))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        _ => a == b || (empty(a) && empty(b)),
    }
}

/// Counters of a status: none below zero, none above `replicas`, no more available than ready.
pub fn replica_counts(errors: &mut ErrorList, status: &Value, ready_words: &str, fields: &[&str]) {
    let path = Path::new("status");
    not_negative(errors, &path, status, &["replicas", "observedGeneration", "collisionCount", "terminatingReplicas"]);
    not_negative(errors, &path, status, fields);
    let count = |field: &str| int(status, field).unwrap_or(0);
    for field in fields.iter().filter(|field| count(field) > count("replicas")) {
        errors.invalid(&path.child(field), count(field), "cannot be greater than status.replicas");
    }
    if count("availableReplicas") > count("readyReplicas") {
        errors.invalid(
            &path.child("availableReplicas"),
            count("availableReplicas"),
            format!("cannot be greater than {ready_words}"),
        );
    }
}

/// A path relative to something, that does not climb out of it.
pub fn descending_path(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.starts_with('/') {
        errors.invalid(path, value, "must be a relative path");
    }
    no_backsteps(errors, path, value);
}

pub fn no_backsteps(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.invalid(path, value, "must not contain '..'");
    }
}

/// A descending path that does not begin like the volume's own bookkeeping.
pub fn local_path(errors: &mut ErrorList, path: &Path, value: &str) {
    descending_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.invalid(path, value, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unset_equals_empty() {
        for (a, b, equal) in [
            (json!({ "a": {} }), json!({}), true),
            (json!({ "a": [] }), json!({ "a": null }), true),
            (json!({ "a": 0 }), json!({}), false),
            (json!({ "a": [{ "b": "" }] }), json!({ "a": [{}] }), true),
            (json!({ "a": 1 }), json!({ "a": 2 }), false),
        ] {
            assert_eq!(same(&a, &b), equal, "{a} {b}");
            assert_eq!(same(&b, &a), equal, "{b} {a}");
        }
    }

    #[test]
    fn selectors_match() {
        let selector = json!({
            "matchLabels": { "a": "1" },
            "matchExpressions": [{ "key": "b", "operator": "NotIn", "values": ["x"] }],
        });
        assert!(selector_matches(&selector, &json!({ "a": "1" })));
        assert!(!selector_matches(&selector, &json!({ "a": "1", "b": "x" })));
        assert!(!selector_matches(&selector, &json!({})));
    }
}
