//! The types that an OpenAPI schema declares to expressions, with how large their values may be.
//! Used by `estimator`.
//! A schema without limits is bounded by what fits into one request.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use crate::escape::{escape, is_keyword};

/// The largest request that is taken, for estimates.
pub const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// The length of `""`, `{}` and `[]`.
const EMPTY_BYTES: u64 = 2;
const BOOL_BYTES_MIN: u64 = 4;
const NUMBER_BYTES_MIN: u64 = 1;
const DURATION_BYTES_MIN: u64 = 3;
const DURATION_BYTES_MAX: u64 = 32;
const DATE_BYTES: u64 = 12;
const DATETIME_BYTES_MIN: u64 = 21;
const DATETIME_BYTES_MAX: u64 = 32;
/// A character has up to so many bytes; `maxLength` counts characters.
const CHARACTER_BYTES_MAX: u64 = 4;

#[derive(Debug)]
pub struct DeclType {
    pub kind: Kind,
    /// Of a text its length, of a list or map the number of entries, 0 for everything else.
    pub max_elements: u64,
    /// The shortest JSON of such a value.
    pub min_serialized_bytes: u64,
}

#[derive(Debug)]
pub enum Kind {
    /// `x-kubernetes-int-or-string`.
    Dyn,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<DeclType>),
    /// With keys that are strings.
    Map(Arc<DeclType>),
    Object(HashMap<String, Arc<DeclType>>),
}

impl DeclType {
    /// `None` for what expressions may not look at. A `resource` has a kind and a name, whether its schema says so or
    /// not.
    pub fn from_schema(schema: &Value, resource: bool) -> Option<Arc<Self>> {
        let declare = |kind, max_elements, min_serialized_bytes| {
            Some(Arc::new(Self { kind, max_elements, min_serialized_bytes }))
        };
        if schema["x-kubernetes-int-or-string"] == true {
            return declare(Kind::Dyn, max_length(schema).unwrap_or(REQUEST_BYTES_MAX - EMPTY_BYTES), NUMBER_BYTES_MIN);
        }
        match schema["type"].as_str()? {
            "array" => {
                let items = Self::child(&schema["items"])?;
                let fit = (REQUEST_BYTES_MAX - EMPTY_BYTES) / (items.min_serialized_bytes + 1);
                let max = limit(schema, "maxItems").unwrap_or(fit);
                declare(Kind::List(items), max, EMPTY_BYTES)
            }
            "object" if schema["additionalProperties"].is_object() => {
                let values = Self::child(&schema["additionalProperties"])?;
                // A key, its quotation marks, a colon and a comma.
                let fit = (REQUEST_BYTES_MAX - EMPTY_BYTES) / (values.min_serialized_bytes + 6);
                let max = limit(schema, "maxProperties").unwrap_or(fit);
                declare(Kind::Map(values), max, EMPTY_BYTES)
            }
            "object" => Some(Arc::new(Self::object(schema, resource && !declares_object_meta(schema)))),
            "string" => {
                let (kind, max, min) = string(schema);
                declare(kind, max, min)
            }
            "boolean" => declare(Kind::Bool, 0, BOOL_BYTES_MIN),
            "number" => declare(Kind::Double, 0, NUMBER_BYTES_MIN),
            "integer" => declare(Kind::Int, 0, NUMBER_BYTES_MIN),
            _ => None,
        }
    }

    fn child(schema: &Value) -> Option<Arc<Self>> {
        Self::from_schema(schema, schema["x-kubernetes-embedded-resource"] == true)
    }

    fn object(schema: &Value, resource: bool) -> Self {
        let required = |name: &str| schema["required"].as_array().into_iter().flatten().any(|r| r == name);
        let mut fields = HashMap::new();
        let mut bytes = EMPTY_BYTES;
        let text = || Arc::new(Self::text(REQUEST_BYTES_MAX - EMPTY_BYTES));
        let known = |name: &str| resource && ["apiVersion", "kind", "metadata"].contains(&name);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let Some(field) = Self::child(property).filter(|_| !known(name)) else { continue };
            // What has a default is filled in by the server.
            if required(name) && property["default"].is_null() {
                bytes += name.len() as u64 + field.min_serialized_bytes + 4;
            }
            if let Some(name) = escape(name) {
                fields.insert(name, field);
            }
        }
        if resource {
            let names = ["name", "generateName"].map(|name| (name.to_string(), text())).into();
            let metadata = Self { kind: Kind::Object(names), max_elements: 0, min_serialized_bytes: EMPTY_BYTES };
            fields.extend([("apiVersion", text()), ("kind", text()), ("metadata", metadata.into())].map(
                |(name, field)| {
                    if required(name) {
                        bytes += name.len() as u64 + field.min_serialized_bytes + 4;
                    }
                    (name.to_string(), field)
                },
            ));
        }
        Self { kind: Kind::Object(fields), max_elements: 0, min_serialized_bytes: bytes }
    }

    fn text(max_elements: u64) -> Self {
        Self { kind: Kind::String, max_elements, min_serialized_bytes: EMPTY_BYTES }
    }

    /// What the keys of a map are. Their length is not counted.
    pub fn key(&self) -> Option<Arc<Self>> {
        matches!(self.kind, Kind::Map(_)).then(|| Arc::new(Self::text(0)))
    }

    /// How often a value of this type can stand in one request.
    pub fn max_cardinality(&self) -> u64 {
        // At least a comma is between two of them.
        REQUEST_BYTES_MAX / (self.min_serialized_bytes + 1)
    }

    pub fn field(&self, name: &str) -> Option<&Arc<Self>> {
        match &self.kind {
            Kind::Object(fields) => match fields.get(name) {
                None if is_keyword(name) => fields.get(&format!("__{name}__")),
                found => found,
            },
            _ => None,
        }
    }

    /// What the items of a list or the values of a map are.
    pub fn element(&self) -> Option<&Arc<Self>> {
        match &self.kind {
            Kind::List(element) | Kind::Map(element) => Some(element),
            _ => None,
        }
    }
}

/// Whether a schema itself says what every resource has; else it is added.
fn declares_object_meta(schema: &Value) -> bool {
    let (properties, metadata) = (&schema["properties"], &schema["properties"]["metadata"]);
    ["kind", "apiVersion"].iter().all(|name| properties[name]["type"] == "string")
        && metadata["type"] == "object"
        && ["name", "generateName"].iter().all(|name| metadata["properties"][name]["type"] == "string")
}

fn limit(schema: &Value, name: &str) -> Option<u64> {
    schema[name].as_i64().map(|limit| limit.max(0) as u64)
}

fn max_length(schema: &Value) -> Option<u64> {
    limit(schema, "maxLength").map(|characters| characters.saturating_mul(CHARACTER_BYTES_MAX))
}

/// A text's kind, its highest and its lowest length.
fn string(schema: &Value) -> (Kind, u64, u64) {
    let fits = REQUEST_BYTES_MAX - EMPTY_BYTES;
    match schema["format"].as_str() {
        Some("byte") => (Kind::Bytes, limit(schema, "maxLength").unwrap_or(fits), EMPTY_BYTES),
        Some("duration") => (Kind::Duration, DURATION_BYTES_MAX, DURATION_BYTES_MIN),
        Some("date") => (Kind::Timestamp, DATE_BYTES, DATE_BYTES),
        Some("date-time") => (Kind::Timestamp, DATETIME_BYTES_MAX, DATETIME_BYTES_MIN),
        _ => {
            let values = schema["enum"].as_array().filter(|values| !values.is_empty());
            let longest = values.map(|values| values.iter().filter_map(|v| Some(v.as_str()?.len() as u64)).max());
            let max = max_length(schema).or(longest.map(Option::unwrap_or_default)).unwrap_or(fits);
            (Kind::String, max, EMPTY_BYTES)
        }
    }
}
