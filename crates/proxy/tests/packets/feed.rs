//! An API server's lists and watches from memory, for a proxy under test.
//! Used by `main`; what is put here reaches the informers at once.
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
            "servicecidrs" => ("networking.k8s.io/v1", "ServiceCIDR"),
            _ => ("discovery.k8s.io/v1", "EndpointSlice"),
        };
        value["apiVersion"] = json!(version);
        value["kind"] = json!(kind);
        let object = Arc::new(Object::from_value(&value).unwrap());
        let before = inner.objects.insert((plural.to_owned(), object.key()), object.clone());
        let kind = if before.is_some() { WatchKind::Modified } else { WatchKind::Added };
        for (watched, watcher) in &inner.watchers {
            if watched == plural {
                let _ = watcher.send(WatchEvent { kind, object: object.clone() });
            }
        }
    }

    /// What was said so far.
    pub fn events(&self) -> Vec<Value> {
        self.0.lock().events.clone()
    }
}

#[async_trait]
impl Transport for Feed {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        if !request.uri().path().ends_with("/events") {
            return Err(ApiError::internal("the proxy only lists, watches and writes Events"));
        }
        let event = serde_json::from_slice(request.body()).map_err(|e| ApiError::internal(e.to_string()))?;
        self.0.lock().events.push(event);
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
