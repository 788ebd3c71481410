//! Bodies to values and values to bodies, in the forms of `negotiate`.
//! The one place that knows which codec of `api` does what.
//! Invariant: never panics on input; says what was wrong in upstream's words.

use std::{ops::Deref, sync::Arc};

use bytes::Bytes;
use serde_json::Value;

use api::{
    ApiError,
    codec::{ContentType, Decoded},
    schema::{Schema, TypeId},
};

use crate::negotiate::Media;

/// The built-in schema, or one that a CustomResourceDefinition brought.
#[derive(Clone)]
pub enum SchemaRef {
    Builtin(&'static Schema),
    Custom(Arc<Schema>),
}

impl Deref for SchemaRef {
    type Target = Schema;

    fn deref(&self) -> &Schema {
        match self {
            SchemaRef::Builtin(schema) => schema,
            SchemaRef::Custom(schema) => schema,
        }
    }
}

pub fn builtin_schema() -> SchemaRef {
    SchemaRef::Builtin(api::schema::builtin())
}

pub fn decode(bytes: &[u8], media: Media, schema: Option<(&Schema, TypeId)>) -> Result<Decoded, ApiError> {
    let content = match media {
        Media::Json => ContentType::Json,
        Media::Yaml => ContentType::Yaml,
        Media::Protobuf => ContentType::Protobuf,
    };
    api::codec::decode(bytes, content, schema)
}

pub fn yaml(value: &Value) -> Bytes {
    api::codec::encode(value, ContentType::Yaml).unwrap_or_default().into()
}

/// One object in protobuf, in its envelope. `None`: this type has no protobuf form.
pub fn protobuf(value: &Value) -> Option<Bytes> {
    api::codec::encode(value, ContentType::Protobuf).ok().map(Bytes::from)
}

/// One event of a protobuf watch: a big-endian length, then `WatchEvent{type = 1, object{raw = 1} = 2}`. The event has
/// no envelope, the object in it does.
pub fn protobuf_watch_frame(kind: &str, object: &[u8]) -> Bytes {
    let mut raw = Vec::with_capacity(object.len() + 8);
    field(&mut raw, 1, object);
    let mut event = Vec::with_capacity(raw.len() + 24);
    field(&mut event, 1, kind.as_bytes());
    field(&mut event, 2, &raw);
    let mut out = Vec::with_capacity(event.len() + 4);
    out.extend_from_slice(&(event.len() as u32).to_be_bytes());
    out.extend_from_slice(&event);
    out.into()
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}
