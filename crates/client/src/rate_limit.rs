//! A transport that sends so many requests at once and so many per second in the long run.
//! Used by the kubelet for `kubeAPIQPS` and `eventRecordQPS`, where somebody sets them.
//! A request waits for its turn and is never refused; watches are not counted, as upstream's.

use std::{sync::Arc, time::Duration};

use ::api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use http::{Request, Response};
use parking_lot::Mutex;

use crate::{Client, ListParams, ObjectList, Transport, WatchStream};

/// Upstream's burst where none is given.
const BURST_DEFAULT: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    pub per_second: u32,
    pub burst: u32,
}

impl Client {
    /// The same client, held to a rate; without one it is as it was.
    pub fn limited(&self, rate: Option<RequestRate>, env: &Env) -> Self {
        match rate {
            None => self.clone(),
            Some(rate) => {
                let inner = self.transport().clone();
                Self::new(RateLimited { inner, turns: Turns::new(rate), env: env.clone() })
            }
        }
    }
}

struct Turns {
    per_second: f64,
    burst: f64,
    /// How many may go at once, below zero when some wait, and when that was counted.
    left: Mutex<(f64, Duration)>,
}

impl Turns {
    fn new(rate: RequestRate) -> Self {
        let burst = f64::from(if rate.burst == 0 { BURST_DEFAULT } else { rate.burst });
        Self { per_second: f64::from(rate.per_second.max(1)), burst, left: Mutex::new((burst, Duration::ZERO)) }
    }

    /// How long whoever comes now has to wait.
    fn take(&self, now: Duration) -> Duration {
        let mut held = self.left.lock();
        let (left, at) = *held;
        let left = (left + now.saturating_sub(at).as_secs_f64() * self.per_second).min(self.burst) - 1.0;
        *held = (left, now.max(at));
        Duration::from_secs_f64((-left / self.per_second).max(0.0))
    }
}

struct RateLimited {
    inner: Arc<dyn Transport>,
    turns: Turns,
    env: Env,
}

impl RateLimited {
    async fn turn(&self) {
        let wait = self.turns.take(self.env.monotonic());
        if !wait.is_zero() {
            self.env.sleep(wait).await;
        }
    }
}

#[async_trait]
impl Transport for RateLimited {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        self.turn().await;
        self.inner.send(request).await
    }

    async fn list(&self, r: &Resource, n: Option<&str>, params: &ListParams) -> Result<ObjectList, ApiError> {
        self.turn().await;
        self.inner.list(r, n, params).await
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        self.inner.watch(resource, namespace, params, resource_version).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_burst_each_waits_for_its_turn() {
        let turns = Turns::new(RequestRate { per_second: 10, burst: 2 });
        let check = |milliseconds: u64, expected: &[u128]| {
            let now = Duration::from_millis(milliseconds);
            let waits: Vec<u128> = expected.iter().map(|_| turns.take(now).as_millis()).collect();
            assert_eq!(waits, expected, "at {milliseconds} ms");
        };
        check(0, &[0, 0, 100, 200]);
        check(100, &[200]);
        check(5000, &[0, 0, 100]);
    }

    struct Answers;

    #[async_trait]
    impl Transport for Answers {
        async fn send(&self, _: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
            Ok(Response::new(Bytes::new()))
        }

        async fn list(&self, _: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
            Ok(ObjectList::default())
        }

        async fn watch(&self, _: &Resource, _: Option<&str>, _: &ListParams, _: &str) -> Result<WatchStream, ApiError> {
            Ok(Box::pin(futures::stream::empty()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_client_takes_its_time() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let plain = Client::new(Answers);
        for (rate, seconds) in [(None, 0), (Some(RequestRate { per_second: 2, burst: 1 }), 2)] {
            let (client, began) = (plain.limited(rate, &env), env.monotonic());
            for _ in 0..5 {
                client.request(Request::new(Bytes::new())).await.unwrap();
            }
            assert_eq!((env.monotonic() - began).as_secs(), seconds, "{rate:?}");
        }
    }
}
