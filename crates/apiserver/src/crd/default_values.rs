//! Whether the defaults that a definition declares are values of their own schemas, with no fields that would be pruned.
//! Called by `declared` when a CustomResourceDefinition is written; values are judged by `check`.
//! Defaults of metadata are refused before, so nothing here looks at it.

use serde_json::Value;

use api::field::{ErrorList, Path};

use super::check::Check;

const METADATA: [&str; 3] = ["metadata", "apiVersion", "kind"];

pub fn validate(path: &Path, schema: &Value, errors: &mut ErrorList) {
    visit(path, schema, true, errors);
}

fn visit(path: &Path, schema: &Value, resource: bool, errors: &mut ErrorList) {
    let embedded = resource || schema["x-kubernetes-embedded-resource"] == true;
    let default = &schema["default"];
    if !default.is_null() {
        let path = path.child("default");
        if has_unknown(schema, default, embedded) {
            errors.invalid(&path, default.clone(), "must not have unknown fields");
        }
        let mut found = ErrorList::new();
        // The value is judged on its own: what is said of it names places inside it only.
        Check::compile(schema).check(&Path::default(), default, None, &mut found);
        errors.append(found.below(&path));
    }
    if schema["items"].is_object() {
        visit(&path.child("items"), &schema["items"], false, errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if !(embedded && METADATA.contains(&name.as_str())) {
            visit(&path.child("properties").key(name), property, false, errors);
        }
    }
}

/// Whether pruning would take something away.
fn has_unknown(schema: &Value, value: &Value, resource: bool) -> bool {
    let embedded = resource || schema["x-kubernetes-embedded-resource"] == true;
    match value {
        Value::Array(items) => items.iter().any(|item| has_unknown(&schema["items"], item, false)),
        Value::Object(fields) => fields.iter().any(|(name, value)| {
            if embedded && METADATA.contains(&name.as_str()) {
                return false;
            }
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (property @ Value::Object(_), _) => has_unknown(property, value, false),
                (_, inner @ Value::Object(_)) => has_unknown(inner, value, false),
                (_, Value::Bool(true)) => false,
                _ => schema["x-kubernetes-preserve-unknown-fields"] != true,
            }
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_values_of_their_schemas() {
        let check = |property: Value, expected: &[&str]| {
            let mut errors = ErrorList::new();
            validate(&Path::new("s"), &json!({ "type": "object", "properties": { "x": property } }), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        check(json!({ "type": "integer", "default": 1 }), &[]);
        check(json!({ "type": "object", "default": {}, "properties": { "a": { "type": "string" } } }), &[]);
        check(
            json!({ "type": "integer", "default": "1" }),
            &["s.properties[x].default: Invalid value: \"string\":  in body must be of type integer: \"string\""],
        );
        check(
            json!({ "type": "object", "default": { "b": 1 }, "properties": { "a": { "type": "string" } } }),
            &["s.properties[x].default: Invalid value: {\"b\":1}: must not have unknown fields"],
        );
    }
}
