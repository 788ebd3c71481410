//! The one thread that writes: takes everything that waits, makes it durable with one sync, then answers all.
//! Fed by `EmbeddedStore`; decides with `mvcc::group`, writes with `log`, keeps house with `reclaim`.
//! Invariant: nobody is answered, and no reader or watcher sees a write, before it is on disk.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    log::{Batch, Log},
    reclaim::Reclaimer,
    record::{KeyParts, Kind},
    segment::Location,
};
use crate::{
    Operation, Outcome, Revision, StoreError, Transaction,
    memory::delete_if_unchanged,
    mvcc::{
        group::{Decision, Group, Write},
        shared::Shared,
    },
};

/// A group is closed once it holds this many bytes of values.
const GROUP_BYTES: usize = 8 << 20;
/// Keys expired in one group.
const EXPIRY_STEP: usize = 4096;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub(crate) enum Command {
    Transact {
        transaction: Transaction,
        reply: Reply<Outcome>,
    },
    Compact {
        revision: Revision,
        reply: Reply<()>,
    },
    /// A deadline has come.
    Tick,
}

const CATCH_UP_STEPS: u32 = 8;

pub(crate) struct Sequencer {
    pub shared: Arc<Shared<Location>>,
    pub log: Log,
    pub commands: mpsc::Receiver<Command>,
    pub reclaimer: Reclaimer,
    pub disk_bytes: Arc<AtomicU64>,
    pub group_limit: usize,
}

/// What waits for one sync. Expired keys have nobody to answer.
type Waiting = (Transaction, Option<Reply<Outcome>>);

impl Sequencer {
    /// Until every sender is gone.
    pub fn run(mut self) {
        while let Some(first) = self.next() {
            let mut waiting = Vec::new();
            let mut compactions = Vec::new();
            let mut bytes = 0;
            let mut command = Some(first);
            while let Some(taken) = command {
                match taken {
                    Command::Transact { transaction, reply } => {
                        bytes += transaction.operations.iter().map(value_bytes).sum::<usize>();
                        waiting.push((transaction, Some(reply)));
                    }
                    Command::Compact { revision, reply } => compactions.push((revision, reply)),
                    Command::Tick => waiting.extend(self.due().into_iter().map(|t| (t, None))),
                }
                let full = waiting.len() >= self.group_limit || bytes >= GROUP_BYTES;
                command = if full { None } else { self.commands.try_recv().ok() };
            }
            self.write(waiting);
            for (revision, reply) in compactions {
                let _ = reply.send(self.compact(revision));
            }
            self.disk_bytes.store(self.log.total_bytes(), Ordering::Relaxed);
        }
        self.log.close();
    }

    /// The next command; gives disk space back while there is none, and before each one when it is far behind with it.
    fn next(&mut self) -> Option<Command> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    // Faster than what a group of writes can add; no faster, so that they wait for little.
                    for _ in 0..CATCH_UP_STEPS {
                        if !Reclaimer::is_far_behind(&self.log) || !self.give_space_back() {
                            break;
                        }
                    }
                    return Some(command);
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            if !self.give_space_back() {
                return self.commands.blocking_recv();
            }
        }
    }

    /// Whether there may be more to do.
    fn give_space_back(&mut self) -> bool {
        match self.reclaimer.step(&mut self.log, &self.shared) {
            Ok(true) => self.disk_bytes.store(self.log.total_bytes(), Ordering::Relaxed),
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(%error, "failed to give disk space back");
                self.reclaimer.pause(self.shared.core.read().revision());
            }
        }
        true
    }

    fn write(&mut self, waiting: Vec<Waiting>) {
        let wall_ms = self.shared.wall_ms();
        let mut answers = Vec::with_capacity(waiting.len());
        let mut writes = Vec::new();
        let (revision, floor) = {
            let core = self.shared.core.read();
            let mut group = Group::new(core.revision());
            for (transaction, reply) in waiting {
                let outcome = group.decide(&core, transaction, wall_ms).map(|decision| match decision {
                    Decision::Answer(outcome) => outcome,
                    Decision::Write(write) => {
                        let outcome = write.outcome();
                        writes.push(write);
                        outcome
                    }
                });
                answers.push((reply, outcome));
            }
            (group.revision(), core.floor())
        };
        let failed = if writes.is_empty() { None } else { self.commit(writes, revision, floor).err() };
        for (reply, outcome) in answers {
            // Even an answer that wrote nothing may rest on a write of this group.
            let outcome = outcome.and_then(|outcome| failed.clone().map_or(Ok(outcome), Err));
            if let Some(reply) = reply {
                let _ = reply.send(outcome);
            } else if let Err(error) = outcome {
                tracing::warn!(%error, "failed to delete an expired key");
            }
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

    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
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
    fn due(&self) -> Vec<Transaction> {
        self.shared.core.write().forget_aged(self.shared.env.monotonic());
        let expired = self.shared.core.read().expired(self.shared.wall_ms(), EXPIRY_STEP);
        expired.into_iter().map(|(key, mod_revision)| delete_if_unchanged(&key, mod_revision)).collect()
    }
}

fn value_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Put { key, value, .. } => key.len() + value.len(),
        Operation::Delete { key } => key.len(),
    }
}
