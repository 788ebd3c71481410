//! The API server of a simulation: it can crash and come back on the same store, and clients notice as they would.
//! Clients reach it through `Reach`; `faults` stands between it and the components.
//! Invariant: a request that has arrived goes on when its client dies, and ends when the server does.

use std::sync::Arc;

use api::{ApiError, Reason, Resource};
use apiserver::{ApiServer, Config};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use env::Env;
use futures::{StreamExt, stream};
use http::{Request, Response};
use jiff::Timestamp;
use parking_lot::Mutex;
use store::Store;
use tokio_util::sync::CancellationToken;

pub struct Server {
    env: Env,
    store: Arc<dyn Store>,
    signing_key: String,
    running: Mutex<Option<Running>>,
    /// When the last request came, and how many came at that moment.
    pace: Mutex<(Timestamp, usize)>,
}

/// More requests than this at one moment of simulated time: somebody goes round in circles, and would for ever.
const MOST_AT_ONCE: usize = 20_000;

#[derive(Clone)]
struct Running {
    env: Env,
    server: Arc<ApiServer>,
    crashed: CancellationToken,
}

impl Server {
    pub fn new(env: Env, store: Arc<dyn Store>, signing_key: String) -> Arc<Self> {
        Arc::new(Self { env, store, signing_key, running: Mutex::default(), pace: Mutex::default() })
    }

    pub async fn start(&self) {
        let env = self.env.part();
        let server = ApiServer::new(Config::in_process(self.signing_key.clone()), self.store.clone(), env.clone());
        let server = server.await.expect("the API server starts");
        *self.running.lock() = Some(Running { env, server, crashed: CancellationToken::new() });
    }

    pub fn crash(&self) {
        if let Some(running) = self.running.lock().take() {
            running.env.crash();
            running.crashed.cancel();
        }
    }

    /// Ends the process of this run when time stands still: no check would ever be reached.
    fn count(&self, request: &Request<Bytes>) {
        let mut pace = self.pace.lock();
        let now = self.env.now();
        *pace = if pace.0 == now { (now, pace.1 + 1) } else { (now, 1) };
        if pace.1 > MOST_AT_ONCE {
            eprintln!("a hot loop at {now}: {} requests, the last {} {}", pace.1, request.method(), request.uri());
            std::process::exit(1);
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.lock().is_some()
    }

    pub fn client(self: &Arc<Self>, user: &str, groups: &[&str]) -> Client {
        let groups = groups.iter().map(|g| g.to_string()).collect();
        Client::new(Reach { server: self.clone(), user: user.into(), groups })
    }
}

struct Reach {
    server: Arc<Server>,
    user: String,
    groups: Vec<String>,
}

impl Reach {
    fn now(&self) -> Result<(Running, Client), ApiError> {
        let running = self.server.running.lock().clone().ok_or_else(|| unreachable("connection refused"))?;
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        let client = in_process::client(&running.server, &self.user, &groups);
        Ok((running, client))
    }
}

/// As the HTTPS transport says it.
pub fn unreachable(why: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, format!("couldn't reach the API server: {why}"))
}

#[async_trait]
impl Transport for Reach {
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
        self.now()?.1.transport().list(resource, namespace, params).await
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
