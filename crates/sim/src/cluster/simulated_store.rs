//! The store that the API servers of a simulation share, as they would an etcd: slow at times.
//! Over `store::MemoryStore`; `Simulation::restore` puts another in its place.
//! What is slow is the way there and back; a commit itself takes no time.

use std::sync::Arc;

use async_trait::async_trait;
use env::Env;
use store::{MemoryStore, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, Transaction, WatchStream};

use crate::network::faults::{FaultInjector, happens};

pub struct SimulatedStore {
    pub inner: Arc<MemoryStore>,
    pub env: Env,
    pub injector: FaultInjector,
}

impl SimulatedStore {
    async fn travel(&self) {
        let faults = self.injector.get();
        if happens(&self.env, faults.store_slow) {
            self.env.sleep(faults.store_delay_max.mul_f64(self.env.random_fraction())).await;
        }
    }
}

#[async_trait]
impl Store for SimulatedStore {
    fn is_shared(&self) -> bool {
        true
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.travel().await;
        let found = self.inner.get(key).await;
        self.travel().await;
        found
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let found = self.inner.range(range).await;
        self.travel().await;
        found
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        self.inner.count(start, end).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.travel().await;
        let outcome = self.inner.transact(transaction).await;
        self.travel().await;
        outcome
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        self.inner.watch(start, end, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let revision = self.inner.revision().await;
        self.travel().await;
        revision
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.inner.size_bytes().await
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.inner.deadlines(start, end).await
    }
}
