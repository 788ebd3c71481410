//! The one thread that writes: takes everything that waits, makes it durable with one sync, then answers all.
//! Fed by `EmbeddedStore`; `writer` does the work.
//! Invariant: nobody is answered before what the answer rests on is on disk (test: `every_sync_is_needed`).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{mpsc, oneshot};

use super::writer::Writer;
use crate::{Operation, Outcome, Revision, StoreError, Transaction};

/// A group is closed once it holds this many bytes of values.
const GROUP_BYTES: usize = 8 << 20;

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
    /// Puts a damaged record right, if somebody still has its value.
    Repair {
        key: String,
        reply: Reply<()>,
    },
    /// A deadline has come.
    Tick,
    /// Time to look at some more of the data.
    Scrub,
}

const CATCH_UP_STEPS: u32 = 8;

pub(crate) struct Sequencer {
    pub writer: Writer,
    pub commands: mpsc::Receiver<Command>,
    pub disk_bytes: Arc<AtomicU64>,
    pub group_limit: usize,
}

/// Who waits for one sync. Expired keys have nobody to answer.
type WriteWaiter = Option<Reply<Outcome>>;

impl Sequencer {
    /// Until every sender is gone.
    pub fn run(mut self) {
        while let Some(first) = self.next() {
            let (mut transactions, mut waiting) = (Vec::new(), Vec::new());
            let mut compactions = Vec::new();
            let (mut bytes, mut scrub) = (0, false);
            let mut command = Some(first);
            while let Some(taken) = command {
                match taken {
                    Command::Transact { transaction, reply } => {
                        bytes += transaction.operations.iter().map(value_bytes).sum::<usize>();
                        transactions.push(transaction);
                        waiting.push(Some(reply));
                    }
                    Command::Compact { revision, reply } => compactions.push((revision, reply)),
                    Command::Repair { key, reply } => {
                        let _ = reply.send(self.writer.repair(&key));
                    }
                    Command::Tick => {
                        let due = self.writer.due();
                        waiting.extend(due.iter().map(|_| None));
                        transactions.extend(due);
                    }
                    Command::Scrub => scrub = true,
                }
                let full = waiting.len() >= self.group_limit || bytes >= GROUP_BYTES;
                command = if full { None } else { self.commands.try_recv().ok() };
            }
            answer(waiting, self.writer.write(transactions));
            for (revision, reply) in compactions {
                let _ = reply.send(self.writer.compact(revision));
            }
            if scrub {
                self.writer.scrub();
            }
            self.disk_bytes.store(self.writer.log.total_bytes(), Ordering::Relaxed);
        }
        self.writer.log.close();
    }

    /// The next command; gives disk space back while there is none, and before each one when it is far behind with it.
    fn next(&mut self) -> Option<Command> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    // Faster than what a group of writes can add; no faster, so that they wait for little.
                    for _ in 0..CATCH_UP_STEPS {
                        if !self.writer.is_far_behind() || !self.give_space_back() {
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
        let more = self.writer.give_space_back();
        self.disk_bytes.store(self.writer.log.total_bytes(), Ordering::Relaxed);
        more
    }
}

fn answer(waiting: Vec<WriteWaiter>, outcomes: Vec<Result<Outcome, StoreError>>) {
    for (reply, outcome) in waiting.into_iter().zip(outcomes) {
        if let Some(reply) = reply {
            let _ = reply.send(outcome);
        } else if let Err(error) = outcome {
            tracing::warn!(%error, "failed to delete an expired key");
        }
    }
}

fn value_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Put { key, value, .. } => key.len() + value.len(),
        Operation::Delete { key } => key.len(),
    }
}
