//! A store that lives as long as the process: for tests, simulation and throw-away clusters.
//! The same `mvcc` core as `embedded`, written in place because there is no disk to wait for.
//! It spawns no thread, so simulated runs stay deterministic.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;

use crate::{
    Compare, Limits, Operation, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, Transaction,
    WatchStream,
    mvcc::{
        group::{Decision, Group},
        shared::Shared,
    },
};

/// Keys one timer tick expires before it lets others in.
const EXPIRY_STEP_KEYS: usize = 256;

pub struct MemoryStore {
    shared: Arc<Shared<Bytes>>,
    /// Writers take turns; reads go on meanwhile.
    writing: Arc<parking_lot::Mutex<()>>,
}

impl MemoryStore {
    pub fn new(env: Env) -> Self {
        Self::with_limits(env, Limits::default())
    }

    pub fn with_limits(env: Env, limits: Limits) -> Self {
        Self { shared: Shared::new(env, limits), writing: Arc::default() }
    }

    fn start_timer(&self) {
        let writing = self.writing.clone();
        self.shared.start_timer(move |shared| tick(shared, &writing));
    }
}

fn transact(shared: &Shared<Bytes>, transaction: Transaction) -> Result<Outcome, StoreError> {
    let decision = {
        let core = shared.core.read();
        Group::new(core.revision()).decide(&core, transaction, shared.wall_ms())?
    };
    match decision {
        Decision::Answer(outcome) => Ok(outcome),
        Decision::Write(write) => {
            let outcome = write.outcome();
            let values = write.changes.iter().filter_map(|change| Some(change.put.as_ref()?.value.clone())).collect();
            shared.commit([(write, values)]);
            Ok(outcome)
        }
    }
}

fn tick(shared: &Shared<Bytes>, writing: &parking_lot::Mutex<()>) {
    shared.tell_progress();
    let _writing = writing.lock();
    shared.core.write().forget_aged(shared.env.monotonic());
    let expired = shared.core.read().expired(shared.wall_ms(), EXPIRY_STEP_KEYS);
    for (key, mod_revision) in expired {
        let deletion = delete_if_unchanged(&key, mod_revision);
        if let Err(error) = transact(shared, deletion) {
            tracing::warn!(%key, %error, "failed to delete expired key");
        }
    }
}

/// How an expired key goes: unless it was written again meanwhile.
pub(crate) fn delete_if_unchanged(key: &str, mod_revision: Revision) -> Transaction {
    Transaction {
        compare: vec![Compare { key: key.to_string(), mod_revision }],
        operations: vec![Operation::Delete { key: key.to_string() }],
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.shared.get(key)
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.shared.range(range).await
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        Ok(self.shared.count(start, end))
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.start_timer();
        let _writing = self.writing.lock();
        transact(&self.shared, transaction)
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        self.start_timer();
        self.shared.watch(start, end, from)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.shared.core.read().revision())
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let mut core = self.shared.core.write();
        core.readable(Some(revision))?;
        core.forget_before(revision);
        while core.trim() {}
        Ok(())
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(self.shared.core.read().deadlines(start, end))
    }
}
