//! `deletecollection`: everything a selection names, deleted one by one.
//! Part of `registry`.
//! Invariant: an object that vanished meanwhile is no failure.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use api::ApiError;

use super::{Registry, Selection, delete::Deleted, options::DeleteOptions};
use crate::{call::Call, respond::Reply, served::Served};

impl Registry {
    pub(super) async fn delete_collection(
        &self,
        call: &Call,
        served: &Arc<Served>,
        body: &[u8],
    ) -> Result<Reply, ApiError> {
        let options = DeleteOptions::from_request(call, body)?;
        let selection = Selection::from_call(call, served)?;
        self.cluster.cache.wait_until_fresh().await?;
        let cache = &self.cluster.cache;
        let applied = cache.revision();
        let resource = cache.resource(&served.prefix);
        let snapshot = resource.list(&selection.prefix, None, 0, applied, |e| selection.matches(served, e));
        let mut items: Vec<Value> = Vec::new();
        let mut objects: Vec<_> = snapshot.entries.iter().map(|e| e.object.clone()).collect();
        if selection.is_late() {
            objects = self.views(served, objects).await?;
            objects.retain(|object| selection.matches_view(served, object));
        }
        for object in &objects {
            let meta = &object.meta;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            match self.delete_object(call, served, namespace, &meta.name, &options).await {
                Ok(Deleted::Removed(object) | Deleted::Marked(object)) => items.push(object.value()),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let list = json!({
            "kind": served.list_kind, "apiVersion": served.api_version(),
            "metadata": { "resourceVersion": cache.revision().to_string() }, "items": items,
        });
        Ok(Reply::Value(StatusCode::OK, list))
    }
}
