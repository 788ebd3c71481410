//! The rules of an `openAPIV3Schema` about values, compiled once and checked on every write.
//! Used by `behavior`.
//! Reports every violation, in upstream's words.

use std::collections::{HashMap, HashSet};

use regex::Regex;
use serde_json::{Map, Value, json};

use api::{
    field::{ErrorList, Path},
    go_regex,
};

use super::formats;

#[derive(Debug, Default)]
pub struct Check {
    kind: Option<String>,
    format: Option<String>,
    nullable: bool,
    int_or_string: bool,
    required: Vec<String>,
    properties: Vec<(String, Check)>,
    additional: Option<Box<Check>>,
    items: Option<Box<Check>>,
    allowed: Option<Vec<Value>>,
    minimum: Option<(f64, bool)>,
    maximum: Option<(f64, bool)>,
    multiple_of: Option<f64>,
    length: (Option<u64>, Option<u64>),
    count: (Option<u64>, Option<u64>),
    members: (Option<u64>, Option<u64>),
    unique: bool,
    pattern: Option<(String, Option<Regex>)>,
    list_keys: Option<Vec<String>>,
    all_of: Vec<Check>,
    any_of: Vec<Check>,
    one_of: Vec<Check>,
    not: Option<Box<Check>>,
}

impl Check {
    pub fn compile(schema: &Value) -> Self {
        let many = |field: &str| schema[field].as_array().into_iter().flatten().map(Check::compile).collect();
        let one = |field: &str| schema[field].is_object().then(|| Box::new(Check::compile(&schema[field])));
        let limits = |low: &str, high: &str| (schema[low].as_u64(), schema[high].as_u64());
        let bound = |field: &str, exclusive: &str| schema[field].as_f64().map(|n| (n, schema[exclusive] == true));
        let texts = |field: &str| -> Vec<String> {
            schema[field].as_array().into_iter().flatten().filter_map(|t| t.as_str().map(str::to_string)).collect()
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        Self {
            kind: schema["type"].as_str().map(str::to_string),
            format: schema["format"].as_str().map(str::to_string),
            nullable: schema["nullable"] == true,
            int_or_string: schema["x-kubernetes-int-or-string"] == true,
            required: texts("required"),
            properties: properties.map(|(name, s)| (name.clone(), Check::compile(s))).collect(),
            additional: one("additionalProperties"),
            items: one("items"),
            allowed: schema["enum"].as_array().cloned(),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: schema["multipleOf"].as_f64(),
            length: limits("minLength", "maxLength"),
            count: limits("minItems", "maxItems"),
            members: limits("minProperties", "maxProperties"),
            unique: schema["uniqueItems"] == true || schema["x-kubernetes-list-type"] == "set",
            pattern: schema["pattern"].as_str().map(|p| (p.to_string(), go_regex::compile(p).ok())),
            list_keys: (schema["x-kubernetes-list-type"] == "map").then(|| texts("x-kubernetes-list-map-keys")),
            all_of: many("allOf"),
            any_of: many("anyOf"),
            one_of: many("oneOf"),
            not: one("not"),
        }
    }

    /// `old` is what the value was, where that can be told: what has not changed is not judged again, though the rules
    /// may have become stricter.
    pub fn check(&self, path: &Path, value: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        if old == Some(value) || (value.is_null() && self.nullable) {
            return;
        }
        // A value of another type is judged by whatever else applies to it.
        self.check_type(path, value, errors);
        self.check_combinations(path, value, old, errors);
        match value {
            Value::String(text) => self.check_text(path, text, errors),
            Value::Number(_) => self.check_number(path, value, errors),
            Value::Array(items) => self.check_items(path, items, old.and_then(Value::as_array), errors),
            _ => {}
        }
        if !value.is_null() {
            self.check_enum(path, value, errors);
        }
        if let Value::Object(map) = value {
            self.check_members(path, map, old, errors);
        }
    }

    fn fits(&self, path: &Path, value: &Value) -> bool {
        let mut errors = ErrorList::new();
        self.check(path, value, None, &mut errors);
        errors.is_empty()
    }

    fn check_type(&self, path: &Path, value: &Value, errors: &mut ErrorList) {
        let found = type_name(value);
        if self.int_or_string {
            if !matches!(found, "integer" | "string") {
                mistyped(path, found, "integer,string", errors);
            }
            return;
        }
        let Some(wanted) = self.kind.as_deref() else { return };
        let whole = value.as_f64().is_some_and(|n| n.fract() == 0.0);
        if wanted == found || (wanted == "number" && found == "integer") || (wanted == "integer" && whole) {
            return;
        }
        match (&self.format, value) {
            // A text or list where another one is wanted in a form of its own is judged by that form.
            (Some(format), _) if !formats::is_known(format) => mistyped(path, found, wanted, errors),
            (Some(_), Value::String(_) | Value::Array(_)) if !matches!(wanted, "number" | "integer") => {}
            (Some(format), Value::Number(_) | Value::Bool(_) | Value::Object(_)) => {
                let form = match value {
                    Value::Number(number) if number.is_f64() => "float64",
                    Value::Number(_) => "int64",
                    _ => "",
                };
                mistyped(path, form, format, errors);
            }
            _ => mistyped(path, found, wanted, errors),
        }
    }

    fn check_enum(&self, path: &Path, value: &Value, errors: &mut ErrorList) {
        let Some(allowed) = &self.allowed else { return };
        if !allowed.contains(value) {
            let shown = |v: &Value| v.as_str().map(str::to_string).unwrap_or_else(|| v.to_string());
            let texts: Vec<String> = allowed.iter().map(shown).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            errors.not_supported_as_listed(path, value.clone(), &texts);
        }
    }

    fn check_text(&self, path: &Path, text: &str, errors: &mut ErrorList) {
        let length = text.chars().count() as u64;
        if let Some(min) = self.length.0.filter(|min| length < *min) {
            errors.invalid(path, text, format!("{path} in body should be at least {min} chars long"));
        }
        if let Some(max) = self.length.1.filter(|max| length > *max) {
            errors.too_long(path, max as usize);
        }
        if let Some((pattern, Some(regex))) = &self.pattern
            && !regex.is_match(text)
        {
            errors.invalid(path, text, format!("{path} in body should match '{pattern}'"));
        }
        if let Some(format) = self.format.as_deref()
            && !formats::fits(format, text)
        {
            mistyped(path, text, format, errors);
        }
    }

    fn check_number(&self, path: &Path, value: &Value, errors: &mut ErrorList) {
        let Some(number) = value.as_f64() else { return };
        if let Some((min, exclusive)) = self.minimum
            && (number < min || (exclusive && number == min))
        {
            let words = if exclusive { "greater than" } else { "greater than or equal to" };
            errors.invalid(path, value.clone(), format!("{path} in body should be {words} {min}"));
        }
        if let Some((max, exclusive)) = self.maximum
            && (number > max || (exclusive && number == max))
        {
            let words = if exclusive { "less than" } else { "less than or equal to" };
            errors.invalid(path, value.clone(), format!("{path} in body should be {words} {max}"));
        }
        if let Some(of) = self.multiple_of
            && of != 0.0
            && (number / of).fract() != 0.0
        {
            errors.invalid(path, value.clone(), format!("{path} in body should be a multiple of {of}"));
        }
    }

    fn check_items(&self, path: &Path, items: &[Value], old: Option<&Vec<Value>>, errors: &mut ErrorList) {
        let old = old.map(Vec::as_slice).unwrap_or_default();
        let key = |item: &Value| self.list_keys.as_ref().map(|keys| key_of(keys, item));
        // Only keys say which item of the old list it was.
        let before: HashMap<String, &Value> = old.iter().filter_map(|item| Some((key(item)?, item))).collect();
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let (place, own) = (path.index(index), key(item));
            if let Some(check) = &self.items {
                check.check(&place, item, own.as_ref().and_then(|own| before.get(own).copied()), errors);
            }
            if self.unique && items[..index].contains(item) && old.iter().filter(|other| *other == item).count() < 2 {
                errors.duplicate(&place, item.clone());
            }
            if own.is_some_and(|own| !seen.insert(own)) {
                let keys = self.list_keys.iter().flatten();
                let shown: Map<_, _> = keys.map(|name| (name.clone(), item[name].clone())).collect();
                errors.duplicate(&place, Value::from(shown));
            }
        }
        let count = items.len() as u64;
        if let Some(min) = self.count.0.filter(|min| count < *min) {
            errors.invalid(path, count, format!("{path} in body should have at least {min} items"));
        }
        if let Some(max) = self.count.1.filter(|max| count > *max) {
            errors.too_many(path, items.len(), max as usize);
        }
    }

    fn check_members(&self, path: &Path, map: &Map<String, Value>, old: Option<&Value>, errors: &mut ErrorList) {
        let count = map.len() as u64;
        if let Some(min) = self.members.0.filter(|min| count < *min) {
            errors.invalid(path, count, format!("{path} in body should have at least {min} properties"));
        }
        if let Some(max) = self.members.1.filter(|max| count > *max) {
            errors.too_many(path, map.len(), max as usize);
        }
        for (name, value) in map {
            let property = self.properties.iter().find(|(n, _)| n == name).map(|(_, check)| check);
            if let Some(check) = property.or(self.additional.as_deref()) {
                check.check(&path.child(name), value, old.and_then(|old| old.get(name)), errors);
            }
        }
        for name in self.required.iter().filter(|n| !map.contains_key(*n)) {
            errors.required(&path.child(name), "");
        }
    }

    fn check_combinations(&self, path: &Path, value: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        let shown = path.to_string();
        let fitting = |checks: &[Check]| checks.iter().filter(|c| c.fits(path, value)).count();
        for check in &self.all_of {
            check.check(path, value, old, errors);
        }
        if !self.any_of.is_empty() && fitting(&self.any_of) == 0 {
            errors.invalid(path, value.clone(), format!("{shown:?} must validate at least one schema (anyOf)"));
        }
        if !self.one_of.is_empty() {
            let found = fitting(&self.one_of);
            if found != 1 {
                let found = if found == 0 {
                    "Found none valid".to_string()
                } else {
                    format!("Found {found} valid alternatives")
                };
                let text = format!("{shown:?} must validate one and only one schema (oneOf). {found}");
                errors.invalid(path, value.clone(), text);
            }
        }
        if self.not.as_ref().is_some_and(|not| not.fits(path, value)) {
            errors.invalid(path, value.clone(), format!("{shown:?} must not validate the schema (not)"));
        }
    }
}

/// The values of an item's keys: no other item of its list has the same.
pub fn key_of(keys: &[String], item: &Value) -> String {
    keys.iter().map(|name| item[name].to_string()).collect::<Vec<_>>().join("\0")
}

/// What is `found` is no `wanted`.
fn mistyped(path: &Path, found: &str, wanted: &str, errors: &mut ErrorList) {
    let why = format!("{path} in body must be of type {wanted}: {found:?}");
    errors.push(api::field::ErrorType::TypeInvalid, path, found, why);
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A check that accepts everything, for versions without a schema.
pub fn anything() -> Check {
    Check::compile(&json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_read_as_upstream_writes_them() {
        let schema = json!({
            "type": "object", "required": ["name"],
            "properties": {
                "name": { "type": "string", "pattern": "^a", "minLength": 2 },
                "bytes": { "type": "string", "format": "byte" },
                "count": { "type": "integer", "minimum": 1, "maximum": 3 },
                "color": { "type": "string", "enum": ["red", "blue"] },
                "tags": { "type": "array", "maxItems": 2, "x-kubernetes-list-type": "set", "items": { "type": "string" } },
                "one": { "type": "object", "oneOf": [{ "required": ["x"] }, { "required": ["y"] }] },
            },
        });
        let check = Check::compile(&schema);
        let expect = |value: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            check.check(&Path::new("spec"), &value, None, &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{value}");
        };
        expect(json!({ "name": "ab", "count": 2, "color": "red", "tags": ["a"], "one": { "x": 1 } }), &[]);
        expect(json!({}), &["spec.name: Required value"]);
        expect(
            json!({ "name": 1 }),
            &["spec.name: Invalid value: \"integer\": spec.name in body must be of type string: \"integer\""],
        );
        expect(
            json!({ "name": "ab", "color": 1.5 }),
            &[
                "spec.color: Invalid value: \"number\": spec.color in body must be of type string: \"number\"",
                "spec.color: Unsupported value: 1.5: supported values: \"red\", \"blue\"",
            ],
        );
        expect(
            json!({ "name": "ab", "count": 9.5 }),
            &[
                "spec.count: Invalid value: \"number\": spec.count in body must be of type integer: \"number\"",
                "spec.count: Invalid value: 9.5: spec.count in body should be less than or equal to 3",
            ],
        );
        expect(
            json!({ "name": "ab", "tags": [1, "a", "b"] }),
            &[
                "spec.tags[0]: Invalid value: \"integer\": spec.tags[0] in body must be of type string: \"integer\"",
                "spec.tags: Too many: 3: must have at most 2 items",
            ],
        );
        expect(
            json!({ "name": "ab", "bytes": 1 }),
            &["spec.bytes: Invalid value: \"int64\": spec.bytes in body must be of type byte: \"int64\""],
        );
        expect(
            json!({ "name": "ab", "count": 9 }),
            &["spec.count: Invalid value: 9: spec.count in body should be less than or equal to 3"],
        );
        expect(
            json!({ "name": "ab", "color": "green" }),
            &["spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\""],
        );
        expect(json!({ "name": "ab", "tags": ["a", "a"] }), &["spec.tags[1]: Duplicate value: \"a\""]);
        expect(json!({ "name": "bb" }), &["spec.name: Invalid value: \"bb\": spec.name in body should match '^a'"]);
        expect(
            json!({ "name": "ab", "one": {} }),
            &[
                "spec.one: Invalid value: {}: \"spec.one\" must validate one and only one schema (oneOf). Found none valid",
            ],
        );
    }

    #[test]
    fn what_has_not_changed_is_not_judged_again() {
        let strict = json!({ "type": "string", "enum": ["x"] });
        let item = json!({ "type": "object", "properties": { "name": { "type": "string" }, "value": strict.clone() } });
        let check = Check::compile(&json!({
            "type": "object",
            "properties": {
                "one": strict, "other": { "type": "string" },
                "atomic": { "type": "array", "items": strict.clone() },
                "set": { "type": "array", "x-kubernetes-list-type": "set", "items": strict.clone() },
                "map": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item },
            },
            "additionalProperties": strict.clone(),
        }));
        let old = json!({
            "one": "a", "other": "b", "free": "a", "atomic": ["a"], "set": ["a", "a"],
            "map": [{ "name": "m", "value": "a" }],
        });
        let judged = |field: &str, value: Value| {
            let (mut new, mut errors) = (old.clone(), ErrorList::new());
            new[field] = value;
            check.check(&Path::default(), &new, Some(&old), &mut errors);
            errors.iter().map(|e| e.path.to_string()).collect::<Vec<_>>()
        };
        assert!(judged("other", json!("c")).is_empty());
        assert_eq!(judged("one", json!("b")), ["one"]);
        assert_eq!(judged("free", json!("b")), ["free"]);
        assert_eq!(judged("atomic", json!(["a", "x"])), ["atomic[0]"]);
        assert_eq!(judged("set", json!(["a", "a", "x"])), ["set[0]", "set[1]"]);
        let entry = |name: &str, value: &str| json!({ "name": name, "value": value });
        assert!(judged("map", json!([entry("n", "x"), entry("m", "a")])).is_empty());
        assert_eq!(judged("map", json!([entry("n", "a"), entry("m", "a")])), ["map[0].value"]);
    }
}
