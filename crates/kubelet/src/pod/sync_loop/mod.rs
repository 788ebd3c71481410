//! Brings all news to the pods they concern: pods from every source, runtime events, probe results, changed objects.
//! Runs for as long as the node does; everything slow happens in `pod_workers`.
//! Never waits for a pod.

mod mirror;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::Informer;
use env::Env;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    node::node_metrics::REQUESTED_RESIZES,
    pod::{
        pod_spec,
        pod_status::{OWNED, is_terminal},
        pod_wakes::{PodWakes, Wake},
        pod_workers::PodWorkers,
    },
    resources::{
        allocation::{self, Allocation},
        allocation_manager::{POD_RESIZED, POD_UPDATED, PODS_REMOVED},
    },
    sources::{Source, StaticPods},
};

/// The sync loop turns at least this often, to show that it does.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// A sync loop that has not turned for this long hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// When the sync loop last turned; health checks read it.
pub struct SyncLoopHealth {
    env: Env,
    last: Mutex<Duration>,
}

impl SyncLoopHealth {
    pub fn new(env: Env) -> Self {
        let last = Mutex::new(env.monotonic());
        Self { env, last }
    }

    fn record_turn(&self) {
        *self.last.lock() = self.env.monotonic();
    }

    pub fn is_alive(&self) -> bool {
        self.env.monotonic().saturating_sub(*self.last.lock()) < STALL_TIMEOUT
    }
}

pub struct SyncLoop {
    pub health: Arc<SyncLoopHealth>,
    pub workers: Arc<PodWorkers>,
    pub api_pods: Informer<Pod>,
    pub static_pods: mpsc::Receiver<StaticPods>,
    pub wakes: PodWakes,
    pub shutdown: CancellationToken,
}

impl SyncLoop {
    pub async fn run(mut self) {
        let mut changes = self.api_pods.subscribe();
        let mut known: HashMap<Source, Vec<Arc<Pod>>> = HashMap::new();
        // The pods that were here before us, once they are known.
        let mut earlier: Option<HashSet<String>> = None;
        loop {
            self.health.record_turn();
            tokio::select! {
                () = self.health.env.sleep(IDLE_INTERVAL) => {}
                () = self.shutdown.cancelled() => return,
                () = self.api_pods.synced(), if earlier.is_none() => {
                    let uids = self.api_pods.list().into_iter().map(|pod| pod_spec::uid(&pod).to_string());
                    earlier = Some(uids.collect());
                }
                change = changes.next() => match change {
                    Some(change) => self.api_changed(change.old, change.new, earlier.as_ref()),
                    None => return,
                },
                Some(list) = self.static_pods.recv() => self.static_changed(&mut known, list),
                wake = self.wakes.next() => self.wake(wake),
            }
        }
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Pod(uid) => self.workers.wake(&uid),
            Wake::AllPods => {
                self.workers.shared.pods.list().iter().for_each(|pod| self.workers.wake(pod_spec::uid(pod)))
            }
        }
    }

    fn api_changed(&self, old: Option<Arc<Pod>>, new: Option<Arc<Pod>>, earlier: Option<&HashSet<String>>) {
        let Some(pod) = new else {
            return old.iter().for_each(|gone| self.api_removed(gone));
        };
        if pod_spec::is_mirror(&pod) {
            return mirror::changed(&self.workers, pod);
        }
        // Deleted and made again under the same name between two looks.
        if let Some(other) = self.workers.shared.pods.by_name(pod_spec::namespace(&pod), pod_spec::name(&pod))
            && pod_spec::uid(&other) != pod_spec::uid(&pod)
            && !pod_spec::is_static(&other)
        {
            self.api_removed(&other);
        }
        let news = old.as_ref().is_none_or(|old| concerns_node(old, &pod));
        let same = |old: &&Arc<Pod>| pod_spec::uid(old) == pod_spec::uid(&pod);
        let trigger = old.as_ref().filter(same).and_then(|old| self.retries(old, &pod));
        let pod = pod_spec::from_api(pod);
        self.workers.shared.pods.set(pod.clone());
        if let Some(trigger) = trigger {
            self.workers.shared.allocations.retry(trigger);
        }
        self.workers.shared.statuses.observe(&pod);
        if !news {
            return self.workers.refresh(pod);
        }
        // What was bound to the node before we were started may have run under another process.
        let fresh = earlier.is_some_and(|earlier| !earlier.contains(pod_spec::uid(&pod)));
        self.workers.update(pod, fresh);
    }

    /// Why resizes that wait are to be looked at after this change.
    fn retries(&self, old: &Pod, new: &Pod) -> Option<&'static str> {
        let operations = allocation::operations(old, new);
        for operation in &operations {
            self.workers.shared.metrics.count(&REQUESTED_RESIZES, operation);
        }
        match (room(old), room(new)) {
            _ if !operations.is_empty() => Some(POD_UPDATED),
            ((before, _), (after, _)) if before != after => Some(PODS_REMOVED),
            ((_, before), (_, after)) if before != after => Some(POD_RESIZED),
            _ => None,
        }
    }

    fn api_removed(&self, pod: &Arc<Pod>) {
        if pod_spec::is_mirror(pod) {
            return mirror::removed(&self.workers, pod);
        }
        self.workers.shared.pods.remove(pod_spec::uid(pod));
        self.workers.remove(pod_spec::uid(pod));
        self.workers.shared.allocations.retry(PODS_REMOVED);
    }

    fn static_changed(&self, known: &mut HashMap<Source, Vec<Arc<Pod>>>, list: StaticPods) {
        let before = known.remove(&list.source).unwrap_or_default();
        let shared = &self.workers.shared;
        let has = |pods: &[Arc<Pod>], uid: &str| pods.iter().any(|pod| pod_spec::uid(pod) == uid);
        for gone in before.iter().filter(|pod| !has(&list.pods, pod_spec::uid(pod))) {
            shared.pods.remove(pod_spec::uid(gone));
            self.workers.remove(pod_spec::uid(gone));
            // A changed manifest has another UID and the same name: its mirror is made anew.
            mirror::orphaned(&self.workers, gone);
            shared.allocations.retry(PODS_REMOVED);
        }
        for pod in list.pods.iter().filter(|pod| !has(&before, pod_spec::uid(pod))) {
            shared.pods.set(pod.clone());
            self.workers.update(pod.clone(), false);
            mirror::ensure(&self.workers, pod);
        }
        // One that names its own UID keeps it when it is edited.
        let edited =
            |pod: &&Arc<Pod>| before.iter().any(|old| pod_spec::uid(old) == pod_spec::uid(pod) && differ(old, pod));
        for pod in list.pods.iter().filter(edited) {
            if let Some(old) = before.iter().find(|old| pod_spec::uid(old) == pod_spec::uid(pod)) {
                // None of them is granted anything, so none leaves room for others.
                self.retries(old, pod);
            }
            shared.pods.set(pod.clone());
            self.workers.update(pod.clone(), false);
        }
        known.insert(list.source, list.pods);
    }
}

/// Whether a manifest says something else than before, apart from when it was seen.
fn differ(old: &Pod, new: &Pod) -> bool {
    let said = |pod: &Pod| {
        let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
        annotations.remove(pod_spec::CONFIG_SEEN);
        (annotations, pod.metadata.labels.clone())
    };
    old.spec != new.spec || said(old) != said(new)
}

/// Whether a change is more than our own status coming back.
fn concerns_node(old: &Pod, new: &Pod) -> bool {
    let essence = |pod: &Pod| {
        let mut meta = pod.metadata.clone();
        meta.resource_version = None;
        meta.managed_fields = None;
        let status = pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.clone()).filter(|phase| is_terminal(phase));
        let conditions = status.and_then(|s| s.conditions.clone()).unwrap_or_default();
        let foreign: Vec<_> = conditions.into_iter().filter(|c| !OWNED.contains(&c.type_.as_str())).collect();
        (meta, phase, foreign)
    };
    essence(old) != essence(new) || old.spec != new.spec
}

/// What a pod takes from others, as far as the API tells.
fn room(pod: &Pod) -> (bool, Allocation) {
    let over = pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(is_terminal);
    (over, allocation::in_effect(pod))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_not_alive() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let health = SyncLoopHealth::new(env.clone());
        env.sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
        assert!(health.is_alive());
        env.sleep(Duration::from_secs(1)).await;
        assert!(!health.is_alive());
        health.record_turn();
        assert!(health.is_alive());
    }

    #[test]
    fn our_own_status_is_no_news() {
        let check = |old: Value, new: Value, expected: bool| {
            let pod = |value: &Value| serde_json::from_value::<Pod>(value.clone()).unwrap();
            assert_eq!(concerns_node(&pod(&old), &pod(&new)), expected, "{old} -> {new}");
        };
        let with = |status: Value| json!({"metadata": {"uid": "u", "resourceVersion": "1"}, "status": status});
        check(with(json!({"phase": "Pending"})), with(json!({"phase": "Running"})), false);
        check(with(json!({"phase": "Running"})), with(json!({"phase": "Failed"})), true);
        check(with(json!({})), json!({"metadata": {"uid": "u", "labels": {"a": "b"}}}), true);
        check(with(json!({})), json!({"metadata": {"uid": "u", "deletionGracePeriodSeconds": 1}}), true);
        let gate = |kind: &str| with(json!({"conditions": [{"type": kind, "status": "True"}]}));
        check(with(json!({})), gate("Ready"), false);
        check(with(json!({})), gate("example.com/gate"), true);
    }
}
