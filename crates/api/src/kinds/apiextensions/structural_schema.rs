//! Whether the schema of a CustomResourceDefinition is structural: every field has one type, said in one place.
//! Called by `custom_resource_definition`, before `schema_properties` looks at the same schema.
//! Invariant: pure; words and paths are upstream's (tidy: `pure_files`).

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    go_regex,
    kinds::common::access::{entries, flag, is_set, items, part, text},
};

const JUNCTORS: [&str; 3] = ["anyOf", "allOf", "oneOf"];

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Adds what is wrong, sorted, as upstream does.
pub fn validate(errors: &mut ErrorList, path: &Path, schema: &Value) {
    let mut found = ErrorList::new();
    invariants(&mut found, path, schema, Level::Root);
    completeness(&mut found, path, path, schema, schema);
    found.sort();
    errors.append(found);
}

fn invariants(errors: &mut ErrorList, path: &Path, schema: &Value, level: Level) {
    match &schema["items"] {
        Value::Null if text(schema, "type") == "array" => errors.required(&path.child("items"), "must be specified"),
        Value::Object(_) => invariants(errors, &path.child("items"), &schema["items"], Level::Item),
        _ => {}
    }
    for (name, property) in entries(schema, "properties") {
        invariants(errors, &path.child("properties").key(name), property, Level::Field);
    }
    let additional = &schema["additionalProperties"];
    if !additional.is_null() && level == Level::Root {
        errors.forbidden(&path.child("additionalProperties"), "must not be used at the root");
    }
    if additional.is_object() {
        invariants(errors, &path.child("additionalProperties"), additional, Level::Field);
    }
    kind(errors, path, schema, level);
    values(errors, path, schema, int_or_string(schema), int_or_string(&schema["allOf"][0]));
}

/// The one way to say that a value is an integer or a text.
fn int_or_string(schema: &Value) -> bool {
    schema["anyOf"] == json!([{ "type": "integer" }, { "type": "string" }])
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

/// What a schema says of values, by itself and by junctors.
fn values(errors: &mut ErrorList, path: &Path, schema: &Value, skip_any_of: bool, skip_first_all_of: bool) {
    for word in JUNCTORS {
        if word == "anyOf" && skip_any_of {
            continue;
        }
        for (index, inner) in items(schema, word).iter().enumerate() {
            let skip = word == "allOf" && index == 0 && skip_first_all_of;
            nested(errors, &path.child(word).index(index), inner, skip);
        }
    }
    if let Some(inner) = part(schema, "not") {
        nested(errors, &path.child("not"), inner, false);
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str).filter(|pattern| !pattern.is_empty())
        && let Err(e) = go_regex::compile(pattern)
    {
        let words = format!("must be a valid regular expression, but isn't: {}", go_regex_error(pattern, &e));
        errors.invalid(&path.child("pattern"), pattern, words);
    }
}

/// Go's words for the commonest of what is no regular expression.
fn go_regex_error(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit("error: ").next().unwrap_or_default();
    match text {
        "unclosed group" => format!("error parsing regexp: missing closing ): `{pattern}`"),
        "unopened group" => format!("error parsing regexp: unexpected ): `{pattern}`"),
        other => format!("error parsing regexp: {other}: `{pattern}`"),
    }
}

/// Below a junctor only values are judged: types and the like belong outside.
fn nested(errors: &mut ErrorList, path: &Path, schema: &Value, skip_any_of: bool) {
    values(errors, path, schema, skip_any_of, false);
    if let Some(inside) = part(schema, "items") {
        nested(errors, &path.child("items"), inside, false);
    }
    for (name, property) in entries(schema, "properties") {
        nested(errors, &path.child("properties").key(name), property, false);
    }
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
        if is_set(schema, word) && schema[word] != json!(false) {
            errors.forbidden(&path.child(word), words);
        }
    }
    if part(&schema["properties"], "metadata").is_some() {
        let words = "must not be specified in a nested context";
        errors.forbidden(&path.child("properties").key("metadata"), words);
    }
}

/// Fields that a junctor speaks of are there outside of it too. `outside` is the part that these are about, at `place`.
fn completeness(errors: &mut ErrorList, place: &Path, path: &Path, schema: &Value, outside: &Value) {
    if let Some(inner) = part(schema, "not") {
        nested_completeness(errors, place, &path.child("not"), inner, outside);
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in items(schema, word).iter().enumerate() {
            nested_completeness(errors, place, &path.child(word).index(index), inner, outside);
        }
    }
}

fn nested_completeness(errors: &mut ErrorList, place: &Path, path: &Path, schema: &Value, outside: &Value) {
    completeness(errors, place, path, schema, outside);
    if let Some(inside) = part(schema, "items") {
        let (inner, place) = (path.child("items"), place.child("items"));
        match part(outside, "items") {
            Some(outside) => nested_completeness(errors, &place, &inner, inside, outside),
            None => errors.required(&place, &format!("because it is defined in {inner}")),
        }
    }
    for (name, property) in entries(schema, "properties") {
        let (inner, place) = (path.child("properties").key(name), place.child("properties").key(name));
        match part(&outside["properties"], name) {
            Some(outside) => nested_completeness(errors, &place, &inner, property, outside),
            None => errors.required(&place, &format!("because it is defined in {inner}")),
        }
    }
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
            super::super::schema_properties::validate(&mut errors, &Path::new("s"), &schema);
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
                "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
                "s.properties[a].properties[b].type: Unsupported value: \"any\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        );
        check(
            json!({ "a": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "x"],
                "items": { "type": "object", "properties": { "k": { "type": "string" } } } } }),
            &[
                "s.properties[a].x-kubernetes-list-map-keys: Invalid value: [\"k\",\"x\"]: entries must all be names of item properties",
                "s.properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        );
        check(
            json!({ "a": { "type": "object", "properties": { "b": { "type": "string" } }, "oneOf": [
                { "type": "object", "properties": { "b": { "pattern": "x" }, "c": { "minLength": 1 } } },
            ] } }),
            // Completeness is looked at from the root only, as upstream does.
            &["s.properties[a].oneOf[0].type: Forbidden: must be empty to be structural"],
        );
        check(
            json!({ "metadata": { "type": "object", "properties": { "labels": { "type": "object" } } }, "kind": { "type": "integer" },
                "e": { "type": "string", "x-kubernetes-embedded-resource": true } }),
            &[
                "s.properties[e].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
                "s.properties[e].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true",
                "s.properties[kind].type: Invalid value: \"integer\": must be string",
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        );
        check(
            json!({ "a": { "type": "string", "x-kubernetes-list-type": "set", "pattern": "(", "x-kubernetes-validations": [
                { "rule": "a\nb", "reason": "Because" },
            ] } }),
            &[
                "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
                "s.properties[a].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
                "s.properties[a].x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks",
                "s.properties[a].x-kubernetes-validations[0].reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
            ],
        );
    }
}
