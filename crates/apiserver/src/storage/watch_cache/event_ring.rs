//! The latest changes of one resource, in order, for watches that start in the past or fall behind.
//! Kept by `resource_cache`; a watcher's place in it is a `Subscription`.
//! Holds every change after `complete_since`; changes of one revision come and go together.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use store::Revision;

use super::{Limits, event::CacheEvent};

/// So many of the latest changes keep the typed form of the object they replaced: whoever follows the changes is done
/// with older ones, and their typed forms would be most of what the ring keeps alive.
pub(super) const TYPED_EVENTS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct EventRing {
    events: VecDeque<Arc<CacheEvent>>,
    bytes: usize,
    /// The sequence number of the first change in it.
    first: u64,
    /// Every change after this revision is in it, and none that a client may have missed at it.
    complete_since: Revision,
}

/// Where a watch goes on: the next change by sequence number, and the revision up to which changes are not wanted.
pub(super) struct Position {
    pub next: u64,
    pub after: Revision,
}

impl EventRing {
    /// An empty ring whose sequence starts at `first`.
    pub fn new(first: u64, complete_since: Revision) -> Self {
        Self { first, complete_since, ..Self::default() }
    }

    /// The sequence number that the next change gets.
    pub fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    #[cfg(test)]
    pub fn held(&self) -> (usize, usize) {
        (self.events.len(), self.bytes)
    }

    pub fn push(&mut self, event: CacheEvent) {
        self.bytes += event.size_bytes();
        self.events.push_back(Arc::new(event));
        let superseded = self.events.len().checked_sub(TYPED_EVENTS_MAX).and_then(|at| self.events[at].old.as_ref());
        if let Some(old) = superseded {
            old.object.forget_typed();
        }
    }

    /// The position after everything up to `revision`; `Err` holds the oldest revision one can start from.
    ///
    /// Where several changes share `revision` (etcd gives all keys of a transaction one), nobody knows which of them a
    /// client that names it has seen. All of them come again then: an object that is told twice is the same object,
    /// one that is never told is lost.
    pub fn position_after(&self, revision: Revision) -> Result<Position, Revision> {
        if revision < self.complete_since {
            return Err(self.complete_since);
        }
        let before = self.events.partition_point(|e| e.revision < revision);
        let seen = self.events.partition_point(|e| e.revision <= revision);
        let (skip, after) = if seen - before > 1 { (before, revision - 1) } else { (seen, revision) };
        Ok(Position { next: self.first + skip as u64, after })
    }

    /// Up to `max` changes from `position` on, which moves behind them; nothing if the ring no longer has the next one.
    pub fn read(&self, position: &mut Position, max: usize) -> Option<Vec<Arc<CacheEvent>>> {
        let mut skip = position.next.checked_sub(self.first)? as usize;
        if self.events.get(skip).is_some_and(|e| e.revision <= position.after) {
            skip = self.events.partition_point(|e| e.revision <= position.after);
        }
        let events: Vec<_> = self.events.iter().skip(skip).take(max).cloned().collect();
        position.next = self.first + (skip + events.len()) as u64;
        Some(events)
    }

    fn exceeds(&self, limits: &Limits) -> bool {
        let (events, bytes) = (self.events.len(), self.bytes);
        events > limits.ring_events
            || (bytes > limits.ring_bytes && events > limits.ring_minimum)
            || (bytes > limits.ring_bytes_max && events > 1)
    }

    /// Drops the oldest changes beyond the limits.
    pub fn trim(&mut self, limits: &Limits) {
        while self.exceeds(limits) {
            self.take_oldest(1);
        }
    }

    /// Takes out the changes that are `age` old at `now`; the caller frees them, after it has let go of its lock.
    pub fn take_expired(&mut self, age: Duration, now: Duration) -> Vec<Arc<CacheEvent>> {
        let expired = self.events.partition_point(|event| event.seen + age <= now);
        let gone = self.take_oldest(expired);
        if self.events.capacity() > 4 * self.events.len() {
            self.events.shrink_to_fit();
        }
        gone
    }

    /// Takes out the oldest `count` changes, or more: those of one revision go together.
    fn take_oldest(&mut self, count: usize) -> Vec<Arc<CacheEvent>> {
        let Some(revision) = count.checked_sub(1).and_then(|last| self.events.get(last)).map(|event| event.revision)
        else {
            return Vec::new();
        };
        let until = self.events.partition_point(|event| event.revision <= revision);
        let gone: Vec<_> = self.events.drain(..until).collect();
        self.first += gone.len() as u64;
        self.bytes -= gone.iter().map(|event| event.size_bytes()).sum::<usize>();
        // Who has seen one of several changes of a revision may have missed another.
        let together = gone.iter().rev().take_while(|event| event.revision == revision).count();
        self.complete_since = if together > 1 { revision + 1 } else { revision };
        gone
    }
}
