//! Hands events to watchers in revision order and ends those that cannot keep up.
//! Fed by `Core::apply`; a `Watching` stream drains one watcher.
//! Invariant: never waits for a watcher.

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
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Past, Value};
use crate::{Event, Revision, StoreError, WatchItem};

/// Progress is told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

struct Watcher {
    start: String,
    end: String,
    from: Revision,
    /// The last revision it was told of, by event or progress.
    told: Revision,
    sender: UnboundedSender<WatchItem>,
    backpressure: Arc<Backpressure>,
}

/// The channel has no bound of its own: a group of writes is delivered at once, so events are counted instead.
#[derive(Default)]
struct Backpressure {
    queued: AtomicUsize,
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
        backlog: VecDeque<Past<V>>,
    ) -> Watching<V> {
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        let (sender, receiver) = unbounded_channel();
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
        self.watchers.retain_mut(|watcher| {
            // A watcher with events still queued learns its progress from those.
            if watcher.told >= revision || watcher.backpressure.queued.load(Ordering::Relaxed) > 0 {
                return !watcher.sender.is_closed();
            }
            watcher.told = revision;
            watcher.sender.send(WatchItem::Progress(revision)).is_ok()
        });
    }
}

impl Watcher {
    /// False when the watcher is to be dropped.
    fn publish(&mut self, events: &[Event], limit: usize) -> bool {
        let inside = |event: &&Event| event.revision >= self.from && self.start <= event.key && event.key < self.end;
        let mine: Vec<Event> = events.iter().filter(inside).cloned().collect();
        let Some(last) = mine.last().map(|event| event.revision) else { return true };
        let queued = self.backpressure.queued.fetch_add(mine.len(), Ordering::Relaxed) + mine.len();
        if queued > limit {
            self.backpressure.too_slow.store(true, Ordering::Relaxed);
            return false;
        }
        self.told = last;
        self.sender.send(WatchItem::Events(mine)).is_ok()
    }
}

/// One watch: first the past, then how far that was, then what happens.
pub(crate) struct Watching<V> {
    backlog: VecDeque<Past<V>>,
    progress: Option<Revision>,
    receiver: UnboundedReceiver<WatchItem>,
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
                if let WatchItem::Events(events) = &item {
                    self.backpressure.queued.fetch_sub(events.len(), Ordering::Relaxed);
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
