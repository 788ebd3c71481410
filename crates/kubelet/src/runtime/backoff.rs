//! Back-off per key: each failure doubles the wait, a long quiet time resets it.
//! Used for crashing containers (by `pod_workers`) and for failing pulls (by `image_manager`).
//! Time is an argument.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

/// One that fails only this long after its last attempt begins anew, however short the longest wait is.
const RESET_INTERVAL: Duration = Duration::from_secs(600);

pub struct Backoff {
    delays: env::Backoff,
    entries: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    delays: env::Backoff,
    wait: Duration,
    /// When the wait was last (re)started.
    since: Duration,
}

impl Backoff {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { delays: env::Backoff::new(first, longest), entries: Mutex::default() }
    }

    /// How much longer the key must wait at `now`, measured from `event` (the failure); `None` when it need not.
    pub fn remaining(&self, key: &str, event: Duration, now: Duration) -> Option<(Duration, Duration)> {
        let entries = self.entries.lock();
        let entry = entries.get(key)?;
        if event.saturating_sub(entry.since) > RESET_INTERVAL {
            return None;
        }
        let until = event + entry.wait;
        (now < until).then(|| (until - now, entry.wait))
    }

    /// Records an attempt after the failure at `event`: the next failure waits longer.
    pub fn next(&self, key: &str, event: Duration, now: Duration) {
        let mut entries = self.entries.lock();
        match entries.get_mut(key) {
            Some(entry) if event.saturating_sub(entry.since) <= RESET_INTERVAL => {
                entry.wait = entry.delays.next_delay();
                entry.since = now;
            }
            _ => {
                let mut delays = self.delays;
                let wait = delays.next_delay();
                entries.insert(key.into(), Entry { delays, wait, since: now });
            }
        }
    }

    pub fn reset(&self, key: &str) {
        self.entries.lock().remove(key);
    }

    /// Forgets every key of a pod that is gone.
    pub fn forget(&self, prefix: &str) {
        self.entries.lock().retain(|key, _| !key.starts_with(prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_reset_after_quiet() {
        let seconds = Duration::from_secs;
        let backoff = Backoff::new(seconds(10), seconds(300));
        let mut now = seconds(1000);
        assert_eq!(backoff.remaining("a", now, now), None);
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoff.next("a", now, now);
            assert_eq!(backoff.remaining("a", now, now), Some((seconds(expected), seconds(expected))));
            now += seconds(expected);
            assert_eq!(backoff.remaining("a", now - seconds(expected), now), None);
        }
        now += seconds(601);
        backoff.next("a", now, now);
        assert_eq!(backoff.remaining("a", now, now + seconds(4)), Some((seconds(6), seconds(10))));
    }

    /// How long something ran decides, not how long it waited afterwards.
    #[test]
    fn a_long_wait_is_no_quiet_time() {
        let seconds = Duration::from_secs;
        let backoff = Backoff::new(seconds(10), seconds(300));
        let mut started = seconds(1000);
        for _ in 0..8 {
            backoff.next("a", started, started);
        }
        for _ in 0..3 {
            let failed = started + seconds(400);
            assert_eq!(backoff.remaining("a", failed, failed + seconds(250)), Some((seconds(50), seconds(300))));
            started = failed + seconds(300);
            assert_eq!(backoff.remaining("a", failed, started), None);
            backoff.next("a", failed, started);
        }
        let failed = started + seconds(601);
        assert_eq!(backoff.remaining("a", failed, failed), None);
    }
}
