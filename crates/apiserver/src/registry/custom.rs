//! What a CustomResourceDefinition adds to a resource: columns, scale paths, conversion between its versions.
//! Held by `Served`; built by `crd`.
//! Objects are stored in one version; every other one is a view.

use std::{borrow::Cow, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use api::{ApiError, Object};

use super::json_path;
use crate::{
    discovery::served::Served,
    storage::cluster::Cluster,
    transport::{webhook_client::WebhookIdentities, webhook_config},
};

const CONVERSION_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Default)]
pub struct Custom {
    pub columns: Vec<PrinterColumn>,
    pub scale: ScalePaths,
    /// The schema as declared, for OpenAPI.
    pub openapi: Value,
    /// Stored objects may lack what the schema now fills in.
    pub has_defaults: bool,
    pub conversion: Conversion,
}

/// How one version becomes another.
#[derive(Debug, Clone, Default)]
pub enum Conversion {
    /// Only the apiVersion changes.
    #[default]
    None,
    /// `spec.conversion.webhook`.
    Webhook(Value),
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

    /// Stored objects as `served` shows them: in its version, with what it fills in.
    pub async fn view(
        &self,
        cluster: &Cluster,
        served: &Served,
        objects: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>, ApiError> {
        let wanted = served.api_version();
        if !self.has_defaults && objects.iter().all(|o| is_of(o, &wanted)) {
            return Ok(objects);
        }
        let values = objects.iter().map(|o| o.value()).collect();
        let values = self.convert(cluster, values, &wanted).await?;
        let shown = values.into_iter().map(|mut value| {
            if let Some((schema, id)) = &served.schema {
                schema.apply_defaults(*id, &mut value);
            }
            Object::from_value(&value).map(Arc::new)
        });
        shown.collect()
    }

    pub async fn to_storage(&self, cluster: &Cluster, served: &Served, value: Value) -> Result<Value, ApiError> {
        let to = &served.storage_version;
        let wanted = format!("{}/{}", to.group, to.version);
        let converted = self.convert(cluster, vec![value], &wanted).await?;
        converted.into_iter().next().ok_or_else(|| ApiError::internal("conversion returned nothing"))
    }

    /// Objects of any version in the wanted one.
    pub async fn convert(&self, cluster: &Cluster, objects: Vec<Value>, wanted: &str) -> Result<Vec<Value>, ApiError> {
        match &self.conversion {
            Conversion::None => Ok(objects
                .into_iter()
                .map(|mut object| {
                    object["apiVersion"] = wanted.into();
                    object
                })
                .collect()),
            Conversion::Webhook(webhook) => {
                // The storage version may have changed: only those of another version are the webhook's business.
                let mut objects = objects;
                let others: Vec<usize> = (0..objects.len()).filter(|i| objects[*i]["apiVersion"] != wanted).collect();
                if others.is_empty() {
                    return Ok(objects);
                }
                let sent = others.iter().map(|i| objects[*i].take()).collect();
                let converted = convert_by_webhook(cluster, webhook, sent, wanted).await?;
                others.into_iter().zip(converted).for_each(|(i, object)| objects[i] = object);
                Ok(objects)
            }
        }
    }
}

/// Whether an object's bytes are of a version, which mostly stands right at their start.
fn is_of(object: &Object, api_version: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Envelope<'a> {
        #[serde(borrow, default)]
        api_version: Cow<'a, str>,
    }
    let json = object.json();
    match json.strip_prefix(br#"{"apiVersion":""#).and_then(|rest| rest.strip_prefix(api_version.as_bytes())) {
        Some(rest) if rest.starts_with(b"\"") => true,
        // The text elsewhere in the object (its managed fields, say) proves nothing.
        _ => serde_json::from_slice::<Envelope<'_>>(json).is_ok_and(|e| e.api_version == api_version),
    }
}

/// Asks the webhook for the objects in another version and checks that it changed nothing it may not.
async fn convert_by_webhook(
    cluster: &Cluster,
    webhook: &Value,
    objects: Vec<Value>,
    wanted: &str,
) -> Result<Vec<Value>, ApiError> {
    let failed =
        |why: String| ApiError::internal(format!("conversion webhook for {} failed: {why}", objects[0]["kind"]));
    let uid = cluster.env.uuid();
    let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
    let version = versions.filter_map(Value::as_str).find(|v| matches!(*v, "v1" | "v1beta1")).unwrap_or("v1");
    let review = json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": { "uid": uid, "desiredAPIVersion": wanted, "objects": objects },
    });
    let nobody = WebhookIdentities::default();
    let client =
        webhook_config::WebhookClient::from_config(cluster, &webhook["clientConfig"], &nobody).map_err(failed)?;
    let answer = client.post(&review, CONVERSION_TIMEOUT).await.map_err(failed)?;
    let response = &answer["response"];
    if response["uid"] != uid.as_str() {
        return Err(failed(format!("expected response.uid={uid:?}, got {}", response["uid"])));
    }
    if response["result"]["status"] != "Success" {
        return Err(failed(response["result"]["message"].as_str().unwrap_or("no message").to_string()));
    }
    let mut converted = response["convertedObjects"].as_array().cloned().unwrap_or_default();
    if converted.len() != objects.len() {
        return Err(failed(format!("expected {} converted objects, got {}", objects.len(), converted.len())));
    }
    for (new, old) in converted.iter_mut().zip(&objects) {
        if new["apiVersion"] != wanted {
            return Err(failed(format!("invalid converted object: invalid groupVersion {}", new["apiVersion"])));
        }
        // Only labels and annotations of the metadata are the webhook's to change.
        let mut metadata = old["metadata"].clone();
        for field in ["labels", "annotations"] {
            match new["metadata"].get(field) {
                Some(value) => metadata[field] = value.clone(),
                None => drop(metadata.as_object_mut().and_then(|m| m.remove(field))),
            }
        }
        new["metadata"] = metadata;
    }
    Ok(converted)
}

impl PrinterColumn {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = json_path::first(object, &self.path).unwrap_or(&Value::Null);
        match (self.kind.as_str(), found) {
            ("date", Value::String(text)) => api::printing::age(Some(text), now).into(),
            (_, Value::Null) => Value::Null,
            // As Go writes JSON: what HTML would take for its own is escaped.
            ("string", Value::Object(_) | Value::Array(_)) => api::schema::go_form::escaped(found.to_string()).into(),
            _ => found.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objects_own_version_counts() {
        let check = |json: &'static str, expected: bool| {
            assert_eq!(is_of(&Object::from_json(json).unwrap(), "g/v1"), expected, "{json}");
        };
        check(r#"{"apiVersion":"g/v1","kind":"K"}"#, true);
        check(r#"{"kind":"K","apiVersion":"g/v1"}"#, true);
        check(r#"{"apiVersion":"g/v1beta1","kind":"K"}"#, false);
        check(r#"{"apiVersion":"g/v2","metadata":{"managedFields":[{"apiVersion":"g/v1"}]}}"#, false);
    }
}
