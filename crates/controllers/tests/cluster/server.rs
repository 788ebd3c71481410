//! A small server in memory: stores JSON, counts revisions, watches. Enough to run controllers against.
//! Used by the tests beside it.
//! Invariant: knows nothing of any controller; deletes honour finalizers, dependents and preconditions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api::{ApiError, Object, Resource, WatchEvent, WatchKind, kinds};
use async_trait::async_trait;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use futures::StreamExt;
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    events: broadcast::Sender<(String, WatchKind, Value)>,
    writes: AtomicUsize,
    refuses: Mutex<Option<&'static str>>,
    refused: AtomicUsize,
    env: env::Env,
}

#[derive(Default)]
struct State {
    revision: u64,
    uids: u64,
    /// By resource (`plural.group`), then by key.
    objects: BTreeMap<(String, String), Value>,
}

struct Target {
    resource: Arc<Resource>,
    namespace: String,
    name: String,
    subresource: String,
}

impl Server {
    pub fn new(env: env::Env) -> Self {
        let events = broadcast::Sender::new(100_000);
        Self(Arc::new(Inner {
            state: Mutex::default(),
            events,
            writes: AtomicUsize::new(0),
            refuses: Mutex::default(),
            refused: AtomicUsize::new(0),
            env,
        }))
    }

    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// Answers every creation of this resource with Forbidden, and counts them.
    pub fn refuse(&self, plural: &'static str) {
        *self.0.refuses.lock() = Some(plural);
    }

    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn target(path: &str) -> Option<Target> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version) = match parts[0] {
            "api" => ("", parts[1]),
            _ => (parts[1], parts[2]),
        };
        parts.drain(..if group.is_empty() { 2 } else { 3 });
        let mut namespace = "";
        if parts.len() >= 3 && parts[0] == "namespaces" && kinds::find(group, version, parts[2]).is_some() {
            namespace = parts[1];
            parts.drain(..2);
        }
        Some(Target {
            resource: kinds::find(group, version, parts[0])?.clone(),
            namespace: namespace.into(),
            name: parts.get(1).unwrap_or(&"").to_string(),
            subresource: parts.get(2).unwrap_or(&"").to_string(),
        })
    }

    fn store(&self, state: &mut State, resource: &Resource, mut object: Value, kind: WatchKind) -> Value {
        state.revision += 1;
        object["metadata"]["resourceVersion"] = state.revision.to_string().into();
        let id = (resource.group_resource(), key(&object));
        match kind {
            WatchKind::Deleted => state.objects.remove(&id),
            _ => state.objects.insert(id.clone(), object.clone()),
        };
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        let _ = self.0.events.send((id.0, kind, object.clone()));
        object
    }

    fn handle(&self, method: &Method, path: &str, content: &str, body: &[u8]) -> Result<Value, ApiError> {
        let target = Self::target(path).ok_or_else(|| ApiError::not_found("", path, ""))?;
        let resource = target.resource.clone();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let state = &mut *self.0.state.lock();
        let now = self.0.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if *method == Method::POST && target.name.is_empty() {
            return self.create(state, &target, body, &now);
        }
        let name = if target.namespace.is_empty() {
            target.name.clone()
        } else {
            format!("{}/{}", target.namespace, target.name)
        };
        if target.name.is_empty() {
            let items = self.items(state, &resource, &target.namespace);
            if *method == Method::DELETE {
                for item in &items {
                    self.delete(state, &resource, item.clone(), &body, &now)?;
                }
            }
            return Ok(json!({ "items": items, "metadata": { "resourceVersion": state.revision.to_string() } }));
        }
        let missing = || ApiError::not_found(&resource.group, &resource.plural, &target.name);
        let old = state.objects.get(&(resource.group_resource(), name)).cloned().ok_or_else(missing)?;
        match *method {
            Method::GET => Ok(old),
            Method::DELETE => self.delete(state, &resource, old, &body, &now).map(|()| json!({})),
            Method::PUT => self.update(state, &target, old, body),
            Method::PATCH => {
                let mut new = old.clone();
                merge(&mut new, &body, content.contains("strategic"));
                self.update(state, &target, old, new)
            }
            _ => Err(ApiError::method_not_allowed(&resource.group, &resource.plural, method.as_str())),
        }
    }

    fn create(&self, state: &mut State, target: &Target, mut object: Value, now: &str) -> Result<Value, ApiError> {
        let resource = &target.resource;
        if *self.0.refuses.lock() == Some(resource.plural.as_str()) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ApiError::forbidden(&resource.group, &resource.plural, "", "exceeded quota"));
        }
        state.uids += 1;
        let meta = &mut object["metadata"];
        if meta["name"].is_null() {
            meta["name"] = format!("{}{:05}", meta["generateName"].as_str().unwrap_or_default(), state.uids).into();
        }
        meta["uid"] = format!("uid-{}", state.uids).into();
        meta["creationTimestamp"] = now.into();
        meta["generation"] = 1.into();
        if resource.namespaced() {
            meta["namespace"] = target.namespace.clone().into();
        }
        object["kind"] = resource.kind.clone().into();
        object["apiVersion"] = resource.api_version().into();
        if state.objects.contains_key(&(resource.group_resource(), key(&object))) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(ApiError::already_exists(&resource.group, &resource.plural, name));
        }
        Ok(self.store(state, resource, object, WatchKind::Added))
    }

    fn update(&self, state: &mut State, target: &Target, old: Value, mut new: Value) -> Result<Value, ApiError> {
        let resource = &target.resource;
        let (old_meta, new_meta) = (&old["metadata"], &new["metadata"]);
        let differs = |field: &str| new_meta[field].is_string() && new_meta[field] != old_meta[field];
        if differs("resourceVersion") || differs("uid") {
            return Err(ApiError::modified(&resource.group, &resource.plural, &target.name));
        }
        if target.subresource == "status" {
            let status = new["status"].clone();
            new = old.clone();
            new["status"] = status;
        } else if target.subresource.is_empty() && resource.subresource("status").is_some() {
            new["status"] = old["status"].clone();
        }
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion"] {
            new["metadata"][field] = old["metadata"][field].clone();
        }
        new["kind"] = old["kind"].clone();
        new["apiVersion"] = old["apiVersion"].clone();
        if new["spec"] != old["spec"] {
            new["metadata"]["generation"] = (old["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
        }
        if new == old {
            return Ok(old);
        }
        let finalized = new["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
            && new["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        // Pods wait for their kubelet.
        let free = resource.plural != "pods" || new["metadata"]["deletionGracePeriodSeconds"] == 0;
        let kind = if new["metadata"]["deletionTimestamp"].is_string() && finalized && free {
            WatchKind::Deleted
        } else {
            WatchKind::Modified
        };
        Ok(self.store(state, resource, new, kind))
    }

    fn delete(
        &self,
        state: &mut State,
        resource: &Resource,
        mut object: Value,
        options: &Value,
        now: &str,
    ) -> Result<(), ApiError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_string();
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if wanted.is_string() && *wanted != object["metadata"][field] {
                return Err(ApiError::modified(&resource.group, &resource.plural, &name));
            }
        }
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        let meta = &mut object["metadata"];
        if let Some(finalizer) = finalizer {
            let mut list = meta["finalizers"].as_array().cloned().unwrap_or_default();
            list.push(finalizer.into());
            meta["finalizers"] = list.into();
        }
        let held = !meta["finalizers"].as_array().is_none_or(Vec::is_empty)
            || !object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let graceful =
            resource.plural == "pods" && options["gracePeriodSeconds"] != 0 && object["spec"]["nodeName"].is_string();
        if !held && !graceful {
            self.store(state, resource, object, WatchKind::Deleted);
            return Ok(());
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = now.into();
            object["metadata"]["deletionGracePeriodSeconds"] = if graceful { 30 } else { 0 }.into();
            self.store(state, resource, object, WatchKind::Modified);
        }
        Ok(())
    }

    fn items(&self, state: &State, resource: &Resource, namespace: &str) -> Vec<Value> {
        let of = resource.group_resource();
        let here = |object: &&Value| namespace.is_empty() || object["metadata"]["namespace"] == namespace;
        let all = state.objects.iter().filter(|((r, _), _)| *r == of).map(|(_, object)| object);
        all.filter(here).cloned().collect()
    }
}

fn key(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_string(),
    }
}

/// A merge patch; a strategic one also joins lists of conditions by their type.
fn merge(target: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("made an object above").remove(field);
        } else if strategic && field == "conditions" {
            let mut list = target[field].as_array().cloned().unwrap_or_default();
            for item in value.as_array().into_iter().flatten() {
                list.retain(|known| known["type"] != item["type"]);
                list.push(item.clone());
            }
            target[field] = list.into();
        } else {
            merge(&mut target[field.as_str()], value, strategic);
        }
    }
}

#[async_trait]
impl Transport for Server {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (parts, body) = request.into_parts();
        let content = parts.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let (code, body) = match self.handle(&parts.method, parts.uri.path(), content, &body) {
            Ok(value) => (200, value),
            Err(error) => (error.code, error.to_status()),
        };
        Ok(Response::builder().status(code).body(Bytes::from(body.to_string())).expect("a legal answer"))
    }

    async fn list(&self, resource: &Resource, namespace: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        let state = self.0.state.lock();
        let objects = self.items(&state, resource, namespace.unwrap_or_default());
        let objects = objects.iter().map(|o| Object::from_value(o).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(ObjectList { objects, resource_version: state.revision.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        _: Option<&str>,
        _: &ListParams,
        version: &str,
    ) -> Result<WatchStream, ApiError> {
        let (of, from) = (resource.group_resource(), version.parse::<u64>().unwrap_or(0));
        let state = self.0.state.lock();
        // What happened between the list and now is told as modifications: enough here, where lists come first.
        let missed: Vec<_> = self
            .items(&state, resource, "")
            .into_iter()
            .filter(|o| o["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0) > from)
            .map(|o| (of.clone(), WatchKind::Modified, o))
            .collect();
        let later = tokio_stream::wrappers::BroadcastStream::new(self.0.events.subscribe());
        let later = later.filter_map(|event| async move { event.ok() });
        let stream = futures::stream::iter(missed).chain(later).filter_map(move |(resource, kind, object)| {
            let object = (resource == of).then(|| Object::from_value(&object));
            async move { object.map(|object| object.map(|object| WatchEvent { kind, object: Arc::new(object) })) }
        });
        Ok(stream.boxed())
    }
}
