//! Reading and filling JSON objects by field name, with Go's notion of "unset".
//! Used by every kind beside this file.
//! Never panics, whatever shape the value has.

use serde_json::{Map, Value};

/// A string field; empty when it is absent or something else.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// A dotted path: `at(object, "spec.template.spec")`. Null when any step is absent.
pub fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    const NULL: &Value = &Value::Null;
    path.split('.').try_fold(value, |value, key| value.get(key)).unwrap_or(NULL)
}

/// A string at a dotted path.
pub fn text_at<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or("")
}

pub fn int(value: &Value, key: &str) -> Option<i64> {
    value.get(key).and_then(Value::as_i64)
}

/// An integer at a dotted path; zero when absent.
pub fn int_at(value: &Value, path: &str) -> i64 {
    at(value, path).as_i64().unwrap_or(0)
}

pub fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// The elements of a list field; none when it is absent.
pub fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The strings of a list field.
pub fn texts<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    items(value, key).iter().filter_map(Value::as_str)
}

/// The entries of a map field; none when it is absent.
pub fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flatten().map(|(k, v)| (k.as_str(), v))
}

/// A field that holds an object.
pub fn part<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|v| v.is_object())
}

/// Whether a field has a value that Go would not take for the zero of a pointer, string, list or map.
pub fn is_set(value: &Value, key: &str) -> bool {
    match value.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}

/// Fills an absent, null or empty-string field.
pub fn default_to(value: &mut Value, key: &str, to: impl Into<Value>) {
    let Some(map) = value.as_object_mut() else { return };
    match map.get(key) {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(_) => return,
    }
    map.insert(key.to_string(), to.into());
}

/// Fills an absent or null field: where Go holds a pointer, an empty text is a value, and refused as one.
pub fn default_absent(value: &mut Value, key: &str, to: impl Into<Value>) {
    if value.get(key).is_none_or(Value::is_null) && value.is_object() {
        set(value, key, to.into());
    }
}

/// As `default_to`, where zero also counts as unset.
pub fn default_zero_to(value: &mut Value, key: &str, to: i64) {
    if value.get(key).and_then(Value::as_i64) == Some(0) {
        set(value, key, to.into());
    } else {
        default_to(value, key, to);
    }
}

/// The object in a field, made when absent.
pub fn part_mut<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let map = value.as_object_mut()?;
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.is_object().then_some(slot)
}

/// The object in a field, if there is one.
pub fn existing_mut<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    value.get_mut(key).filter(|v| v.is_object())
}

/// The elements of a list field, to be changed.
pub fn items_mut<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Runs `change` on every object in a list field.
pub fn each(value: &mut Value, key: &str, change: impl FnMut(&mut Value)) {
    items_mut(value, key).filter(|item| item.is_object()).for_each(change);
}

/// Sets a field, or removes it when the new value is null.
pub fn set(value: &mut Value, key: &str, to: Value) {
    let Some(map) = value.as_object_mut() else { return };
    if to.is_null() {
        map.remove(key);
    } else {
        map.insert(key.to_string(), to);
    }
}
