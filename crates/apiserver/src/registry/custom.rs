//! What a CustomResourceDefinition adds to a resource: columns, scale paths, conversion between its versions.
//! Held by `Served`; built by `crd`.
//! Invariant: objects are stored in one version; every other one is a view.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use api::{ApiError, Object};

use crate::{cluster::Cluster, served::Served};

#[derive(Debug, Clone, Default)]
pub struct Custom {
    pub columns: Vec<PrinterColumn>,
    pub scale: ScalePaths,
}

/// One of `additionalPrinterColumns`.
#[derive(Debug, Clone)]
pub struct PrinterColumn {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub path: String,
}

#[derive(Debug, Clone, Default)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

impl Custom {
    pub fn column_definitions(&self) -> Value {
        let name = json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name must be unique within a namespace.",
        });
        let more = self.columns.iter().map(|c| {
            json!({
                "name": c.name, "type": c.kind, "format": c.format, "description": c.description,
                "priority": c.priority,
            })
        });
        std::iter::once(name).chain(more).collect()
    }

    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].clone();
        std::iter::once(name).chain(self.columns.iter().map(|c| c.cell(object, now))).collect()
    }

    pub async fn view(
        &self,
        _cluster: &Cluster,
        served: &Served,
        objects: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>, ApiError> {
        if served.is_storage_version() {
            return Ok(objects);
        }
        let retyped = objects.iter().map(|o| {
            let mut value = o.value();
            value["apiVersion"] = served.api_version().into();
            Object::from_value(&value).map(Arc::new)
        });
        retyped.collect()
    }

    pub async fn to_storage(&self, _cluster: &Cluster, served: &Served, mut value: Value) -> Result<Value, ApiError> {
        let to = &served.storage_version;
        value["apiVersion"] = format!("{}/{}", to.group, to.version).into();
        Ok(value)
    }
}

impl PrinterColumn {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = object.pointer(&self.path.replace('.', "/")).unwrap_or(&Value::Null);
        match (self.kind.as_str(), found) {
            ("date", Value::String(text)) => api::printing::age(Some(text), now).into(),
            (_, Value::Null) => Value::Null,
            ("string", Value::Object(_) | Value::Array(_)) => found.to_string().into(),
            _ => found.clone(),
        }
    }
}
