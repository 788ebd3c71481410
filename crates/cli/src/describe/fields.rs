//! Reading fields of decoded objects, and Go's texts for them.
//! Neighbours: every describer, `why`, `timeline`.
//! A field that is absent or of another type reads as Go's zero value.

pub use api::kinds::selector_text;
use api::quantity::Quantity;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value};

use crate::template::go_format;

/// A scalar as `%v` prints it; absent is empty.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        value => go_format::sprint(value),
    }
}

pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn text_or(value: &Value, otherwise: &str) -> String {
    match text(value) {
        text if text.is_empty() => otherwise.to_string(),
        text => text,
    }
}

pub fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub fn truth(value: &Value) -> bool {
    value.as_bool().unwrap_or(false)
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn strings(value: &Value) -> Vec<&str> {
    list(value).iter().filter_map(Value::as_str).collect()
}

pub fn texts(value: &Value) -> Vec<String> {
    strings(value).into_iter().map(str::to_string).collect()
}

/// Members in order of their keys.
pub fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}

/// A list as `%v` prints it: `[a b]`, and `[]` when it is absent.
pub fn go_list(value: &Value) -> String {
    format!("[{}]", list(value).iter().map(go_format::sprint).collect::<Vec<_>>().join(" "))
}

/// A map as `%v` prints it: `map[a:b]`.
pub fn go_map(value: &Value) -> String {
    go_format::sprint(if value.is_object() { value } else { &Value::Null }).replace("<nil>", "map[]")
}

/// A quantity in its canonical form; absent is zero.
pub fn quantity(value: &Value) -> String {
    Quantity::from_value(value).map_or_else(|| "0".to_string(), |quantity| quantity.canonical())
}

pub fn name(object: &Value) -> &str {
    string(&object["metadata"]["name"])
}

pub fn namespace(object: &Value) -> &str {
    string(&object["metadata"]["namespace"])
}

pub fn timestamp(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// RFC 1123 with a numeric zone, as `describe` shows times.
pub fn rfc1123(value: &Value, zone: &TimeZone) -> String {
    match timestamp(value) {
        Some(time) => time.to_zoned(zone.clone()).strftime("%a, %d %b %Y %H:%M:%S %z").to_string(),
        None => "Mon, 01 Jan 0001 00:00:00 +0000".to_string(),
    }
}

/// How long ago, rounded as `get` rounds ages.
pub fn since(value: &Value, now: Timestamp) -> String {
    match timestamp(value) {
        Some(time) => api::printing::human_duration(now.as_second() - time.as_second()),
        None => "<unknown>".to_string(),
    }
}

/// The owner that is marked as controller.
pub fn controller(object: &Value) -> Option<&Value> {
    list(&object["metadata"]["ownerReferences"]).iter().find(|owner| truth(&owner["controller"]))
}

/// The condition of one type, or null.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let found = list(&object["status"]["conditions"]).iter().find(|condition| string(&condition["type"]) == kind);
    found.unwrap_or(&Value::Null)
}

/// `a=1,b=2`, or `<none>`.
pub fn format_labels(labels: &Value) -> String {
    let joined: Vec<String> = members(labels).map(|(key, value)| format!("{key}={}", text(value))).collect();
    if joined.is_empty() { "<none>".to_string() } else { joined.join(",") }
}

/// A label selector as the API's selectors print; `<none>` when it selects everything.
pub fn format_selector(selector: &Value) -> String {
    match selector_text(selector) {
        text if text.is_empty() => "<none>".to_string(),
        text => text,
    }
}
