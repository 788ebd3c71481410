//! The transport into an API server of the same process: requests as calls, objects by reference.
//! What `minke up` gives its own components; `http` is the other one.
//! A request that has arrived goes on when its client dies, and ends when the server does.

use std::sync::Arc;

use api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use futures::{StreamExt, stream};
use http::{Request, Response};

use super::unreachable;
use crate::cluster::api_server::{ApiServerProcess, Running};

pub struct InProcessTransport {
    pub server: Arc<ApiServerProcess>,
    pub user: String,
    pub groups: Vec<String>,
}

impl InProcessTransport {
    fn now(&self) -> Result<(Running, Client), ApiError> {
        let running = self.server.running().ok_or_else(|| unreachable("connection refused"))?;
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        let client = ::in_process::client(&running.server, &self.user, &groups);
        Ok((running, client))
    }
}

#[async_trait]
impl Transport for InProcessTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (running, client) = self.now()?;
        self.server.count(&request);
        let served = running.env.spawn(async move { client.transport().send(request).await });
        served.await.unwrap_or_else(|_| Err(unreachable("connection reset by peer")))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let (running, client) = self.now()?;
        let listing = client.transport().list(resource, namespace, params);
        tokio::select! {
            biased;
            () = running.crashed.cancelled() => Err(unreachable("connection reset by peer")),
            listed = listing => listed,
        }
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let (running, client) = self.now()?;
        let events = client.transport().watch(resource, namespace, params, resource_version).await?;
        let end = stream::once(async { Err(unreachable("connection reset by peer")) });
        Ok(events.take_until(running.crashed.cancelled_owned()).chain(end).boxed())
    }
}
