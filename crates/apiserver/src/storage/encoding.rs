//! How objects lie in the store: bytes that take a resourceVersion without being parsed again.
//! Written by `registry`; read back by `watch_cache`.
//! Stored bytes are plain JSON that starts `{"kind":…,"apiVersion":…,"metadata":{` and holds no resourceVersion; the
//! store's revision is the only source of it.

use bytes::Bytes;
use serde_json::{Map, Value};

use api::{ApiError, Object, WatchKind};
use store::Revision;

const METADATA: &[u8] = b"\"metadata\":{";

/// The bytes to store. `object` must have `kind`, `apiVersion` and a non-empty `metadata`.
pub fn encode(object: &Value) -> Bytes {
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let mut out = Vec::with_capacity(2048);
    let text = |out: &mut Vec<u8>, value: &Value| {
        serde_json::to_writer(out, value).expect("writing JSON to memory does not fail");
    };
    out.extend_from_slice(b"{\"kind\":");
    text(&mut out, fields.get("kind").unwrap_or(&Value::Null));
    out.extend_from_slice(b",\"apiVersion\":");
    text(&mut out, fields.get("apiVersion").unwrap_or(&Value::Null));
    out.push(b',');
    out.extend_from_slice(METADATA);
    let metadata = fields.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let mut first = true;
    for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
        member(&mut out, name, value, &mut first);
    }
    out.push(b'}');
    let mut first = false;
    for (name, value) in fields.iter().filter(|(n, _)| !matches!(n.as_str(), "kind" | "apiVersion" | "metadata")) {
        member(&mut out, name, value, &mut first);
    }
    out.push(b'}');
    out.into()
}

fn member(out: &mut Vec<u8>, name: &str, value: &Value, first: &mut bool) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, name).expect("writing JSON to memory does not fail");
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect("writing JSON to memory does not fail");
}

/// Stored bytes with the resourceVersion in its place.
pub fn with_revision(stored: &[u8], revision: Revision) -> Bytes {
    let mut out = Vec::with_capacity(stored.len() + 42);
    put_with_revision(&mut out, stored, revision);
    out.into()
}

fn put_with_revision(out: &mut Vec<u8>, stored: &[u8], revision: Revision) {
    let Some(at) = find(stored, METADATA).map(|at| at + METADATA.len()) else {
        return out.extend_from_slice(stored);
    };
    out.extend_from_slice(&stored[..at]);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(revision.to_string().as_bytes());
    out.push(b'"');
    if stored.get(at) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&stored[at..]);
}

/// The inverse: an object's bytes without its resourceVersion.
pub fn without_revision(json: &[u8]) -> Bytes {
    const FIELD: &[u8] = b"\"resourceVersion\":\"";
    let cut = find(json, METADATA).map(|at| at + METADATA.len()).filter(|at| json[*at..].starts_with(FIELD));
    let Some(at) = cut else { return Bytes::copy_from_slice(json) };
    let value = at + FIELD.len();
    let Some(quote) = find(&json[value..], b"\"") else { return Bytes::copy_from_slice(json) };
    let mut end = value + quote + 1;
    if json.get(end) == Some(&b',') {
        end += 1;
    }
    [&json[..at], &json[end..]].concat().into()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// A record of the store as an object.
pub fn decode(stored: &[u8], revision: Revision) -> Result<Object, ApiError> {
    Object::from_json(with_revision(stored, revision))
}

/// The same inside the event that a watch of it sends: encoded once, for everyone.
pub fn decode_event(kind: WatchKind, stored: &[u8], revision: Revision) -> Result<Object, ApiError> {
    let mut event = Vec::with_capacity(stored.len() + 80);
    event.extend_from_slice(b"{\"type\":\"");
    event.extend_from_slice(kind.as_str().as_bytes());
    event.extend_from_slice(b"\",\"object\":");
    let start = event.len();
    put_with_revision(&mut event, stored, revision);
    let end = event.len();
    event.extend_from_slice(b"}\n");
    Object::from_event(kind, event.into(), start..end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revision_is_spliced_in_and_out() {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "metadata": "x" },
            "metadata": { "name": "a", "resourceVersion": "7", "labels": { "a": "b" } },
        });
        let stored = encode(&object);
        assert!(!String::from_utf8_lossy(&stored).contains("resourceVersion"));
        let back = decode(&stored, 42).unwrap();
        assert_eq!((back.meta.resource_version, back.meta.name.as_str()), (42, "a"));
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = "42".into();
        assert_eq!(back.value(), expected);
        assert_eq!(without_revision(back.json()), stored);
        let event = decode_event(WatchKind::Added, &stored, 42).unwrap();
        assert_eq!(event.json(), back.json());
        let sent: Value = serde_json::from_slice(event.event(WatchKind::Added).unwrap()).unwrap();
        assert_eq!(sent, json!({ "type": "ADDED", "object": expected }));
        assert_eq!((event.event(WatchKind::Modified), back.event(WatchKind::Added)), (None, None));
    }
}
