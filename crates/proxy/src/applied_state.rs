//! Which pods the kernel's rules may still send new connections to, and how much of the cluster's news they hold.
//! Written by `run` after a transaction went through; read by the agent before a pod is stopped, on this node and,
//! through the kubelet's server, on others.
//! Invariant: says "withdrawn" only of rules that were published without the pod (test:
//! `a_pod_is_withdrawn_when_its_last_service_stops_using_it`).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::model::PodUid;

/// Cheap to clone; every clone sees the same.
#[derive(Clone)]
pub struct AppliedState(Arc<Inner>);

struct Inner {
    pods: RwLock<HashMap<PodUid, PodUses>>,
    applied: watch::Sender<Applied>,
    full_writes: AtomicU64,
}

/// How many Services have the pod among their endpoints, and how many send it new connections.
#[derive(Debug, Clone, Copy, Default)]
struct PodUses {
    known: u32,
    used: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Counts the transactions that went through; 0 before the first.
    pub generation: u64,
    /// The resourceVersion of the newest EndpointSlice in the rules.
    pub version: u64,
}

impl std::fmt::Debug for AppliedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppliedState").field("applied", &*self.0.applied.borrow()).finish_non_exhaustive()
    }
}

impl Default for AppliedState {
    fn default() -> Self {
        Self(Arc::new(Inner {
            pods: RwLock::default(),
            applied: watch::Sender::new(Applied::default()),
            full_writes: AtomicU64::new(0),
        }))
    }
}

impl AppliedState {
    pub fn applied(&self) -> watch::Receiver<Applied> {
        self.0.applied.subscribe()
    }

    /// Returns once there are rules.
    pub async fn begun(&self) {
        // The sender lives as long as `self`.
        let _ = self.applied().wait_for(|applied| applied.generation > 0).await;
    }

    /// How often all rules were written at once: at the start, and after damage. Everything else is incremental.
    pub fn full_writes(&self) -> u64 {
        self.0.full_writes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_full_write(&self) {
        self.0.full_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether any Service has the pod among its endpoints, in whatever state.
    pub fn knows(&self, pod: PodUid) -> bool {
        self.0.pods.read().contains_key(&pod)
    }

    /// Whether a rule may send new connections to the pod although nobody said that it ends.
    pub fn uses(&self, pod: PodUid) -> bool {
        self.0.pods.read().get(&pod).is_some_and(|uses| uses.used > 0)
    }

    /// Returns once this node's rules hold what is known at `version` and no longer use the pod, with the version
    /// that they hold then. Bound the wait: a slice that somebody else keeps may name the pod for ever.
    pub async fn withdrawn(&self, pod: PodUid, version: u64) -> u64 {
        let mut applied = self.0.applied.subscribe();
        loop {
            let held = applied.borrow_and_update().version;
            if held >= version && !self.uses(pod) {
                return held;
            }
            if applied.changed().await.is_err() {
                return held;
            }
        }
    }

    /// One Service's pods before and after.
    pub fn replace(&self, old: &[(PodUid, bool)], new: &[(PodUid, bool)]) {
        if old == new {
            return;
        }
        let mut pods = self.0.pods.write();
        for (pod, used) in new {
            let uses = pods.entry(*pod).or_default();
            uses.known += 1;
            uses.used += u32::from(*used);
        }
        for (pod, used) in old {
            if let Some(uses) = pods.get_mut(pod) {
                uses.known -= 1;
                uses.used -= u32::from(*used);
                if uses.known == 0 {
                    pods.remove(pod);
                }
            }
        }
    }

    /// A transaction went through; the rules hold what was known at `version`.
    pub fn publish(&self, version: u64) {
        self.0.applied.send_modify(|applied| {
            applied.generation += 1;
            applied.version = version;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8) -> PodUid {
        PodUid::parse(&format!("00000000-0000-0000-0000-0000000000{last:02x}")).unwrap()
    }

    #[tokio::test]
    async fn a_pod_is_withdrawn_when_its_last_service_stops_using_it() {
        let applied_state = AppliedState::default();
        let pod = pod(1);
        assert_eq!(applied_state.withdrawn(pod, 0).await, 0, "a pod in no Service waits for nothing");
        applied_state.replace(&[], &[(pod, true)]);
        applied_state.replace(&[], &[(pod, true)]);
        applied_state.replace(&[(pod, true)], &[(pod, false)]);
        applied_state.publish(7);
        assert!(applied_state.uses(pod));
        let waiter = env::spawn({
            let applied_state = applied_state.clone();
            async move { applied_state.withdrawn(pod, 7).await }
        });
        applied_state.replace(&[(pod, true)], &[]);
        applied_state.publish(8);
        assert_eq!(waiter.await.unwrap(), 8);
        assert!(applied_state.knows(pod), "one Service still lists it");
        applied_state.replace(&[(pod, false)], &[]);
        assert!(!applied_state.knows(pod));
    }

    #[tokio::test]
    async fn rules_that_lag_behind_do_not_confirm() {
        let applied_state = AppliedState::default();
        applied_state.publish(3);
        let lagging = applied_state.withdrawn(pod(1), 4);
        tokio::pin!(lagging);
        assert!(futures::poll!(lagging.as_mut()).is_pending());
        applied_state.publish(5);
        assert_eq!(lagging.await, 5);
    }

    #[test]
    fn uids_are_uuids() {
        assert!(PodUid::parse("5d6c1f0e-88a7-4a3e-9d8e-0f6b8f4d2a11").is_some());
        for text in ["", "web", "5d6c1f0e-88a7-4a3e-9d8e-0f6b8f4d2a1", "5d6c1f0e-88a7-4a3e-9d8e-0f6b8f4d2a11ff"] {
            assert_eq!(PodUid::parse(text), None, "{text}");
        }
    }
}
