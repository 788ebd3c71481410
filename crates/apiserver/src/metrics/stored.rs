//! A store that counts and times what is asked of it, under upstream's names for etcd.
//! Put around the real store by `pipeline`; shown by `Metrics::render`.
//! Changes nothing: every answer and every error is the inner store's.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ::metrics::{Histogram, Text};
use async_trait::async_trait;
use indexmap::{Equivalent, IndexMap};
use parking_lot::RwLock;

use env::Env;
use store::{Operation, Outcome, Range, RangeResult, Record, Store, StoreError, StoreLayer, Transaction};

use super::requests::LATENCY_BUCKETS_SECONDS;
use crate::{server::write_health::WriteHealth, storage};

/// Beyond this many pairs of operation and resource, the rest is counted together.
const SERIES_MAX: usize = 2048;

struct Series {
    duration: Histogram,
    errors: AtomicU64,
}

type Key = (&'static str, String);

#[derive(Hash)]
struct SeriesKey<'a>(&'static str, &'a str);

impl Equivalent<Key> for SeriesKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

#[derive(Default)]
pub struct Operations(RwLock<IndexMap<Key, Arc<Series>>>);

impl Operations {
    fn series(&self, operation: &'static str, key: &str) -> Arc<Series> {
        let prefix = storage::prefix_of_key(key).unwrap_or_default();
        let known = self.0.read();
        if let Some(found) = known.get(&SeriesKey(operation, prefix)) {
            return found.clone();
        }
        let prefix = if known.len() < SERIES_MAX { prefix } else { "" };
        drop(known);
        let new =
            || Arc::new(Series { duration: Histogram::seconds(LATENCY_BUCKETS_SECONDS), errors: AtomicU64::new(0) });
        self.0.write().entry((operation, prefix.to_string())).or_insert_with(new).clone()
    }

    pub fn render(&self, out: &mut Text) {
        fn labels((operation, prefix): &Key) -> [(&'static str, &str); 3] {
            let (group, resource) = storage::group_resource(prefix);
            [("group", group), ("operation", operation), ("resource", resource)]
        }
        let all = self.0.read();
        let mut family = out.family("etcd_requests_total", "counter", "Requests to the store.");
        all.iter().for_each(|(key, series)| family.sample(&labels(key), series.duration.count()));
        let mut family = out.family("etcd_request_errors_total", "counter", "Requests to the store that failed.");
        all.iter().for_each(|(key, series)| family.sample(&labels(key), series.errors.load(Ordering::Relaxed)));
        let name = "etcd_request_duration_seconds";
        let mut family = out.family(name, "histogram", "Latency of the store by operation and resource.");
        all.iter().for_each(|(key, series)| series.duration.show(&mut family, &labels(key)));
    }
}

pub struct Measured {
    pub inner: Arc<dyn Store>,
    pub operations: Arc<Operations>,
    /// Told how writes go.
    pub writes: Arc<WriteHealth>,
    pub env: Env,
}

impl Measured {
    async fn timed<T>(
        &self,
        operation: &'static str,
        key: &str,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let series = self.operations.series(operation, key);
        let start = self.env.monotonic();
        let answer = asked.await;
        series.duration.observe((self.env.monotonic() - start).as_secs_f64());
        if answer.is_err() {
            series.errors.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// What upstream would call the transaction.
fn kind_of(transaction: &Transaction) -> &'static str {
    match transaction.operations.first() {
        Some(Operation::Delete { .. }) => "delete",
        Some(Operation::Put { key, .. }) => {
            let fresh = transaction.compare.iter().any(|c| c.key == *key && c.mod_revision == 0);
            if fresh { "create" } else { "update" }
        }
        None => "get",
    }
}

#[async_trait]
impl StoreLayer for Measured {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.timed("get", key, self.inner.get(key)).await
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let start = range.start.clone();
        self.timed("list", &start, self.inner.range(range)).await
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        self.timed("count", start, self.inner.count(start, end)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let key = transaction.operations.first().map(|o| o.key().to_string()).unwrap_or_default();
        let writes = !transaction.operations.is_empty();
        let outcome = self.timed(kind_of(&transaction), &key, self.inner.transact(transaction)).await;
        if writes {
            self.writes.observe(&outcome);
        }
        outcome
    }
}
