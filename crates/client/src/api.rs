//! Typed requests for one kind in one namespace (or all).
//! Used by every component; carried out by `transport`.
//! Errors are the server's own `Status`.

use std::marker::PhantomData;

use ::api::{ApiError, Resource, kinds};
use bytes::Bytes;
use http::Method;
use k8s_openapi::{List, ListableResource, apimachinery::pkg::apis::meta::v1::DeleteOptions};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::Client;

/// Selectors of lists and watches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ListParams {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    /// `"0"` accepts any version that the server has at hand.
    pub resource_version: Option<String>,
    pub limit: Option<u32>,
    pub continue_token: Option<String>,
}

impl ListParams {
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { label_selector: Some(selector.into()), ..Self::default() }
    }

    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: Some(selector.into()), ..Self::default() }
    }

    /// As a URL query, without the `?`.
    pub fn query(&self) -> String {
        let mut query = String::new();
        let mut add = |name: &str, value: &str| push_query(&mut query, name, value);
        if let Some(selector) = &self.label_selector {
            add("labelSelector", selector);
        }
        if let Some(selector) = &self.field_selector {
            add("fieldSelector", selector);
        }
        if let Some(version) = &self.resource_version {
            add("resourceVersion", version);
        }
        if let Some(limit) = self.limit {
            add("limit", &limit.to_string());
        }
        if let Some(token) = &self.continue_token {
            add("continue", token);
        }
        query
    }

    /// The path with the query.
    pub fn append_to(&self, path: String) -> String {
        with_query(path, &self.query())
    }

    /// That of a watch after a version, with bookmarks.
    pub fn watch_query(&self, resource_version: &str) -> String {
        let mut query = Self { resource_version: Some(resource_version.to_string()), ..self.clone() }.query();
        push_query(&mut query, "watch", "true");
        push_query(&mut query, "allowWatchBookmarks", "true");
        query
    }
}

/// Appends `name=value`, percent-encoded, to a URL query.
pub fn push_query(query: &mut String, name: &str, value: &str) {
    if !query.is_empty() {
        query.push('&');
    }
    query.push_str(name);
    query.push('=');
    query.push_str(&percent_encode(value));
}

/// As one segment of a path, or as a value of a query.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    /// Server-side apply under a field manager.
    Apply {
        manager: String,
        force: bool,
        config: Value,
    },
}

pub struct Api<K> {
    client: Client,
    namespace: Option<String>,
    resource: &'static Resource,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Api<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            resource: self.resource,
            kind: PhantomData,
        }
    }
}

impl<K: k8s_openapi::Resource> Api<K> {
    pub(crate) fn new(client: Client, namespace: Option<String>) -> Self {
        Self { client, namespace, resource: kinds::resource_of::<K>(), kind: PhantomData }
    }

    fn path(&self, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = self.resource.path(self.namespace.as_deref(), name);
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }

    async fn call(&self, method: Method, uri: String, content_type: &str, body: Vec<u8>) -> Result<Bytes, ApiError> {
        self.client.call(method, &uri, content_type, body).await
    }
}

impl<K: k8s_openapi::Resource + Serialize + DeserializeOwned> Api<K> {
    pub async fn get(&self, name: &str) -> Result<K, ApiError> {
        parse(&self.call(Method::GET, self.path(Some(name), None), JSON, Vec::new()).await?)
    }

    /// `None` when there is no such object.
    pub async fn find(&self, name: &str) -> Result<Option<K>, ApiError> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub async fn create(&self, object: &K) -> Result<K, ApiError> {
        parse(&self.call(Method::POST, self.path(None, None), JSON, encode(object)?).await?)
    }

    pub async fn replace(&self, name: &str, object: &K) -> Result<K, ApiError> {
        parse(&self.call(Method::PUT, self.path(Some(name), None), JSON, encode(object)?).await?)
    }

    pub async fn replace_status(&self, name: &str, object: &K) -> Result<K, ApiError> {
        parse(&self.call(Method::PUT, self.path(Some(name), Some("status")), JSON, encode(object)?).await?)
    }

    pub async fn patch(&self, name: &str, patch: &Patch) -> Result<K, ApiError> {
        self.patch_subresource(name, None, patch).await
    }

    pub async fn patch_status(&self, name: &str, patch: &Patch) -> Result<K, ApiError> {
        self.patch_subresource(name, Some("status"), patch).await
    }

    pub async fn patch_subresource(&self, name: &str, subresource: Option<&str>, patch: &Patch) -> Result<K, ApiError> {
        let mut uri = self.path(Some(name), subresource);
        let (content, body) = match patch {
            Patch::Json(body) => ("application/json-patch+json", body),
            Patch::Merge(body) => ("application/merge-patch+json", body),
            Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
            Patch::Apply { manager, force, config } => {
                let mut query = String::new();
                push_query(&mut query, "fieldManager", manager);
                push_query(&mut query, "force", if *force { "true" } else { "false" });
                uri = format!("{uri}?{query}");
                ("application/apply-patch+yaml", config)
            }
        };
        parse(&self.call(Method::PATCH, uri, content, body.to_string().into_bytes()).await?)
    }

    /// Any body to any subresource: `binding`, `eviction`, `token`, `scale`.
    pub async fn create_subresource<B: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<R, ApiError> {
        parse(&self.call(Method::POST, self.path(Some(name), Some(subresource)), JSON, encode(body)?).await?)
    }

    pub async fn replace_subresource<B: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<R, ApiError> {
        parse(&self.call(Method::PUT, self.path(Some(name), Some(subresource)), JSON, encode(body)?).await?)
    }

    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        self.call(Method::DELETE, self.path(Some(name), None), JSON, encode(options)?).await.map(drop)
    }

    pub async fn delete_collection(&self, params: &ListParams, options: &DeleteOptions) -> Result<(), ApiError> {
        let uri = params.append_to(self.path(None, None));
        self.call(Method::DELETE, uri, JSON, encode(options)?).await.map(drop)
    }
}

impl<K: ListableResource + Serialize + DeserializeOwned> Api<K> {
    pub async fn list(&self, params: &ListParams) -> Result<List<K>, ApiError> {
        let uri = params.append_to(self.path(None, None));
        parse(&self.call(Method::GET, uri, JSON, Vec::new()).await?)
    }
}

const JSON: &str = "application/json";

pub(crate) fn with_query(path: String, query: &str) -> String {
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

fn encode<T: Serialize>(body: &T) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(body).map_err(|e| ApiError::internal(format!("couldn't encode a request: {e}")))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::internal(format!("couldn't read the server's answer: {e}")))
}
