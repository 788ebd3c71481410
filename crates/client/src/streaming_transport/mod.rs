//! Requests, lists and watches over HTTP: what every transport does with answers whose bodies arrive piece by piece.
//! Made whole by `https`, and by the simulator's connections; objects are read by `answers`.

mod answers;

use ::api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use self::answers::{read_events, read_list};
use crate::{ListParams, ObjectList, Transport, WatchStream, api::with_query};

/// A `Transport` but for the way a request takes.
pub trait StreamingTransport: Send + Sync + 'static {
    /// Sends a request and returns the answer with its body still to come.
    fn stream(&self, request: Request<Bytes>) -> impl Future<Output = Result<Response<Incoming>, ApiError>> + Send;

    /// The error of a body that ended early.
    fn unreachable(why: &str) -> ApiError;
}

async fn get<T: StreamingTransport>(transport: &T, uri: String) -> Result<Response<Incoming>, ApiError> {
    let request = Request::get(uri)
        .header(header::ACCEPT, "application/json")
        .body(Bytes::new())
        .map_err(|e| ApiError::bad_request(format!("couldn't make a request: {e}")))?;
    let response = transport.stream(request).await?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    Err(ApiError::from_status(status, &collect::<T>(response.into_body()).await?))
}

async fn collect<T: StreamingTransport>(body: Incoming) -> Result<Bytes, ApiError> {
    Ok(body.collect().await.map_err(|e| T::unreachable(&format!("the answer broke off: {e}")))?.to_bytes())
}

#[async_trait]
impl<T: StreamingTransport> Transport for T {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (parts, body) = self.stream(request).await?.into_parts();
        Ok(Response::from_parts(parts, collect::<T>(body).await?))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let response = get(self, params.append_to(resource.path(namespace, None))).await?;
        read_list(resource, &collect::<T>(response.into_body()).await?)
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let query = params.watch_query(resource_version);
        let response = get(self, with_query(resource.path(namespace, None), &query)).await?;
        let chunks = response.into_body().into_data_stream();
        Ok(read_events(chunks.map_err(|e| T::unreachable(&format!("the watch broke off: {e}"))).boxed()))
    }
}
