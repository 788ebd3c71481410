//! Requests over HTTPS with everything counted: how many, how long, which failed and whether a disturbance explains it.
//! Used by `churn` and `faults`; read by `report`.
//! A failure counts as explained only if something was disturbed while the request or wait was under way.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use client::{Client, HttpsTransport, from_kubeconfig};
use env::Env;
use http::{Method, Request};
use serde_json::Value;

/// After a disturbance ended: connections that broke are noticed, nodes report again.
const AFTERMATH: Duration = Duration::from_secs(20);
/// Kept of each sort, to be shown.
const EXAMPLES_MAX: usize = 20;
/// Durations kept for the percentile.
const DURATIONS_MAX: usize = 2_000_000;

#[derive(Default)]
pub struct Tally {
    pub requests: u64,
    /// Milliseconds.
    pub durations: Vec<f32>,
    /// By what was disturbed.
    pub explained: BTreeMap<String, u64>,
    pub unexplained: u64,
    pub examples: Vec<String>,
    /// What was done, by name: pods started, CRDs made, …
    pub done: BTreeMap<&'static str, u64>,
}

/// What is disturbed now, or was last.
#[derive(Default)]
struct Disturbance {
    what: String,
    began: Duration,
    /// `None` while it lasts.
    ended: Option<Duration>,
}

#[derive(Clone)]
pub struct Session {
    pub env: Env,
    client: Client,
    tally: Arc<Mutex<Tally>>,
    disturbances: Arc<Mutex<Vec<Disturbance>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Session {
    pub fn new(kubeconfig: &Path, env: Env) -> Result<Self, String> {
        let config = from_kubeconfig(kubeconfig, "soak").map_err(|e| e.to_string())?;
        let client = Client::new(HttpsTransport::new(config).map_err(|e| e.to_string())?);
        Ok(Self { env, client, tally: Arc::default(), disturbances: Arc::default() })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn tally<T>(&self, read: impl FnOnce(&mut Tally) -> T) -> T {
        read(&mut lock(&self.tally))
    }

    pub fn done(&self, what: &'static str) {
        *lock(&self.tally).done.entry(what).or_default() += 1;
    }

    pub fn disturb(&self, what: &str) {
        let began = self.env.monotonic();
        lock(&self.disturbances).push(Disturbance { what: what.into(), began, ended: None });
    }

    pub fn recovered(&self) {
        let now = self.env.monotonic();
        lock(&self.disturbances).iter_mut().filter(|d| d.ended.is_none()).for_each(|d| d.ended = Some(now));
    }

    /// Counts a failure of something that began at `began`.
    pub fn failed(&self, began: Duration, what: String) {
        let disturbances = lock(&self.disturbances);
        let now = self.env.monotonic();
        let meanwhile = |d: &&Disturbance| d.began <= now && d.ended.is_none_or(|ended| ended + AFTERMATH >= began);
        let cause = disturbances.iter().rev().find(meanwhile).map(|d| d.what.clone());
        drop(disturbances);
        let mut tally = lock(&self.tally);
        match cause {
            Some(cause) => *tally.explained.entry(cause).or_default() += 1,
            None => {
                tally.unexplained += 1;
                if tally.examples.len() < EXAMPLES_MAX {
                    eprintln!("soak: unexplained at {:.0} s: {what}", now.as_secs_f64());
                    tally.examples.push(what);
                }
            }
        }
    }

    /// The status and body of an answer. `Err` was counted already: no answer, 429 or a fault of the server's.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Result<(u16, Value), ()> {
        self.send_accepting(method, path, body, "application/json").await.map(|(status, bytes)| {
            let value = serde_json::from_slice(&bytes).unwrap_or_default();
            (status, value)
        })
    }

    pub async fn send_accepting(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        accept: &str,
    ) -> Result<(u16, Bytes), ()> {
        let began = self.env.monotonic();
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(&method).uri(path);
        let request = request.header("accept", accept).header("content-type", content).body(bytes).map_err(drop)?;
        let sent = self.client.transport().send(request);
        let answer = self.env.timeout(Duration::from_secs(70), sent).await;
        let took = self.env.monotonic() - began;
        {
            let mut tally = lock(&self.tally);
            tally.requests += 1;
            if tally.durations.len() < DURATIONS_MAX {
                tally.durations.push(took.as_secs_f32() * 1000.0);
            }
        }
        let failure = match answer {
            None => "no answer within 70 s".to_string(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(answer)) if answer.status().is_server_error() || answer.status() == 429 => {
                format!("{} {}", answer.status(), String::from_utf8_lossy(answer.body()))
            }
            Some(Ok(answer)) => return Ok((answer.status().as_u16(), answer.into_body())),
        };
        self.failed(began, format!("{method} {path}: {failure}"));
        Err(())
    }

    /// A request that must succeed; `also` may be answered, too (an AlreadyExists of a create that was repeated).
    pub async fn must(&self, method: Method, path: &str, body: &Value, also: &[u16]) -> Result<Value, ()> {
        let began = self.env.monotonic();
        let (status, value) = self.send(method.clone(), path, body).await?;
        if (200..300).contains(&status) || also.contains(&status) {
            return Ok(value);
        }
        self.failed(began, format!("{method} {path}: {status} {value}"));
        Err(())
    }

    /// Until `path` answers what `is` wants, by looking twice a second: what users' scripts do.
    pub async fn until(
        &self,
        path: &str,
        patience: Duration,
        what: &str,
        is: impl Fn(u16, &Value) -> bool,
    ) -> Result<Value, ()> {
        let began = self.env.monotonic();
        let mut last = None;
        while self.env.monotonic() - began < patience {
            if let Ok((status, value)) = self.send(Method::GET, path, &Value::Null).await {
                if is(status, &value) {
                    return Ok(value);
                }
                last = Some((status, value["status"].clone()));
            }
            self.env.sleep(Duration::from_millis(500)).await;
        }
        self.failed(began, format!("{path}: not {what} within {} s, last {last:?}", patience.as_secs()));
        Err(())
    }
}
