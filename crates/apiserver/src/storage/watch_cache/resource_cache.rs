//! The objects of one resource, in the order of their keys, and the ring of their latest changes.
//! Fed by `WatchCache`; read by `registry` (get, list) and through subscriptions.
//! Changes that came together are seen together, by lists and by watchers.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::watch;

use api::WatchKind;
use store::{Change, Revision};

use super::{
    Limits,
    event::{CacheEvent, Entry},
    event_ring::{EventRing, Position},
    figures::Counters,
    subscription::Subscription,
};
use crate::storage;

pub struct ResourceCache {
    pub(super) state: RwLock<State>,
    /// Moves with every change, to wake watchers.
    tip: watch::Sender<u64>,
    pub(super) counters: Counters,
    pub(super) limits: Limits,
}

#[derive(Default)]
pub(super) struct State {
    pub objects: BTreeMap<String, Arc<Entry>>,
    pub ring: EventRing,
    /// The revision of the last change.
    revision: Revision,
    /// Of the current objects.
    pub bytes: usize,
}

/// The objects of a resource as of `revision`.
pub struct Snapshot {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// The keys of `entries` go on after these; only set when a limit cut them off.
    pub next: Option<String>,
    pub remaining: usize,
}

/// A change of one resource, as the store tells of it.
pub(super) struct KeyChange {
    /// After the prefix of its resource.
    pub key: String,
    pub revision: Revision,
    pub change: Change,
}

impl ResourceCache {
    pub(super) fn new(revision: Revision, limits: Limits) -> Self {
        let state = State { ring: EventRing::new(0, revision), revision, ..State::default() };
        Self { state: RwLock::new(state), tip: watch::Sender::new(0), counters: Counters::default(), limits }
    }

    /// Lets go of changes that the ring no longer has to keep.
    pub(super) fn expire(&self, now: Duration) {
        let expired = self.state.write().ring.take_expired(self.limits.ring_age, now);
        // What they held is freed when nobody waits for the lock.
        drop(expired);
    }

    pub(super) fn holds_nothing(&self) -> bool {
        let state = self.state.read();
        state.objects.is_empty() && state.ring.is_empty()
    }

    /// Takes over a complete new state; watchers that were behind it must start again.
    pub(super) fn replace(&self, objects: BTreeMap<String, Arc<Entry>>, revision: Revision) {
        let mut state = self.state.write();
        // A gap in the sequence makes every open watcher notice that it lost its place.
        let first = state.ring.end() + u64::from(!state.objects.is_empty() || !objects.is_empty());
        let bytes = objects.values().map(|e| e.object.json().len()).sum();
        Counters::add(&self.counters.loads, 1);
        Counters::add(&self.counters.initial, objects.len() as u64);
        *state = State { objects, ring: EventRing::new(first, revision), revision, bytes };
        drop(state);
        self.tip.send_replace(first);
    }

    /// Takes in changes that came together. Nobody sees some of them only: the cache would claim their revision.
    pub(super) fn apply(&self, changes: Vec<KeyChange>, now: Duration) {
        let decoded: Vec<_> = changes.into_iter().filter_map(decode).collect();
        if decoded.is_empty() {
            return;
        }
        let mut state = self.state.write();
        for (change, new) in decoded {
            state.apply(change, new, now);
        }
        state.ring.trim(&self.limits);
        let tip = state.ring.end();
        drop(state);
        self.tip.send_replace(tip);
    }

    /// Moves with every change of this resource.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.tip.subscribe()
    }

    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().objects.get(key).cloned()
    }

    /// Moves with every change.
    pub fn tip(&self) -> u64 {
        *self.tip.borrow()
    }

    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// How many objects there are, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.read();
        (state.objects.len(), state.bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects with keys starting with `prefix`, from `start` on, that `keep` keeps; at most `limit` unless it is 0.
    /// `applied` is the cache's revision read before this call.
    pub fn list(
        &self,
        prefix: &str,
        start: Option<&str>,
        limit: usize,
        applied: Revision,
        keep: impl Fn(&Entry) -> bool,
    ) -> Snapshot {
        self.list_in(&self.state.read(), prefix, start, limit, applied, keep)
    }

    fn list_in(
        &self,
        state: &State,
        prefix: &str,
        start: Option<&str>,
        limit: usize,
        applied: Revision,
        keep: impl Fn(&Entry) -> bool,
    ) -> Snapshot {
        let from = start.filter(|s| *s > prefix).unwrap_or(prefix);
        let range = state.objects.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        let mut inside = range.take_while(|(key, _)| key.starts_with(prefix));
        let mut entries = Vec::new();
        let mut next = None;
        let mut seen = 0;
        let kept = |(_, e): &(&String, &Arc<Entry>)| {
            seen += 1;
            keep(e)
        };
        for (key, entry) in inside.by_ref().filter(kept) {
            if limit > 0 && entries.len() == limit {
                next = Some(key.clone());
                break;
            }
            entries.push(entry.clone());
        }
        let remaining = next.as_ref().map_or(0, |_| 1 + inside.count());
        Counters::add(&self.counters.lists, 1);
        Counters::add(&self.counters.listed, seen);
        Counters::add(&self.counters.returned, entries.len() as u64);
        Snapshot { entries, revision: applied.max(state.revision), next, remaining }
    }

    /// Whether nothing of this resource changed after `revision`, so that the present is also the past.
    pub fn unchanged_since(&self, revision: Revision) -> bool {
        self.state.read().revision <= revision
    }

    /// A position after everything up to `revision`; `Err` holds the oldest revision one can start from.
    pub fn subscribe(self: &Arc<Self>, revision: Revision) -> Result<Subscription, Revision> {
        let tip = self.tip.subscribe();
        let position = self.state.read().ring.position_after(revision)?;
        Ok(Subscription { cache: self.clone(), position, tip })
    }

    /// The objects that `keep` keeps and the position right after them.
    pub fn list_and_subscribe(
        self: &Arc<Self>,
        prefix: &str,
        applied: Revision,
        keep: impl Fn(&Entry) -> bool,
    ) -> (Snapshot, Subscription) {
        let tip = self.tip.subscribe();
        let state = self.state.read();
        let snapshot = self.list_in(&state, prefix, None, 0, applied, keep);
        let position = Position { next: state.ring.end(), after: snapshot.revision };
        (snapshot, Subscription { cache: self.clone(), position, tip })
    }
}

/// The change with its new object; nothing if that can't be read.
fn decode(change: KeyChange) -> Option<(KeyChange, Option<Arc<Entry>>)> {
    let Change::Put { value, created } = &change.change else { return Some((change, None)) };
    let kind = if *created { WatchKind::Added } else { WatchKind::Modified };
    match storage::decode_event(kind, value, change.revision) {
        Ok(object) => Some((change, Some(Arc::new(Entry::new(object))))),
        Err(e) => {
            tracing::error!(key = change.key, error = %e.message, "skipping unreadable object");
            None
        }
    }
}

impl State {
    fn apply(&mut self, KeyChange { key, revision, change }: KeyChange, new: Option<Arc<Entry>>, now: Duration) {
        self.revision = revision;
        let mut old = match &new {
            Some(entry) => self.objects.insert(key, entry.clone()),
            None => self.objects.remove(&key),
        };
        let size = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or(0, |e| e.object.json().len());
        self.bytes = (self.bytes + size(&new)).saturating_sub(size(&old));
        if let Change::Delete { previous } = change {
            let last: Option<Bytes> =
                previous.or_else(|| old.as_ref().map(|e| storage::without_revision(e.object.json())));
            let gone = last.and_then(|json| storage::decode_event(WatchKind::Deleted, &json, revision).ok());
            old = gone.map(|o| Arc::new(Entry::new(o)));
            if old.is_none() {
                return;
            }
        }
        self.ring.push(CacheEvent { revision, seen: now, new, old });
    }
}
