//! Whether the schema of a CustomResourceDefinition is structural: every field has one type, said in one place.
//! Called by `custom_resource_definition`.
//! Invariant: pure; words and paths are upstream's (tidy: `pure_files`).

use regex::Regex;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::{entries, flag, is_set, items, part, text, texts},
};

const JUNCTORS: [&str; 3] = ["anyOf", "allOf", "oneOf"];

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

pub fn validate(errors: &mut ErrorList, path: &Path, schema: &Value) {
    if flag(schema, "nullable") {
        errors.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
    }
    visit(errors, path, schema, Level::Root);
}

fn visit(errors: &mut ErrorList, path: &Path, schema: &Value, level: Level) {
    supported(errors, path, schema);
    lists_and_maps(errors, path, schema);
    rules(errors, path, schema);
    kind(errors, path, schema, level);
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(e) = Regex::new(pattern)
    {
        let words = format!("must be a valid regular expression, but isn't: {e}");
        errors.invalid(&path.child("pattern"), pattern, words);
    }
    for (name, property) in entries(schema, "properties") {
        visit(errors, &path.child("properties").key(name), property, Level::Field);
    }
    match &schema["items"] {
        Value::Null if text(schema, "type") == "array" => errors.required(&path.child("items"), "must be specified"),
        Value::Object(_) => visit(errors, &path.child("items"), &schema["items"], Level::Item),
        _ => {}
    }
    let additional = &schema["additionalProperties"];
    if !additional.is_null() && level == Level::Root {
        errors.forbidden(&path.child("additionalProperties"), "must not be used at the root");
    }
    if additional.is_object() {
        visit(errors, &path.child("additionalProperties"), additional, Level::Field);
    }
    if !additional.is_null() && is_set(schema, "properties") && *additional != json!(true) {
        let words = "additionalProperties and properties are mutual exclusive";
        errors.forbidden(&path.child("additionalProperties"), words);
    }
    junctors(errors, path, path, schema, schema, true);
}

/// Words of JSON schema that mean nothing here.
fn supported(errors: &mut ErrorList, path: &Path, schema: &Value) {
    for word in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if is_set(schema, word) {
            errors.forbidden(&path.child(word), format!("{word} is not supported"));
        }
    }
    if flag(schema, "uniqueItems") {
        let words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), words);
    }
    if schema["items"].is_array() {
        errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    match text(schema, "type") {
        "" => {}
        "null" => {
            errors.forbidden(&path.child("type"), "type cannot be set to null, use nullable as an alternative");
        }
        known if TYPES.contains(&known) => {}
        other => errors.not_supported(&path.child("type"), other, &TYPES),
    }
    let preserve = "x-kubernetes-preserve-unknown-fields";
    if schema[preserve] == json!(false) {
        errors.invalid(&path.child(preserve), false, "must be true or undefined");
    }
}

fn kind(errors: &mut ErrorList, path: &Path, schema: &Value, level: Level) {
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserves = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let either = flag(schema, "x-kubernetes-int-or-string");
    for (set, word) in
        [(preserves, "x-kubernetes-preserve-unknown-fields"), (embedded, "x-kubernetes-embedded-resource")]
    {
        if either && set {
            errors.invalid(&path.child(word), true, "must be false if x-kubernetes-int-or-string is true");
        }
    }
    let at = path.child("type");
    match (text(schema, "type"), level) {
        ("object", _) => {}
        ("", _) if embedded => errors.required(&at, "must be object if x-kubernetes-embedded-resource is true"),
        (other, _) if embedded => {
            errors.invalid(&at, other, "must be object if x-kubernetes-embedded-resource is true");
        }
        ("", _) if either || preserves => {}
        ("", Level::Root) => errors.required(&at, "must not be empty at the root"),
        ("", Level::Item) => errors.required(&at, "must not be empty for specified array items"),
        ("", Level::Field) => errors.required(&at, "must not be empty for specified object fields"),
        (other, Level::Root) => errors.invalid(&at, other, "must be object at the root"),
        _ => {}
    }
    if embedded && !schema["additionalProperties"].is_null() {
        let words = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&path.child("additionalProperties"), words);
    }
    if embedded && !preserves && !is_set(schema, "properties") {
        let words = "must not be empty if x-kubernetes-embedded-resource is true without \
                     x-kubernetes-preserve-unknown-fields";
        errors.required(&path.child("properties"), words);
    }
    if level == Level::Root || embedded {
        metadata(errors, &path.child("properties"), schema, level);
    }
}

/// What every object has is not for a schema to describe.
fn metadata(errors: &mut ErrorList, path: &Path, schema: &Value, level: Level) {
    for name in ["kind", "apiVersion"] {
        if let Some(property) = part(&schema["properties"], name)
            && text(property, "type") != "string"
        {
            errors.invalid(&path.key(name).child("type"), text(property, "type"), "must be string");
        }
    }
    let Some(found) = part(&schema["properties"], "metadata") else { return };
    let path = path.key("metadata");
    if text(found, "type") != "object" {
        errors.invalid(&path.child("type"), text(found, "type"), "must be object");
    }
    let named = |name: &str| matches!(name, "name" | "generateName");
    let plain = entries(found, "properties").all(|(name, _)| named(name));
    let other = found.as_object().into_iter().flatten().any(|(k, _)| !matches!(k.as_str(), "type" | "properties"));
    if level == Level::Root && (!plain || other) {
        let words = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(&path, words);
    }
}

fn lists_and_maps(errors: &mut ErrorList, path: &Path, schema: &Value) {
    let must_be = |errors: &mut ErrorList, wanted: &str, word: &str| {
        let words = format!("must be {wanted} if {word} is specified");
        match text(schema, "type") {
            found if found == wanted => {}
            "" => errors.required(&path.child("type"), &words),
            found => errors.invalid(&path.child("type"), found, words),
        }
    };
    let map_type = text(schema, "x-kubernetes-map-type");
    if !map_type.is_empty() {
        must_be(errors, "object", "x-kubernetes-map-type");
        if !matches!(map_type, "atomic" | "granular") {
            errors.not_supported(&path.child("x-kubernetes-map-type"), map_type, &["atomic", "granular"]);
        }
    }
    let list_type = text(schema, "x-kubernetes-list-type");
    let keys: Vec<&str> = texts(schema, "x-kubernetes-list-map-keys").collect();
    if !list_type.is_empty() {
        must_be(errors, "array", "x-kubernetes-list-type");
        if !matches!(list_type, "atomic" | "set" | "map") {
            errors.not_supported(&path.child("x-kubernetes-list-type"), list_type, &["atomic", "set", "map"]);
        }
    }
    if list_type == "set" {
        let inside = &schema["items"];
        let words = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let path = path.child("items");
        match (text(inside, "type"), text(inside, "x-kubernetes-list-type"), text(inside, "x-kubernetes-map-type")) {
            ("array", found, _) if found != "atomic" && !found.is_empty() => {
                errors.invalid(&path.child("x-kubernetes-list-type"), found, words);
            }
            ("object", _, found) if found != "atomic" => {
                errors.invalid(&path.child("x-kubernetes-map-type"), found, words);
            }
            _ => {}
        }
    }
    if !keys.is_empty() && list_type != "map" {
        let words = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            "" => errors.required(&path.child("x-kubernetes-list-type"), words),
            other => errors.invalid(&path.child("x-kubernetes-list-type"), other, words),
        }
    }
    if list_type == "map" {
        map_keys(errors, path, schema, &keys);
    }
    if matches!(list_type, "set" | "map") && flag(&schema["items"], "nullable") {
        let words = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&path.child("items").child("nullable"), words);
    }
}

fn map_keys(errors: &mut ErrorList, path: &Path, schema: &Value, keys: &[&str]) {
    let at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.required(&at, "must not be empty if x-kubernetes-list-type is map");
    }
    let (path, inside) = (path.child("items"), &schema["items"]);
    if inside.is_null() {
        return errors.required(&path, "must have a schema if x-kubernetes-list-type is map");
    }
    if text(inside, "type") != "object" {
        let words = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid(&path.child("type"), text(inside, "type"), words);
    }
    for (index, key) in keys.iter().enumerate() {
        let path = path.child("properties").key(key);
        match part(&inside["properties"], key) {
            None => {
                let words = "entries must all be names of item properties";
                errors.invalid(&at, schema["x-kubernetes-list-map-keys"].clone(), words);
            }
            Some(property) => {
                if matches!(text(property, "type"), "array" | "object") {
                    let words = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.invalid(&path.child("type"), text(inside, "type"), words);
                }
                if !texts(inside, "required").any(|r| r == *key) && property["default"].is_null() {
                    let words = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                                 required property";
                    errors.required(&path.child("default"), words);
                }
                if flag(property, "nullable") {
                    let words = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                    errors.forbidden(&path.child("nullable"), words);
                }
            }
        }
        if keys[..index].contains(key) {
            errors.invalid(&at, schema["x-kubernetes-list-map-keys"].clone(), "must not contain duplicate entries");
        }
    }
}

/// What a rule says about itself; whether it compiles is for the API server to find out.
fn rules(errors: &mut ErrorList, path: &Path, schema: &Value) {
    for (index, rule) in items(schema, "x-kubernetes-validations").iter().enumerate() {
        let path = path.child("x-kubernetes-validations").index(index);
        let message = rule.get("message").and_then(Value::as_str);
        match message {
            Some(message) if !message.is_empty() && message.trim().is_empty() => {
                errors.invalid(&path.child("message"), message, "must be non-empty if specified");
            }
            Some(message) if message.trim().contains('\n') => {
                errors.invalid(&path.child("message"), message, "must not contain line breaks");
            }
            None if text(rule, "rule").trim().contains('\n') => {
                errors.required(&path.child("message"), "message must be specified if rule contains line breaks");
            }
            _ => {}
        }
        let expression = text(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let words = "messageExpression must be non-empty if specified";
            errors.required(&path.child("messageExpression"), words);
        }
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        let reason = text(rule, "reason");
        if !reason.is_empty() && !REASONS.contains(&reason) {
            errors.not_supported(&path.child("reason"), reason, &REASONS);
        }
    }
}

/// Below a junctor only values are judged: types and the like belong outside, and so do the fields it speaks of.
/// `outside` is the part of the schema these are about, at `place`.
fn junctors(errors: &mut ErrorList, path: &Path, place: &Path, schema: &Value, outside: &Value, top: bool) {
    let either = flag(outside, "x-kubernetes-int-or-string") && top;
    let types = json!([{ "type": "integer" }, { "type": "string" }]);
    for word in JUNCTORS {
        // The one way to say that a value is an integer or a text.
        if either && word == "anyOf" && schema[word] == types {
            continue;
        }
        for (index, nested) in items(schema, word).iter().enumerate() {
            let path = path.child(word).index(index);
            if either && word == "allOf" && index == 0 && nested["anyOf"] == types {
                continue;
            }
            values_only(errors, &path, place, nested, outside);
        }
    }
    if let Some(nested) = part(schema, "not") {
        values_only(errors, &path.child("not"), place, nested, outside);
    }
}

fn values_only(errors: &mut ErrorList, path: &Path, place: &Path, nested: &Value, outside: &Value) {
    for (word, words) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        if is_set(nested, word) && nested[word] != json!(false) {
            errors.forbidden(&path.child(word), words);
        }
    }
    if part(&nested["properties"], "metadata").is_some() {
        let words = "must not be specified in a nested context";
        errors.forbidden(&path.child("properties").key("metadata"), words);
    }
    for (name, property) in entries(nested, "properties") {
        let (inner, place) = (path.child("properties").key(name), place.child("properties").key(name));
        match part(&outside["properties"], name) {
            Some(outside) => values_only(errors, &inner, &place, property, outside),
            None => errors.required(&place, &format!("because it is defined in {inner}")),
        }
    }
    if let Some(inside) = part(nested, "items") {
        let (inner, place) = (path.child("items"), place.child("items"));
        match part(outside, "items") {
            Some(outside) => values_only(errors, &inner, &place, inside, outside),
            None => errors.required(&place, &format!("because it is defined in {inner}")),
        }
    }
    junctors(errors, path, place, nested, outside, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_structural_is_named() {
        let check = |properties: Value, expected: &[&str]| {
            let schema = json!({ "type": "object", "properties": properties });
            let mut errors = ErrorList::new();
            validate(&mut errors, &Path::new("s"), &schema);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{schema}");
        };
        check(
            json!({ "a": { "type": "string" }, "b": { "x-kubernetes-int-or-string": true, "anyOf": [
            { "type": "integer" }, { "type": "string" },
        ] }, "c": { "x-kubernetes-preserve-unknown-fields": true } }),
            &[],
        );
        check(
            json!({ "a": {} }),
            &["s.properties[a].type: Required value: must not be empty for specified object fields"],
        );
        check(
            json!({ "a": { "type": "array" }, "b": { "type": "array", "items": {} } }),
            &[
                "s.properties[a].items: Required value: must be specified",
                "s.properties[b].items.type: Required value: must not be empty for specified array items",
            ],
        );
        check(
            json!({ "a": { "type": "object", "uniqueItems": true, "$ref": "#/x", "properties": { "b": { "type": "any" } },
                "additionalProperties": { "type": "string" } } }),
            &[
                "s.properties[a].$ref: Forbidden: $ref is not supported",
                "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
                "s.properties[a].properties[b].type: Unsupported value: \"any\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
                "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ],
        );
        check(
            json!({ "a": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "x"],
                "items": { "type": "object", "properties": { "k": { "type": "string" } } } } }),
            &[
                "s.properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
                "s.properties[a].x-kubernetes-list-map-keys: Invalid value: [\"k\",\"x\"]: entries must all be names of item properties",
            ],
        );
        check(
            json!({ "a": { "type": "object", "properties": { "b": { "type": "string" } }, "oneOf": [
                { "type": "object", "properties": { "b": { "pattern": "x" }, "c": { "minLength": 1 } } },
            ] } }),
            &[
                "s.properties[a].oneOf[0].type: Forbidden: must be empty to be structural",
                "s.properties[a].properties[c]: Required value: because it is defined in s.properties[a].oneOf[0].properties[c]",
            ],
        );
        check(
            json!({ "metadata": { "type": "object", "properties": { "labels": { "type": "object" } } }, "kind": { "type": "integer" },
                "e": { "type": "string", "x-kubernetes-embedded-resource": true } }),
            &[
                "s.properties[kind].type: Invalid value: \"integer\": must be string",
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
                "s.properties[e].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true",
                "s.properties[e].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        );
        check(
            json!({ "a": { "type": "string", "x-kubernetes-list-type": "set", "pattern": "(", "x-kubernetes-validations": [
                { "rule": "a\nb", "reason": "Because" },
            ] } }),
            &[
                "s.properties[a].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
                "s.properties[a].x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks",
                "s.properties[a].x-kubernetes-validations[0].reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
                "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: regex parse error:\n    (\n    ^\nerror: unclosed group",
            ],
        );
    }
}
