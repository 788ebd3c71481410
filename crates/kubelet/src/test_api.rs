//! Transports for unit tests: one that reaches no API server, and one whose answers a test writes.
//! Used by tests next to the code.
//! Nothing can be listed or watched.

use api::ApiError;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use http::{Request, Response};

/// No API server answers.
pub struct UnreachableApi;

/// Answers every request with what the function returns; lists and watches fail.
pub struct ScriptedApi<F>(pub F);

#[async_trait::async_trait]
impl Transport for UnreachableApi {
    async fn send(&self, _: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        Err(ApiError::internal("no API"))
    }

    async fn list(&self, _: &api::Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        Err(ApiError::internal("no API"))
    }

    async fn watch(
        &self,
        _: &api::Resource,
        _: Option<&str>,
        _: &ListParams,
        _: &str,
    ) -> Result<WatchStream, ApiError> {
        Err(ApiError::internal("no API"))
    }
}

#[async_trait::async_trait]
impl<F> Transport for ScriptedApi<F>
where
    F: Fn(Request<Bytes>) -> Result<serde_json::Value, ApiError> + Send + Sync + 'static,
{
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        Ok(Response::new(Bytes::from((self.0)(request)?.to_string())))
    }

    async fn list(&self, r: &api::Resource, n: Option<&str>, p: &ListParams) -> Result<ObjectList, ApiError> {
        UnreachableApi.list(r, n, p).await
    }

    async fn watch(
        &self,
        resource: &api::Resource,
        namespace: Option<&str>,
        params: &ListParams,
        version: &str,
    ) -> Result<WatchStream, ApiError> {
        UnreachableApi.watch(resource, namespace, params, version).await
    }
}
