//! What rules see of custom resources: values of the types that a schema declares (`cel::openapi_types`).
//! Used by `rules`, for every object.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use kube_cel::cel::{
    Value as CelValue,
    functions::{duration, timestamp},
    objects::OptionalValue,
};
use serde_json::Value;

use crate::cel::{from_json, map};
use ::cel::escape::{escape, is_keyword};

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
            let mut entries: Vec<_> = fields.iter().map(entry).collect();
            // A field that is called as a keyword is found by either name.
            if properties.is_some() {
                let keywords = fields.keys().zip(&entries).filter(|(name, _)| is_keyword(name));
                let keywords: Vec<_> = keywords.map(|(name, (_, value))| (name.clone(), value.clone())).collect();
                entries.extend(keywords);
            }
            map(entries)
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
