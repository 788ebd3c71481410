//! Reading fields of decoded objects that have no type here: configurations, policies, definitions.
//! Used by whoever compiles these. What is absent or of another type reads as empty.

use serde_json::Value;

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

pub fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub fn texts(value: &Value) -> Vec<String> {
    items(value).iter().filter_map(|item| item.as_str().map(str::to_string)).collect()
}
