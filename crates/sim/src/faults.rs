//! Faults between a component and the API server: refused requests, lost answers, delays, meddlers, watches that break,
//! lag or expire.
//! Wraps a component's transport; the workload's own client has none.
//! Invariant: a fault is always one that a real network or another client could produce.

use std::{sync::Arc, time::Duration};

use api::{ApiError, Reason, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use env::Env;
use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::json;

use crate::server::unreachable;

/// How often each fault happens, from 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The request never arrives.
    pub refused: f64,
    /// It is carried out, but the answer is lost.
    pub answer_lost: f64,
    /// Requests, answers and watch events that take their time.
    pub slow: f64,
    pub longest_delay: Duration,
    /// Somebody else writes the object just before we do.
    pub meddled: f64,
    /// Before each event of a watch, the chance that it breaks off.
    pub watch_broken: f64,
    /// The same, and the watch can't be resumed.
    pub watch_expired: f64,
}

impl Faults {
    /// Each kind in about half of all runs, rare or frequent.
    pub fn drawn(env: &Env) -> Self {
        let chance = |highest: f64| match env.random_u64() % 2 {
            0 => 0.0,
            _ => highest * env.random_fraction(),
        };
        Self {
            refused: chance(0.1),
            answer_lost: chance(0.1),
            slow: chance(0.3),
            longest_delay: Duration::from_millis(100 + env.random_u64() % 5000),
            meddled: chance(0.2),
            watch_broken: chance(0.05),
            watch_expired: chance(0.02),
        }
    }
}

/// The faults of a run. They end when the run is to settle.
#[derive(Clone, Default)]
pub struct Dial(Arc<Mutex<Faults>>);

impl Dial {
    pub fn set(&self, faults: Faults) {
        *self.0.lock() = faults;
    }

    pub fn get(&self) -> Faults {
        *self.0.lock()
    }

    /// `meddler` is the client of whoever writes in between.
    pub fn between(&self, client: &Client, meddler: &Client, env: &Env) -> Client {
        let inner = client.transport().clone();
        Client::new(Faulty { inner, dial: self.clone(), meddler: meddler.clone(), env: env.clone() })
    }
}

struct Faulty {
    inner: Arc<dyn Transport>,
    dial: Dial,
    meddler: Client,
    env: Env,
}

fn happens(env: &Env, chance: f64) -> bool {
    chance > 0.0 && env.random_fraction() < chance
}

async fn dawdle(env: &Env, faults: &Faults) {
    if happens(env, faults.slow) {
        env.sleep(faults.longest_delay.mul_f64(env.random_fraction())).await;
    }
}

impl Faulty {
    fn refuse(&self, faults: &Faults) -> Result<(), ApiError> {
        if happens(&self.env, faults.refused) { Err(unreachable("connection refused")) } else { Ok(()) }
    }

    /// Changes the object that `request` is about to replace.
    async fn meddle(&self, request: &Request<Bytes>, faults: &Faults) {
        if request.method() != Method::PUT || !happens(&self.env, faults.meddled) {
            return;
        }
        let path = request.uri().path().trim_end_matches("/status");
        let patch = json!({ "metadata": { "annotations": { "sim/meddled": self.env.random_u64().to_string() } } });
        let request = Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(Bytes::from(patch.to_string()))
            .expect("a request");
        // It may be gone by now, or the server down.
        self.meddler.request(request).await.ok();
    }
}

#[async_trait]
impl Transport for Faulty {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let faults = self.dial.get();
        self.refuse(&faults)?;
        dawdle(&self.env, &faults).await;
        self.meddle(&request, &faults).await;
        let answer = self.inner.send(request).await;
        dawdle(&self.env, &faults).await;
        if happens(&self.env, faults.answer_lost) { Err(unreachable("connection reset by peer")) } else { answer }
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let faults = self.dial.get();
        self.refuse(&faults)?;
        let answer = self.inner.list(resource, namespace, params).await;
        // What arrives is as old as the way is long.
        dawdle(&self.env, &faults).await;
        answer
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        self.refuse(&self.dial.get())?;
        let events = self.inner.watch(resource, namespace, params, resource_version).await?;
        let (env, dial) = (self.env.clone(), self.dial.clone());
        let faulty = stream::unfold(Some(events), move |events| {
            let (env, dial) = (env.clone(), dial.clone());
            async move {
                let mut events = events?;
                let event = events.next().await?;
                let faults = dial.get();
                dawdle(&env, &faults).await;
                if happens(&env, faults.watch_broken) {
                    return None;
                }
                if happens(&env, faults.watch_expired) {
                    return Some((Err(ApiError::new(Reason::Expired, "too old resource version")), None));
                }
                Some((event, Some(events)))
            }
        });
        Ok(faulty.boxed())
    }
}
