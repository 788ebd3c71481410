//! An index over some resources, brought up to date when it is read.
//! Fed by `watch_cache`; used by authorizers, authenticators and admission plugins.
//! A read sees everything the cache has; reading an unchanged index takes no lock but its own.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use api::Object;

use crate::storage::{
    cluster::Cluster,
    watch_cache::{ResourceCache, Subscription},
};

/// A plain structure that is told of changes, one object at a time.
pub trait Index: Default + Send + Sync + 'static {
    /// Plural names of the built-in resources it is made from.
    const RESOURCES: &'static [&'static str];

    /// `old` is absent after a creation, `new` after a deletion.
    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>);
}

pub struct Indexed<I> {
    caches: Vec<Arc<ResourceCache>>,
    seen: Vec<AtomicU64>,
    positions: Mutex<Vec<Subscription>>,
    index: RwLock<I>,
}

/// Changes taken over at a time.
const EVENT_BATCH_MAX: usize = 1024;

impl<I: Index> Indexed<I> {
    pub fn new(cluster: &Cluster) -> Self {
        let caches: Vec<_> = I::RESOURCES.iter().map(|r| cluster.resource(r)).collect();
        let seen = caches.iter().map(|c| AtomicU64::new(c.tip())).collect();
        let new = Self { seen, caches, positions: Mutex::default(), index: RwLock::default() };
        new.rebuild(&mut new.positions.lock());
        new
    }

    pub fn read(&self) -> RwLockReadGuard<'_, I> {
        let behind = |(cache, seen): (&Arc<ResourceCache>, &AtomicU64)| cache.tip() != seen.load(Ordering::Acquire);
        if self.caches.iter().zip(&self.seen).any(behind) {
            self.catch_up();
        }
        self.index.read()
    }

    fn catch_up(&self) {
        let mut positions = self.positions.lock();
        for ((cache, seen), at) in self.caches.iter().zip(&self.seen).zip(0..) {
            let tip = cache.tip();
            loop {
                let Ok(events) = positions[at].ready(EVENT_BATCH_MAX) else {
                    return self.rebuild(&mut positions);
                };
                if events.is_empty() {
                    break;
                }
                let mut index = self.index.write();
                for event in events {
                    let old = event.old.as_ref().map(|e| &*e.object);
                    index.apply(I::RESOURCES[at], old, event.new.as_ref().map(|e| &*e.object));
                }
            }
            seen.store(tip, Ordering::Release);
        }
    }

    fn rebuild(&self, positions: &mut Vec<Subscription>) {
        let mut fresh = I::default();
        positions.clear();
        for ((cache, seen), resource) in self.caches.iter().zip(&self.seen).zip(I::RESOURCES) {
            seen.store(cache.tip(), Ordering::Release);
            let (snapshot, position) = cache.list_and_subscribe("", 0, |_| true);
            snapshot.entries.iter().for_each(|e| fresh.apply(resource, None, Some(&e.object)));
            positions.push(position);
        }
        *self.index.write() = fresh;
    }
}
