//! What rules see of custom resources: the types a schema declares, and values of these types.
//! Used by `declared` (types, when a definition is written) and `rules` (values, for every object).
//! What a schema does not describe can be compared, but has no type.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use kube_cel::cel::{
    Value as CelValue,
    functions::{duration, timestamp},
    objects::OptionalValue,
};
use serde_json::Value;

use crate::cel::{from_json, map, types::Type};
use ::cel::escape::escape;

/// The type of what fits a schema; `None` if rules may not look at it.
/// A `resource` has a kind and a name, whether or not its schema says so.
pub fn type_of(schema: &Value, resource: bool) -> Option<Type> {
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(Type::Dyn);
    }
    let inside = |word: &str| type_of(&schema[word], is_embedded(&schema[word])).map(Box::new);
    Some(match schema["type"].as_str()? {
        "array" => Type::List(inside("items")?),
        "object" if schema["additionalProperties"].is_object() => Type::Map(inside("additionalProperties")?),
        "object" => object(schema, resource),
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

fn object(schema: &Value, resource: bool) -> Type {
    let mut fields = Vec::new();
    if resource {
        let texts = |names: [&str; 2]| names.map(|name| (name.to_string(), Type::String)).to_vec();
        fields.extend(texts(["apiVersion", "kind"]));
        fields.push(("metadata".into(), Type::Record("object", Arc::new(texts(["name", "generateName"])))));
    }
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

/// A value as its schema has it.
pub fn value_of(value: &Value, schema: &Value) -> CelValue {
    match value {
        Value::Array(items) => {
            CelValue::List(Arc::new(items.iter().map(|item| value_of(item, &schema["items"])).collect()))
        }
        Value::Object(fields) => {
            let properties = schema["properties"].as_object();
            let entry = |(name, value): (&String, &Value)| match properties {
                Some(known) => {
                    let schema = known.get(name).unwrap_or(&Value::Null);
                    (escape(name).unwrap_or_else(|| name.clone()), value_of(value, schema))
                }
                // The keys of a map are data.
                None => (name.clone(), value_of(value, &schema["additionalProperties"])),
            };
            map(fields.iter().map(entry).collect())
        }
        Value::String(text) if schema["type"] == "string" => {
            let format = schema["format"].as_str().and_then(|format| formatted(text, format));
            format.unwrap_or_else(|| from_json(value))
        }
        Value::Number(number) if schema["type"] == "number" => CelValue::Float(number.as_f64().unwrap_or_default()),
        other => from_json(other),
    }
}

fn formatted(text: &str, format: &str) -> Option<CelValue> {
    match format {
        "byte" => Some(CelValue::Bytes(Arc::new(BASE64_STANDARD.decode(text).ok()?))),
        "duration" => duration(Arc::new(text.to_string())).ok(),
        "date" => timestamp(Arc::new(format!("{text}T00:00:00Z"))).ok(),
        "date-time" => timestamp(Arc::new(text.to_string())).ok(),
        _ => None,
    }
}

pub fn optional(value: Option<CelValue>) -> CelValue {
    CelValue::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}
