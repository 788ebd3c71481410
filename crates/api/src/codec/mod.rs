//! Objects to and from the wire: JSON, YAML and protobuf, all along the one schema.
//! Used by `apiserver` for bodies and answers, by `client` and `cli` for the other side.
//! Decoding input never panics, and nothing comes out deeper than `depth` allows; what upstream complains about is
//! complained about in its words.

mod scalar;
mod typed;
mod yaml;
pub mod yaml_text;

pub mod pem;
pub mod protobuf;

pub(crate) use scalar::format_duration;
pub use scalar::{parse_bool, parse_duration, parse_unsigned_duration};
use serde::de::DeserializeSeed;
use serde_json::{Map, Value};

use crate::{
    ApiError,
    depth::{self, NESTING_DEPTH_MAX, TOO_DEEP},
    schema::{self, Schema, TypeId},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContentType {
    Json,
    Yaml,
    Protobuf,
}

impl ContentType {
    /// From a `Content-Type` or one entry of `Accept`, parameters ignored.
    pub fn parse(header: &str) -> Option<Self> {
        match header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "application/json" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// An object as it came in, and what a strict reader holds against it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    pub value: Value,
    /// `unknown field "spec.foo"`, `duplicate field "spec.replicas"`: fatal, warnings, or nothing, as the client asked.
    pub problems: Vec<String>,
}

impl Decoded {
    /// For `fieldValidation=Strict`: all problems as one 400.
    pub fn strict(self) -> Result<Value, ApiError> {
        if self.problems.is_empty() {
            return Ok(self.value);
        }
        let what = format!("strict decoding error: {}", self.problems.join(", "));
        Err(cannot_be_handled(&self.value, None, &what))
    }
}

/// Reads `bytes`. With a schema, unknown fields are dropped and noted and types are checked; without, anything goes
/// (for protobuf the envelope then says which built-in type it is).
pub fn decode(bytes: &[u8], content: ContentType, schema: Option<(&Schema, TypeId)>) -> Result<Decoded, ApiError> {
    let decoded = match content {
        ContentType::Json => decode_json(bytes, schema),
        ContentType::Yaml => yaml::decode(bytes, schema),
        ContentType::Protobuf => protobuf::decode(bytes, schema).map(|value| Decoded { value, problems: Vec::new() }),
    }?;
    match depth::exceeds(&decoded.value, NESTING_DEPTH_MAX) {
        true => Err(unreadable(bytes, schema, TOO_DEEP)),
        false => Ok(decoded),
    }
}

/// Reads a value again along a schema, as after a patch: the same checks as for bytes, without the bytes.
pub fn decode_value(value: Value, schema: &Schema, id: TypeId) -> Result<Decoded, ApiError> {
    let meta = serde_json::json!({ "apiVersion": value["apiVersion"], "kind": value["kind"] });
    let walk = typed::Walk::new(schema);
    let read = walk.root(id).deserialize(value);
    let (problems, failure) = walk.into_parts();
    let why = |error: serde_json::Error| failure.unwrap_or_else(|| error.to_string());
    let value = read.map_err(|e| cannot_be_handled(&meta, Some((schema, id)), &why(e)))?;
    Ok(Decoded { value, problems })
}

/// Encodes an object for an answer. JSON and YAML need no schema.
pub fn encode(value: &Value, content: ContentType) -> Result<Vec<u8>, ApiError> {
    match content {
        ContentType::Json => serde_json::to_vec(value).map_err(|e| ApiError::internal(e.to_string())),
        ContentType::Yaml => Ok(yaml_text::to_string(value).into_bytes()),
        ContentType::Protobuf => protobuf::encode_object(value),
    }
}

fn decode_json(bytes: &[u8], schema: Option<(&Schema, TypeId)>) -> Result<Decoded, ApiError> {
    let walk = typed::Walk::new(schema_or_builtin(schema));
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = match schema {
        Some((_, id)) => walk.root(id).deserialize(&mut reader),
        None => walk.any().deserialize(&mut reader),
    };
    let read = read.and_then(|value| reader.end().map(|()| value));
    let (problems, failure) = walk.into_parts();
    match (read, failure) {
        (Ok(value), _) => Ok(Decoded { value, problems }),
        (Err(_), Some(failure)) => Err(mistyped(bytes, schema, &failure)),
        (Err(error), None) => Err(unreadable(bytes, schema, &json_error(&error))),
    }
}

fn schema_or_builtin(schema: Option<(&Schema, TypeId)>) -> &Schema {
    match schema {
        Some((schema, _)) => schema,
        None => schema::builtin(),
    }
}

/// Go's words for the commonest way to be no JSON; serde's for the rest.
fn json_error(error: &serde_json::Error) -> String {
    let what = match error.is_eof() {
        true => "unexpected end of JSON input".to_string(),
        false => error.to_string(),
    };
    format!("couldn't get version/kind; json parse error: {what}")
}

fn kind_of(schema: Option<(&Schema, TypeId)>) -> String {
    let name = schema.map(|(schema, id)| schema.get(id).name.as_str()).unwrap_or("object");
    name.rsplit('.').next().unwrap_or_default().to_string()
}

/// The error of a body that is no document at all.
fn unreadable(bytes: &[u8], schema: Option<(&Schema, TypeId)>, why: &str) -> ApiError {
    unrecognized(bytes, &kind_of(schema), why)
}

/// The error of a body whose type can't be told; it shows how the body begins.
pub fn unrecognized(bytes: &[u8], kind: &str, why: &str) -> ApiError {
    let summary = match bytes {
        [] => "<empty>".to_string(),
        [b'{', ..] if bytes.len() > 30 => format!("{} ...", String::from_utf8_lossy(&bytes[..30])),
        [b'{', ..] => String::from_utf8_lossy(bytes).into_owned(),
        _ => {
            bytes.iter().take(30).map(|b| format!("{b:02x}")).collect::<String>()
                + if bytes.len() > 30 { " ..." } else { "" }
        }
    };
    ApiError::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why} ({summary})"))
}

/// The error of a document with a value of the wrong type.
fn mistyped(bytes: &[u8], schema: Option<(&Schema, TypeId)>, why: &str) -> ApiError {
    let meta = serde_json::from_slice::<Map<String, Value>>(bytes).unwrap_or_default();
    mistyped_document(bytes, &meta, schema, why)
}

/// Type and version are looked for before anything else is read.
fn mistyped_document(
    bytes: &[u8],
    meta: &Map<String, Value>,
    schema: Option<(&Schema, TypeId)>,
    why: &str,
) -> ApiError {
    if let Some(why) = mistyped_type(meta) {
        return unreadable(bytes, schema, &why);
    }
    let text = |field: &str| meta.get(field).cloned().unwrap_or_default();
    let value = serde_json::json!({ "apiVersion": text("apiVersion"), "kind": text("kind") });
    cannot_be_handled(&value, schema, why)
}

/// What is wrong with a type or version that is no text.
pub fn mistyped_type(meta: &Map<String, Value>) -> Option<String> {
    let found = meta.iter().filter(|(field, _)| matches!(field.as_str(), "apiVersion" | "kind"));
    found.into_iter().find_map(|(field, value)| {
        let found = match value {
            Value::Null | Value::String(_) => return None,
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let what = format!("json: cannot unmarshal {found} into Go struct field .{field} of type string");
        Some(format!("couldn't get version/kind; json parse error: {what}"))
    })
}

/// `Deployment in version "v1" cannot be handled as a Deployment: ...`.
fn cannot_be_handled(value: &Value, schema: Option<(&Schema, TypeId)>, why: &str) -> ApiError {
    let kind = value["kind"].as_str().unwrap_or_default();
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let wanted = if schema.is_some() { kind_of(schema) } else { kind.to_string() };
    // Whoever names none means the one that was asked for.
    let of_type = || schema.and_then(|(schema, id)| schema.get(id).name.rsplit('.').nth(1));
    let version = if version.is_empty() { of_type().unwrap_or_default() } else { version };
    let (kind, version) = match kind {
        "" => (wanted.as_str(), version),
        _ => (kind, version),
    };
    ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {wanted}: {why}"))
}

#[cfg(test)]
mod tests;
