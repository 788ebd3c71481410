//! A store over another: whoever measures, counts, encrypts or disturbs one says only what it does differently.
//! Used by the API server's metrics and by tests.
//! What a layer does not say itself reaches the inner store; every method is here, none by `Store`'s defaults.

use std::borrow::Cow;

use async_trait::async_trait;

use crate::{Outcome, Range, RangeResult, Record, RepairSource, Revision, Store, StoreError, Transaction, WatchStream};

#[async_trait]
pub trait StoreLayer: Send + Sync + 'static {
    fn inner(&self) -> &dyn Store;

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.inner().get(key).await
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.inner().range(range).await
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        self.inner().count(start, end).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.inner().transact(transaction).await
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        self.inner().watch(start, end, from).await
    }

    fn repair_from(&self, source: RepairSource) {
        self.inner().repair_from(source);
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.inner().deadlines(start, end).await
    }
}

#[async_trait]
impl<L: StoreLayer> Store for L {
    fn is_shared(&self) -> bool {
        self.inner().is_shared()
    }

    fn stored_key<'k>(&self, key: &'k str) -> Cow<'k, str> {
        self.inner().stored_key(key)
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        StoreLayer::get(self, key).await
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        StoreLayer::range(self, range).await
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        StoreLayer::count(self, start, end).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        StoreLayer::transact(self, transaction).await
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        StoreLayer::watch(self, start, end, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner().revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner().compact(revision).await
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.inner().size_bytes().await
    }

    fn repair_from(&self, source: RepairSource) {
        StoreLayer::repair_from(self, source);
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        StoreLayer::deadlines(self, start, end).await
    }
}
