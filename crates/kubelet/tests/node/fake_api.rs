//! An API server in memory, just big enough for a node: objects by path, watches, merge patches.
//! Used by the node's own tests, so that they need no other component.
//! Keeps what it is given; validates nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use ::api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use futures::StreamExt;
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Clone)]
pub struct FakeApi(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    events: broadcast::Sender<(String, WatchKind, Arc<Object>)>,
}

#[derive(Default)]
struct State {
    /// By path, as in `/api/v1/namespaces/default/pods/web`.
    objects: BTreeMap<String, Value>,
    version: u64,
}

impl FakeApi {
    pub fn new() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), events: broadcast::channel(4096).0 }))
    }

    pub fn client(&self) -> Client {
        Client::new(self.clone())
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Every object whose path contains `part`.
    pub fn find(&self, part: &str) -> Vec<Value> {
        let state = self.0.state.lock().unwrap();
        state.objects.iter().filter(|(path, _)| path.contains(part)).map(|(_, value)| value.clone()).collect()
    }

    pub fn put(&self, path: &str, mut value: Value) -> Value {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        value["metadata"]["resourceVersion"] = state.version.to_string().into();
        if value["metadata"]["uid"].is_null() {
            value["metadata"]["uid"] = format!("uid-{}", state.version).into();
        }
        let known = state.objects.insert(path.into(), value.clone()).is_some();
        let kind = if known { WatchKind::Modified } else { WatchKind::Added };
        let object = Arc::new(Object::from_value(&value).unwrap());
        let _ = self.0.events.send((path.into(), kind, object));
        value
    }

    pub fn remove(&self, path: &str) {
        let mut state = self.0.state.lock().unwrap();
        state.version += 1;
        if let Some(mut value) = state.objects.remove(path) {
            value["metadata"]["resourceVersion"] = state.version.to_string().into();
            let object = Arc::new(Object::from_value(&value).unwrap());
            let _ = self.0.events.send((path.into(), WatchKind::Deleted, object));
        }
    }

    pub fn create_pod(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = "node".into();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default",
            "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": {"phase": "Pending"}});
        self.put(&pod_path(name), pod);
    }

    /// What `kubectl delete` does to a pod on a node.
    pub fn delete_pod(&self, name: &str, grace: i64) {
        let mut pod = self.get(&pod_path(name)).unwrap();
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        self.put(&pod_path(name), pod);
    }

    pub fn pod(&self, name: &str) -> Option<Value> {
        self.get(&pod_path(name))
    }

    fn answer(&self, request: &Request<Bytes>) -> Result<Value, ApiError> {
        let path = request.uri().path().to_string();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        let missing = || ApiError::not_found("", "objects", &path);
        match *request.method() {
            Method::GET => self.get(&path).ok_or_else(missing),
            Method::POST if path.ends_with("/token") => Ok(json!({"status": {"token": "the-token",
                "expirationTimestamp": "2099-01-01T00:00:00Z"}})),
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                if self.get(&format!("{path}/{name}")).is_some() {
                    return Err(ApiError::already_exists("", "objects", name));
                }
                Ok(self.put(&format!("{path}/{name}"), body.clone()))
            }
            Method::PUT => Ok(self.put(&path, body)),
            Method::PATCH => {
                let path = path.strip_suffix("/status").unwrap_or(&path);
                let mut value = self.get(path).ok_or_else(missing)?;
                merge(&mut value, &body);
                Ok(self.put(path, value))
            }
            Method::DELETE => {
                let value = self.get(&path).ok_or_else(missing)?;
                self.remove(&path);
                Ok(value)
            }
            _ => Err(ApiError::bad_request("not supported")),
        }
    }
}

pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// Strategic merge as far as node and pod statuses need it: lists of conditions by type, others replaced.
fn merge(target: &mut Value, patch: &Value) {
    let (Some(target), Some(patch)) = (target.as_object_mut(), patch.as_object()) else { return };
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(_) => {
                let inner = target.entry(key.clone()).or_insert_with(|| json!({}));
                if !inner.is_object() {
                    *inner = json!({});
                }
                merge(inner, value);
            }
            Value::Array(list) if key == "conditions" => {
                let inner = target.entry(key.clone()).or_insert_with(|| json!([]));
                let conditions = inner.as_array_mut().unwrap();
                for condition in list {
                    if condition["$patch"] == "delete" {
                        conditions.retain(|c| c["type"] != condition["type"]);
                        continue;
                    }
                    match conditions.iter_mut().find(|c| c["type"] == condition["type"]) {
                        Some(found) => merge(found, condition),
                        None => conditions.push(condition.clone()),
                    }
                }
            }
            Value::Array(list) => {
                let kept = list.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
                target.insert(key.clone(), Value::Array(kept));
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
}

fn selected(path: &str, value: &Value, resource: &Resource, namespace: Option<&str>, params: &ListParams) -> bool {
    let collection = resource.path(namespace, None);
    let inside = match namespace {
        Some(_) => path.strip_prefix(&format!("{collection}/")).is_some_and(|rest| !rest.contains('/')),
        None => {
            let prefix = collection.rsplit_once('/').map_or("", |(prefix, _)| prefix);
            path.starts_with(prefix) && path.rsplit('/').nth(1) == Some(resource.plural.as_ref())
        }
    };
    let fields = params.field_selector.iter().flat_map(|text| text.split(',')).filter_map(|pair| pair.split_once('='));
    inside
        && fields.into_iter().all(|(field, wanted)| {
            let pointer = format!("/{}", field.replace('.', "/"));
            value.pointer(&pointer).and_then(Value::as_str) == Some(wanted)
        })
}

#[async_trait]
impl Transport for FakeApi {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (status, value) = match self.answer(&request) {
            Ok(value) => (200, value),
            Err(error) => (error.code, error.to_status()),
        };
        Ok(Response::builder().status(status).body(Bytes::from(value.to_string())).unwrap())
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let state = self.0.state.lock().unwrap();
        let objects = state
            .objects
            .iter()
            .filter(|(path, value)| selected(path, value, resource, namespace, params))
            .map(|(_, value)| Arc::new(Object::from_value(value).unwrap()))
            .collect();
        Ok(ObjectList { objects, resource_version: state.version.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let (resource, namespace, params) = (resource.clone(), namespace.map(String::from), params.clone());
        let since: u64 = resource_version.parse().unwrap_or(0);
        let receiver = self.0.events.subscribe();
        // What happened between the list and now.
        let missed: Vec<_> = {
            let state = self.0.state.lock().unwrap();
            let newer =
                |v: &Value| v["metadata"]["resourceVersion"].as_str().and_then(|t| t.parse().ok()).unwrap_or(0) > since;
            let all = state.objects.iter().filter(|(_, value)| newer(value));
            all.map(|(path, v)| (path.clone(), WatchKind::Modified, Arc::new(Object::from_value(v).unwrap()))).collect()
        };
        let live = tokio_stream::wrappers::BroadcastStream::new(receiver).filter_map(|e| async move { e.ok() });
        let all = futures::stream::iter(missed).chain(live);
        Ok(all
            .filter_map(move |(path, kind, object)| {
                let fits = selected(&path, &object.value(), &resource, namespace.as_deref(), &params);
                async move { fits.then_some(Ok(WatchEvent { kind, object })) }
            })
            .boxed())
    }
}
