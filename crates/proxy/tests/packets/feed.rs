//! An API server's lists and watches from memory, for a proxy under test.
//! Used by `main`, and by the packet tests of `network_policy`; what is put here reaches the informers at once.
//! Every event has its own, growing resourceVersion.

use std::{collections::BTreeMap, sync::Arc};

use ::api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use async_trait::async_trait;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use futures::StreamExt;
use http::{Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub struct Feed(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    revision: u64,
    objects: BTreeMap<(String, String), Arc<Object>>,
    watchers: Vec<(String, mpsc::UnboundedSender<WatchEvent>)>,
    events: Vec<Value>,
    lease_patches: Vec<Value>,
}

impl Inner {
    fn tell(&self, plural: &str, kind: WatchKind, object: &Arc<Object>) {
        for (_, watcher) in self.watchers.iter().filter(|(watched, _)| watched == plural) {
            let _ = watcher.send(WatchEvent { kind, object: object.clone() });
        }
    }
}

impl Feed {
    pub fn put(&self, plural: &str, mut value: Value) {
        let mut inner = self.0.lock();
        inner.revision += 1;
        value["metadata"]["resourceVersion"] = json!(inner.revision.to_string());
        value["metadata"]["uid"] = value["metadata"]["name"].clone();
        let (version, kind) = match plural {
            "services" => ("v1", "Service"),
            "nodes" => ("v1", "Node"),
            "pods" => ("v1", "Pod"),
            "namespaces" => ("v1", "Namespace"),
            "networkpolicies" => ("networking.k8s.io/v1", "NetworkPolicy"),
            "servicecidrs" => ("networking.k8s.io/v1", "ServiceCIDR"),
            _ => ("discovery.k8s.io/v1", "EndpointSlice"),
        };
        value["apiVersion"] = json!(version);
        value["kind"] = json!(kind);
        let object = Arc::new(Object::from_value(&value).unwrap());
        let before = inner.objects.insert((plural.to_owned(), object.key()), object.clone());
        let kind = if before.is_some() { WatchKind::Modified } else { WatchKind::Added };
        inner.tell(plural, kind, &object);
    }

    #[allow(dead_code, reason = "not every test that uses this file does")]
    pub fn remove(&self, plural: &str, key: &str) {
        let mut inner = self.0.lock();
        let object = inner.objects.remove(&(plural.to_owned(), key.to_owned())).expect("it was put");
        inner.tell(plural, WatchKind::Deleted, &object);
    }

    /// What was written of Leases so far.
    #[allow(dead_code, reason = "not every test that uses this file asks")]
    pub fn lease_patches(&self) -> Vec<Value> {
        self.0.lock().lease_patches.clone()
    }

    /// What was said so far.
    #[allow(dead_code, reason = "not every test that uses this file asks")]
    pub fn events(&self) -> Vec<Value> {
        self.0.lock().events.clone()
    }
}

#[async_trait]
impl Transport for Feed {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let written = serde_json::from_slice(request.body()).map_err(|e| ApiError::internal(e.to_string()))?;
        match request.uri().path() {
            path if path.ends_with("/events") => self.0.lock().events.push(written),
            path if path.contains("/leases/") => self.0.lock().lease_patches.push(written),
            _ => return Err(ApiError::internal("the proxy only lists, watches, writes Events and renews Leases")),
        }
        Ok(Response::new(request.into_body()))
    }

    async fn list(&self, resource: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        let inner = self.0.lock();
        let of_kind = inner.objects.iter().filter(|((plural, _), _)| *plural == resource.plural);
        let objects = of_kind.map(|(_, object)| object.clone()).collect();
        Ok(ObjectList { objects, resource_version: inner.revision.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        _: Option<&str>,
        _: &ListParams,
        _: &str,
    ) -> Result<WatchStream, ApiError> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().watchers.push((resource.plural.clone(), sender));
        let events = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|event| (Ok(event), receiver))
        });
        Ok(events.boxed())
    }
}
