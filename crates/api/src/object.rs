//! The one form of an object on the server path: its JSON bytes plus the metadata the server looks at.
//! Made by `apiserver` (from clients and from the store) and by `client` (from the wire).
//! An `Object` never changes; a new version is a new `Object`.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{ApiError, WatchKind, managed_fields::without_managed_fields, object_forms::Slot};

/// One version of one object. Shared as `Arc<Object>` by the watch cache, every watcher and every in-process consumer.
pub struct Object {
    pub meta: Meta,
    /// The encoded object, with `apiVersion`, `kind` and `metadata.resourceVersion` in place.
    json: Bytes,
    /// The event that made this version as a JSON watch sends it; `json` is a part of these bytes.
    event: Option<(WatchKind, Bytes)>,
    /// Its parsed and protobuf forms, while somebody looks at them.
    forms: Arc<Slot>,
}

/// The part of `metadata` (and the type) that the machinery reads. Everything else stays in the JSON.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub name: String,
    pub generate_name: Option<String>,
    pub namespace: Option<String>,
    pub uid: String,
    /// Zero when the object has not been stored.
    #[serde(deserialize_with = "number_in_string")]
    pub resource_version: u64,
    pub generation: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner_references: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub deletion_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: Option<bool>,
    pub block_owner_deletion: Option<bool>,
}

fn number_in_string<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let text = Option::<std::borrow::Cow<'de, str>>::deserialize(d)?.unwrap_or_default();
    Ok(text.parse().unwrap_or(0))
}

impl Object {
    /// From encoded JSON, as stored or as received.
    pub fn from_json(json: impl Into<Bytes>) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Envelope {
            #[serde(default)]
            metadata: Meta,
        }
        let json = json.into();
        let envelope: Envelope =
            serde_json::from_slice(&json).map_err(|e| ApiError::bad_request(format!("couldn't read object: {e}")))?;
        Ok(Self { meta: envelope.metadata, json, event: None, forms: Arc::default() })
    }

    /// From an encoded watch event and the place of the object in it.
    pub fn from_event(kind: WatchKind, event: Bytes, object: Range<usize>) -> Result<Self, ApiError> {
        let made = Self::from_json(event.slice(object))?;
        Ok(Self { event: Some((kind, event)), ..made })
    }

    /// The whole encoded event, if this version was made by one of that kind.
    pub fn event(&self, kind: WatchKind) -> Option<&Bytes> {
        self.event.as_ref().filter(|(made, _)| *made == kind).map(|(_, event)| event)
    }

    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        Self::from_json(encode(value))
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("the bytes were valid JSON when the object was made")
    }

    /// The protobuf form, made by `encode` unless it is in use (see `object_forms`).
    pub fn protobuf(&self, encode: impl FnOnce(&Bytes) -> Bytes) -> Bytes {
        self.forms.protobuf(self.json.len(), || encode(&self.json))
    }

    /// The object as a `k8s-openapi` struct: parsed once while it is in use (see `object_forms`), shared by everyone in the
    /// process. It has no `managedFields`.
    pub fn typed<K: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<K>, ApiError> {
        if let Some(known) = self.forms.get(self.json.len()).and_then(|any| any.downcast::<K>().ok()) {
            return Ok(known);
        }
        let read = serde_json::from_slice(&without_managed_fields(&self.json))
            // Only what could not be read as it is pays for a second look.
            .or_else(|error| serde_json::from_slice(&encode(&with_unset_times(self.value()))).map_err(|_| error));
        let parsed: Arc<K> =
            Arc::new(read.map_err(|e| ApiError::internal(format!("couldn't read {}: {e}", self.key())))?);
        // A second type for the same version is legal (a status view, say); only the first is kept.
        let kept = self.forms.put(parsed.clone(), self.json.len());
        Ok(kept.downcast::<K>().unwrap_or(parsed))
    }

    /// Keeps only the bytes, which are a fraction of it: for versions that hardly anybody will look at again.
    pub fn forget_typed(&self) {
        self.forms.clear();
    }

    /// `namespace/name`, or `name` for cluster-scoped objects: the key of caches and work queues.
    pub fn key(&self) -> String {
        self.meta.key()
    }
}

fn encode(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value always encodes")
}

impl Meta {
    pub fn key(&self) -> String {
        crate::accessor::key(self.namespace.as_deref().unwrap_or_default(), &self.name)
    }

    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|o| o.controller == Some(true))
    }
}

/// Gives every condition a time: Go clients write an unset one as `null` (or leave it out), which
/// `k8s-openapi` refuses where the field is required.
fn with_unset_times(mut value: Value) -> Value {
    const UNSET: &str = "0001-01-01T00:00:00Z";
    match &mut value {
        Value::Object(map) => {
            for (key, field) in map.iter_mut() {
                if let ("conditions", Value::Array(conditions)) = (key.as_str(), &mut *field) {
                    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
                        let time = condition.entry("lastTransitionTime").or_insert(Value::Null);
                        if time.is_null() {
                            *time = UNSET.into();
                        }
                    }
                }
                if key == "lastObservedTime" && field.is_null() {
                    *field = UNSET.into();
                }
                *field = with_unset_times(field.take());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = with_unset_times(item.take())),
        _ => {}
    }
    value
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({} @{})", self.key(), self.meta.resource_version)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_without_a_time_are_read() {
        let check = |condition: Value, readable: bool| {
            let value = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
                "status": { "conditions": [condition.clone()] } });
            let read = Object::from_value(&value).unwrap().typed::<Service>();
            assert_eq!(read.is_ok(), readable, "{condition}");
        };
        check(json!({ "type": "A", "status": "True", "lastTransitionTime": null }), true);
        check(json!({ "type": "A", "status": "True" }), true);
        check(json!({ "type": "A", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }), true);
        check(json!({ "type": "A", "status": "True", "lastTransitionTime": 7 }), false);
    }
}
