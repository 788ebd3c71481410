//! `application/vnd.kubernetes.protobuf`: objects in their envelope, lists put together from encoded items, watch frames.
//! Called by `codec`, and by `apiserver` where objects are already encoded.
//! Bytes are upstream's, one for one.

mod decode;
mod encode;
pub(crate) mod wire;

use serde_json::Value;

use crate::{
    ApiError,
    schema::{self, Schema, TypeId},
};
use wire::{Reader, Writer};

/// Opens every object.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// What an envelope says of its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope<'b> {
    pub api_version: String,
    pub kind: String,
    /// The message itself, without magic.
    pub raw: &'b [u8],
    /// Empty for protobuf.
    pub content_type: String,
}

/// The bare message of an object, without envelope.
pub fn encode(schema: &Schema, id: TypeId, value: &Value) -> Result<Vec<u8>, ApiError> {
    if schema.get(id).wire_order.is_empty() && !schema.get(id).fields.is_empty() {
        let name = &schema.get(id).name;
        return Err(ApiError::internal(format!("{name} has no protobuf form")));
    }
    let mut encoder = encode::Encoder { schema, out: Writer::default(), unknown: false };
    encoder
        .message(id, value)
        .map_err(|e| ApiError::internal(format!("failed to encode {}: {e}", schema.get(id).name)))?;
    Ok(encoder.out.finish())
}

/// As `encode`, or nothing if some field of `value` has no place in the message.
pub fn encode_lossless(schema: &Schema, id: TypeId, value: &Value) -> Option<Vec<u8>> {
    let mut encoder = encode::Encoder { schema, out: Writer::default(), unknown: false };
    encoder.message(id, value).ok()?;
    (!encoder.unknown).then(|| encoder.out.finish())
}

/// A built-in object by its own `apiVersion` and `kind`, in its envelope.
pub fn encode_object(value: &Value) -> Result<Vec<u8>, ApiError> {
    let (api_version, kind) = (text(value, "apiVersion"), text(value, "kind"));
    let (schema, id) = find_built_in(api_version, kind)
        .ok_or_else(|| ApiError::internal(format!("{kind} in {api_version} has no protobuf form")))?;
    Ok(envelope(api_version, kind, &encode(schema, id, value)?))
}

/// Puts a bare message into its envelope.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    // Kept for as long as the object is in use, so without spare room.
    let mut out = Writer::with_capacity(raw.len() + api_version.len() + kind.len() + ENVELOPE_BYTES_MAX);
    open_envelope(&mut out);
    out.bytes(2, raw);
    close_envelope(out, api_version, kind)
}

/// What an envelope adds to a message and its names: magic, tags and lengths.
const ENVELOPE_BYTES_MAX: usize = 40;

/// Written from its end, an envelope begins with what follows the message.
fn open_envelope(out: &mut Writer) {
    out.bytes(4, b"");
    out.bytes(3, b"");
}

fn close_envelope(mut out: Writer, api_version: &str, kind: &str) -> Vec<u8> {
    let start = out.len();
    out.bytes(2, kind.as_bytes());
    out.bytes(1, api_version.as_bytes());
    out.close(1, start);
    out.raw(&MAGIC);
    out.finish()
}

/// Takes the envelope off.
pub fn open(bytes: &[u8]) -> Result<Envelope<'_>, ApiError> {
    let unreadable = |why: &str| ApiError::bad_request(format!("couldn't get version/kind; proto parse error: {why}"));
    let Some(body) = bytes.strip_prefix(&MAGIC) else {
        let prefix = &bytes[..bytes.len().min(4)];
        return Err(ApiError::bad_request(format!(
            "provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}, got {prefix:?}"
        )));
    };
    read_envelope(body).map_err(|why| unreadable(&why))
}

fn read_envelope(body: &[u8]) -> Result<Envelope<'_>, String> {
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(body);
    while let Some((number, item)) = reader.next()? {
        match number {
            1 => {
                let mut meta = Reader::new(decode::bytes_of(item)?);
                while let Some((number, item)) = meta.next()? {
                    match number {
                        1 => envelope.api_version = decode::text(item)?,
                        2 => envelope.kind = decode::text(item)?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = decode::bytes_of(item)?,
            4 => envelope.content_type = decode::text(item)?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// An object in its envelope. Without a schema the envelope says which built-in type it is; with one, the envelope may
/// leave it out (as `DeleteOptions` does).
pub fn decode(bytes: &[u8], schema: Option<(&Schema, TypeId)>) -> Result<Value, ApiError> {
    let envelope = open(bytes)?;
    if envelope.content_type == "application/json" {
        return super::decode_json(envelope.raw, schema).map(|d| d.value);
    }
    let found = find_built_in(&envelope.api_version, &envelope.kind);
    // A body of another kind than the one asked for is told apart by its own type, so read it as what it is.
    let chosen = match (schema, found) {
        (Some((schema, id)), Some((own_schema, own)))
            if schema.go_types && own_schema.get(own).name != schema.get(id).name =>
        {
            found
        }
        (Some(given), _) => Some(given),
        (None, found) => found,
    };
    let (schema, id) = chosen.ok_or_else(|| {
        let (kind, version) = (&envelope.kind, &envelope.api_version);
        ApiError::bad_request(format!("no kind \"{kind}\" is registered for version \"{version}\" in scheme"))
    })?;
    decode_message(schema, id, &envelope).map_err(|e| {
        let kind = envelope.kind.as_str();
        let version = envelope.api_version.rsplit('/').next().unwrap_or_default();
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {e}"))
    })
}

/// As `decode`, of the type that is given, whatever the envelope says.
pub fn decode_as(bytes: &[u8], (schema, id): (&Schema, TypeId)) -> Result<Value, ApiError> {
    let envelope = open(bytes)?;
    if envelope.content_type == "application/json" {
        return super::decode_json(envelope.raw, Some((schema, id))).map(|d| d.value);
    }
    decode_message(schema, id, &envelope).map_err(|e| ApiError::bad_request(format!("{}: {e}", envelope.kind)))
}

fn decode_message(schema: &Schema, id: TypeId, envelope: &Envelope<'_>) -> Result<Value, String> {
    decode_at(schema, id, envelope, 0)
}

fn decode_at(schema: &Schema, id: TypeId, envelope: &Envelope<'_>, depth: usize) -> Result<Value, String> {
    let mut decoder = decode::Decoder { schema, depth };
    let mut value = decoder.message(id, envelope.raw)?;
    schema.canonicalize(id, &mut value);
    // Kinds carry their type in the envelope; WatchEvent has no type of its own.
    if let Value::Object(map) = &mut value
        && schema.get(id).field("apiVersion").is_some_and(|f| f.proto == 0)
    {
        for (name, text) in [("apiVersion", &envelope.api_version), ("kind", &envelope.kind)] {
            if !text.is_empty() {
                map.insert(name.into(), text.as_str().into());
            }
        }
    }
    Ok(value)
}

/// An object inside another (`RawExtension`).
fn decode_nested(schema: &Schema, bytes: &[u8], depth: usize) -> Result<Value, String> {
    let envelope = read_envelope(&bytes[MAGIC.len()..])?;
    let id = find(schema, &envelope.api_version, &envelope.kind)
        .ok_or_else(|| format!("no kind {:?} is registered for version {:?}", envelope.kind, envelope.api_version))?;
    decode_at(schema, id, &envelope, depth)
}

/// A list from items that are bare messages already.
pub fn list(api_version: &str, list_kind: &str, metadata: &Value, items: &[&[u8]]) -> Result<Vec<u8>, ApiError> {
    let schema = schema::builtin();
    let list_meta = schema.by_name["io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"];
    // All at once: a list may be large, and growing would hold it twice.
    let items_bytes: usize = items.iter().map(|item| item.len() + ITEM_HEAD_BYTES_MAX).sum();
    let mut out = Writer::with_capacity(items_bytes + LIST_HEAD_BYTES);
    open_envelope(&mut out);
    let raw = out.len();
    let mut encoder = encode::Encoder { schema, out, unknown: false };
    items.iter().rev().for_each(|item| encoder.out.bytes(2, item));
    let start = encoder.out.len();
    encoder.message(list_meta, metadata).map_err(ApiError::internal)?;
    encoder.out.close(1, start);
    encoder.out.close(2, raw);
    Ok(close_envelope(encoder.out, api_version, list_kind))
}

/// A tag and a length.
const ITEM_HEAD_BYTES_MAX: usize = 11;
/// Room for the list's own metadata and its envelope.
const LIST_HEAD_BYTES: usize = 1024;

/// One frame of a watch: a length, then a bare `WatchEvent` around the object in its envelope.
pub fn watch_frame(event_type: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(1, object);
    out.close(2, 0);
    out.bytes(1, event_type.as_bytes());
    let length = out.len() as u32;
    out.raw(&length.to_be_bytes());
    out.finish()
}

/// Reads one frame of a watch from the front of `bytes`: the event type, the object in its envelope, the bytes used.
/// `None` while the frame is not complete.
pub fn read_watch_frame(bytes: &[u8]) -> Result<Option<(String, &[u8], usize)>, ApiError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let read = || -> Result<(String, &[u8]), String> {
        let (mut kind, mut object, mut reader) = (String::new(), &frame[..0], Reader::new(frame));
        while let Some((number, item)) = reader.next()? {
            match number {
                1 => kind = decode::text(item)?,
                2 => {
                    let mut raw = Reader::new(decode::bytes_of(item)?);
                    while let Some((number, item)) = raw.next()? {
                        if number == 1 {
                            object = decode::bytes_of(item)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok((kind, object))
    };
    let (kind, object) = read().map_err(|e| ApiError::internal(format!("unable to decode watch event: {e}")))?;
    Ok(Some((kind, object, 4 + length)))
}

fn find(schema: &Schema, api_version: &str, kind: &str) -> Option<TypeId> {
    let (group, version) = group_version(api_version);
    schema.find_kind(group, version, kind)
}

fn find_built_in(api_version: &str, kind: &str) -> Option<(&'static Schema, TypeId)> {
    let (group, version) = group_version(api_version);
    schema::find_built_in(group, version, kind)
}

fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
