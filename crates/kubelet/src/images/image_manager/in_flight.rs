//! At most one piece of work per key; who comes later waits in line.
//! Used by `image_manager`: several pods that need one image pull it once.
//! An `InFlight` is not a lock over data. It is held across awaits by design, and what its holder and those in line
//! share they look up again. A key is kept only while somebody holds it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Those that wait, by key; a key without any is held and nobody waits.
type Lines = Mutex<HashMap<String, VecDeque<oneshot::Sender<InFlight>>>>;

#[derive(Default)]
pub struct InFlightKeys(Arc<Lines>);

/// The right to work on a key, handed on to the next in line when it is dropped.
pub struct InFlight {
    lines: Arc<Lines>,
    key: String,
}

impl InFlightKeys {
    /// Waits until nobody works on the key; those who came first are first.
    pub async fn enter(&self, key: &str) -> InFlight {
        loop {
            let given = {
                let mut lines = self.0.lock();
                let Some(line) = lines.get_mut(key) else {
                    lines.insert(key.into(), VecDeque::new());
                    return InFlight { lines: self.0.clone(), key: key.into() };
                };
                let (give, given) = oneshot::channel();
                line.push_back(give);
                given
            };
            if let Ok(in_flight) = given.await {
                return in_flight;
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let next = {
            let mut lines = self.lines.lock();
            let next = lines.get_mut(&self.key).and_then(VecDeque::pop_front);
            if next.is_none() {
                lines.remove(&self.key);
            }
            next
        };
        let Some(next) = next else { return };
        // One that no longer waits drops it at once, and so hands it on.
        drop(next.send(Self { lines: self.lines.clone(), key: self.key.clone() }));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_for_each_key_and_in_order() {
        let keys = InFlightKeys::default();
        let held = keys.enter("a").await;
        assert!(keys.enter("b").now_or_never().is_some(), "other keys do not wait");
        let mut lines: Vec<_> = (0..3).map(|_| Box::pin(keys.enter("a"))).collect();
        for waiting in &mut lines {
            assert!(futures::poll!(waiting).is_pending());
        }
        // One gives up while it waits.
        drop(lines.remove(1));
        drop(held);
        let (mut first, mut last) = (lines.remove(0), lines.remove(0));
        assert!(futures::poll!(&mut last).is_pending());
        let first = (&mut first).now_or_never().expect("it came first");
        drop(first);
        drop(last.now_or_never().expect("it is alone"));
        assert!(keys.0.lock().is_empty());
    }

    #[tokio::test]
    async fn one_that_gives_up_after_it_was_given_the_key_hands_it_on() {
        let keys = InFlightKeys::default();
        let held = keys.enter("a").await;
        let mut waiting = Box::pin(keys.enter("a"));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting);
        assert!(keys.enter("a").now_or_never().is_some());
        assert!(keys.0.lock().is_empty());
    }
}
