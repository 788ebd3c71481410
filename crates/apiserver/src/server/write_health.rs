//! Whether the store takes writes: what became of the last one, and while they fail now and then a small one of our own.
//! Told by `metrics::Measured`, through which every write goes; asked by the check `etcd-readiness` of `/readyz`.
//! Nothing is written for a health check while writes succeed, and beyond that once per `PROBE_INTERVAL`.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use env::Env;
use store::{Operation, Outcome, Store, StoreError, Transaction};

/// Of attempts to write while writes fail.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Of one attempt.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Beside the objects, so that nobody sees it.
const PROBE_KEY: &str = "/health/write";

#[derive(Default)]
pub struct WriteHealth(Mutex<State>);

#[derive(Default)]
struct State {
    failing: bool,
    probed: Option<Duration>,
}

impl WriteHealth {
    /// What became of a transaction that writes. A conflict says nothing: it may not have reached the disk.
    pub fn observe(&self, outcome: &Result<Outcome, StoreError>) {
        let failing = match outcome {
            Ok(Outcome::Done { .. }) => false,
            Err(StoreError::Unavailable(_) | StoreError::Corrupted(_)) => true,
            Ok(Outcome::Conflict { .. }) | Err(_) => return,
        };
        self.0.lock().failing = failing;
    }

    /// Whether the last write succeeded; if not, whether one does now. `store` tells us what became of it.
    pub async fn holds(&self, store: &dyn Store, env: &Env) -> bool {
        let now = env.monotonic();
        {
            let mut state = self.0.lock();
            let waiting = state.probed.is_some_and(|probed| now < probed + PROBE_INTERVAL);
            if !state.failing || waiting {
                return !state.failing;
            }
            state.probed = Some(now);
        }
        let put = Operation::Put { key: PROBE_KEY.into(), value: Bytes::new(), ttl_seconds: None };
        let write = store.transact(Transaction { compare: Vec::new(), operations: vec![put] });
        matches!(env.timeout(PROBE_TIMEOUT, write).await, Some(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_reached_the_store_count() {
        let health = WriteHealth::default();
        let check = |outcome: Result<Outcome, StoreError>, failing: bool| {
            health.observe(&outcome);
            assert_eq!(health.0.lock().failing, failing, "{outcome:?}");
        };
        let conflict = || Ok(Outcome::Conflict { current: Vec::new(), revision: 1 });
        let too_large = StoreError::TooLarge { key: "k".into(), size: 2, limit: 1 };
        check(conflict(), false);
        check(Err(too_large.clone()), false);
        check(Err(StoreError::Unavailable("disk full".into())), true);
        check(conflict(), true);
        check(Err(too_large), true);
        check(Ok(Outcome::Done { first: 2, revision: 2 }), false);
        check(Err(StoreError::Corrupted("a segment".into())), true);
    }
}
