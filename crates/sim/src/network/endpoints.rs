//! Several API servers as one: a client stays with one until it can't be reached, or a balancer spreads its requests.
//! Above `http` and `in_process`, one of them per server.
//! A request goes to one server and is never sent again here.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use env::Env;
use futures::StreamExt;
use http::{Request, Response};

use super::is_unreachable;

pub struct Endpoints {
    /// One per server.
    pub servers: Vec<Arc<dyn Transport>>,
    /// The one in use.
    pub current: Arc<AtomicUsize>,
    /// Whether each request goes to any server, as behind a balancer.
    pub spread: bool,
    pub env: Env,
}

/// Goes on to the next server when the current one can't be reached.
fn note<T>(current: &AtomicUsize, chosen: usize, servers: usize, answer: &Result<T, ApiError>) {
    if answer.as_ref().is_err_and(is_unreachable) {
        let next = (chosen + 1) % servers;
        // Another request may have gone on already.
        current.compare_exchange(chosen, next, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
}

impl Endpoints {
    fn choose(&self) -> (usize, &Arc<dyn Transport>) {
        if self.spread {
            self.current.store((self.env.random_u64() % self.servers.len() as u64) as usize, Ordering::Relaxed);
        }
        let chosen = self.current.load(Ordering::Relaxed) % self.servers.len();
        (chosen, &self.servers[chosen])
    }

    fn note<T>(&self, chosen: usize, answer: Result<T, ApiError>) -> Result<T, ApiError> {
        note(&self.current, chosen, self.servers.len(), &answer);
        answer
    }
}

#[async_trait]
impl Transport for Endpoints {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (chosen, server) = self.choose();
        self.note(chosen, server.send(request).await)
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let (chosen, server) = self.choose();
        self.note(chosen, server.list(resource, namespace, params).await)
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let (chosen, server) = self.choose();
        let events = self.note(chosen, server.watch(resource, namespace, params, resource_version).await)?;
        let (current, servers) = (self.current.clone(), self.servers.len());
        Ok(events.inspect(move |event| note(&current, chosen, servers, event)).boxed())
    }
}
