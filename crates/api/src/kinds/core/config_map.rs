//! ConfigMaps: columns and validation.
//! Neighbours: `secret`, which has the same limits.
//! An immutable one stays as it is.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{entries, flag},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct ConfigMap;

/// Of all values together, here and in a secret.
pub const DATA_BYTES_MAX: usize = 1024 * 1024;

/// Checks the keys of a map and sums the lengths of its values.
pub fn validate_keys(errors: &mut ErrorList, object: &Value, field: &str, length: fn(&str) -> usize) -> usize {
    let mut total = 0;
    for (key, value) in entries(object, field) {
        let found = names::config_map_key(key);
        if !found.is_empty() {
            checks::complaints(errors, &Path::new(field).key(key), key, found);
        }
        total += length(value.as_str().unwrap_or(""));
    }
    total
}

/// How many bytes a base64 text stands for.
pub fn decoded_length(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

/// An object that is immutable stays so, with its data.
pub fn validate_immutable(errors: &mut ErrorList, new: &Value, old: &Value, fields: &[&str]) {
    const WORDS: &str = "field is immutable when `immutable` is set";
    if !flag(old, "immutable") {
        return;
    }
    if !flag(new, "immutable") {
        errors.forbidden(&Path::new("immutable"), WORDS);
    }
    for field in fields.iter().filter(|field| !checks::same(&new[**field], &old[**field])) {
        errors.forbidden(&Path::new(field), WORDS);
    }
}

impl Behavior for ConfigMap {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let mut total = validate_keys(errors, object, "data", str::len);
        for (key, _) in entries(object, "data").filter(|(key, _)| object["binaryData"].get(key).is_some()) {
            let path = Path::new("data").key(key);
            errors.invalid(&path, key, "duplicate of key present in binaryData");
        }
        total += validate_keys(errors, object, "binaryData", decoded_length);
        if total > DATA_BYTES_MAX {
            errors.too_long(&Path::new(""), DATA_BYTES_MAX);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_immutable(errors, object, old, &["data", "binaryData"]);
        self.validate_create(object, errors);
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Data", "How many keys it holds."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let keys = entries(object, "data").count() + entries(object, "binaryData").count();
        vec![name_of(object), json!(keys), age_of(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation() {
        let check = |object: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            ConfigMap.validate_create(&object, &mut errors);
            let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            assert_eq!(found, expected);
        };
        check(json!({ "data": { "a.b_C-1": "x" } }), &[]);
        check(
            json!({ "data": { "a": "x", "..": "y" }, "binaryData": { "a": "eA==" } }),
            &[
                "data[..]: Invalid value: \"..\": must not be '..'",
                "data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
            ],
        );
        check(
            json!({ "data": { "a": "x".repeat(DATA_BYTES_MAX + 1) } }),
            &[": Too long: may not be more than 1048576 bytes"],
        );
        let mut errors = ErrorList::new();
        let old = json!({ "immutable": true, "data": { "a": "1" } });
        ConfigMap.validate_update(&json!({ "immutable": true, "data": { "a": "2" } }), &old, &mut errors);
        assert_eq!(
            errors.iter().next().unwrap().to_string(),
            "data: Forbidden: field is immutable when `immutable` is set"
        );
    }
}
