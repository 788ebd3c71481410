//! What there is of each resource and what happened to its cache, for `/metrics`.
//! Counted by `resource_cache` and `subscription`; read by `metrics`.
//! Counters only grow.

use std::sync::atomic::{AtomicU64, Ordering};

use store::Revision;

use super::resource_cache::ResourceCache;

/// What happened to one resource's cache, beyond its changes.
#[derive(Default)]
pub(super) struct Counters {
    pub loads: AtomicU64,
    pub initial: AtomicU64,
    pub terminated: AtomicU64,
    pub lists: AtomicU64,
    pub listed: AtomicU64,
    pub returned: AtomicU64,
}

impl Counters {
    pub fn add(tally: &AtomicU64, more: u64) {
        tally.fetch_add(more, Ordering::Relaxed);
    }
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

impl ResourceCache {
    pub(super) fn figures(&self, prefix: &str, revision: Revision) -> Figures {
        let (objects, bytes) = self.size();
        let count = |tally: &AtomicU64| tally.load(Ordering::Relaxed);
        let counters = &self.counters;
        Figures {
            prefix: prefix.to_string(),
            objects,
            bytes,
            capacity: self.limits.ring_events,
            revision,
            changes: self.tip(),
            counts: Counts {
                loads: count(&counters.loads),
                initial: count(&counters.initial),
                terminated: count(&counters.terminated),
                lists: count(&counters.lists),
                listed: count(&counters.listed),
                returned: count(&counters.returned),
            },
        }
    }
}
