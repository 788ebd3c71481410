//! `deletecollection`: everything a selection names, deleted one by one.
//! Part of `registry`.
//! An object that vanished meanwhile is no failure.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream};
use http::StatusCode;
use serde_json::{Value, json};

use api::ApiError;

use super::{Registry, Selection, delete::Deleted, options::DeleteOptions};
use crate::{discovery::served::Served, handlers::respond::Reply, request::call::Call};

const CONCURRENT_DELETES_MAX: usize = 16;

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
        let limit = call.query.number("limit")?.unwrap_or(0).max(0) as usize;
        let snapshot = resource.list(&selection.prefix, None, limit, applied, |e| selection.matches(served, e));
        let mut objects: Vec<_> = snapshot.entries.iter().map(|e| e.object.clone()).collect();
        if selection.is_late() {
            objects = self.views(served, objects).await?;
            objects.retain(|object| selection.matches_view(served, object));
        }
        // Several at once, so that the store commits them together; told in order.
        let mut deletions: Vec<BoxFuture<'_, Result<Deleted, ApiError>>> = Vec::with_capacity(objects.len());
        for object in &objects {
            let namespace = object.meta.namespace.as_deref().unwrap_or_default();
            deletions.push(Box::pin(self.delete_object(call, served, namespace, &object.meta.name, &options)));
        }
        let mut deletions = stream::iter(deletions).buffered(CONCURRENT_DELETES_MAX);
        while let Some(deleted) = deletions.next().await {
            match deleted {
                Ok(_) => {}
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        // Shown as they were listed, as upstream does: not as they were when they went.
        let items: Vec<Value> = objects.iter().map(|object| served.list_item(object.value())).collect();
        let list = json!({
            "kind": served.list_kind, "apiVersion": served.api_version(),
            "metadata": { "resourceVersion": cache.revision().to_string() }, "items": items,
        });
        Ok(Reply::Value(StatusCode::OK, list))
    }
}
