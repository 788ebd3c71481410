//! Pods that Permit plugins hold back: each plugin allows its pod, rejects it, or runs out of time.
//! Filled and drained by `scheduler`; plugins allow and reject through a clone, from any task.
//! No more pods than are in flight; one that is gone is removed by `scheduler`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// No plugin may hold a pod for longer.
const PERMIT_TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

/// Cheap to clone; all clones share.
#[derive(Clone, Default)]
pub struct WaitingPods(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pods: Mutex<BTreeMap<String, WaitingPod>>,
    decided: Notify,
}

struct WaitingPod {
    /// Deadline and timeout of each plugin that has not allowed the pod yet.
    pending: BTreeMap<&'static str, (Duration, Duration)>,
    rejection: Option<Rejection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub plugin: &'static str,
    pub message: String,
}

impl WaitingPods {
    /// `timeouts` by plugin; `now` is monotonic time.
    pub fn add(&self, pod: &str, timeouts: &[(&'static str, Duration)], now: Duration) {
        let pending = timeouts.iter().map(|(plugin, timeout)| {
            let timeout = (*timeout).min(PERMIT_TIMEOUT_MAX);
            (*plugin, (now + timeout, timeout))
        });
        let waiting = WaitingPod { pending: pending.collect(), rejection: None };
        self.0.pods.lock().insert(pod.to_string(), waiting);
    }

    pub fn remove(&self, pod: &str) {
        self.0.pods.lock().remove(pod);
    }

    /// `namespace/name` of those that wait for this plugin.
    pub fn waiting_for(&self, plugin: &str) -> Vec<String> {
        let pods = self.0.pods.lock();
        pods.iter().filter(|(_, pod)| pod.pending.contains_key(plugin)).map(|(key, _)| key.clone()).collect()
    }

    /// The plugin has nothing against the pod any more. It goes on once all of them have said so.
    pub fn allow(&self, pod: &str, plugin: &str) {
        let mut pods = self.0.pods.lock();
        if let Some(waiting) = pods.get_mut(pod)
            && waiting.pending.remove(plugin).is_some()
            && waiting.pending.is_empty()
        {
            self.0.decided.notify_one();
        }
    }

    /// Turns the pod down. The first rejection counts.
    pub fn reject(&self, pod: &str, plugin: &'static str, message: impl Into<String>) {
        let mut pods = self.0.pods.lock();
        if let Some(waiting) = pods.get_mut(pod).filter(|waiting| waiting.rejection.is_none()) {
            waiting.rejection = Some(Rejection { plugin, message: message.into() });
            self.0.decided.notify_one();
        }
    }

    /// Takes out the pods that need wait no longer: allowed by all, rejected, or out of time.
    pub fn take_decided(&self, now: Duration) -> Vec<(String, Result<(), Rejection>)> {
        let mut pods = self.0.pods.lock();
        if pods.is_empty() {
            return Vec::new();
        }
        let decided: Vec<_> = pods.iter().filter_map(|(key, pod)| Some((key.clone(), pod.verdict(now)?))).collect();
        for (key, _) in &decided {
            pods.remove(key);
        }
        decided
    }

    /// Returns when `take_decided` may have something to give.
    pub async fn decided(&self) {
        self.0.decided.notified().await;
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let pods = self.0.pods.lock();
        pods.values().flat_map(|pod| pod.pending.values()).map(|(deadline, _)| *deadline).min()
    }
}

impl WaitingPod {
    fn verdict(&self, now: Duration) -> Option<Result<(), Rejection>> {
        if let Some(rejection) = &self.rejection {
            return Some(Err(rejection.clone()));
        }
        if self.pending.is_empty() {
            return Some(Ok(()));
        }
        let (plugin, (_, timeout)) = self.pending.iter().find(|(_, (deadline, _))| *deadline <= now)?;
        let message = format!("rejected due to timeout after waiting {timeout:?} at plugin {plugin}");
        Some(Err(Rejection { plugin, message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pod_goes_on_once_every_plugin_allows_it() {
        let waiting = WaitingPods::default();
        waiting.add("d/p", &[("A", SECOND), ("B", 2 * SECOND)], Duration::ZERO);
        assert_eq!((waiting.waiting_for("A"), waiting.next_deadline()), (vec!["d/p".to_string()], Some(SECOND)));
        waiting.allow("d/p", "A");
        assert_eq!((waiting.waiting_for("A"), waiting.take_decided(SECOND)), (vec![], vec![]));
        waiting.allow("d/p", "B");
        assert_eq!(waiting.take_decided(SECOND), [("d/p".to_string(), Ok(()))]);
        assert_eq!((waiting.take_decided(SECOND), waiting.next_deadline()), (vec![], None));
    }

    #[test]
    fn rejections_and_timeouts_name_the_plugin() {
        let waiting = WaitingPods::default();
        let err = |plugin, message: &str| Err(Rejection { plugin, message: message.into() });
        waiting.add("d/p", &[("A", SECOND), ("B", 2 * SECOND)], Duration::ZERO);
        waiting.reject("d/p", "B", "not today");
        waiting.reject("d/p", "A", "nor tomorrow");
        assert_eq!(waiting.take_decided(Duration::ZERO), [("d/p".to_string(), err("B", "not today"))]);
        waiting.add("d/q", &[("A", SECOND)], Duration::ZERO);
        assert_eq!(waiting.take_decided(SECOND - Duration::from_millis(1)), []);
        let late = err("A", "rejected due to timeout after waiting 1s at plugin A");
        assert_eq!(waiting.take_decided(SECOND), [("d/q".to_string(), late)]);
        waiting.add("d/long", &[("A", 100 * PERMIT_TIMEOUT_MAX)], Duration::ZERO);
        assert_eq!(waiting.next_deadline(), Some(PERMIT_TIMEOUT_MAX));
        waiting.remove("d/long");
        assert_eq!(waiting.next_deadline(), None);
    }
}
