//! The revisioned state that `memory` and `embedded` share: an index of keys, a bounded history, watchers, deadlines.
//! `group` decides transactions against it, `shared` reads it, `hub` tells watchers.
//! Invariant: knows no disk and never waits (tidy: `pure_files`). Values are behind `Value`, in memory or in a log.

pub(crate) mod group;
pub(crate) mod hub;
pub(crate) mod index;
pub(crate) mod shared;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::{Change, Event, Limits, Revision, StoreError};
use group::Write;
use hub::Hub;
use index::{Index, Live, Version};

/// Where a value is. Cheap to clone; a clone keeps the value readable.
pub(crate) trait Value: Clone + Send + Sync + Unpin + 'static {
    /// Reading touches no disk.
    const IN_MEMORY: bool = false;
    fn read(&self, key: &str, revision: Revision) -> Result<Bytes, StoreError>;
    /// The index now needs this value.
    fn retained(&self) {}
    /// The index does not need this value any more.
    fn released(&self) {}
}

impl Value for Bytes {
    const IN_MEMORY: bool = true;

    fn read(&self, _: &str, _: Revision) -> Result<Bytes, StoreError> {
        Ok(self.clone())
    }
}

/// How many history entries one step forgets, so that no lock is held long.
const TRIM_STEP_ENTRIES: usize = 4096;

pub(crate) struct Core<V> {
    pub index: Index<V>,
    pub hub: Hub,
    revision: Revision,
    /// The oldest revision that can still be read or watched from.
    floor: Revision,
    /// What changed, by revision; nothing below `floor` once trimmed.
    history: VecDeque<(Revision, Arc<str>)>,
    /// When (monotonic) a revision was reached, at most one per second: the age of history.
    marks: VecDeque<(Duration, Revision)>,
    deadlines: BTreeSet<(u64, Arc<str>)>,
    limits: Limits,
}

impl<V: Value> Core<V> {
    pub fn new(limits: Limits) -> Self {
        Self {
            index: Index::default(),
            hub: Hub::new(limits.watch_buffer_events),
            // As etcd: an empty store is at 1, so that no object ever has the special resource version 0.
            revision: 1,
            floor: 1,
            history: VecDeque::new(),
            marks: VecDeque::new(),
            deadlines: BTreeSet::new(),
            limits,
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn floor(&self) -> Revision {
        self.floor
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The revision to read: the newest unless `wanted` says otherwise and can still be read.
    pub fn readable(&self, wanted: Option<Revision>) -> Result<Revision, StoreError> {
        match wanted {
            None | Some(0) => Ok(self.revision),
            Some(requested) if requested > self.revision => {
                Err(StoreError::Future { requested, newest: self.revision })
            }
            Some(requested) if requested < self.floor => Err(StoreError::Compacted { requested, oldest: self.floor }),
            Some(requested) => Ok(requested),
        }
    }

    /// Takes in a durable write, tells watchers, and forgets what is beyond the limits. `values` are where the puts
    /// of `write` landed, in order.
    pub fn apply(&mut self, write: Write, values: impl IntoIterator<Item = V>, now: Duration) {
        let mut values = values.into_iter();
        let mut events = Vec::with_capacity(write.changes.len());
        for (revision, change) in (write.first..).zip(write.changes) {
            let (live, told) = match change.put {
                Some(put) => {
                    let Some(value) = values.next() else { unreachable!("one value per put") };
                    let created = put.created == revision;
                    let live = Live { created: put.created, expires_ms: put.expires_ms, value };
                    (Some(live), Change::Put { value: put.value, created })
                }
                None => (None, Change::Delete { previous: change.previous }),
            };
            events.push(Event { revision, key: change.key.to_string(), change: told });
            self.install(change.key, revision, live);
            self.revision = self.revision.max(revision);
        }
        self.hub.publish(&events);
        self.mark(now);
        self.limit_history();
    }

    /// Makes `live` (or nothing) the newest version of `key`.
    pub fn install(&mut self, key: Arc<str>, revision: Revision, live: Option<Live<V>>) {
        if let Some(live) = &live {
            live.value.retained();
            if live.expires_ms != 0 {
                self.deadlines.insert((live.expires_ms, key.clone()));
            }
        }
        let old_deadline = self.index.newest(&key).and_then(|v| v.live.as_ref()).map_or(0, |live| live.expires_ms);
        let new_deadline = live.as_ref().map_or(0, |live| live.expires_ms);
        if old_deadline != 0 && old_deadline != new_deadline {
            self.deadlines.remove(&(old_deadline, key.clone()));
        }
        self.index.push(key.clone(), Version { revision, live });
        self.history.push_back((revision, key));
        self.revision = self.revision.max(revision);
    }

    /// The value of this version is now kept elsewhere (or, on replay, was before it was moved here).
    pub fn relocate(&mut self, key: &str, revision: Revision, live: Live<V>) {
        if self.index.newest(key).is_some_and(|v| v.revision == revision) {
            live.value.retained();
            if let Some(old) = self.index.replace_newest(key, live) {
                old.released();
            }
        } else if self.index.newest(key).is_none_or(|v| v.revision < revision) {
            let key: Arc<str> = key.into();
            live.value.retained();
            if live.expires_ms != 0 {
                self.deadlines.insert((live.expires_ms, key.clone()));
            }
            self.index.push(key, Version { revision, live: Some(live) });
        }
    }

    /// What a log's group header says: the revision reached and the history already forgotten.
    pub fn reached(&mut self, revision: Revision, floor: Revision) {
        self.revision = self.revision.max(revision);
        self.forget_before(floor);
        while self.trim() {}
        self.mark(Duration::ZERO);
    }

    /// Nothing before `revision` can be read from now on. Memory is given back by `trim`.
    pub fn forget_before(&mut self, revision: Revision) {
        self.floor = self.floor.max(revision.min(self.revision));
        while self.marks.front().is_some_and(|(_, revision)| *revision <= self.floor) {
            self.marks.pop_front();
        }
    }

    /// Forgets a bounded number of unreachable versions; true if there are more.
    pub fn trim(&mut self) -> bool {
        for _ in 0..TRIM_STEP_ENTRIES {
            match self.history.front() {
                Some((revision, _)) if *revision < self.floor => {}
                _ => return false,
            }
            if let Some((revision, key)) = self.history.pop_front() {
                self.index.forget(&key, revision, Value::released);
            }
        }
        true
    }

    fn mark(&mut self, now: Duration) {
        if self.marks.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= Duration::from_secs(1)) {
            self.marks.push_back((now, self.revision));
        }
    }

    fn limit_history(&mut self) {
        let excess = self.history.len().saturating_sub(self.limits.history_revisions);
        if excess > 0
            && let Some((first_kept, _)) = self.history.get(excess)
        {
            self.forget_before(*first_kept);
            self.trim();
        }
    }

    /// Forgets history that is older than its limit.
    pub fn forget_aged(&mut self, now: Duration) {
        while let Some((at, revision)) = self.marks.front().copied() {
            if now.saturating_sub(at) < self.limits.history_age {
                break;
            }
            self.marks.pop_front();
            self.forget_before(revision);
        }
        // A mark is the first revision of its second: what came later in that second ages from now.
        if self.marks.is_empty() && self.revision > self.floor {
            self.marks.push_back((now, self.revision));
        }
        self.trim();
    }

    /// Time until something has to be done without being asked.
    pub fn next_wake(&self, now: Duration, wall_ms: u64) -> Option<Duration> {
        let expiry = self.deadlines.first().map(|(at, _)| Duration::from_millis(at.saturating_sub(wall_ms)));
        let aged = self.marks.front().map(|(at, _)| (*at + self.limits.history_age).saturating_sub(now));
        let progress = self.hub.progress_due().map(|at| at.saturating_sub(now));
        [expiry, aged, progress].into_iter().flatten().min()
    }

    /// Keys whose time is over, with the revision they must still have, at most `limit`.
    pub fn expired(&self, wall_ms: u64, limit: usize) -> Vec<(Arc<str>, Revision)> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= wall_ms).take(limit);
        due.filter_map(|(_, key)| Some((key.clone(), self.index.newest(key)?.revision))).collect()
    }

    /// Deadlines (unix milliseconds) of keys in `[start, end)`.
    pub fn deadlines(&self, start: &str, end: &str) -> Vec<(String, u64)> {
        let inside = self.deadlines.iter().filter(|(_, key)| start <= &**key && &**key < end);
        inside.map(|(at, key)| (key.to_string(), *at)).collect()
    }

    /// Events with `revision >= from` on keys in the range, values not yet read.
    pub fn backlog(&self, start: &str, end: &str, from: Revision) -> VecDeque<PastEvent<V>> {
        let first = self.history.partition_point(|(revision, _)| *revision < from);
        let inside = self.history.range(first..).filter(|(_, key)| start <= &**key && &**key < end);
        inside
            .filter_map(|(revision, key)| {
                let (version, before) = self.index.version(key, *revision)?;
                let previous = before.and_then(|b| Some((b.revision, b.live.as_ref()?.value.clone())));
                Some(PastEvent { revision: *revision, key: key.clone(), live: version.live.clone(), previous })
            })
            .collect()
    }
}

/// An event that happened before the watch began.
pub(crate) struct PastEvent<V> {
    pub revision: Revision,
    pub key: Arc<str>,
    pub live: Option<Live<V>>,
    pub previous: Option<(Revision, V)>,
}

impl<V: Value> PastEvent<V> {
    pub fn read(self) -> Result<Event, StoreError> {
        let change = match &self.live {
            Some(live) => Change::Put {
                value: live.value.read(&self.key, self.revision)?,
                created: live.created == self.revision,
            },
            None => {
                let previous = self.previous.map(|(revision, value)| value.read(&self.key, revision)).transpose()?;
                Change::Delete { previous }
            }
        };
        Ok(Event { revision: self.revision, key: self.key.to_string(), change })
    }
}
