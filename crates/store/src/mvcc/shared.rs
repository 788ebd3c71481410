//! The reading half of a store over `Core`, and the timer that wakes it: the same for `memory` and `embedded`.
//! Writes come from `memory` (in place) or from the sequencer of `embedded`.
//! Invariant: the lock is never held while waiting (clippy: `await_holding_lock`) or while values are read for a range.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use env::Env;
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::{Core, Value, group::Write, index::RangeEntry};
use crate::{Limits, Range, RangeResult, Record, Revision, StoreError, WatchStream};

/// After the timer fired, how long at least until it looks again: what was due may still be on its way to disk.
const TIMER_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Ranges longer than this are read off the async threads.
const INLINE_READS_MAX: usize = 32;

pub(crate) struct Shared<V> {
    pub core: RwLock<Core<V>>,
    pub env: Env,
    wake: Arc<Notify>,
    timer: OnceLock<()>,
}

impl<V: Value> Shared<V> {
    pub fn new(env: Env, limits: Limits) -> Arc<Self> {
        let core = RwLock::new(Core::new(limits));
        Arc::new(Self { core, env, wake: Arc::default(), timer: OnceLock::new() })
    }

    pub fn wall_ms(&self) -> u64 {
        self.env.now().as_millisecond().max(0) as u64
    }

    /// Starts the timer once; `tick` is called when something is due and must not wait. Needs a tokio runtime, so it
    /// is called by everything async.
    pub fn start_timer(self: &Arc<Self>, tick: impl Fn(&Arc<Self>) + Send + 'static) {
        self.timer.get_or_init(|| {
            let (weak, wake, env) = (Arc::downgrade(self), self.wake.clone(), self.env.clone());
            self.env.spawn(run_timer(weak, wake, env, tick));
        });
    }

    /// Takes durable writes in, each with where its puts landed, and wakes the timer if something is due sooner now.
    pub fn commit(&self, writes: impl IntoIterator<Item = (Write, Vec<V>)>) {
        let (now, wall_ms) = (self.env.monotonic(), self.wall_ms());
        let mut core = self.core.write();
        let due_before = core.next_wake(now, wall_ms);
        for (write, values) in writes {
            core.apply(write, values, now);
        }
        core.hub.schedule_progress(now);
        if core.next_wake(now, wall_ms).is_some_and(|due| due_before.is_none_or(|before| due < before)) {
            self.wake.notify_one();
        }
    }

    pub fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let found = {
            let core = self.core.read();
            core.index.newest(key).and_then(|v| Some((v.revision, v.live.clone()?)))
        };
        found.map(|(revision, live)| record(RangeEntry { key: key.into(), revision, live })).transpose()
    }

    pub async fn range(&self, range: &Range) -> Result<ReadRange, StoreError> {
        let (found, remaining, revision) = {
            let core = self.core.read();
            let revision = core.readable(range.revision)?;
            let (found, remaining) = core.index.range(&range.start, &range.end, range.limit, revision);
            (found, remaining, revision)
        };
        let short = V::IN_MEMORY || found.len() <= INLINE_READS_MAX;
        let read = move || read_all(found);
        let (records, damaged) = if short {
            read()?
        } else {
            env::spawn_blocking(read).await.map_err(|e| StoreError::Unavailable(e.to_string()))??
        };
        Ok(ReadRange { result: RangeResult { records, remaining, revision }, damaged })
    }

    pub fn count(&self, start: &str, end: &str) -> u64 {
        self.core.read().index.count(start, end)
    }

    pub fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        let mut core = self.core.write();
        let current = core.revision();
        let from = if from == 0 { current + 1 } else { from };
        if from < core.floor() {
            return Err(StoreError::Compacted { requested: from, oldest: core.floor() });
        }
        let backlog = core.backlog(start, end, from);
        Ok(Box::pin(core.hub.register((start.to_string(), end.to_string()), from, current, backlog)))
    }

    /// What the timer does that needs no write.
    pub fn tell_progress(&self) {
        let now = self.env.monotonic();
        let mut core = self.core.write();
        let revision = core.revision();
        core.hub.tell_progress(revision, now);
    }
}

impl<V> Drop for Shared<V> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// What a range found.
pub(crate) struct ReadRange {
    result: RangeResult,
    /// Keys whose values are damaged; `result` lacks them.
    pub damaged: Vec<(Arc<str>, StoreError)>,
}

impl ReadRange {
    /// Everything in the range, or what is wrong with the first that can't be read.
    pub fn whole(mut self) -> Result<RangeResult, StoreError> {
        match self.damaged.is_empty() {
            true => Ok(self.result),
            false => Err(self.damaged.swap_remove(0).1),
        }
    }
}

type Read = (Vec<Record>, Vec<(Arc<str>, StoreError)>);

/// Looks at all of them, so that what is damaged can be repaired together.
fn read_all<V: Value>(found: Vec<RangeEntry<V>>) -> Result<Read, StoreError> {
    let (mut records, mut damaged) = (Vec::with_capacity(found.len()), Vec::new());
    for entry in found {
        let key = entry.key.clone();
        match record(entry) {
            Ok(read) => records.push(read),
            Err(error @ StoreError::Corrupted(_)) => damaged.push((key, error)),
            Err(error) => return Err(error),
        }
    }
    Ok((records, damaged))
}

fn record<V: Value>(found: RangeEntry<V>) -> Result<Record, StoreError> {
    Ok(Record {
        value: found.live.value.read(&found.key, found.revision)?,
        key: found.key.to_string(),
        create_revision: found.live.created,
        mod_revision: found.revision,
    })
}

async fn run_timer<V: Value>(
    shared: Weak<Shared<V>>,
    wake: Arc<Notify>,
    env: Env,
    tick: impl Fn(&Arc<Shared<V>>) + Send + 'static,
) {
    let mut pause = Duration::ZERO;
    loop {
        let due = match shared.upgrade() {
            Some(shared) => shared.core.read().next_wake(env.monotonic(), shared.wall_ms()),
            None => return,
        };
        match due {
            None => wake.notified().await,
            Some(due) => {
                tokio::select! {
                    biased;
                    () = env.sleep(due.max(pause)) => {
                        let Some(shared) = shared.upgrade() else { return };
                        tick(&shared);
                        pause = TIMER_INTERVAL_MIN;
                        continue;
                    }
                    () = wake.notified() => {}
                }
            }
        }
        pause = Duration::ZERO;
    }
}
