//! The published schema of a custom resource: its own, with the fields every object has.
//! Called by `documents` for kinds that are not in the field table.
//! OpenAPI v2 gets only what v2 can say.

use serde_json::{Map, Value, json};

use super::{Dialect, operations::META, schemas::Components};
use crate::Resource;

/// Keywords of a structural schema that OpenAPI v2 does not have.
const NOT_IN_V2: [&str; 6] = ["oneOf", "anyOf", "not", "nullable", "default", "allOf"];

pub(super) fn publish(
    components: &mut Components<'_>,
    resource: &Resource,
    name: &str,
    list: &str,
    schema: Option<&Value>,
) {
    let mut out = schema.cloned().unwrap_or_else(|| json!({"type": "object"}));
    if components.dialect == Dialect::V2 {
        reduce(&mut out);
    }
    if !out.is_object() {
        out = json!({"type": "object"});
    }
    // kubectl takes the properties of v2 for all there are, so a root that preserves anything else has none.
    let open = components.dialect == Dialect::V2 && out["x-kubernetes-preserve-unknown-fields"] == true;
    let alone = |reference: Value| match components.dialect {
        Dialect::V3 => json!({"allOf": [reference]}),
        Dialect::V2 => reference,
    };
    let text = |field: &str| json!({"type": "string", "description": components.type_meta(field)});
    if open {
        out = json!({"type": "object"});
    } else {
        if !out["properties"].is_object() {
            out["properties"] = json!({});
        }
        out["properties"]["metadata"] = alone(components_reference(components.dialect, "ObjectMeta"));
        out["properties"]["metadata"]["description"] = "Standard object's metadata.".into();
        out["properties"]["apiVersion"] = text("apiVersion");
        out["properties"]["kind"] = text("kind");
    }
    let about = |kind: &str| json!([{"group": resource.group, "kind": kind, "version": resource.version}]);
    out["x-kubernetes-group-version-kind"] = about(&resource.kind);
    let list_schema = json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("apiVersion"),
            "kind": text("kind"),
            "metadata": alone(components_reference(components.dialect, "ListMeta")),
            "items": {"type": "array", "items": {"$ref": format!("{}{name}", components.dialect.prefix())},
                "description": format!("List of {}.", resource.plural)},
        },
        "x-kubernetes-group-version-kind": about(&resource.list_kind),
    });
    components.reference(&format!("{META}.ObjectMeta"));
    components.reference(&format!("{META}.ListMeta"));
    components.add(name.into(), out);
    components.add(list.into(), list_schema);
}

fn components_reference(dialect: Dialect, meta: &str) -> Value {
    json!({"$ref": format!("{}{META}.{meta}", dialect.prefix())})
}

/// Takes out what v2 cannot say; a field that may be several things becomes one without a type.
fn reduce(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if map.get("nullable") == Some(&Value::Bool(true)) {
        // Null is of no type, and kubectl stumbles over parts of what has none.
        ["type", "items", "properties"].iter().for_each(|word| drop(map.remove(*word)));
    }
    unrequire_nullable(map);
    NOT_IN_V2.iter().for_each(|word| drop(map.remove(*word)));
    map.remove("x-kubernetes-validations");
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        // v2 readers take properties for all there is.
        let keep = ["description", "x-kubernetes-preserve-unknown-fields"];
        *map = std::mem::take(map).into_iter().filter(|(k, _)| keep.contains(&k.as_str())).collect::<Map<_, _>>();
        return;
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        map.remove("type");
    }
    for (key, value) in map.iter_mut() {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(reduce),
            ("items" | "additionalProperties", value) => reduce(value),
            _ => {}
        }
    }
}

/// What may be null may be absent to readers that do not know null.
fn unrequire_nullable(schema: &mut Map<String, Value>) {
    let nullable: Vec<String> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, p)| p["nullable"] == true)
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !nullable.iter().any(|n| name == n.as_str()));
    }
}
