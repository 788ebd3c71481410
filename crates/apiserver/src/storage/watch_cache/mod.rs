//! The current objects of every resource and a bounded ring of their latest changes.
//! Fed by one store watch over all keys; read by `registry` (get, list) and by every watcher.
//! Invariant: an object version is held once; a watcher holds a position in the ring, never a queue of its own.

#[cfg(test)]
mod age_tests;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::RwLock;
use tokio::sync::watch;

use api::{ApiError, Object, Reason, Resource, WatchKind};
use env::Env;
use store::{Change, Event, Range, Revision, Store, StoreError, WatchItem};

use crate::storage;

#[derive(Debug, Clone)]
pub struct Limits {
    /// Changes kept per resource for watches that start in the past or fall behind.
    pub ring_events: usize,
    /// Bytes of objects the ring of one resource may keep alive; at least `ring_minimum` changes stay, unless they
    /// alone keep more than `ring_bytes_max` alive.
    pub ring_bytes: usize,
    pub ring_minimum: usize,
    pub ring_bytes_max: usize,
    /// Changes older than this leave the ring, so that what a load leaves behind is gone soon after it.
    pub ring_age: Duration,
    /// How long a read waits for the cache to reach a revision.
    pub freshness: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ring_events: 8192,
            ring_bytes: 8 << 20,
            ring_minimum: 128,
            ring_bytes_max: 32 << 20,
            // Upstream's DefaultEventFreshDuration.
            ring_age: Duration::from_secs(75),
            freshness: Duration::from_secs(3),
        }
    }
}

/// Whoever follows the changes has seen those so many before the newest. What the process made of their old versions
/// would be most of what the ring keeps alive.
const FOLLOWED: usize = 256;
/// How often old changes are looked for.
const AGE_INTERVAL: Duration = Duration::from_secs(15);
/// What one change weighs in the ring besides the JSON of its objects: their parsed metadata and the entries.
const EVENT_OVERHEAD_BYTES: usize = 1024;

/// One object version, with what selectors ask of it computed at most once.
pub struct Entry {
    pub object: Arc<Object>,
    /// For the first resource that asked; another version of it may name other fields.
    fields: OnceLock<(Arc<Resource>, Vec<(String, String)>)>,
}

impl Entry {
    pub fn new(object: Object) -> Self {
        Self { object: Arc::new(object), fields: OnceLock::new() }
    }

    /// The selectable fields of the object as `resource` names them.
    pub fn fields(&self, resource: &Arc<Resource>) -> Cow<'_, [(String, String)]> {
        let compute = || resource.behavior.selectable_fields(&self.object.value());
        let (asked, known) = self.fields.get_or_init(|| (resource.clone(), compute()));
        if Arc::ptr_eq(asked, resource) { Cow::Borrowed(known) } else { Cow::Owned(compute()) }
    }
}

/// One change: `new` is absent after a deletion; `old` is absent after a creation. A deleted object appears in `old`
/// with the revision of its deletion.
pub struct CacheEvent {
    pub revision: Revision,
    /// Monotonic time at which the cache heard of it.
    seen: Duration,
    pub new: Option<Arc<Entry>>,
    pub old: Option<Arc<Entry>>,
}

pub struct WatchCache {
    resources: RwLock<HashMap<String, Arc<ResourceCache>>>,
    applied: watch::Sender<Revision>,
    store: Arc<dyn Store>,
    limits: Limits,
    env: Env,
}

pub struct ResourceCache {
    state: RwLock<State>,
    /// Moves with every change, to wake watchers.
    tip: watch::Sender<u64>,
    tallies: Tallies,
    limits: Limits,
}

/// What happened to one resource's cache, beyond its changes.
#[derive(Default)]
struct Tallies {
    loads: AtomicU64,
    initial: AtomicU64,
    terminated: AtomicU64,
    lists: AtomicU64,
    listed: AtomicU64,
    returned: AtomicU64,
}

impl Tallies {
    fn add(tally: &AtomicU64, more: u64) {
        tally.fetch_add(more, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Arc<Entry>>,
    ring: VecDeque<Arc<CacheEvent>>,
    ring_bytes: usize,
    /// The sequence number of the ring's first change.
    first: u64,
    /// Every change after this revision is in the ring, and none that a client may have missed at it.
    complete_since: Revision,
    /// The revision of the last change.
    revision: Revision,
    /// Of the current objects.
    bytes: usize,
}

/// What there is of one resource, and what happens to it.
pub struct Figures {
    pub prefix: String,
    pub objects: usize,
    pub bytes: usize,
    /// Changes kept for watches.
    pub capacity: usize,
    /// How far the cache is.
    pub revision: Revision,
    /// Since the process started.
    pub changes: u64,
    pub counts: Counts,
}

/// Since the process started.
pub struct Counts {
    /// Times the cache was filled, and objects it was filled with.
    pub loads: u64,
    pub initial: u64,
    /// Watchers that fell behind.
    pub terminated: u64,
    /// Lists, objects looked at for them, objects they held.
    pub lists: u64,
    pub listed: u64,
    pub returned: u64,
}

/// The objects of a resource as of `revision`.
pub struct Snapshot {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// The keys of `entries` go on after these; only set when a limit cut them off.
    pub next: Option<String>,
    pub remaining: usize,
}

impl WatchCache {
    /// Loads everything, then follows the store. Returns when the cache is warm.
    pub async fn start(store: Arc<dyn Store>, limits: Limits, env: Env) -> Result<Arc<Self>, StoreError> {
        let cache = Arc::new(Self {
            resources: RwLock::default(),
            applied: watch::Sender::new(0),
            store,
            limits,
            env: env.clone(),
        });
        let revision = cache.load().await?;
        // The task ends with the cache: it holds no strong reference while it waits for the store.
        let weak = Arc::downgrade(&cache);
        let store = cache.store.clone();
        let memory = weak.clone();
        store.repair_from(Box::new(move |key, revision| memory.upgrade()?.stored(key, revision)));
        env.spawn(async move { follow(weak, store, revision).await });
        env.spawn(forget_aged(Arc::downgrade(&cache), env.clone()));
        Ok(cache)
    }

    pub fn resource(&self, prefix: &str) -> Arc<ResourceCache> {
        if let Some(found) = self.resources.read().get(prefix) {
            return found.clone();
        }
        let mut resources = self.resources.write();
        let new = || Arc::new(ResourceCache::new(*self.applied.borrow(), self.limits.clone()));
        resources.entry(prefix.to_string()).or_insert_with(new).clone()
    }

    /// What the store holds under `key`, if the cache has it as it was at `revision`.
    fn stored(&self, key: &str, revision: Revision) -> Option<Bytes> {
        let prefix = storage::prefix_of_key(key)?;
        let entry = self.resources.read().get(prefix)?.get(&key[prefix.len()..])?;
        let object = (entry.object.meta.resource_version == revision).then_some(&entry.object)?;
        Some(storage::without_revision(object.json()))
    }

    /// The revision up to which every change is in the cache.
    pub fn revision(&self) -> Revision {
        *self.applied.borrow()
    }

    /// In the order of the prefixes.
    pub fn figures(&self) -> Vec<Figures> {
        let revision = self.revision();
        let mut all: Vec<_> =
            self.resources.read().iter().map(|(prefix, cache)| cache.figures(prefix, revision)).collect();
        all.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        all
    }

    /// Waits until the cache holds everything up to `revision`.
    pub async fn wait_for(&self, revision: Revision) -> Result<(), ApiError> {
        let mut applied = self.applied.subscribe();
        if *applied.borrow_and_update() >= revision {
            return Ok(());
        }
        let reached = self.env.timeout(self.limits.freshness, applied.wait_for(|r| *r >= revision)).await;
        match reached {
            Some(Ok(_)) => Ok(()),
            _ => Err(too_large(revision, self.revision())),
        }
    }

    /// Waits until the cache holds everything acknowledged so far.
    pub async fn wait_until_fresh(&self) -> Result<(), ApiError> {
        let newest = self.store.revision().await.map_err(store_error)?;
        self.wait_for(newest).await
    }

    async fn load(&self) -> Result<Revision, StoreError> {
        let end = store::prefix_end(storage::ROOT);
        let mut start = storage::ROOT.to_string();
        let mut revision = None;
        let mut fresh: HashMap<String, BTreeMap<String, Arc<Entry>>> = HashMap::new();
        loop {
            let page = self.store.range(Range { start, end: end.clone(), limit: 2000, revision }).await?;
            let at = *revision.get_or_insert(page.revision);
            for record in &page.records {
                match (storage::prefix_of_key(&record.key), storage::decode(&record.value, record.mod_revision)) {
                    (Some(prefix), Ok(object)) => {
                        let local = record.key[prefix.len()..].to_string();
                        fresh.entry(prefix.to_string()).or_default().insert(local, Arc::new(Entry::new(object)));
                    }
                    (_, Err(e)) => tracing::error!(key = record.key, error = %e.message, "skipping unreadable object"),
                    (None, Ok(_)) => tracing::error!(key = record.key, "skipping object with a foreign key"),
                }
            }
            match page.records.last() {
                Some(last) if page.remaining > 0 => start = format!("{}\0", last.key),
                _ => {
                    self.replace(fresh, at);
                    return Ok(at);
                }
            }
        }
    }

    /// Takes over a complete new state; watchers that were behind it must start again.
    fn replace(&self, mut fresh: HashMap<String, BTreeMap<String, Arc<Entry>>>, revision: Revision) {
        let known: Vec<String> = self.resources.read().keys().cloned().collect();
        for prefix in known {
            fresh.entry(prefix).or_default();
        }
        for (prefix, objects) in fresh {
            let cache = self.resource(&prefix);
            let mut state = cache.state.write();
            // A gap in the sequence makes every open watcher notice that it lost its place.
            let first =
                state.first + state.ring.len() as u64 + u64::from(!state.objects.is_empty() || !objects.is_empty());
            let bytes = objects.values().map(|e| e.object.json().len()).sum();
            Tallies::add(&cache.tallies.loads, 1);
            Tallies::add(&cache.tallies.initial, objects.len() as u64);
            *state = State { objects, first, complete_since: revision, revision, bytes, ..State::default() };
            drop(state);
            cache.tip.send_replace(first);
        }
        self.applied.send_replace(revision);
    }

    fn apply(&self, events: Vec<Event>) {
        let Some(revision) = events.last().map(|e| e.revision) else { return };
        let now = self.env.monotonic();
        let mut by_resource: Vec<(String, Vec<KeyChange>)> = Vec::with_capacity(1);
        for event in events {
            let Some(prefix) = storage::prefix_of_key(&event.key) else { continue };
            let change = KeyChange {
                key: event.key[prefix.len()..].to_string(),
                revision: event.revision,
                change: event.change,
            };
            match by_resource.iter_mut().find(|(known, _)| known == prefix) {
                Some((_, changes)) => changes.push(change),
                None => by_resource.push((prefix.to_string(), vec![change])),
            }
        }
        for (prefix, changes) in by_resource {
            self.resource(&prefix).apply(changes, now);
        }
        self.applied.send_replace(revision);
    }

    fn forget_aged(&self, now: Duration) {
        let caches: Vec<_> = self.resources.read().values().cloned().collect();
        caches.iter().for_each(|cache| cache.forget_aged(now));
        drop(caches);
        // Under the lock nobody else can get hold of one that only this map has: no watcher is left with a cache that
        // hears of nothing.
        self.resources.write().retain(|prefix, cache| {
            !storage::is_custom(prefix) || Arc::strong_count(cache) > 1 || !cache.holds_nothing()
        });
    }
}

/// Lets old changes and the caches of deleted custom resources go, for as long as the cache lives.
async fn forget_aged(cache: std::sync::Weak<WatchCache>, env: Env) {
    loop {
        env.sleep(AGE_INTERVAL).await;
        let Some(cache) = cache.upgrade() else { return };
        cache.forget_aged(env.monotonic());
    }
}

/// A change of one resource, as the store tells of it.
struct KeyChange {
    /// After the prefix of its resource.
    key: String,
    revision: Revision,
    change: Change,
}

/// Follows the store for as long as the cache lives.
async fn follow(cache: std::sync::Weak<WatchCache>, store: Arc<dyn Store>, loaded: Revision) {
    let end = store::prefix_end(storage::ROOT);
    let mut revision = loaded;
    // A shared store may have several changes at the revision that was loaded: the ring must know, for clients that
    // have seen some of them.
    let resume_at = |loaded: Revision| if store.is_shared() { loaded } else { loaded + 1 };
    let mut next = resume_at(loaded);
    loop {
        let failure = match store.watch(storage::ROOT, &end, next).await {
            Ok(mut stream) => loop {
                let item = stream.next().await;
                let Some(cache) = cache.upgrade() else { return };
                match item {
                    Some(Ok(WatchItem::Events(events))) => {
                        revision = events.last().map_or(revision, |e| e.revision);
                        next = revision + 1;
                        cache.apply(events);
                    }
                    Some(Ok(WatchItem::Progress(reached))) => {
                        revision = revision.max(reached);
                        next = next.max(reached + 1);
                        cache.applied.send_if_modified(|applied| std::mem::replace(applied, revision) != revision);
                    }
                    Some(Err(e)) => break e,
                    None => break StoreError::Unavailable("the watch ended".into()),
                }
            },
            Err(e) => e,
        };
        let Some(cache) = cache.upgrade() else { return };
        tracing::warn!(error = %failure, revision, "the store watch broke; resuming");
        if matches!(failure, StoreError::Compacted { .. }) {
            match cache.load().await {
                Ok(at) => (revision, next) = (at, resume_at(at)),
                Err(e) => tracing::error!(error = %e, "failed to reload the watch cache"),
            }
        }
        cache.env.sleep(Duration::from_millis(100)).await;
    }
}

impl ResourceCache {
    fn new(revision: Revision, limits: Limits) -> Self {
        let state = State { complete_since: revision, revision, ..State::default() };
        Self { state: RwLock::new(state), tip: watch::Sender::new(0), tallies: Tallies::default(), limits }
    }

    fn figures(&self, prefix: &str, revision: Revision) -> Figures {
        let (objects, bytes) = {
            let state = self.state.read();
            (state.objects.len(), state.bytes)
        };
        let count = |tally: &AtomicU64| tally.load(Ordering::Relaxed);
        let tallies = &self.tallies;
        Figures {
            prefix: prefix.to_string(),
            objects,
            bytes,
            capacity: self.limits.ring_events,
            revision,
            changes: self.tip(),
            counts: Counts {
                loads: count(&tallies.loads),
                initial: count(&tallies.initial),
                terminated: count(&tallies.terminated),
                lists: count(&tallies.lists),
                listed: count(&tallies.listed),
                returned: count(&tallies.returned),
            },
        }
    }

    /// Changes that the ring no longer has to keep.
    fn forget_aged(&self, now: Duration) {
        let mut state = self.state.write();
        let aged = state.ring.partition_point(|event| event.seen + self.limits.ring_age <= now);
        let gone = state.forget(aged);
        if state.ring.capacity() > 4 * state.ring.len() {
            state.ring.shrink_to_fit();
        }
        // What they held is freed when nobody waits for the lock.
        drop(state);
        drop(gone);
    }

    fn holds_nothing(&self) -> bool {
        let state = self.state.read();
        state.objects.is_empty() && state.ring.is_empty()
    }

    /// Takes in changes that came together. Nobody sees some of them only: the cache would claim their revision.
    fn apply(&self, changes: Vec<KeyChange>, now: Duration) {
        let decoded: Vec<_> = changes.into_iter().filter_map(decode).collect();
        if decoded.is_empty() {
            return;
        }
        let mut state = self.state.write();
        for (change, new) in decoded {
            state.apply(change, new, now);
        }
        state.limit(&self.limits);
        let tip = state.first + state.ring.len() as u64;
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
        Tallies::add(&self.tallies.lists, 1);
        Tallies::add(&self.tallies.listed, seen);
        Tallies::add(&self.tallies.returned, entries.len() as u64);
        Snapshot { entries, revision: applied.max(state.revision), next, remaining }
    }

    /// Whether nothing of this resource changed after `revision`, so that the present is also the past.
    pub fn unchanged_since(&self, revision: Revision) -> bool {
        self.state.read().revision <= revision
    }

    /// A position after everything up to `revision`; `Err` holds the oldest revision one can start from.
    ///
    /// Where several changes share `revision` (etcd gives all keys of a transaction one), nobody knows which of them a
    /// client that names it has seen. All of them come again then: an object that is told twice is the same object,
    /// one that is never told is lost.
    pub fn subscribe(self: &Arc<Self>, revision: Revision) -> Result<Subscription, Revision> {
        let tip = self.tip.subscribe();
        let state = self.state.read();
        if revision < state.complete_since {
            return Err(state.complete_since);
        }
        let before = state.ring.partition_point(|e| e.revision < revision);
        let seen = state.ring.partition_point(|e| e.revision <= revision);
        let (skip, after) = if seen - before > 1 { (before, revision - 1) } else { (seen, revision) };
        Ok(Subscription { cache: self.clone(), next: state.first + skip as u64, after, tip })
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
        let next = state.first + state.ring.len() as u64;
        let after = snapshot.revision;
        (snapshot, Subscription { cache: self.clone(), next, after, tip })
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
        let event = CacheEvent { revision, seen: now, new, old };
        self.ring_bytes += event.size();
        self.ring.push_back(Arc::new(event));
        let followed = self.ring.len().checked_sub(FOLLOWED).and_then(|at| self.ring[at].old.as_ref());
        if let Some(old) = followed {
            old.object.forget_typed();
        }
    }

    fn exceeds(&self, limits: &Limits) -> bool {
        let (events, bytes) = (self.ring.len(), self.ring_bytes);
        events > limits.ring_events
            || (bytes > limits.ring_bytes && events > limits.ring_minimum)
            || (bytes > limits.ring_bytes_max && events > 1)
    }

    /// Forgets the oldest changes beyond the limits.
    fn limit(&mut self, limits: &Limits) {
        while self.exceeds(limits) {
            self.forget(1);
        }
    }

    /// Takes the oldest `count` changes out of the ring, or more: those of one revision go together.
    fn forget(&mut self, count: usize) -> Vec<Arc<CacheEvent>> {
        let Some(revision) = count.checked_sub(1).and_then(|last| self.ring.get(last)).map(|event| event.revision)
        else {
            return Vec::new();
        };
        let until = self.ring.partition_point(|event| event.revision <= revision);
        let gone: Vec<_> = self.ring.drain(..until).collect();
        self.first += gone.len() as u64;
        self.ring_bytes -= gone.iter().map(|event| event.size()).sum::<usize>();
        // Who has seen one of several changes of a revision may have missed another.
        let together = gone.iter().rev().take_while(|event| event.revision == revision).count();
        self.complete_since = if together > 1 { revision + 1 } else { revision };
        gone
    }
}

impl CacheEvent {
    fn size(&self) -> usize {
        // What the ring keeps alive beyond the current objects: the version that was replaced; of a deletion also the
        // last version before it, which an earlier change in the ring made.
        let versions = if self.new.is_some() { 1 } else { 2 };
        self.old.as_ref().map_or(0, |e| e.object.json().len()) * versions + EVENT_OVERHEAD_BYTES
    }
}

/// A watcher's place in the ring of one resource.
pub struct Subscription {
    cache: Arc<ResourceCache>,
    next: u64,
    /// Changes up to this revision are not wanted. It may be one that has not happened yet.
    after: Revision,
    tip: watch::Receiver<u64>,
}

/// The watcher fell so far behind that the ring no longer holds its next change.
#[derive(Debug, PartialEq, Eq)]
pub struct FellBehind;

impl Subscription {
    /// Up to `max` changes that are already there.
    pub fn ready(&mut self, max: usize) -> Result<Vec<Arc<CacheEvent>>, FellBehind> {
        self.tip.borrow_and_update();
        let state = self.cache.state.read();
        if self.next < state.first {
            Tallies::add(&self.cache.tallies.terminated, 1);
            return Err(FellBehind);
        }
        let mut skip = (self.next - state.first) as usize;
        if state.ring.get(skip).is_some_and(|e| e.revision <= self.after) {
            skip = state.ring.partition_point(|e| e.revision <= self.after);
        }
        let events: Vec<_> = state.ring.iter().skip(skip).take(max).cloned().collect();
        self.next = state.first + (skip + events.len()) as u64;
        Ok(events)
    }

    /// Returns when there may be more.
    pub async fn changed(&mut self) {
        // The sender lives in the cache this subscription holds, so waiting cannot fail.
        let _ = self.tip.changed().await;
    }
}

/// A read asked for a revision that has not happened (yet).
pub fn too_large(asked: Revision, current: Revision) -> ApiError {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = serde_json::json!([{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }]);
    ApiError::new(Reason::Timeout, format!("Timeout: {message}"))
        .with_details(serde_json::json!({ "causes": cause, "retryAfterSeconds": 1 }))
        .with_retry_after(1)
}

pub fn too_old(asked: Revision, oldest: Revision) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
}

pub fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Compacted { requested, oldest } => too_old(requested, oldest),
        StoreError::Future { requested, newest } => too_large(requested, newest),
        StoreError::TooLarge { .. } => ApiError::new(Reason::RequestEntityTooLarge, error.to_string()),
        StoreError::Unavailable(_) => ApiError::new(Reason::ServiceUnavailable, error.to_string()),
        StoreError::Corrupted(_) => ApiError::internal(error.to_string()),
    }
}
