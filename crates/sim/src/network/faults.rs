//! Faults between a component and the API server: refused requests, lost answers, delays, an overloaded or failing server,
//! other writers, watches that break, lag or expire.
//! Wraps a component's transport; `pipe` and `SimulatedStore` have the faults of bytes and of the store.
//! A fault is always one that a real network or another client could produce.

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

use super::unreachable;

/// How often each fault happens, from 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The request never arrives.
    pub refused: f64,
    /// It is carried out, but the answer is lost.
    pub answer_lost: f64,
    /// Requests, answers and watch events that take their time.
    pub slow: f64,
    pub delay_max: Duration,
    /// Answered with 429 and Retry-After, before anything was done.
    pub too_many_requests: f64,
    /// Answered with 500, before anything was done.
    pub internal_error: f64,
    /// Answered with 504 after a minute, whether it was carried out or not.
    pub timed_out: f64,
    /// Before each piece of a connection's bytes, the chance that it breaks off in the middle of it.
    pub connection_broken: f64,
    /// Reads and writes of the store that take their time.
    pub store_slow: f64,
    pub store_delay_max: Duration,
    /// Somebody else writes the object just before we do.
    pub conflicting_write: f64,
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
            delay_max: Duration::from_millis(100 + env.random_u64() % 5000),
            too_many_requests: chance(0.1),
            internal_error: chance(0.05),
            timed_out: chance(0.005),
            connection_broken: chance(0.01),
            store_slow: chance(0.2),
            store_delay_max: Duration::from_millis(10 + env.random_u64() % 1000),
            conflicting_write: chance(0.2),
            watch_broken: chance(0.05),
            watch_expired: chance(0.02),
        }
    }
}

/// The faults of a run. They end when the run is to settle.
#[derive(Clone, Default)]
pub struct FaultInjector(Arc<Mutex<Faults>>);

impl FaultInjector {
    pub fn set(&self, faults: Faults) {
        *self.0.lock() = faults;
    }

    pub fn get(&self) -> Faults {
        *self.0.lock()
    }
}

/// `inner` with the faults of the moment.
pub struct Faulty {
    pub inner: Arc<dyn Transport>,
    pub injector: FaultInjector,
    /// Whoever writes in between, if somebody does.
    pub other_writer: Option<Client>,
    pub env: Env,
}

/// As long as the API server's own limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn happens(env: &Env, chance: f64) -> bool {
    chance > 0.0 && env.random_fraction() < chance
}

fn refusal(error: &ApiError) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(error.to_status().to_string()));
    *response.status_mut() = http::StatusCode::from_u16(error.code).expect("codes of ours");
    if let Some(seconds) = error.retry_after_seconds {
        response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn delay(env: &Env, faults: &Faults) {
    if happens(env, faults.slow) {
        env.sleep(faults.delay_max.mul_f64(env.random_fraction())).await;
    }
}

impl Faulty {
    fn refuse(&self, faults: &Faults) -> Result<(), ApiError> {
        if happens(&self.env, faults.refused) { Err(unreachable("connection refused")) } else { Ok(()) }
    }

    /// What an overloaded or failing server says instead of doing anything.
    fn reject(&self, faults: &Faults) -> Option<ApiError> {
        if happens(&self.env, faults.too_many_requests) {
            let message = "too many requests, please try again later";
            return Some(ApiError::too_many_requests(message, 1));
        }
        happens(&self.env, faults.internal_error).then(|| ApiError::internal("the server is unwell"))
    }

    async fn time_out(&self) -> ApiError {
        self.env.sleep(REQUEST_TIMEOUT).await;
        ApiError::new(Reason::Timeout, "request did not complete within requested timeout")
    }

    /// Changes the object that `request` is about to replace.
    async fn write_first(&self, request: &Request<Bytes>, faults: &Faults) {
        let Some(other_writer) = &self.other_writer else { return };
        if request.method() != Method::PUT || !happens(&self.env, faults.conflicting_write) {
            return;
        }
        let path = request.uri().path().trim_end_matches("/status");
        let patch =
            json!({ "metadata": { "annotations": { "sim/conflicting-write": self.env.random_u64().to_string() } } });
        let request = Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(Bytes::from(patch.to_string()))
            .expect("a request");
        // It may be gone by now, or the server down.
        other_writer.request(request).await.ok();
    }
}

#[async_trait]
impl Transport for Faulty {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let faults = self.injector.get();
        self.refuse(&faults)?;
        delay(&self.env, &faults).await;
        if let Some(error) = self.reject(&faults) {
            return Ok(refusal(&error));
        }
        let timed_out = happens(&self.env, faults.timed_out);
        if timed_out && self.env.random_u64().is_multiple_of(2) {
            return Ok(refusal(&self.time_out().await));
        }
        self.write_first(&request, &faults).await;
        let answer = self.inner.send(request).await;
        if timed_out {
            return Ok(refusal(&self.time_out().await));
        }
        delay(&self.env, &faults).await;
        if happens(&self.env, faults.answer_lost) { Err(unreachable("connection reset by peer")) } else { answer }
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let faults = self.injector.get();
        self.refuse(&faults)?;
        if let Some(error) = self.reject(&faults) {
            return Err(error);
        }
        let answer = self.inner.list(resource, namespace, params).await;
        // What arrives is as old as the way is long.
        delay(&self.env, &faults).await;
        answer
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let faults = self.injector.get();
        self.refuse(&faults)?;
        if let Some(error) = self.reject(&faults) {
            return Err(error);
        }
        let events = self.inner.watch(resource, namespace, params, resource_version).await?;
        let (env, injector) = (self.env.clone(), self.injector.clone());
        let faulty = stream::unfold(Some(events), move |events| {
            let (env, injector) = (env.clone(), injector.clone());
            async move {
                let mut events = events?;
                let event = events.next().await?;
                let faults = injector.get();
                delay(&env, &faults).await;
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
