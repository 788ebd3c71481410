//! The types that OpenAPI schemas declare, for the checker.
//! Used for rules of custom resources, and for policies about them.
//! What a schema does not describe can be compared, but has no type.

use std::sync::Arc;

use serde_json::Value;

use super::{
    escape::escape,
    types::{Type, builtin_schema},
};

/// The type of what fits a schema; `None` if expressions may not look at it.
/// A `resource` has a kind and a name, whether or not its schema says so.
pub fn type_of(schema: &Value, resource: bool) -> Option<Type> {
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(Type::Dyn);
    }
    let inside = |word: &str| type_of(&schema[word], is_embedded(&schema[word])).map(Box::new);
    Some(match schema["type"].as_str()? {
        "array" => Type::List(inside("items")?),
        "object" if schema["additionalProperties"].is_object() => Type::Map(inside("additionalProperties")?),
        "object" => object(schema, if resource { resource_fields() } else { Vec::new() }),
        "string" => match schema["format"].as_str() {
            Some("byte") => Type::Bytes,
            Some("duration") => Type::Duration,
            Some("date" | "date-time") => Type::Timestamp,
            _ => Type::String,
        },
        "boolean" => Type::Bool,
        "number" => Type::Double,
        "integer" => Type::Int,
        _ => return None,
    })
}

/// The type of a kind by its published schema: with all of its metadata.
pub fn type_of_kind(schema: &Value) -> Type {
    let builtin = builtin_schema();
    let metadata = builtin.by_name.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").copied();
    let metadata = metadata.map_or(Type::Dyn, |id| Type::Struct(builtin, id));
    object(
        schema,
        vec![("apiVersion".into(), Type::String), ("kind".into(), Type::String), ("metadata".into(), metadata)],
    )
}

fn resource_fields() -> Vec<(String, Type)> {
    let texts = |names: [&str; 2]| names.map(|name| (name.to_string(), Type::String)).to_vec();
    let mut fields = texts(["apiVersion", "kind"]);
    fields.push(("metadata".into(), Type::Record("object", Arc::new(texts(["name", "generateName"])))));
    fields
}

fn object(schema: &Value, mut fields: Vec<(String, Type)>) -> Type {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let (Some(name), Some(kind)) = (escape(name), type_of(property, is_embedded(property)))
            && !fields.iter().any(|(known, _)| *known == name)
        {
            fields.push((name, kind));
        }
    }
    Type::Record("object", Arc::new(fields))
}

fn is_embedded(schema: &Value) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}
