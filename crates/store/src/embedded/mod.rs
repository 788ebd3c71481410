//! A store in a directory of this machine: an append-only log of checksummed records and an index of keys in memory.
//! `sequencer` writes, `replay` reads back at start, `reclaim` gives space back; reading is `mvcc::shared`.
//! Invariant: an acknowledged write survives a crash; damaged data is reported, never returned or dropped silently.
//!
//! Why not an LSM tree: the index of keys is in memory anyway (revisions, watches), so a read is one `pread` and a
//! group of writes one `write` and one `fdatasync`; there are no memtables, caches or background threads to pay for.

pub(crate) mod log;
mod reclaim;
pub(crate) mod record;
mod replay;
pub(crate) mod segment;
mod sequencer;

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use async_trait::async_trait;
use env::Env;
use tokio::sync::{mpsc, oneshot};

use crate::{
    Limits, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, Transaction, WatchStream,
    mvcc::{Core, shared::Shared},
};
use log::Log;
use segment::Location;
use sequencer::{Command, Sequencer};

const LOCK_FILE: &str = "LOCK";

pub struct EmbeddedStore {
    shared: Arc<Shared<Location>>,
    /// `None` only while dropping.
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    disk_bytes: Arc<AtomicU64>,
    torn_bytes: u64,
    /// Locked as long as the store is open. After `thread`, so that writing has ended when it is released.
    _lock: Lock,
}

impl EmbeddedStore {
    /// Opens the store in `path`, making it if the directory is missing or empty.
    pub fn open(path: impl AsRef<Path>, env: Env) -> Result<Self, StoreError> {
        Self::open_with_limits(path, env, Limits::default())
    }

    pub fn open_with_limits(path: impl AsRef<Path>, env: Env, limits: Limits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        std::fs::create_dir_all(path).map_err(|e| unreadable(path, &e))?;
        let ids = replay::segment_ids(path)?;
        let lock = lock(path)?;
        let (queue, group_limit, segment_bytes) = (limits.queue, limits.group, limits.segment_bytes);
        let shared = Shared::new(env, limits);
        let (log, torn_bytes) = recover(path, &ids, &mut shared.core.write(), segment_bytes)?;
        if torn_bytes > 0 {
            tracing::warn!(path = %path.display(), torn_bytes, "dropped a write that was cut off before it was complete");
        }
        let disk_bytes = Arc::new(AtomicU64::new(log.total_bytes()));
        let (sender, commands) = mpsc::channel(queue);
        let sequencer = Sequencer {
            shared: shared.clone(),
            log,
            commands,
            reclaimer: reclaim::Reclaimer::default(),
            disk_bytes: disk_bytes.clone(),
            group_limit,
        };
        let thread = std::thread::Builder::new()
            .name("store-sequencer".into())
            .spawn(|| sequencer.run())
            .map_err(|e| StoreError::Unavailable(format!("failed to start the store's thread: {e}")))?;
        let store = Self { shared, commands: Some(sender), thread: Some(thread), disk_bytes, torn_bytes, _lock: lock };
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
        self.shared.get(key)
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.shared.range(range).await
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
}

/// Reads everything in the store at `path` and verifies every checksum. Fails on damage, and when the store is in use.
pub fn check(path: impl AsRef<Path>) -> Result<CheckReport, StoreError> {
    let path = path.as_ref();
    let ids = replay::segment_ids(path)?;
    if ids.is_empty() {
        return Err(StoreError::Corrupted(format!("{} holds no minke store", path.display())));
    }
    let _lock = lock(path)?;
    let mut core = Core::new(Limits::default());
    let replayed = replay::replay(path, &ids, &mut core)?;
    Ok(CheckReport {
        revision: core.revision(),
        oldest_revision: core.floor(),
        keys: core.index.len() as u64,
        records: replayed.records,
        segments: replayed.segments.len(),
        bytes: replayed.sealed_bytes + replayed.end,
        torn_bytes: replayed.torn_bytes,
    })
}

/// The log as it is on disk, its torn tail cut off, and how many bytes that was.
fn recover(path: &Path, ids: &[u32], core: &mut Core<Location>, segment_bytes: u64) -> Result<(Log, u64), StoreError> {
    if ids.is_empty() {
        let log = Log::create(path, segment_bytes).map_err(|e| unreadable(path, &e))?;
        if let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
            segment::sync_directory(parent).map_err(|e| unreadable(parent, &e))?;
        }
        return Ok((log, 0));
    }
    let mut replayed = replay::replay(path, ids, core)?;
    while let Some(done) = replayed.segments.pop_front_if(|segment| segment.id < replayed.oldest_needed) {
        let removed = done.len().and_then(|length| std::fs::remove_file(&done.path).map(|()| length));
        let removed = removed.map_err(|e| unreadable(&done.path, &e))?;
        replayed.sealed_bytes = replayed.sealed_bytes.saturating_sub(removed);
    }
    for (segment, end) in &replayed.slack {
        let cut = segment.file.set_len(*end).and_then(|()| segment.file.sync_all());
        cut.map_err(|e| unreadable(&segment.path, &e))?;
    }
    let torn_bytes = replayed.torn_bytes;
    let ends = [replayed.end; 2];
    let log = Log::resume(path, replayed.segments, ends, replayed.sealed_bytes, replayed.sequence, segment_bytes);
    Ok((log, torn_bytes))
}

/// The right to use a directory.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started at this moment shares the file until it runs its program.
        let _ = self.0.unlock();
    }
}

pub(crate) fn lock(path: &Path) -> Result<Lock, StoreError> {
    let file = path.join(LOCK_FILE);
    let lock = File::options().create(true).truncate(false).write(true).open(&file);
    let lock = lock.map_err(|e| unreadable(&file, &e))?;
    match lock.try_lock() {
        Ok(()) => Ok(Lock(lock)),
        Err(TryLockError::WouldBlock) => Err(StoreError::Unavailable(format!(
            "{} is in use by another process; stop it or use another directory",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(unreadable(&file, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("failed to use {}: {error}", path.display()))
}

fn damaged(path: &Path, offset: u64, reason: &str) -> StoreError {
    StoreError::Corrupted(format!(
        "{} at byte {offset}: {reason}; restore a backup with `minke store restore`",
        path.display()
    ))
}
