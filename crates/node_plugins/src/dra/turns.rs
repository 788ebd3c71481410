//! One operation at a time for each claim: what prepares one does not overtake what unprepares it.
//! Used by `manager`.
//! A caller has all its claims or none, so that no two wait for each other.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub struct ClaimTurns {
    busy: Mutex<BTreeSet<String>>,
    freed: Notify,
}

pub struct ClaimTurn<'a> {
    turns: &'a ClaimTurns,
    keys: BTreeSet<String>,
}

impl ClaimTurns {
    pub async fn enter(&self, keys: BTreeSet<String>) -> ClaimTurn<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Before the look, so that nothing is missed between it and the wait.
            freed.as_mut().enable();
            {
                let mut busy = self.busy.lock();
                if busy.is_disjoint(&keys) {
                    busy.extend(keys.iter().cloned());
                    return ClaimTurn { turns: self, keys };
                }
            }
            freed.await;
        }
    }
}

impl Drop for ClaimTurn<'_> {
    fn drop(&mut self) {
        self.turns.busy.lock().retain(|key| !self.keys.contains(key));
        self.turns.freed.notify_waiters();
    }
}
