//! A patched document as upstream's errors show it: what the patch went through has sorted keys, the rest is as Go printed it.
//! Used by `apiserver` (PATCH) for a document that is none of its kind after a JSON or merge patch.
//! Invariant: pure; shows every field once (tidy: `pure_files`).

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::schema::{Node, Schema, TypeId, go_form::escaped, go_order::source_key};

/// `touched` has the shape of what the patch names; whatever is no object in it is the patch's own.
pub fn shown(schema: &Schema, id: TypeId, document: &Value, touched: &Value) -> String {
    let mut out = String::new();
    write(&mut out, schema, &Node::Struct(id), document, Some(touched));
    escaped(out)
}

/// The places that a JSON patch names, as a document of its own.
pub fn places(patch: &Value) -> Value {
    let mut out = Value::Object(Map::new());
    for operation in patch.as_array().into_iter().flatten() {
        for field in ["path", "from"] {
            let Some(path) = operation[field].as_str() else { continue };
            let mut place = &mut out;
            for step in path.split('/').skip(1) {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                place = &mut place[step.replace("~1", "/").replace("~0", "~")];
            }
        }
    }
    out
}

fn write(out: &mut String, schema: &Schema, node: &Node, value: &Value, touched: Option<&Value>) {
    let touched = touched.and_then(Value::as_object);
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            match node {
                Node::Struct(id) if touched.is_none() => keys.sort_by_key(|key| {
                    // The type of an object has the number zero, and Go prints its kind first.
                    let of = schema.get(*id);
                    let number = of.field(key).map_or(([u32::MAX; 3], 0), |field| source_key(of, field));
                    (number, std::cmp::Reverse(*key))
                }),
                Node::Fields => keys.sort_by_cached_key(|key| owned_key(key)),
                _ => keys.sort_unstable(),
            }
            out.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                let _ = write!(out, "{comma}{}:", Value::from(key.as_str()));
                let below: &Node = match node {
                    Node::Struct(id) => schema.get(*id).field(key).map_or(&Node::Any, |field| &field.node),
                    Node::Map(item, _) => item,
                    Node::Fields => &Node::Fields,
                    _ => &Node::Any,
                };
                write(out, schema, below, &map[key], touched.and_then(|touched| touched.get(key)));
            }
            out.push('}');
        }
        Value::Array(items) => {
            let below: &Node = if let Node::List(item, _) = node { item } else { &Node::Any };
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(out, schema, below, item, touched.and_then(|touched| touched.get(&index.to_string())));
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

/// Owned fields stand by what they are called: numbers in keys of list items by their size.
fn owned_key(key: &str) -> (bool, String, Vec<(String, i64, String)>) {
    let parsed = key.strip_prefix("k:").and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let Some(parsed) = parsed else { return (false, key.to_string(), Vec::new()) };
    let parts = parsed.into_iter().map(|(name, value)| {
        let text = value.as_str().unwrap_or_default().to_string();
        (name, value.as_i64().unwrap_or_default(), text)
    });
    (true, String::new(), parts.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_patch_went_through_is_sorted() {
        let schema = crate::schema::builtin();
        let id = schema.find_kind("", "v1", "ConfigMap").unwrap();
        let document = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": { "b": "<", "a": "x" },
            "metadata": { "uid": "u", "name": "n", "creationTimestamp": null, "labels": 7 },
        });
        let check = |touched: Value, text: &str| assert_eq!(shown(schema, id, &document, &touched), text);
        check(
            json!({ "data": 7 }),
            "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"x\",\"b\":\"\\u003c\"},\"kind\":\"ConfigMap\",\
             \"metadata\":{\"name\":\"n\",\"uid\":\"u\",\"creationTimestamp\":null,\"labels\":7}}",
        );
        check(
            json!({ "metadata": { "labels": 7 } }),
            "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"x\",\"b\":\"\\u003c\"},\"kind\":\"ConfigMap\",\
             \"metadata\":{\"creationTimestamp\":null,\"labels\":7,\"name\":\"n\",\"uid\":\"u\"}}",
        );
        let named =
            places(&json!([{ "op": "add", "path": "/metadata/a~1b", "value": 1 }, { "op": "copy", "from": "/data" }]));
        assert_eq!(named, json!({ "metadata": { "a/b": null }, "data": null }));
    }
}
