//! Hands events to watchers in revision order and ends those that cannot keep up.
//! Fed by `Core::apply`; a `Watching` stream drains one watcher.
//! Invariant: never waits for a watcher, and keeps at most `buffer_events` events and one progress for each (type: the
//! channel's bound). A slower one gets `Unavailable`; it may watch again from where it was.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{PastEvent, Value};
use crate::{Event, Revision, StoreError, WatchItem};

/// Progress is told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

struct Watcher {
    start: String,
    end: String,
    from: Revision,
    /// The last revision it was told of, by event or progress.
    told: Revision,
    sender: Sender<WatchItem>,
    backpressure: Arc<Backpressure>,
}

/// The channel counts items, each the events of a transaction; this counts the events in them.
#[derive(Default)]
struct Backpressure {
    queued_events: AtomicUsize,
    progress_queued: AtomicBool,
    too_slow: AtomicBool,
}

pub(crate) struct Hub {
    watchers: Vec<Watcher>,
    buffer_events: usize,
    progress_due: Option<Duration>,
}

impl Hub {
    pub fn new(buffer_events: usize) -> Self {
        Self { watchers: Vec::new(), buffer_events, progress_due: None }
    }

    /// Watches from the moment `current` was reached on; `backlog` is what happened before.
    pub fn register<V: Value>(
        &mut self,
        range: (String, String),
        from: Revision,
        current: Revision,
        backlog: VecDeque<PastEvent<V>>,
    ) -> Watching<V> {
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        // An item has an event or more, so as many items as events; and one progress.
        let (sender, receiver) = channel(self.buffer_events + 1);
        let backpressure = Arc::<Backpressure>::default();
        let (start, end) = range;
        let watcher = Watcher { start, end, from, told: current, sender, backpressure: backpressure.clone() };
        self.watchers.push(watcher);
        Watching { backlog, progress: Some(current), receiver, backpressure, ended: false }
    }

    /// The events of one transaction.
    pub fn publish(&mut self, events: &[Event]) {
        let limit = self.buffer_events;
        self.watchers.retain_mut(|watcher| watcher.publish(events, limit));
    }

    /// After writes: the watchers that saw nothing of them will hear how far they are.
    pub fn schedule_progress(&mut self, now: Duration) {
        if self.progress_due.is_none() && !self.watchers.is_empty() {
            self.progress_due = Some(now + PROGRESS_INTERVAL);
        }
    }

    pub fn progress_due(&self) -> Option<Duration> {
        self.progress_due
    }

    pub fn tell_progress(&mut self, revision: Revision, now: Duration) {
        if self.progress_due.is_none_or(|due| due > now) {
            return;
        }
        self.progress_due = None;
        let mut behind = false;
        self.watchers.retain_mut(|watcher| {
            if watcher.told >= revision {
                return !watcher.sender.is_closed();
            }
            // A watcher that has not read what it was told before hears of it the next time.
            if watcher.backpressure.is_behind() {
                behind |= !watcher.sender.is_closed();
                return !watcher.sender.is_closed();
            }
            watcher.told = revision;
            watcher.backpressure.progress_queued.store(true, Ordering::Relaxed);
            watcher.sender.try_send(WatchItem::Progress(revision)).is_ok()
        });
        if behind {
            self.schedule_progress(now);
        }
    }
}

impl Backpressure {
    fn is_behind(&self) -> bool {
        self.queued_events.load(Ordering::Relaxed) > 0 || self.progress_queued.load(Ordering::Relaxed)
    }
}

impl Watcher {
    /// False when the watcher is to be dropped.
    fn publish(&mut self, events: &[Event], limit: usize) -> bool {
        let inside = |event: &&Event| event.revision >= self.from && self.start <= event.key && event.key < self.end;
        let mine: Vec<Event> = events.iter().filter(inside).cloned().collect();
        let Some(last) = mine.last().map(|event| event.revision) else { return true };
        let queued = self.backpressure.queued_events.fetch_add(mine.len(), Ordering::Relaxed) + mine.len();
        if queued > limit || self.sender.capacity() == 0 {
            self.backpressure.too_slow.store(true, Ordering::Relaxed);
            return false;
        }
        self.told = last;
        self.sender.try_send(WatchItem::Events(mine)).is_ok()
    }
}

/// One watch: first the past, then how far that was, then what happens.
pub(crate) struct Watching<V> {
    backlog: VecDeque<PastEvent<V>>,
    progress: Option<Revision>,
    receiver: Receiver<WatchItem>,
    backpressure: Arc<Backpressure>,
    ended: bool,
}

impl<V: Value> Watching<V> {
    /// All events of the next past revision.
    fn next_past(&mut self) -> Option<Result<Vec<Event>, StoreError>> {
        let revision = self.backlog.front()?.revision;
        let mut events = Vec::new();
        while let Some(past) = self.backlog.pop_front_if(|past| past.revision == revision) {
            match past.read() {
                Ok(event) => events.push(event),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(events))
    }
}

impl<V: Value> Stream for Watching<V> {
    type Item = Result<WatchItem, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(past) = self.next_past() {
            self.ended = past.is_err();
            return Poll::Ready(Some(past.map(WatchItem::Events)));
        }
        if let Some(revision) = self.progress.take() {
            return Poll::Ready(Some(Ok(WatchItem::Progress(revision))));
        }
        let Poll::Ready(item) = self.receiver.poll_recv(context) else { return Poll::Pending };
        let item = match item {
            Some(item) => {
                let waiting = &self.backpressure;
                match &item {
                    WatchItem::Events(events) => {
                        waiting.queued_events.fetch_sub(events.len(), Ordering::Relaxed);
                    }
                    WatchItem::Progress(_) => waiting.progress_queued.store(false, Ordering::Relaxed),
                }
                Ok(item)
            }
            None => {
                self.ended = true;
                let slow = self.backpressure.too_slow.load(Ordering::Relaxed);
                Err(StoreError::Unavailable(if slow { "watcher too slow" } else { "store is closed" }.into()))
            }
        };
        Poll::Ready(Some(item))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::{FutureExt, StreamExt};

    use super::*;

    fn next(watching: &mut Watching<Bytes>) -> Option<Revision> {
        match watching.next().now_or_never()?? {
            Ok(WatchItem::Progress(revision)) => Some(revision),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_watcher_that_does_not_read_has_one_progress_waiting_and_hears_of_the_newest_later() {
        let mut hub = Hub::new(4);
        let mut watching = hub.register::<Bytes>(("a".into(), "b".into()), 1, 0, VecDeque::new());
        assert_eq!(next(&mut watching), Some(0), "where it starts");
        let mut now = Duration::ZERO;
        for revision in 1..100 {
            hub.schedule_progress(now);
            now += PROGRESS_INTERVAL;
            hub.tell_progress(revision, now);
        }
        assert_eq!((next(&mut watching), next(&mut watching)), (Some(1), None), "one, whatever happened since");
        let due = hub.progress_due().expect("it is told although nothing more is written");
        hub.tell_progress(99, due);
        assert_eq!(next(&mut watching), Some(99));
        assert_eq!(hub.progress_due(), None, "nobody is behind");
    }
}
