//! A store in a directory of this machine: an append-only log of checksummed records and an index of keys in memory.
//! `sequencer` takes writes and `writer` does them, `recovery` starts from what `replay` reads back, `reclaim` gives space
//! back, `scrub` looks for damage; reading is `mvcc::shared`. All of it over `disk`.
//! Invariant: an acknowledged write survives a crash and a power cut; damaged data is repaired or reported, never
//! returned or dropped silently (test: `power_cut_tests.rs`).
//!
//! Why not an LSM tree: the index of keys is in memory anyway (revisions, watches), so a read is one `pread` and a
//! group of writes one `write` and one `fdatasync`; there are no memtables, caches or background threads to pay for.

mod damage;
pub(crate) mod log;
#[cfg(test)]
mod power_cut_tests;
mod reclaim;
pub(crate) mod record;
mod recovery;
pub(crate) mod replay;
mod salvage;
mod scrub;
pub(crate) mod segment;
mod sequencer;
pub(crate) mod writer;

pub use damage::LostRecord;
pub use salvage::{SalvageReport, salvage};

use std::{
    io,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use async_trait::async_trait;
use env::Env;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Limits, Outcome, Range, RangeResult, Record, RepairSource, Revision, Store, StoreError, Transaction, WatchStream,
    disk::{DirectoryLock, Disk, RealDisk},
    mvcc::{Core, shared::Shared},
};
use replay::Replayed;
use segment::Location;
use sequencer::{Command, Sequencer};
use writer::Writer;

const LOCK_FILE: &str = "LOCK";

pub struct EmbeddedStore {
    shared: Arc<Shared<Location>>,
    /// `None` only while dropping.
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    disk_bytes: Arc<AtomicU64>,
    torn_bytes: u64,
    repair_source: scrub::SharedRepairSource,
    scrubbing: OnceLock<()>,
    /// Locked as long as the store is open. After `thread`, so that writing has ended when it is released.
    _lock: DirectoryLock,
}

impl EmbeddedStore {
    /// Opens the store in `path`, making it if the directory is missing or empty.
    pub fn open(path: impl AsRef<Path>, env: Env) -> Result<Self, StoreError> {
        Self::open_with_limits(path, env, Limits::default())
    }

    pub fn open_with_limits(path: impl AsRef<Path>, env: Env, limits: Limits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        disk.create_directory(path).map_err(|e| unreadable(path, &e))?;
        // So that two ways to it are one.
        let path = &path.canonicalize().map_err(|e| unreadable(path, &e))?;
        replay::segment_ids(&*disk, path)?;
        let lock = lock(&*disk, path)?;
        let (queue, group_limit) = (limits.queue, limits.group);
        let shared = Shared::new(env, limits);
        let (writer, torn_bytes) = Writer::open(disk, path, shared.clone())?;
        if torn_bytes > 0 {
            tracing::warn!(path = %path.display(), torn_bytes, "dropped a write that was cut off before it was complete");
        }
        let repair_source = writer.repair_source.clone();
        let disk_bytes = Arc::new(AtomicU64::new(writer.log.total_bytes()));
        let (sender, commands) = mpsc::channel(queue);
        let sequencer = Sequencer { writer, commands, disk_bytes: disk_bytes.clone(), group_limit };
        let thread = std::thread::Builder::new()
            .name("store-sequencer".into())
            .spawn(|| sequencer.run())
            .map_err(|e| StoreError::Unavailable(format!("failed to start the store's thread: {e}")))?;
        let store = Self {
            shared,
            commands: Some(sender),
            thread: Some(thread),
            disk_bytes,
            torn_bytes,
            repair_source,
            scrubbing: OnceLock::new(),
            _lock: lock,
        };
        if tokio::runtime::Handle::try_current().is_ok() {
            store.start_timer();
        }
        Ok(store)
    }

    /// Bytes that were cut off the end of the log at opening: a write that was never acknowledged.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    fn start_timer(&self) {
        let Some(commands) = self.commands.as_ref().map(mpsc::Sender::downgrade) else { return };
        self.shared.start_timer(move |shared| {
            shared.tell_progress();
            if let Some(commands) = commands.upgrade() {
                // A full queue means the sequencer is awake; the timer comes again.
                let _ = commands.try_send(Command::Tick);
            }
        });
        self.scrubbing.get_or_init(|| self.start_scrubbing());
    }

    fn start_scrubbing(&self) {
        let Some(commands) = self.commands.as_ref().map(mpsc::Sender::downgrade) else { return };
        let env = self.shared.env.clone();
        self.shared.env.spawn(async move {
            loop {
                env.sleep(scrub::SCRUB_INTERVAL).await;
                let Some(commands) = commands.upgrade() else { return };
                // While much is to be written, scrubbing waits.
                let _ = commands.try_send(Command::Scrub);
            }
        });
    }

    /// Puts the newest value of `key` right, if somebody still has it.
    async fn repair(&self, key: &str) -> Result<(), StoreError> {
        self.ask(|reply| Command::Repair { key: key.to_string(), reply }).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        self.start_timer();
        let closed = || StoreError::Unavailable("store is closed".into());
        let (reply, answer) = oneshot::channel();
        let commands = self.commands.as_ref().ok_or_else(closed)?;
        commands.send(command(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread had panicked");
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        match self.shared.get(key) {
            Err(StoreError::Corrupted(_)) => {
                self.repair(key).await?;
                self.shared.get(key)
            }
            found => found,
        }
    }

    fn repair_from(&self, source: RepairSource) {
        let _ = self.repair_source.set(source);
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let read = self.shared.range(&range).await?;
        if read.damaged.is_empty() {
            return read.whole();
        }
        for (key, _) in &read.damaged {
            self.repair(key).await?;
        }
        // An older version stays damaged: nobody else has it.
        self.shared.range(&range).await?.whole()
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        Ok(self.shared.count(start, end))
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.ask(|reply| Command::Transact { transaction, reply }).await
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        self.start_timer();
        self.shared.watch(start, end, from)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.shared.core.read().revision())
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.ask(|reply| Command::Compact { revision, reply }).await
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.disk_bytes.load(Ordering::Relaxed))
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(self.shared.core.read().deadlines(start, end))
    }
}

/// What `check` found in a sound store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    pub revision: Revision,
    pub oldest_revision: Revision,
    pub keys: u64,
    pub records: u64,
    pub segments: usize,
    pub bytes: u64,
    /// Cut off at the end, by a crash before the write was acknowledged; opening drops them.
    pub torn_bytes: u64,
    /// Damaged places that nothing needs any more.
    pub dead_damage: u64,
}

/// Reads everything in the store at `path` and verifies every checksum. Fails on damage, and when the store is in use.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, StoreError> {
    let (disk, path) = (RealDisk, path.as_ref());
    replay::segment_ids(&disk, path)?;
    let _lock = lock(&disk, path)?;
    let (core, replayed) = read_all(&disk, path)?;
    let dead_damage = damage::refuse_live(&replayed.damage, &core)?;
    Ok(CheckReport {
        revision: core.revision(),
        oldest_revision: core.floor(),
        keys: core.index.len() as u64,
        records: replayed.records,
        segments: replayed.segments.len(),
        bytes: replayed.sealed_bytes + replayed.end,
        torn_bytes: replayed.torn_bytes,
        dead_damage,
    })
}

/// Fails if anything live is damaged.
pub(crate) fn refuse_damage(replayed: &Replayed, core: &Core<Location>) -> Result<(), StoreError> {
    damage::refuse_live(&replayed.damage, core).map(drop)
}

/// How often a log that changes meanwhile is read again from the start.
const READ_ATTEMPTS_MAX: u32 = 100;

/// Everything in a store that may be in use: segments are only added to and removed, so all of them as they are at one
/// moment are the log up to some group.
pub(crate) fn read_all(disk: &dyn Disk, path: &Path) -> Result<(Core<Location>, Replayed), StoreError> {
    for _ in 0..READ_ATTEMPTS_MAX {
        let ids = replay::segment_ids(disk, path)?;
        if ids.is_empty() {
            return Err(StoreError::Corrupted(format!("{} holds no minke store", path.display())));
        }
        // One that is gone was removed since: what was needed of it is in a newer one.
        let Some(segments) = replay::open_segments(disk, path, &ids)? else { continue };
        let mut core = Core::new(Limits::default());
        let replayed = replay::replay(path, segments, &mut core)?;
        return Ok((core, replayed));
    }
    Err(StoreError::Unavailable(format!("{} changes too fast to be read; try again", path.display())))
}

/// The right to use a directory.
pub(crate) fn lock(disk: &dyn Disk, path: &Path) -> Result<DirectoryLock, StoreError> {
    let file = path.join(LOCK_FILE);
    disk.lock(&file).map_err(|e| unreadable(&file, &e))?.ok_or_else(|| {
        StoreError::Unavailable(format!(
            "{} is in use by another process; stop it or use another directory",
            path.display()
        ))
    })
}

fn unreadable(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("failed to use {}: {error}", path.display()))
}

fn damaged(path: &Path, offset: u64, reason: &str) -> StoreError {
    StoreError::Corrupted(format!(
        "{} at byte {offset}: {reason}; restore a backup with `minke store restore`, or give up what is damaged with \
         `minke store check --salvage`",
        path.display()
    ))
}
