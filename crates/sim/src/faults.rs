//! Faults between a component and the API server: refused requests, lost answers, broken watches.
//! Wraps a client's transport; the workload's own client has none.
//! Invariant: a fault is always one that a real network could produce.

use std::sync::Arc;

use api::{ApiError, Reason, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use env::Env;
use futures::{StreamExt, stream};
use http::{Request, Response};

/// How often each fault happens, from 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The request never arrives.
    pub refused: f64,
    /// It is carried out, but the answer is lost.
    pub answer_lost: f64,
    /// After each event of a watch, the chance that it breaks off.
    pub watch_broken: f64,
}

impl Faults {
    pub fn between(self, client: Client, env: Env) -> Client {
        Client::new(Faulty { inner: client.transport().clone(), faults: self, env })
    }
}

struct Faulty {
    inner: Arc<dyn Transport>,
    faults: Faults,
    env: Env,
}

impl Faulty {
    fn happens(&self, chance: f64) -> bool {
        chance > 0.0 && self.env.random_fraction() < chance
    }

    fn refuse(&self) -> Result<(), ApiError> {
        if self.happens(self.faults.refused) { Err(unavailable("connection refused")) } else { Ok(()) }
    }
}

fn unavailable(what: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, format!("injected: {what}"))
}

#[async_trait]
impl Transport for Faulty {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        self.refuse()?;
        let answer = self.inner.send(request).await;
        if self.happens(self.faults.answer_lost) { Err(unavailable("connection reset")) } else { answer }
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        self.refuse()?;
        self.inner.list(resource, namespace, params).await
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        self.refuse()?;
        let events = self.inner.watch(resource, namespace, params, resource_version).await?;
        let (env, chance) = (self.env.clone(), self.faults.watch_broken);
        let broken = stream::unfold(events, move |mut events| {
            let env = env.clone();
            async move {
                if chance > 0.0 && env.random_fraction() < chance {
                    return None;
                }
                events.next().await.map(|event| (event, events))
            }
        });
        Ok(broken.boxed())
    }
}
