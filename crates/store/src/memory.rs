//! A store that lives as long as the process: for tests, simulation and throw-away clusters.
//! The same `mvcc` core as `embedded`, written in place because there is no disk to wait for.
//! It spawns no thread, so simulated runs stay deterministic.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use env::Env;

use crate::{
    Compare, Limits, Operation, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, Transaction,
    WatchStream,
    backup::restored_revision,
    mvcc::{
        group::{Decision, Group},
        index::Live,
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

    /// What a restored backup begins with, as `backup::restore` makes it of an embedded store: the records with the versions
    /// they had, and a revision that the old store never reached, before which nothing can be read or watched.
    /// `deadlines` are those that the store of the records told, `wall_ms` the clock of whoever restores.
    pub fn restored(
        env: Env,
        records: Vec<Record>,
        deadlines: Vec<(String, u64)>,
        revision: Revision,
        wall_ms: u64,
    ) -> Self {
        let store = Self::new(env);
        let deadlines: HashMap<String, u64> = deadlines.into_iter().collect();
        let mut core = store.shared.core.write();
        let mut by_revision = records;
        by_revision.sort_by_key(|record| record.mod_revision);
        for record in by_revision {
            let expires_ms = deadlines.get(&record.key).copied().unwrap_or(0);
            let live = Live { created: record.create_revision, expires_ms, value: record.value };
            core.install(record.key.into(), record.mod_revision, Some(live));
        }
        let reached = restored_revision(revision, wall_ms);
        core.reached(reached, reached);
        drop(core);
        store
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
        self.shared.range(&range).await?.whole()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_restored_store_keeps_versions_and_forgets_history() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let old = MemoryStore::new(env.clone());
        for (key, ttl_seconds) in [("/a", None), ("/b", Some(60)), ("/a", None)] {
            let put = Operation::Put { key: key.into(), value: "x".into(), ttl_seconds };
            old.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.unwrap();
        }
        let everything = || Range { start: "/".into(), end: "0".into(), limit: 0, revision: None };
        let backup = old.range(everything()).await.unwrap();
        let deadlines = old.deadlines("/", "0").await.unwrap();
        let new = MemoryStore::restored(env.clone(), backup.records.clone(), deadlines, backup.revision, 5_000_000);
        let found = new.range(everything()).await.unwrap();
        let reached = restored_revision(backup.revision, 5_000_000);
        assert_eq!((found.records, found.revision), (backup.records, reached));
        assert!(matches!(new.watch("/", "0", backup.revision).await, Err(StoreError::Compacted { .. })));
        let watch = new.watch("/", "0", 0).await;
        env.sleep(std::time::Duration::from_secs(61)).await;
        assert!(watch.is_ok() && new.get("/b").await.unwrap().is_none(), "a time to live goes on");
    }
}
