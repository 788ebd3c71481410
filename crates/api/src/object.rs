//! The one form of an object on the server path: its JSON bytes plus the metadata the server looks at.
//! Made by `apiserver` (from clients and from the store) and by `client` (from the wire).
//! Invariant: an `Object` never changes; a new version is a new `Object`.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::ApiError;

/// One version of one object. Shared as `Arc<Object>` by the watch cache, every watcher and every in-process consumer.
pub struct Object {
    pub meta: Meta,
    /// The encoded object, with `apiVersion`, `kind` and `metadata.resourceVersion` in place.
    json: Bytes,
    protobuf: OnceLock<Bytes>,
    typed: OnceLock<Arc<dyn Any + Send + Sync>>,
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
        Ok(Self { meta: envelope.metadata, json, protobuf: OnceLock::new(), typed: OnceLock::new() })
    }

    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        let json = serde_json::to_vec(value).expect("a JSON value always encodes");
        Self::from_json(json)
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("the bytes were valid JSON when the object was made")
    }

    /// The protobuf form, made by `encode` on first demand.
    pub fn protobuf(&self, encode: impl FnOnce(&Bytes) -> Bytes) -> &Bytes {
        self.protobuf.get_or_init(|| encode(&self.json))
    }

    /// The object as a `k8s-openapi` struct: parsed once per version, shared by everyone in the process.
    pub fn typed<K: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<K>, ApiError> {
        if let Some(known) = self.typed.get().and_then(|any| any.clone().downcast::<K>().ok()) {
            return Ok(known);
        }
        let parsed: Arc<K> = Arc::new(
            serde_json::from_slice(&self.json)
                .map_err(|e| ApiError::internal(format!("couldn't read {}: {e}", self.key())))?,
        );
        // A second type for the same version is legal (a status view, say); only the first is kept.
        match self.typed.set(parsed.clone()) {
            Ok(()) => Ok(parsed),
            Err(_) => Ok(self.typed.get().and_then(|any| any.clone().downcast::<K>().ok()).unwrap_or(parsed)),
        }
    }

    /// `namespace/name`, or `name` for cluster-scoped objects: the key of caches and work queues.
    pub fn key(&self) -> String {
        self.meta.key()
    }
}

impl Meta {
    pub fn key(&self) -> String {
        match self.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => format!("{namespace}/{}", self.name),
            _ => self.name.clone(),
        }
    }

    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|o| o.controller == Some(true))
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({} @{})", self.key(), self.meta.resource_version)
    }
}
