//! The current objects of every resource and a bounded ring of their latest changes.
//! Fed by one store watch over all keys (`reflector`); read by `registry` (get, list) and by every watcher.
//! An object version is held once; a watcher holds a position in the ring, never a queue of its own.

mod errors;
mod event;
mod event_ring;
mod figures;
mod reflector;
mod resource_cache;
mod subscription;

#[cfg(test)]
mod expiry_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};

use api::ApiError;
use env::Env;
use store::{Event, Range, Revision, Store, StoreError};

use crate::storage;

pub use errors::{store_error, too_large, too_old};
pub use event::{CacheEvent, Entry};
pub use figures::{Counts, Figures};
pub use resource_cache::{ResourceCache, Snapshot};
pub use subscription::{FellBehind, Subscription};

use resource_cache::KeyChange;

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

pub struct WatchCache {
    resources: RwLock<HashMap<String, Arc<ResourceCache>>>,
    applied: watch::Sender<Revision>,
    store: Arc<dyn Store>,
    /// Values that were skipped can be read now.
    reload: Arc<Notify>,
    on_load: OnceLock<Box<dyn Fn() + Send + Sync>>,
    limits: Limits,
    env: Env,
}

impl WatchCache {
    /// Loads everything, then follows the store. Returns when the cache is warm.
    pub async fn start(store: Arc<dyn Store>, limits: Limits, env: Env) -> Result<Arc<Self>, StoreError> {
        let cache = Arc::new(Self {
            resources: RwLock::default(),
            applied: watch::Sender::new(0),
            store,
            reload: Arc::default(),
            on_load: OnceLock::new(),
            limits,
            env: env.clone(),
        });
        let revision = cache.load().await?;
        // The task ends with the cache: it holds no strong reference while it waits for the store.
        let weak = Arc::downgrade(&cache);
        let store = cache.store.clone();
        let memory = weak.clone();
        store.repair_from(Box::new(move |key, revision| memory.upgrade()?.stored(key, revision)));
        let reload = cache.reload.clone();
        env.spawn(async move { reflector::follow(weak, store, revision, reload).await });
        env.spawn(reflector::expire(Arc::downgrade(&cache), env.clone()));
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

    /// Has everything loaded from the store once more.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Calls `then` whenever all was loaded anew and can be seen.
    pub fn on_load(&self, then: impl Fn() + Send + Sync + 'static) {
        let _: Result<(), _> = self.on_load.set(Box::new(then));
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
                let Some(prefix) = storage::prefix_of_key(&record.key).filter(|p| storage::holds_objects(p)) else {
                    tracing::debug!(key = record.key, "no kind of ours lies under this key");
                    continue;
                };
                match storage::decode(&record.value, record.mod_revision) {
                    Ok(object) => {
                        let local = record.key[prefix.len()..].to_string();
                        fresh.entry(prefix.to_string()).or_default().insert(local, Arc::new(Entry::new(object)));
                    }
                    Err(e) => tracing::error!(key = record.key, error = %e.message, "skipping unreadable object"),
                }
            }
            match page.records.last() {
                Some(last) if page.remaining > 0 => start = format!("{}\0", last.key),
                _ => {
                    self.replace(fresh, at);
                    if let Some(then) = self.on_load.get() {
                        then();
                    }
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
            self.resource(&prefix).replace(objects, revision);
        }
        self.applied.send_replace(revision);
    }

    fn apply(&self, events: Vec<Event>) {
        let Some(revision) = events.last().map(|e| e.revision) else { return };
        let now = self.env.monotonic();
        let mut by_resource: Vec<(String, Vec<KeyChange>)> = Vec::with_capacity(1);
        for event in events {
            let prefix = storage::prefix_of_key(&event.key).filter(|prefix| storage::holds_objects(prefix));
            let Some(prefix) = prefix else { continue };
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

    /// Lets go of what is old at `now`.
    fn expire(&self, now: Duration) {
        let caches: Vec<_> = self.resources.read().values().cloned().collect();
        caches.iter().for_each(|cache| cache.expire(now));
        drop(caches);
        // Under the lock nobody else can get hold of one that only this map has: no watcher is left with a cache that
        // hears of nothing.
        self.resources.write().retain(|prefix, cache| {
            !storage::is_custom(prefix) || Arc::strong_count(cache) > 1 || !cache.holds_nothing()
        });
    }
}
