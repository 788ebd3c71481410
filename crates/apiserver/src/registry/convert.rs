//! Stored objects in the version a client asked for.
//! Part of `registry`; the conversions of built-in kinds are in `api`.
//! Invariant: the storage version costs nothing.

use std::sync::Arc;

use serde_json::Value;

use api::{ApiError, Object};

use super::Registry;
use crate::{cluster::Cluster, served::Served};

/// A stored object as `served` shows it.
pub(super) async fn view(cluster: &Cluster, served: &Served, object: &Arc<Object>) -> Result<Arc<Object>, ApiError> {
    if let Some(custom) = &served.custom {
        let viewed = custom.view(cluster, served, vec![object.clone()]).await?;
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
            return custom.view(&self.cluster, served, objects).await;
        }
        objects.iter().map(|o| builtin_view(served, o)).collect()
    }

    /// An object of `served`'s version as it is stored.
    pub(super) async fn to_storage(&self, served: &Served, value: Value) -> Result<Value, ApiError> {
        if let Some(custom) = &served.custom {
            return custom.to_storage(&self.cluster, served, value).await;
        }
        if served.is_storage_version() {
            return Ok(value);
        }
        let to = &served.storage_version;
        convert_builtin(value, &to.group, &to.version, &served.kind)
    }
}

fn builtin_view(served: &Served, object: &Object) -> Result<Arc<Object>, ApiError> {
    let value = convert_builtin(object.value(), &served.group, &served.version, &served.kind)?;
    Ok(Arc::new(Object::from_value(&value)?))
}

fn convert_builtin(mut value: Value, group: &str, version: &str, _kind: &str) -> Result<Value, ApiError> {
    let target = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    value["apiVersion"] = target.into();
    Ok(value)
}
