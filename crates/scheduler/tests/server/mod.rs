//! A small API server in memory: objects, a log of changes to watch, bindings, status patches, deletes.
//! Drives the scheduler's tests through `client::Transport`; can be told to refuse or delay bindings.
//! Refuses to bind a pod twice, as the real one does.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use async_trait::async_trait;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Default)]
struct State {
    revision: u64,
    /// By plural, then `namespace/name`.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    log: Vec<(u64, String, WatchKind, Arc<Object>)>,
    /// Answers to the next bindings, instead of doing them.
    refusals: VecDeque<ApiError>,
    bindings: usize,
}

#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Server {
    pub fn new() -> Self {
        Self { state: Arc::default(), changed: Arc::new(watch::Sender::new(0)) }
    }

    fn log(&self, state: &mut State, plural: &str, kind: WatchKind, value: &Value) {
        let object = Arc::new(Object::from_value(value).unwrap());
        state.log.push((state.revision, plural.to_string(), kind, object));
        self.changed.send_replace(state.revision);
    }

    /// Creates or replaces.
    pub fn put(&self, plural: &str, mut value: Value) {
        let mut state = self.state.lock();
        state.revision += 1;
        let key = key(&value);
        value["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        if value["metadata"]["uid"].is_null() {
            value["metadata"]["uid"] = json!(format!("{plural}/{key}"));
        }
        let old = state.objects.entry(plural.into()).or_default().insert(key, value.clone());
        let kind = if old.is_some() { WatchKind::Modified } else { WatchKind::Added };
        self.log(&mut state, plural, kind, &value);
    }

    pub fn delete(&self, plural: &str, key: &str) {
        let mut state = self.state.lock();
        let Some(mut value) = state.objects.get_mut(plural).and_then(|o| o.remove(key)) else { return };
        state.revision += 1;
        value["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        self.log(&mut state, plural, WatchKind::Deleted, &value);
    }

    pub fn get(&self, plural: &str, key: &str) -> Option<Value> {
        self.state.lock().objects.get(plural)?.get(key).cloned()
    }

    pub fn all(&self, plural: &str) -> Vec<Value> {
        self.state.lock().objects.get(plural).into_iter().flat_map(|o| o.values().cloned()).collect()
    }

    /// How many pods have been bound.
    pub fn bindings(&self) -> usize {
        self.state.lock().bindings
    }

    pub fn refuse_binding(&self, error: ApiError) {
        self.state.lock().refusals.push_back(error);
    }

    /// Waits until `holds`, and panics if it takes a minute (of simulated time).
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.changed.subscribe();
        let wait = async {
            while !holds(self) {
                changes.changed().await.unwrap();
            }
        };
        let done = env::timeout(std::time::Duration::from_secs(60), wait).await;
        assert!(done.is_some(), "{what} never happened: {:#?}", self.all("pods"));
    }

    fn bind(&self, key: &str, body: &Value) -> Result<Value, ApiError> {
        if let Some(refusal) = self.state.lock().refusals.pop_front() {
            return Err(refusal);
        }
        let mut pod = self.get("pods", key).ok_or_else(|| ApiError::not_found("", "pods", key))?;
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            let why = format!("pod is already assigned to node {node:?}");
            return Err(ApiError::conflict("", "pods/binding", key, &why));
        }
        pod["spec"]["nodeName"] = body["target"]["name"].clone();
        pod["status"].as_object_mut().and_then(|status| status.remove("nominatedNodeName"));
        self.state.lock().bindings += 1;
        self.put("pods", pod);
        Ok(json!({"kind": "Status", "status": "Success"}))
    }

    fn replace(&self, plural: &str, key: &str, subresource: &[&str], body: &Value) -> Result<Value, ApiError> {
        let mut object = self.get(plural, key).ok_or_else(|| ApiError::not_found("", plural, key))?;
        if object["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return Err(ApiError::conflict("", plural, key, "the object has been modified"));
        }
        match subresource {
            [field] => object[*field] = body[*field].clone(),
            _ => object["metadata"]["finalizers"] = body["metadata"]["finalizers"].clone(),
        }
        self.put(plural, object);
        self.get(plural, key).ok_or_else(|| ApiError::not_found("", plural, key))
    }

    fn patch(&self, plural: &str, key: &str, body: &Value) -> Result<Value, ApiError> {
        let mut object = self.get(plural, key).ok_or_else(|| ApiError::not_found("", plural, key))?;
        let mut body = body.clone();
        let conditions = body["status"].as_object_mut().and_then(|s| s.remove("conditions"));
        for condition in conditions.iter().flat_map(|c| c.as_array().unwrap()) {
            let mut all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.retain(|c| c["type"] != condition["type"]);
            all.push(condition.clone());
            object["status"]["conditions"] = json!(all);
        }
        // Strategic: consumers that go.
        for consumer in body["status"]
            .as_object_mut()
            .and_then(|s| s.remove("reservedFor"))
            .iter()
            .flat_map(|r| r.as_array())
            .flatten()
        {
            let mut all = object["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
            all.retain(|c| c["uid"] != consumer["uid"]);
            object["status"]["reservedFor"] = json!(all);
        }
        merge(&mut object, &body);
        self.put(plural, object.clone());
        Ok(object)
    }

    fn answer(&self, request: &Request<Bytes>) -> Result<Value, ApiError> {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let parts: Vec<&str> = request.uri().path().split('/').filter(|p| !p.is_empty()).collect();
        let start = if parts[0] == "api" { 2 } else { 3 };
        let (namespace, rest) = match parts[start..] {
            ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (Some(namespace), rest),
            ref rest => (None, rest),
        };
        let full = |name: &str| namespace.map_or(name.to_string(), |n| format!("{n}/{name}"));
        match (request.method(), rest) {
            (&Method::POST, [plural]) => {
                self.put(plural, body.clone());
                Ok(body)
            }
            (&Method::GET, [plural, name]) => {
                self.get(plural, &full(name)).ok_or_else(|| ApiError::not_found("", plural, name))
            }
            (&Method::PUT, [plural, name, rest @ ..]) => self.replace(plural, &full(name), rest, &body),
            (&Method::POST, ["pods", name, "binding"]) => self.bind(&full(name), &body),
            (&Method::PATCH, [plural, name, ..]) => self.patch(plural, &full(name), &body),
            (&Method::DELETE, [plural, name]) => {
                self.delete(plural, &full(name));
                Ok(json!({"kind": "Status"}))
            }
            other => Err(ApiError::bad_request(format!("not served: {other:?}"))),
        }
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return };
    for (name, value) in fields {
        match value {
            Value::Null => drop(into.as_object_mut().map(|o| o.remove(name))),
            Value::Object(_) => {
                if into[name].is_null() {
                    into[name] = json!({});
                }
                merge(&mut into[name], value);
            }
            other => into[name] = other.clone(),
        }
    }
}

fn key(value: &Value) -> String {
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    value["metadata"]["namespace"].as_str().map_or(name.to_string(), |n| format!("{n}/{name}"))
}

#[async_trait]
impl Transport for Server {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        // Answers take a turn, as they do over a wire.
        tokio::task::yield_now().await;
        let value = self.answer(&request)?;
        Ok(Response::new(Bytes::from(value.to_string())))
    }

    async fn list(&self, resource: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        let objects = self.all(&resource.plural).iter().map(|v| Arc::new(Object::from_value(v).unwrap())).collect();
        Ok(ObjectList { objects, resource_version: self.state.lock().revision.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        _: Option<&str>,
        _: &ListParams,
        from: &str,
    ) -> Result<WatchStream, ApiError> {
        let (server, plural) = (self.clone(), resource.plural.to_string());
        let from: u64 = from.parse().unwrap();
        let at = self.state.lock().log.iter().position(|(revision, ..)| *revision > from);
        let at = at.unwrap_or_else(|| self.state.lock().log.len());
        let changes = self.changed.subscribe();
        let events =
            stream::unfold((server, plural, at, changes), |(server, plural, mut at, mut changes)| async move {
                loop {
                    changes.borrow_and_update();
                    let next = {
                        let state = server.state.lock();
                        let found = state.log[at..].iter().position(|(_, of, ..)| *of == plural);
                        at = found.map_or(state.log.len(), |offset| at + offset + 1);
                        found.map(|_| state.log[at - 1].clone())
                    };
                    if let Some((_, _, kind, object)) = next {
                        return Some((Ok(WatchEvent { kind, object }), (server, plural, at, changes)));
                    }
                    changes.changed().await.ok()?;
                }
            });
        Ok(events.boxed())
    }
}
