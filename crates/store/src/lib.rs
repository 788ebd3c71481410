//! Revisioned keys, compare-and-set and watch: what the API server keeps its objects in.
//! `memory`, `embedded` and `etcd` implement the one trait here and pass the one suite in `contract`.
//! Invariant: knows nothing of Kubernetes; values are opaque bytes (tidy: `store_knows_no_kinds`). A write is durable
//! before it is acknowledged (test: `every_sync_is_needed`).

pub mod backup;
pub mod contract;
mod disk;
pub mod embedded;
pub mod etcd;
pub mod files;
pub mod layer;
pub mod memory;
mod mvcc;

pub use backup::{backup, restore};
pub use embedded::{CheckReport, EmbeddedStore, LostRecord, SalvageReport, check, salvage};
pub use etcd::{EtcdStore, EtcdTls, KeySpace};
pub use layer::StoreLayer;
pub use memory::MemoryStore;

use std::{borrow::Cow, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

/// The global order of writes. Every transaction that changes anything reaches a new one.
///
/// `memory` and `embedded` give each key that a transaction changes a revision of its own, consecutive and committed
/// together: a client's place in a watch is the resource version of the last object it saw, so two changes with one
/// revision would leave a client that saw only the first no way to ask for the second. etcd gives all changes of a
/// transaction one revision; who tells clients of those must deal with that (`apiserver/src/storage/watch_cache`).
pub type Revision = u64;

/// One key as it was at some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    pub value: Bytes,
    pub create_revision: Revision,
    pub mod_revision: Revision,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Inclusive.
    pub start: String,
    /// Exclusive. `prefix_end` makes one from a prefix.
    pub end: String,
    /// 0 is no limit.
    pub limit: usize,
    /// `None` (or 0) reads the newest.
    pub revision: Option<Revision>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeResult {
    pub records: Vec<Record>,
    /// Records after the last returned one, within the range.
    pub remaining: u64,
    /// The revision that was read.
    pub revision: Revision,
}

/// Writes that happen together if every comparison holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    pub compare: Vec<Compare>,
    pub operations: Vec<Operation>,
}

/// `mod_revision == 0` means the key must not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub key: String,
    pub mod_revision: Revision,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Put { key: String, value: Bytes, ttl_seconds: Option<u64> },
    Delete { key: String },
}

impl Operation {
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done {
        /// That of the first change, or `revision` if nothing changed.
        first: Revision,
        /// Reached by the transaction: that of its last change.
        revision: Revision,
    },
    /// A comparison failed. `current` is the state of every compared key, in order (`None`: absent).
    Conflict { current: Vec<Option<Record>>, revision: Revision },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub key: String,
    pub change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put { value: Bytes, created: bool },
    Delete { previous: Option<Bytes> },
}

/// What a watch yields: events in revision order, and now and then the revision up to which all events were delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// All events of one revision, or of several consecutive ones, together.
    Events(Vec<Event>),
    Progress(Revision),
}

pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchItem, StoreError>> + Send>>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The revision asked for has been compacted away.
    #[error("required revision {requested} has been compacted (oldest is {oldest})")]
    Compacted { requested: Revision, oldest: Revision },
    /// A revision that has not happened yet was asked for.
    #[error("required revision {requested} is in the future (newest is {newest})")]
    Future { requested: Revision, newest: Revision },
    #[error("value of {key} is too large: {size} bytes, at most {limit}")]
    TooLarge { key: String, size: usize, limit: usize },
    /// Found damaged data: names the file and what to do.
    #[error("store is corrupted: {0}")]
    Corrupted(String),
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// A value can't be brought into or out of the form in which it is stored.
    #[error("unable to transform key {key:?}: {why}")]
    Unreadable { key: String, why: String },
}

/// Gives the value of a key at a revision, exactly as it was written, if somebody still has it.
pub type RepairSource = Box<dyn Fn(&str, Revision) -> Option<Bytes> + Send + Sync>;

/// The limits of `memory` and `embedded`, declared at construction.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Changes that can be read back or watched from; older history is forgotten.
    pub history_revisions: usize,
    /// History older than this is forgotten.
    pub history_age: Duration,
    /// Events a watcher may be behind before its stream ends.
    pub watch_buffer_events: usize,
    /// Largest key and value together.
    pub value_bytes: usize,
    /// Transactions waiting for the disk before callers wait too.
    pub queue: usize,
    /// Transactions made durable together.
    pub group: usize,
    /// A log file is closed and a new one begun at this size.
    pub segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            history_revisions: 10_000,
            history_age: Duration::from_secs(5 * 60),
            watch_buffer_events: 8192,
            value_bytes: 4 << 20,
            queue: 4096,
            group: 1024,
            segment_bytes: 16 << 20,
        }
    }
}

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Whether other processes may be on it at the same time.
    fn is_shared(&self) -> bool {
        false
    }
    /// Where the value of `key` really lies, as others see it who are on the same store.
    fn stored_key<'k>(&self, key: &'k str) -> Cow<'k, str> {
        Cow::Borrowed(key)
    }
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError>;
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError>;
    /// Number of keys in `[start, end)` at the newest revision.
    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError>;
    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError>;
    /// Every event with `revision >= from` on keys in `[start, end)`: none lost, doubled or reordered.
    /// `from` older than the last compaction fails with `Compacted`. The stream ends with an error if the watcher is
    /// too slow or the backend is gone; resuming from the last seen revision + 1 is then safe. `from` 0 is from now on.
    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError>;
    async fn revision(&self) -> Result<Revision, StoreError>;
    /// Forgets history before `revision`; current values stay.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
    /// Bytes on disk, for metrics.
    async fn size_bytes(&self) -> Result<u64, StoreError>;
    /// Where to look for a value that can't be read back from disk any more. The first one counts.
    fn repair_from(&self, _source: RepairSource) {}
    /// Keys in `[start, end)` that have a time to live, with the unix milliseconds at which they end, for backups.
    /// None in a store without time to live.
    async fn deadlines(&self, _start: &str, _end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        Ok(Vec::new())
    }
}

/// The end of the range that holds exactly the keys starting with `prefix`.
pub fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.to_string();
    while let Some(last) = end.pop() {
        // UTF-8 sorts as its code points do, so the next code point ends the range; surrogates are none.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            end.push(next);
            return end;
        }
    }
    char::MAX.to_string()
}
