//! Lists and watches as they come over HTTP: JSON documents, and a line for each event.
//! Read for every transport over HTTP, the simulator's too, whose wire cuts them off in the middle.
//! Half an event at the end of a stream is an error, not an event.

use std::sync::Arc;

use ::api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{ObjectList, WatchStream};

/// No single watch event may be larger (objects are at most 3 MiB, times two for `Table` and managed fields).
const MAX_EVENT_BYTES: usize = 8 << 20;

/// The objects of a list of `resource`.
pub fn read_list(resource: &Resource, body: &[u8]) -> Result<ObjectList, ApiError> {
    #[derive(Deserialize)]
    struct List<'a> {
        metadata: Metadata,
        #[serde(borrow, default)]
        items: Option<Vec<&'a RawValue>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let list: List<'_> =
        serde_json::from_slice(body).map_err(|e| ApiError::internal(format!("couldn't read a list: {e}")))?;
    let own_type = own_type(resource);
    let objects = list.items.unwrap_or_default().into_iter();
    let objects = objects.map(|raw| Object::from_json(typed_item(raw.get().as_bytes(), &own_type)).map(Arc::new));
    Ok(ObjectList { objects: objects.collect::<Result<_, _>>()?, resource_version: list.metadata.resource_version })
}

/// The events of a watch, from its bytes as they arrive.
pub fn read_events(chunks: stream::BoxStream<'static, Result<Bytes, ApiError>>) -> WatchStream {
    lines(chunks).map(|line| line.and_then(|line| parse_event(&line))).boxed()
}

/// What an object of a resource begins with, without the first brace.
fn own_type(resource: &Resource) -> String {
    format!("\"kind\":{:?},\"apiVersion\":{:?},", resource.kind, resource.api_version())
}

/// An item of a list with its type, which servers leave out of the items of built-in kinds: those begin with their
/// metadata, and an `Object` says what it is.
fn typed_item(item: &[u8], own_type: &str) -> Vec<u8> {
    match item.starts_with(b"{\"metadata\":") {
        true => [b"{", own_type.as_bytes(), &item[1..]].concat(),
        false => item.to_vec(),
    }
}

/// Splits a byte stream at newlines.
fn lines(
    chunks: stream::BoxStream<'static, Result<Bytes, ApiError>>,
) -> stream::BoxStream<'static, Result<Bytes, ApiError>> {
    stream::try_unfold((chunks, BytesMut::new(), 0), |(mut chunks, mut buffer, mut searched)| async move {
        loop {
            if let Some(at) = buffer[searched..].iter().position(|b| *b == b'\n') {
                let line = buffer.split_to(searched + at + 1).freeze();
                return Ok(Some((line, (chunks, buffer, 0))));
            }
            searched = buffer.len();
            if searched > MAX_EVENT_BYTES {
                return Err(ApiError::internal("a watch event is too large"));
            }
            match chunks.try_next().await? {
                Some(chunk) => buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    })
    .boxed()
}

fn parse_event(line: &[u8]) -> Result<WatchEvent, ApiError> {
    #[derive(Deserialize)]
    struct Event<'a> {
        r#type: String,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let event: Event<'_> =
        serde_json::from_slice(line).map_err(|e| ApiError::internal(format!("couldn't read a watch event: {e}")))?;
    let bytes = event.object.get().as_bytes();
    match WatchKind::parse(&event.r#type) {
        Some(kind) => Ok(WatchEvent { kind, object: Arc::new(Object::from_json(bytes.to_vec())?) }),
        None => {
            let status: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
            Err(ApiError::from_status(status["code"].as_u64().unwrap_or(500) as u16, bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_lists_say_what_they_are() {
        let pods = ::api::kinds::find("", "v1", "pods").unwrap();
        let check = |item: &str, expected: &str| {
            assert_eq!(typed_item(item.as_bytes(), &own_type(pods)), expected.as_bytes(), "{item}");
        };
        check(r#"{"metadata":{"name":"a"}}"#, r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#);
        let custom = r#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"a"}}"#;
        check(custom, custom);
        check("{}", "{}");
    }
}
