//! A transport that counts writes, refuses some on demand, and answers for metrics APIs that no test cluster has.
//! Stands between the controllers and the real API server in the tests beside it.
//! Other reads pass untouched.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;

#[derive(Clone, Default)]
pub struct Counts(Arc<Inner>);

#[derive(Default)]
struct Inner {
    writes: AtomicUsize,
    refused: AtomicUsize,
    refuses: Mutex<Option<(Method, String)>>,
    last: Mutex<Vec<String>>,
    unauthorized: Mutex<Vec<String>>,
    answers: Mutex<BTreeMap<String, Value>>,
}

impl Counts {
    /// Reads of this path are answered with this from now on.
    pub fn answer(&self, path: &str, with: Value) {
        self.0.answers.lock().insert(path.to_string(), with);
    }

    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// The latest writes, for the message of a failed test.
    pub fn latest(&self) -> Vec<String> {
        let all = self.0.last.lock();
        all.iter().rev().take(10).cloned().collect()
    }

    /// What the authorizer refused.
    pub fn unauthorized(&self) -> Vec<String> {
        self.0.unauthorized.lock().clone()
    }

    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Every creation at a path that ends like this is answered with Forbidden.
    pub fn refuse(&self, path_end: &str) {
        self.refuse_all(Method::POST, path_end);
    }

    /// The same for another method.
    pub fn refuse_all(&self, method: Method, path_end: &str) {
        *self.0.refuses.lock() = Some((method, path_end.to_string()));
    }

    pub fn refuse_nothing(&self) {
        *self.0.refuses.lock() = None;
    }

    pub fn between(&self, client: Client) -> Client {
        Client::new(Counting { inner: client, counts: self.clone() })
    }
}

struct Counting {
    inner: Client,
    counts: Counts,
}

#[async_trait]
impl Transport for Counting {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        if *request.method() != Method::GET {
            let refused = (self.counts.0.refuses.lock().as_ref()).is_some_and(|(method, end)| {
                request.method() == method && request.uri().path().ends_with(end.as_str())
            });
            if refused {
                self.counts.0.refused.fetch_add(1, Ordering::Relaxed);
                return Err(ApiError::forbidden("", "pods", "", "exceeded quota"));
            }
            self.counts.0.writes.fetch_add(1, Ordering::Relaxed);
            let body = String::from_utf8_lossy(request.body()).chars().take(300).collect::<String>();
            self.counts.0.last.lock().push(format!("{} {} {body}", request.method(), request.uri()));
        } else if let Some(answer) = self.counts.0.answers.lock().get(request.uri().path()) {
            return Ok(Response::new(Bytes::from(answer.to_string())));
        }
        let answer = self.inner.transport().send(request).await?;
        if answer.status() == StatusCode::FORBIDDEN {
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            // Admission refuses with other words.
            if text.contains(" cannot ") {
                self.counts.0.unauthorized.lock().push(text);
            }
        }
        Ok(answer)
    }

    async fn list(&self, r: &Resource, n: Option<&str>, p: &ListParams) -> Result<ObjectList, ApiError> {
        self.inner.transport().list(r, n, p).await
    }

    async fn watch(&self, r: &Resource, n: Option<&str>, p: &ListParams, v: &str) -> Result<WatchStream, ApiError> {
        self.inner.transport().watch(r, n, p, v).await
    }
}
