//! What the schema of a CustomResourceDefinition may say: words that have a meaning here, list and map types, rules.
//! Called by `custom_resource_definition` after `structural_schema`; whether rules compile is for the API server to find out.
//! Invariant: pure; words and paths are upstream's (tidy: `pure_files`).

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::{entries, flag, is_set, items, part, text, texts},
};

const METADATA: [&str; 3] = ["metadata", "kind", "apiVersion"];

pub fn validate(errors: &mut ErrorList, path: &Path, schema: &Value) {
    visit(errors, path, schema, &Around { root: true, ..Around::default() });
}

/// What is known of the schemas around one.
#[derive(Clone, Default)]
struct Around {
    root: bool,
    /// Why no defaults are allowed here.
    no_defaults: Option<String>,
    /// Inside of what every object has.
    in_metadata: bool,
}

impl Around {
    fn inner(&self) -> Self {
        Self { root: false, ..self.clone() }
    }
}

fn visit(errors: &mut ErrorList, path: &Path, schema: &Value, around: &Around) {
    supported(errors, path, schema, around);
    if flag(schema, "uniqueItems") {
        let words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), words);
    }
    let additional = &schema["additionalProperties"];
    if !additional.is_null() && is_set(schema, "properties") && *additional != json!(true) {
        let words = "additionalProperties and properties are mutual exclusive";
        errors.forbidden(&path.child("additionalProperties"), words);
    }
    if additional.is_object() {
        let mut inner = around.inner();
        if around.in_metadata {
            inner.no_defaults = Some("inside additionalProperties applying to object metadata".into());
        }
        visit(errors, &path.child("additionalProperties"), additional, &inner);
    }
    for (name, property) in entries(schema, "properties") {
        let mut inner = around.inner();
        if (around.root || flag(schema, "x-kubernetes-embedded-resource")) && METADATA.contains(&name) {
            inner.in_metadata = true;
            if around.root {
                inner.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        visit(errors, &path.child("properties").key(name), property, &inner);
    }
    if let Some(inner) = part(schema, "not") {
        visit(errors, &path.child("not"), inner, &around.inner());
    }
    for word in ["allOf", "oneOf", "anyOf"] {
        for (index, inner) in items(schema, word).iter().enumerate() {
            visit(errors, &path.child(word).index(index), inner, &around.inner());
        }
    }
    for (name, inner) in entries(schema, "definitions") {
        visit(errors, &path.child("definitions").key(name), inner, &around.inner());
    }
    match &schema["items"] {
        inner @ Value::Object(_) => visit(errors, &path.child("items"), inner, &around.inner()),
        Value::Array(several) => {
            for (index, inner) in several.iter().enumerate() {
                visit(errors, &path.child("items").index(index), inner, &around.inner());
            }
        }
        _ => {}
    }
    for (name, inner) in entries(schema, "dependencies").filter(|(_, inner)| inner.is_object()) {
        visit(errors, &path.child("dependencies").key(name), inner, &around.inner());
    }
    let preserve = "x-kubernetes-preserve-unknown-fields";
    if schema[preserve] == json!(false) {
        errors.invalid(&path.child(preserve), false, "must be true or undefined");
    }
    lists_and_maps(errors, path, schema);
    rules(errors, path, schema);
}

/// Words of JSON schema that mean nothing here.
fn supported(errors: &mut ErrorList, path: &Path, schema: &Value, around: &Around) {
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    let kind = text(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, &TYPES);
    }
    if let Some(why) = &around.no_defaults
        && !schema["default"].is_null()
    {
        errors.forbidden(&path.child("default"), format!("must not be set {why}"));
    }
    for word in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let said = match word {
            "$ref" | "additionalItems" | "dependencies" => !schema[word].is_null(),
            _ => is_set(schema, word),
        };
        if said {
            errors.forbidden(&path.child(word), format!("{word} is not supported"));
        }
    }
    if kind == "null" {
        errors.forbidden(&path.child("type"), "type cannot be set to null, use nullable as an alternative");
    }
    if !items(schema, "items").is_empty() {
        errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    if around.in_metadata && flag(schema, "x-kubernetes-embedded-resource") {
        let words = "must not be used inside of resource meta";
        errors.forbidden(&path.child("x-kubernetes-embedded-resource"), words);
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
    if let Some(map_type) = schema["x-kubernetes-map-type"].as_str() {
        must_be(errors, "object", "x-kubernetes-map-type");
        if !matches!(map_type, "atomic" | "granular") {
            errors.not_supported(&path.child("x-kubernetes-map-type"), map_type, &["atomic", "granular"]);
        }
    }
    let said = schema["x-kubernetes-list-type"].as_str();
    let list_type = said.unwrap_or_default();
    let keys: Vec<&str> = texts(schema, "x-kubernetes-list-map-keys").collect();
    if said.is_some() {
        must_be(errors, "array", "x-kubernetes-list-type");
    }
    if list_type == "set" && text(schema, "type") == "array" {
        set_items(errors, &path.child("items"), &schema["items"]);
    }
    if said.is_some() && !matches!(list_type, "atomic" | "set" | "map") {
        let path = path.child("x-kubernetes-list-type");
        errors.not_supported_as_listed(&path, list_type, &["atomic", "set", "map"]);
    }
    if !keys.is_empty() && list_type != "map" {
        let words = "must be map if x-kubernetes-list-map-keys is non-empty";
        match said {
            None => errors.required(&path.child("x-kubernetes-list-type"), words),
            Some(other) => errors.invalid(&path.child("x-kubernetes-list-type"), other, words),
        }
    }
    if list_type == "map" {
        map_keys(errors, path, schema, &keys);
    }
    if matches!(list_type, "set" | "map") {
        distinct_items(errors, &path.child("items"), &schema["items"], list_type, &keys);
    }
}

/// The items of a set are compared as wholes.
fn set_items(errors: &mut ErrorList, path: &Path, inside: &Value) {
    let words = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list_type = inside.get("x-kubernetes-list-type").cloned().unwrap_or_default();
    match text(inside, "type") {
        "array" if !list_type.is_null() && list_type != "atomic" => {
            errors.invalid(&path.child("x-kubernetes-list-type"), list_type, words);
        }
        "object" if text(inside, "x-kubernetes-map-type") != "atomic" => {
            // As upstream has it: the list's type is shown.
            errors.invalid(&path.child("x-kubernetes-map-type"), list_type, words);
        }
        _ => {}
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
        return errors.invalid(&path.child("type"), text(inside, "type"), words);
    }
    for (index, key) in keys.iter().enumerate() {
        match part(&inside["properties"], key) {
            None => {
                let words = "entries must all be names of item properties";
                errors.invalid(&at, schema["x-kubernetes-list-map-keys"].clone(), words);
            }
            Some(property) if matches!(text(property, "type"), "array" | "object") => {
                let words = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.invalid(&path.child("properties").key(key).child("type"), text(inside, "type"), words);
            }
            Some(_) => {}
        }
        if keys[..index].contains(key) {
            errors.invalid(&at, schema["x-kubernetes-list-map-keys"].clone(), "must not contain duplicate entries");
        }
    }
}

/// Items that are told apart by themselves or their keys have to have them.
fn distinct_items(errors: &mut ErrorList, path: &Path, inside: &Value, list_type: &str, keys: &[&str]) {
    if flag(inside, "nullable") {
        let words = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&path.child("nullable"), words);
    }
    for key in keys.iter().filter(|_| list_type == "map") {
        let Some(property) = part(&inside["properties"], key) else { continue };
        let path = path.child("properties").key(key);
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

/// What a rule says about itself; whether it compiles is for the API server to find out.
fn rules(errors: &mut ErrorList, path: &Path, schema: &Value) {
    const LINE_BREAKS: [char; 2] = ['\n', '\r'];
    for (index, rule) in items(schema, "x-kubernetes-validations").iter().enumerate() {
        let path = path.child("x-kubernetes-validations").index(index);
        let (source, message) = (text(rule, "rule").trim(), text(rule, "message"));
        if source.is_empty() {
            errors.required(&path.child("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.invalid(&path.child("message"), message, "must be non-empty if specified");
        } else if message.trim().contains(LINE_BREAKS) {
            errors.invalid(&path.child("message"), message, "must not contain line breaks");
        } else if source.contains(LINE_BREAKS) && message.trim().is_empty() {
            errors.required(&path.child("message"), "message must be specified if rule contains line breaks");
        }
        let expression = text(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let words = "messageExpression must be non-empty if specified";
            errors.required(&path.child("messageExpression"), words);
        }
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        if let Some(reason) = rule.get("reason").and_then(Value::as_str).filter(|reason| !REASONS.contains(reason)) {
            errors.not_supported(&path.child("reason"), reason, &REASONS);
        }
        let field_path = text(rule, "fieldPath");
        if !field_path.is_empty() && field_path.trim().is_empty() {
            errors.invalid(&path.child("fieldPath"), field_path, "must be non-empty if specified");
        }
        if field_path.contains(LINE_BREAKS) {
            errors.invalid(&path.child("fieldPath"), field_path, "must not contain line breaks");
        }
    }
}
