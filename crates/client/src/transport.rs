//! The seam between typed requests and the API server, wherever it runs.
//! Implemented by `https` here and by the in-process glue in the `minke` crate.
//! One identity per `Client`; a request is not retried here.

use std::sync::Arc;

use ::api::{ApiError, Object, Resource, WatchEvent};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, Request, Response, header, request::Builder};

use crate::{Api, ListParams};

pub type WatchStream = BoxStream<'static, Result<WatchEvent, ApiError>>;

/// Every object of a list, and the version the list is of.
#[derive(Debug, Clone, Default)]
pub struct ObjectList {
    pub objects: Vec<Arc<Object>>,
    pub resource_version: String,
}

#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// One request with a bounded answer. A non-2xx answer is returned, not an error.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError>;

    /// A whole list. `namespace` of `None` is all namespaces.
    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError>;

    /// Changes after `resource_version`, with bookmarks.
    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError>;
}

/// Whether a write that ended like this may have been carried out all the same: nobody knows when the answer is lost.
pub fn may_have_happened(error: &ApiError) -> bool {
    matches!(error.code, 503 | 504)
}

/// A connection to the API server under one identity. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<dyn Transport>);

impl Client {
    pub fn new(transport: impl Transport) -> Self {
        Self(Arc::new(transport))
    }

    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.0
    }

    /// Cluster-scoped objects, or those of all namespaces.
    pub fn api<K: k8s_openapi::Resource>(&self) -> Api<K> {
        Api::new(self.clone(), None)
    }

    pub fn namespaced<K: k8s_openapi::Resource>(&self, namespace: &str) -> Api<K> {
        Api::new(self.clone(), Some(namespace.to_string()))
    }

    /// Asks for JSON.
    pub async fn get(&self, uri: &str) -> Result<Bytes, ApiError> {
        self.get_as(uri, "application/json").await
    }

    /// Asks for this content type, or the alternatives it lists.
    pub async fn get_as(&self, uri: &str, accept: &str) -> Result<Bytes, ApiError> {
        self.send(Request::get(uri).header(header::ACCEPT, accept), Bytes::new()).await
    }

    /// Sends a body of this content type, and asks for JSON.
    pub async fn call(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Bytes, ApiError> {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header::ACCEPT, "application/json").header(header::CONTENT_TYPE, content_type);
        self.send(request, body.into()).await
    }

    async fn send(&self, request: Builder, body: Bytes) -> Result<Bytes, ApiError> {
        let request = request.body(body);
        self.request(request.map_err(|e| ApiError::bad_request(format!("couldn't make a request: {e}")))?).await
    }

    /// Sends a request and turns any non-2xx answer into an `ApiError`.
    pub async fn request(&self, request: Request<Bytes>) -> Result<Bytes, ApiError> {
        let response = self.0.send(request).await?;
        let status = response.status();
        if status.is_success() {
            Ok(response.into_body())
        } else {
            Err(ApiError::from_status(status.as_u16(), response.body()))
        }
    }
}
