//! Which pods are to be looked at again: told by `pleg`, probes, watched objects and resizes, read by `sync_loop`.
//! A pod that is waiting to be looked at is not noted twice, so there are never more than pods; beyond
//! `WAITING_PODS_MAX` all of them are looked at.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Far more than a node runs; foreign pods of the runtime count too.
const WAITING_PODS_MAX: usize = 16_384;

#[derive(Debug, PartialEq, Eq)]
pub enum Wake {
    /// By UID.
    Pod(String),
    /// There were too many to know which.
    AllPods,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<Arc<str>>,
    uids: HashSet<Arc<str>>,
    all: bool,
}

#[derive(Clone, Default)]
pub struct PodWakes {
    waiting: Arc<Mutex<Waiting>>,
    changed: Arc<Notify>,
}

impl PodWakes {
    /// Never waits.
    pub fn wake(&self, uid: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.all || waiting.uids.contains(uid) {
            return;
        }
        if waiting.uids.len() < WAITING_PODS_MAX {
            let uid: Arc<str> = uid.into();
            waiting.order.push_back(uid.clone());
            waiting.uids.insert(uid);
        } else {
            *waiting = Waiting { all: true, ..Waiting::default() };
        }
        self.changed.notify_one();
    }

    /// The pod that has waited longest. For one reader.
    pub async fn next(&self) -> Wake {
        loop {
            if let Some(wake) = self.take() {
                return wake;
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<Wake> {
        let mut waiting = self.waiting.lock();
        if std::mem::take(&mut waiting.all) {
            return Some(Wake::AllPods);
        }
        let uid = waiting.order.pop_front()?;
        waiting.uids.remove(&uid);
        Some(Wake::Pod(uid.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_pod_waits_once_and_in_order() {
        let wakes = PodWakes::default();
        assert!(wakes.next().now_or_never().is_none());
        ["a", "b", "a"].into_iter().for_each(|uid| wakes.wake(uid));
        assert_eq!(wakes.next().await, Wake::Pod("a".into()));
        wakes.wake("a");
        assert_eq!(wakes.next().await, Wake::Pod("b".into()));
        assert_eq!(wakes.next().await, Wake::Pod("a".into()));
        assert!(wakes.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn too_many_are_all() {
        let wakes = PodWakes::default();
        (0..=WAITING_PODS_MAX).for_each(|number| wakes.wake(&number.to_string()));
        assert_eq!(wakes.next().await, Wake::AllPods);
        assert!(wakes.next().now_or_never().is_none());
        wakes.wake("a");
        assert_eq!(wakes.next().await, Wake::Pod("a".into()));
    }
}
