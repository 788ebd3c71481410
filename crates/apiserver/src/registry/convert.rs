//! Stored objects in the version a client asked for.
//! Part of `registry`; the conversions of built-in kinds are in `api`.
//! The storage version costs nothing.

use std::sync::Arc;

use serde_json::Value;

use api::{ApiError, Object, Resource};

use super::Registry;
use crate::{discovery::served::Served, storage, storage::cluster::Cluster};

/// A stored object as `served` shows it.
pub(super) async fn view(cluster: &Cluster, served: &Served, object: &Arc<Object>) -> Result<Arc<Object>, ApiError> {
    if let Some(custom) = &served.custom {
        // Boxed: a conversion may be a conversation, and whoever awaits this would carry its size around.
        let viewed = Box::pin(custom.view(cluster, served, vec![object.clone()])).await?;
        return viewed.into_iter().next().ok_or_else(|| ApiError::internal("conversion returned nothing"));
    }
    match served.is_storage_version() {
        true => Ok(object.clone()),
        false => builtin_view(served, object),
    }
}

impl Registry {
    pub(super) async fn view(&self, served: &Served, object: &Arc<Object>) -> Result<Arc<Object>, ApiError> {
        view(&self.cluster, served, object).await
    }

    pub(super) async fn views(&self, served: &Served, objects: Vec<Arc<Object>>) -> Result<Vec<Arc<Object>>, ApiError> {
        if served.is_storage_version() && served.custom.is_none() {
            return Ok(objects);
        }
        if let Some(custom) = &served.custom {
            return Box::pin(custom.view(&self.cluster, served, objects)).await;
        }
        objects.iter().map(|o| builtin_view(served, o)).collect()
    }

    /// An object of `served`'s version as it is stored.
    pub(super) async fn to_storage(&self, served: &Served, value: Value) -> Result<Value, ApiError> {
        if let Some(custom) = &served.custom {
            return Box::pin(custom.to_storage(&self.cluster, served, value)).await;
        }
        if served.is_storage_version() {
            return Ok(value);
        }
        Ok(match storage_resource(served) {
            Some(stored) => api::kinds::convert(&served.resource, stored, value),
            None => value,
        })
    }
}

/// What a client sent, in the form that its version would show it in.
pub(super) fn normalized(served: &Served, value: Value) -> Value {
    if served.is_storage_version() || served.custom.is_some() {
        return value;
    }
    match storage_resource(served) {
        Some(stored) => api::kinds::normalize(&served.resource, stored, value),
        None => value,
    }
}

fn builtin_view(served: &Served, object: &Object) -> Result<Arc<Object>, ApiError> {
    let Some(stored) = storage_resource(served) else {
        return Err(ApiError::internal(format!("{:?} has no stored version", served.resource)));
    };
    let value = api::kinds::convert(stored, &served.resource, object.value());
    // Only tried, never stored.
    if object.meta.resource_version == 0 {
        return Ok(Arc::new(Object::from_value(&value)?));
    }
    // In the form of stored bytes: lists count on where they have their type.
    Ok(Arc::new(storage::decode(&storage::encode(&value), object.meta.resource_version)?))
}

fn storage_resource(served: &Served) -> Option<&'static Arc<Resource>> {
    let stored = &served.storage_version;
    api::kinds::find(&stored.group, &stored.version, &served.plural)
}
