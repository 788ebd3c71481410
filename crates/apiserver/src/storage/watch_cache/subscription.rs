//! A watcher's place in the ring of one resource.
//! Made by `resource_cache`; read by `registry::watch` and by indexes.
//! Holds a position, never a queue of its own.

use std::sync::Arc;

use tokio::sync::watch;

use super::{event::CacheEvent, event_ring::Position, figures::Counters, resource_cache::ResourceCache};

pub struct Subscription {
    pub(super) cache: Arc<ResourceCache>,
    /// Its revision may be one that has not happened yet.
    pub(super) position: Position,
    pub(super) tip: watch::Receiver<u64>,
}

/// The watcher fell so far behind that the ring no longer holds its next change.
#[derive(Debug, PartialEq, Eq)]
pub struct FellBehind;

impl Subscription {
    /// Up to `max` changes that are already there.
    pub fn ready(&mut self, max: usize) -> Result<Vec<Arc<CacheEvent>>, FellBehind> {
        self.tip.borrow_and_update();
        let state = self.cache.state.read();
        state.ring.read(&mut self.position, max).ok_or_else(|| {
            Counters::add(&self.cache.counters.terminated, 1);
            FellBehind
        })
    }

    /// Returns when there may be more.
    pub async fn changed(&mut self) {
        // The sender lives in the cache this subscription holds, so waiting cannot fail.
        let _ = self.tip.changed().await;
    }
}
