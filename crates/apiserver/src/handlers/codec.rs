//! Bodies to values and values to bodies, in the forms of `negotiate`.
//! The one place that knows which codec of `api` does what.
//! Never panics on input; says what was wrong in upstream's words.

use bytes::Bytes;
use serde_json::Value;

use api::{
    ApiError,
    codec::{ContentType, Decoded, yaml_text},
    schema::{Schema, TypeId},
};

pub use ::cel::types::{SchemaRef, builtin_schema};

use crate::handlers::negotiate::Media;

pub fn decode(bytes: &[u8], media: Media, schema: Option<(&Schema, TypeId)>) -> Result<Decoded, ApiError> {
    let content = match media {
        Media::Json => ContentType::Json,
        Media::Yaml => ContentType::Yaml,
        Media::Protobuf => ContentType::Protobuf,
    };
    api::codec::decode(bytes, content, schema)
}

pub fn yaml(value: &Value) -> Bytes {
    yaml_text::to_string(value).into()
}

/// One object in protobuf, in its envelope. `None`: this type has no protobuf form.
pub fn protobuf(value: &Value) -> Option<Bytes> {
    api::codec::encode(value, ContentType::Protobuf).ok().map(Bytes::from)
}

/// One event of a protobuf watch: a big-endian length, then `WatchEvent{type = 1, object{raw = 1} = 2}`. The event has
/// no envelope, the object in it does.
pub fn protobuf_watch_frame(kind: &str, object: &[u8]) -> Bytes {
    let raw = field_length(object.len());
    let event = field_length(kind.len()) + field_length(raw);
    let mut out = Vec::with_capacity(event + 4);
    out.extend_from_slice(&(event as u32).to_be_bytes());
    field(&mut out, 1, kind.len());
    out.extend_from_slice(kind.as_bytes());
    field(&mut out, 2, raw);
    field(&mut out, 1, object.len());
    out.extend_from_slice(object);
    out.into()
}

/// The tag and length of a field whose bytes follow.
fn field(out: &mut Vec<u8>, number: u8, mut length: usize) {
    out.push(number << 3 | 2);
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

fn field_length(bytes: usize) -> usize {
    let varint = (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(7) as usize;
    1 + varint + bytes
}
