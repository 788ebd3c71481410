//! Replies of handlers as HTTP responses in the form the client accepts.
//! Called by `pipeline` with what `registry` returns.
//! An object's bytes are copied at most once on their way out, and never encoded again as JSON. Lists of built-in kinds
//! leave the type out of their items, as upstream does: it is cut off the front.

use std::{cell::RefCell, collections::VecDeque, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Body as _;
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use serde_json::{Value, json};

use api::{
    ApiError, Object, WatchEvent, WatchKind,
    codec::{protobuf, yaml_text},
};
use env::Env;

use crate::{
    audit,
    discovery::served::Served,
    handlers::{
        codec,
        negotiate::{Forms, Media, Output, View},
        table::{self, Include},
    },
    metrics::Metrics,
    request::{
        body::{self, Body, BoxError},
        call::Call,
    },
};

pub enum Reply {
    Object(StatusCode, Arc<Served>, Arc<Object>),
    /// A document that is not a stored object: Status, Scale, a review.
    Value(StatusCode, Value),
    List(ListReply),
    Watch(Arc<Served>, BoxStream<'static, Result<WatchEvent, ApiError>>),
    Raw(Response<Body>),
}

pub struct ListReply {
    pub served: Arc<Served>,
    pub objects: Vec<Arc<Object>>,
    pub revision: u64,
    pub next: Option<String>,
    pub remaining: Option<usize>,
}

/// Response extension for in-process callers of a list: the objects themselves.
#[derive(Clone)]
pub struct ObjectList {
    pub objects: Arc<Vec<Arc<Object>>>,
    pub resource_version: u64,
    pub continue_token: Option<String>,
}

/// Response extension for in-process callers of a watch: the events themselves. Taken once.
#[derive(Clone)]
pub struct ObjectStream(Arc<parking_lot::Mutex<Option<EventStream>>>);
pub type EventStream = BoxStream<'static, Result<WatchEvent, ApiError>>;

impl ObjectStream {
    fn new(stream: EventStream) -> Self {
        Self(Arc::new(parking_lot::Mutex::new(Some(stream))))
    }

    pub fn take(&self) -> Option<EventStream> {
        self.0.lock().take()
    }

    /// Something that lives as long as the events do.
    pub fn keep(&self, companion: impl Send + 'static) {
        let mut stream = self.0.lock();
        *stream = stream.take().map(|events| {
            let with = events.map(move |event| {
                let _ = &companion;
                event
            });
            with.boxed()
        });
    }
}

/// The size of an answer that goes out in pieces, as a response extension.
#[derive(Clone, Copy)]
pub struct TotalBytes(pub u64);

pub fn reply(call: &Call, env: &Env, metrics: &Metrics, reply: Result<Reply, ApiError>) -> Response<Body> {
    reply.iter().for_each(note);
    let response = reply.and_then(|reply| match reply {
        Reply::Object(status, served, object) => object_reply(call, env, status, &served, object),
        Reply::Value(status, value) => {
            let output = call.output(Forms::PLAIN).unwrap_or(Output::JSON);
            Ok(value_response(status, &value, output))
        }
        Reply::List(list) => list_reply(call, env, list),
        Reply::Watch(served, stream) => watch_reply(call, env, metrics, served, stream),
        Reply::Raw(response) => Ok(response),
    });
    let mut response = response.unwrap_or_else(|e| error(call, &e));
    for text in call.warnings.lock().iter() {
        if let Ok(value) = HeaderValue::from_str(&warning(text)) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// Tells the record of this request what it is answered with.
fn note(reply: &Reply) {
    match reply {
        Reply::Object(_, _, object) => audit::response_object(object),
        Reply::Value(_, value) => audit::response_value(value),
        Reply::List(list) => audit::response_list(|| {
            let served = &list.served;
            let items: Vec<Value> = list.objects.iter().map(|o| served.list_item(o.value())).collect();
            json!({ "kind": served.list_kind, "apiVersion": served.api_version(), "metadata": list_metadata(list),
                "items": items })
        }),
        Reply::Watch(..) | Reply::Raw(_) => {}
    }
}

fn warning(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() || !c.is_ascii() { ' ' } else { c }).collect();
    format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""))
}

pub fn error(call: &Call, error: &ApiError) -> Response<Body> {
    audit::response_error(error);
    let output = call.output(Forms::PLAIN).unwrap_or(Output::BY_HAND);
    error_response(error, output)
}

pub fn error_response(error: &ApiError, output: Output) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = value_response(status, &error.to_status(), output);
    if let Some(seconds) = error.retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A value in the form asked for; JSON where it has no other.
pub fn value_response(status: StatusCode, value: &Value, output: Output) -> Response<Body> {
    let (bytes, media) = match output.media {
        Media::Json => (json_bytes(value, output.pretty), Media::Json),
        Media::Yaml => (codec::yaml(value), Media::Yaml),
        Media::Protobuf => match codec::protobuf(value) {
            Some(bytes) => (bytes, Media::Protobuf),
            None => (json_bytes(value, false), Media::Json),
        },
    };
    bytes_response(status, bytes, media)
}

pub fn json_bytes(value: &impl Serialize, pretty: bool) -> Bytes {
    let encoded = if pretty { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let mut bytes = encoded.expect("a JSON value always encodes");
    // As upstream: what is laid out for people ends with its last brace.
    if !pretty {
        bytes.push(b'\n');
    }
    bytes.into()
}

pub fn bytes_response(status: StatusCode, bytes: Bytes, media: Media) -> Response<Body> {
    content_response(status, bytes, media.as_str())
}

pub fn content_response(status: StatusCode, bytes: Bytes, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body::full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// An answer to HEAD: what the body would be is told, not sent.
pub fn without_body(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    *response.body_mut() = body::empty();
}

fn object_reply(
    call: &Call,
    env: &Env,
    status: StatusCode,
    served: &Served,
    object: Arc<Object>,
) -> Result<Response<Body>, ApiError> {
    let output = call.output(served.forms(false))?;
    let mut response = match output.view {
        View::Object => match (output.media, output.pretty) {
            (Media::Json, false) => bytes_response(status, object.json().clone(), Media::Json),
            (Media::Protobuf, _) => {
                let made = object_protobuf(&object);
                let bytes = made.ok_or_else(|| no_protobuf(served))?;
                bytes_response(status, bytes, Media::Protobuf)
            }
            _ => value_response(status, &object.value(), output),
        },
        View::Partial(version) => value_response(status, &table::partial_of(served, object.value(), version), output),
        View::Table(version) => {
            let include = Include::from_query(&call.query)?;
            let metadata = json!({ "resourceVersion": object.meta.resource_version.to_string() });
            let rows = vec![table::row(served, &object, include, version, env.now())];
            value_response(status, &table::table(version, metadata, table::columns(served), rows), output)
        }
    };
    if call.in_process {
        response.extensions_mut().insert(object);
    }
    Ok(response)
}

fn object_protobuf(object: &Object) -> Option<Bytes> {
    let bytes = object.protobuf(|_| codec::protobuf(&object.value()).unwrap_or_default());
    (!bytes.is_empty()).then_some(bytes)
}

/// Every built-in kind has a protobuf form and `Forms` keeps the others away from it.
fn no_protobuf(served: &Served) -> ApiError {
    ApiError::internal(format!("{} has no protobuf form", served.kind))
}

fn list_metadata(list: &ListReply) -> Value {
    let mut metadata = json!({});
    // What is kept nowhere has no version.
    if list.revision > 0 {
        metadata["resourceVersion"] = list.revision.to_string().into();
    }
    if let Some(next) = &list.next {
        metadata["continue"] = next.as_str().into();
    }
    if let Some(remaining) = list.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

fn list_reply(call: &Call, env: &Env, list: ListReply) -> Result<Response<Body>, ApiError> {
    if call.by_reference() {
        let mut response = content_response(StatusCode::OK, Bytes::new(), Media::Json.as_str());
        response.extensions_mut().insert(ObjectList {
            resource_version: list.revision,
            continue_token: list.next,
            objects: Arc::new(list.objects),
        });
        return Ok(response);
    }
    let output = call.output(list.served.forms(false))?;
    let mut metadata = list_metadata(&list);
    let served = &list.served;
    // Lists of custom resources always have the field: they are no Go type that could leave it out.
    if served.custom.is_some() && output.view == View::Object && list.next.is_none() {
        metadata["continue"] = "".into();
    }
    match output.view {
        View::Table(version) => {
            let include = Include::from_query(&call.query)?;
            let now = env.now();
            let table = table::table(version, metadata, table::columns(served), Vec::new());
            let rows = list.objects.iter().map(|o| table::row(served, o, include, version, now));
            Ok(value_with(table, "rows", rows, output))
        }
        View::Partial(version) => {
            let items = list.objects.iter().map(|o| table::partial_of(served, o.value(), version));
            Ok(value_with(table::partial_list(version, metadata, Vec::new()), "items", items, output))
        }
        View::Object if output.media == Media::Json && !output.pretty => Ok(json_list(&list, &metadata)),
        View::Object if output.media == Media::Protobuf => protobuf_list(&list, &metadata),
        View::Object => {
            let value = json!({ "kind": served.list_kind, "apiVersion": served.api_version(), "metadata": metadata });
            let items = list.objects.iter().map(|o| served.list_item(o.value()));
            Ok(value_with(value, "items", items, output))
        }
    }
}

/// `value` with `items` as its `field`. Each is made when it is written: as values they would weigh many times the
/// answer. Only protobuf is written from its end, and needs them all.
fn value_with(mut value: Value, field: &str, items: impl Iterator<Item = Value>, output: Output) -> Response<Body> {
    if output.media == Media::Protobuf {
        value[field] = items.collect();
        return value_response(StatusCode::OK, &value, output);
    }
    value[field] = Value::Null;
    if output.media == Media::Yaml {
        let none = Default::default();
        let text = yaml_text::list_to_string(value.as_object().unwrap_or(&none), field, items);
        return bytes_response(StatusCode::OK, text.into(), Media::Yaml);
    }
    let document = ListDocument { value: &value, field, in_order: output.pretty, items: RefCell::new(Some(items)) };
    bytes_response(StatusCode::OK, json_bytes(&document, output.pretty), Media::Json)
}

/// A document with one list whose items are made while it is written, once.
struct ListDocument<'a, I> {
    value: &'a Value,
    field: &'a str,
    /// The list stands where its name has it; else it comes last.
    in_order: bool,
    items: RefCell<Option<I>>,
}

impl<I: Iterator<Item = Value>> Serialize for ListDocument<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_map(None)?;
        for (name, value) in self.value.as_object().into_iter().flatten() {
            match name == self.field {
                false => document.serialize_entry(name, value)?,
                true if self.in_order => document.serialize_entry(name, &Items(&self.items))?,
                true => {}
            }
        }
        if !self.in_order {
            document.serialize_entry(self.field, &Items(&self.items))?;
        }
        document.end()
    }
}

struct Items<'a, I>(&'a RefCell<Option<I>>);

impl<I: Iterator<Item = Value>> Serialize for Items<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for item in self.0.take().into_iter().flatten() {
            list.serialize_element(&item)?;
        }
        list.end()
    }
}

fn protobuf_list(list: &ListReply, metadata: &Value) -> Result<Response<Body>, ApiError> {
    let served = &list.served;
    let encoded = list.objects.iter().map(|object| object_protobuf(object).ok_or_else(|| no_protobuf(served)));
    let encoded: Vec<Bytes> = encoded.collect::<Result<_, _>>()?;
    let items = encoded.iter().map(|object| protobuf::open(object).map(|envelope| envelope.raw));
    let items: Vec<&[u8]> = items.collect::<Result<_, _>>()?;
    let bytes = protobuf::list(&served.api_version(), &served.list_kind, metadata, &items)?;
    Ok(bytes_response(StatusCode::OK, bytes.into(), Media::Protobuf))
}

/// Beyond this, a list goes out in pieces of about this size, so that it is never held encoded as a whole.
const PIECE_BYTES: usize = 128 << 10;

fn json_list(list: &ListReply, metadata: &Value) -> Response<Body> {
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
        json!(list.served.list_kind),
        json!(list.served.api_version())
    );
    let served = &list.served;
    let own_type = format!("{{\"kind\":{},\"apiVersion\":{},", json!(served.kind), json!(served.api_version()));
    let item = |object: &Arc<Object>| match served.custom.is_some() {
        true => object.json().slice(1..),
        // Only bytes that were not made here begin differently.
        false if object.json().starts_with(own_type.as_bytes()) => object.json().slice(own_type.len()..),
        false => Bytes::from(served.list_item(object.value()).to_string()).slice(1..),
    };
    let mut rest: VecDeque<Bytes> = list.objects.iter().map(item).collect();
    let total: usize = rest.iter().map(|b| b.len() + 2).sum();
    let mut buffer = BytesMut::with_capacity(head.len() + total.min(PIECE_BYTES) + 4);
    buffer.put_slice(head.as_bytes());
    if fill(&mut buffer, &mut rest, true) {
        return content_response(StatusCode::OK, buffer.freeze(), Media::Json.as_str());
    }
    let state = (Some(buffer.freeze()), rest, false);
    let pieces = futures::stream::unfold(state, |(first, mut rest, done)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, BoxError>(first), (None, rest, done)));
        }
        if done {
            return None;
        }
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES + 4096);
        let done = fill(&mut buffer, &mut rest, false);
        Some((Ok(buffer.freeze()), (None, rest, done)))
    });
    let mut response = content_response(StatusCode::OK, Bytes::new(), Media::Json.as_str());
    *response.body_mut() = body::stream(pieces);
    response.extensions_mut().insert(TotalBytes((head.len() + total) as u64));
    response
}

/// Appends objects, each given without its first brace, until the buffer holds a piece. True once everything, the
/// closing included, is in.
fn fill(buffer: &mut BytesMut, rest: &mut VecDeque<Bytes>, mut first: bool) -> bool {
    while let Some(object) = rest.pop_front() {
        buffer.put_slice(if std::mem::take(&mut first) { &b"{"[..] } else { b",{" });
        buffer.put_slice(&object);
        if buffer.len() >= PIECE_BYTES && !rest.is_empty() {
            return false;
        }
    }
    buffer.put_slice(b"]}\n");
    true
}

fn watch_reply(
    call: &Call,
    env: &Env,
    metrics: &Metrics,
    served: Arc<Served>,
    stream: EventStream,
) -> Result<Response<Body>, ApiError> {
    if call.by_reference() {
        let mut response = content_response(StatusCode::OK, Bytes::new(), Media::Json.as_str());
        response.extensions_mut().insert(ObjectStream::new(stream));
        return Ok(response);
    }
    let output = call.output(served.forms(true))?;
    let include = Include::from_query(&call.query)?;
    let sent = metrics.requests.watch(&served.group, &served.version, &served.plural);
    let env = env.clone();
    let mut first_row = true;
    let mut frame_of = move |event: Result<WatchEvent, ApiError>| match event {
        Ok(event) => {
            let object = match output.view {
                View::Object => None,
                View::Partial(version) => Some(table::partial_of(&served, event.object.value(), version)),
                View::Table(version) => {
                    // Columns come once; later rows refer to them.
                    let columns = match std::mem::take(&mut first_row) {
                        true => table::columns(&served),
                        false => Value::Null,
                    };
                    let metadata = json!({ "resourceVersion": event.object.meta.resource_version.to_string() });
                    let rows = match event.kind {
                        WatchKind::Bookmark => vec![json!({ "cells": [], "object": event.object.value() })],
                        _ => vec![table::row(&served, &event.object, include, version, env.now())],
                    };
                    Some(table::table(version, metadata, columns, rows))
                }
            };
            frame(event.kind, &event.object, object, output)
        }
        Err(e) => frame_value("ERROR", &e.to_status(), output),
    };
    let frames = stream.map(move |event| {
        let frame = frame_of(event);
        sent.sent(frame.len());
        frame
    });
    // Everything that is ready goes out together.
    let chunks = frames.ready_chunks(64).map(|frames| match frames.len() {
        1 => Ok::<Bytes, BoxError>(frames.into_iter().next().unwrap_or_default()),
        _ => Ok(frames.concat().into()),
    });
    let mut response = content_response(StatusCode::OK, Bytes::new(), stream_type(output.media));
    *response.body_mut() = body::stream(chunks);
    Ok(response)
}

fn stream_type(media: Media) -> &'static str {
    match media {
        // There is no watch in YAML: `negotiate` refuses it.
        Media::Json | Media::Yaml => "application/json",
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
    }
}

fn frame(event: WatchKind, object: &Object, view: Option<Value>, output: Output) -> Bytes {
    let kind = event.as_str();
    match (view, output.media) {
        (Some(value), _) => frame_value(kind, &value, output),
        (None, Media::Json | Media::Yaml) => {
            // The same bytes for every watcher.
            if let Some(encoded) = object.event(event) {
                return encoded.clone();
            }
            let json = object.json();
            let mut out = BytesMut::with_capacity(json.len() + 40);
            out.put_slice(b"{\"type\":\"");
            out.put_slice(kind.as_bytes());
            out.put_slice(b"\",\"object\":");
            out.put_slice(json);
            out.put_slice(b"}\n");
            out.freeze()
        }
        (None, Media::Protobuf) => match object_protobuf(object) {
            Some(bytes) => codec::protobuf_watch_frame(kind, &bytes),
            None => frame_value(kind, &object.value(), output),
        },
    }
}

fn frame_value(kind: &str, object: &Value, output: Output) -> Bytes {
    let event = json!({ "type": kind, "object": object });
    match output.media {
        Media::Json | Media::Yaml => json_bytes(&event, false),
        Media::Protobuf => match codec::protobuf(object) {
            Some(bytes) => codec::protobuf_watch_frame(kind, &bytes),
            None => Bytes::new(),
        },
    }
}
