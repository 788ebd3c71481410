//! Writes groups of transactions, keeps house, and puts damaged records right.
//! Run by `sequencer`, in its thread; by tests in theirs. Decides with `mvcc::group`, writes with `log`.
//! Invariant: no reader or watcher sees a write, and no outcome is given, before it is on disk (test:
//! `every_sync_is_needed`).

use std::{path::Path, sync::Arc};

use super::{
    log::{Batch, Log},
    reclaim::Reclaimer,
    record::{KeyParts, Kind},
    recovery::{self, Recovered},
    scrub::{self, Scrubber},
    segment::Location,
};
use crate::{
    Outcome, Revision, StoreError, Transaction,
    disk::Disk,
    memory::delete_if_unchanged,
    mvcc::{
        group::{Decision, Group, Write},
        shared::Shared,
    },
};

/// Keys expired in one group.
const EXPIRY_STEP_KEYS: usize = 4096;

pub(crate) struct Writer {
    pub shared: Arc<Shared<Location>>,
    pub log: Log,
    pub repair_source: scrub::SharedRepairSource,
    reclaimer: Reclaimer,
    scrubber: Scrubber,
}

impl Writer {
    /// The store in `path`, made if there is none; also how many bytes of a torn write were dropped.
    pub fn open(disk: Arc<dyn Disk>, path: &Path, shared: Arc<Shared<Location>>) -> Result<(Self, u64), StoreError> {
        let Recovered { log, torn_bytes } = {
            let mut core = shared.core.write();
            let segment_bytes = core.limits().segment_bytes;
            recovery::recover(disk, path, &mut core, segment_bytes)?
        };
        let (reclaimer, scrubber) = (Reclaimer::default(), Scrubber::default());
        Ok((Self { shared, log, repair_source: Arc::default(), reclaimer, scrubber }, torn_bytes))
    }

    /// The outcome of every transaction, in order.
    pub fn write(&mut self, transactions: Vec<Transaction>) -> Vec<Result<Outcome, StoreError>> {
        let wall_ms = self.shared.wall_ms();
        let mut outcomes = Vec::with_capacity(transactions.len());
        let mut writes = Vec::new();
        let (revision, floor) = {
            let core = self.shared.core.read();
            let mut group = Group::new(core.revision());
            for transaction in transactions {
                outcomes.push(group.decide(&core, transaction, wall_ms).map(|decision| match decision {
                    Decision::Answer(outcome) => outcome,
                    Decision::Write(write) => {
                        let outcome = write.outcome();
                        writes.push(write);
                        outcome
                    }
                }));
            }
            (group.revision(), core.floor())
        };
        if writes.is_empty() {
            return outcomes;
        }
        match self.commit(writes, revision, floor) {
            Ok(()) => outcomes,
            // Even an answer that wrote nothing may rest on a write of this group.
            Err(failed) => outcomes.into_iter().map(|outcome| outcome.and(Err(failed.clone()))).collect(),
        }
    }

    fn commit(&mut self, writes: Vec<Write>, revision: Revision, floor: Revision) -> Result<(), StoreError> {
        let mut batch = self.log.batch();
        for write in &writes {
            for (revision, change) in (write.first..).zip(&write.changes) {
                let (kind, created, expires_ms, value) = match &change.put {
                    Some(put) => (Kind::Put, put.created, put.expires_ms, &put.value[..]),
                    None => (Kind::Delete, 0, 0, &[][..]),
                };
                batch.push(&KeyParts { kind, revision, created, expires_ms, key: &change.key, value });
            }
        }
        let mut places = self.log.append(batch, revision, floor)?.into_iter();
        let placed = writes.into_iter().map(|write| {
            let places = places.by_ref().take(write.changes.len());
            let puts = places.zip(&write.changes).filter(|(_, change)| change.put.is_some()).map(|(place, _)| place);
            let puts = puts.collect();
            (write, puts)
        });
        self.shared.commit(placed);
        Ok(())
    }

    pub fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        let current = {
            let core = self.shared.core.read();
            core.readable(Some(revision))?;
            core.revision()
        };
        self.log.append(Batch::new(), current, revision)?;
        self.shared.core.write().forget_before(revision);
        while self.shared.core.write().trim() {}
        Ok(())
    }

    /// Lets old history go and gives the deletions of expired keys.
    pub fn due(&self) -> Vec<Transaction> {
        self.shared.core.write().forget_aged(self.shared.env.monotonic());
        let expired = self.shared.core.read().expired(self.shared.wall_ms(), EXPIRY_STEP_KEYS);
        expired.into_iter().map(|(key, mod_revision)| delete_if_unchanged(&key, mod_revision)).collect()
    }

    /// Does some of the work of giving disk space back; whether there may be more to do.
    pub fn give_space_back(&mut self) -> bool {
        match self.reclaimer.step(&mut self.log, &self.shared, &self.repair_source) {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "failed to give disk space back");
                self.reclaimer.pause(self.shared.core.read().revision());
                true
            }
        }
    }

    pub fn is_far_behind(&self) -> bool {
        Reclaimer::is_far_behind(&self.log)
    }

    /// Verifies some more of the data.
    pub fn scrub(&mut self) {
        self.scrubber.step(&mut self.log, &self.shared, &self.repair_source);
    }

    /// Puts the record of `key` right if it is damaged and somebody still has its value.
    pub fn repair(&mut self, key: &str) -> Result<(), StoreError> {
        scrub::verify(&mut self.log, &self.shared, &self.repair_source, key).map(drop)
    }
}
