//! Whether a pod may begin on this node, and whether its time is over.
//! Part of `pod_workers`.
//! A pod that runs is never rejected; one that is rejected or has to wait says why.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};

use super::{
    state::{Eviction, PodWorkerEvent},
    worker::Worker,
};
use crate::{
    node::node_metrics::{ADMISSION_REJECTIONS, PREEMPTIONS},
    pod::{
        admission::{
            self, Denial, PredicateFailure, Refusal,
            preemption::{self, Requirements},
            security,
        },
        pod_spec,
        pod_status::{PodFailure, WaitingReason},
    },
    runtime::runtime_status::PodRuntimeStatus,
};

/// What the containers of a pod that has to wait show.
const BLOCKED: &str = "Blocked";
/// When it is looked at whether the machine can enforce by now what a pod asks for.
const BLOCKED_RETRY: Duration = Duration::from_secs(10);

impl Worker {
    /// False when the pod was rejected or has to wait.
    pub(super) async fn admit(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> bool {
        if self.admitted {
            return true;
        }
        // What runs already was admitted before we were restarted.
        if !status.sandboxes.is_empty() {
            self.starting_since = None;
            self.starting = false;
            self.shared.allocations.admit(&self.uid, |_| Vec::<()>::new());
            // It has what the checkpoint says; without one it is given it now.
            if let Err(refusal) = self.shared.runtime.managers.admit(&self.shared.allocations.granted(pod)).await {
                tracing::warn!(reason = refusal.reason, message = refusal.message, "a running pod has lost its place");
            }
            if self.shared.runtime.managers.lifts_quota(pod) {
                self.shared.cgroups.lift_quota(&self.uid);
            }
            self.shared.cgroups.adopt_pod(pod);
        } else if let Err(denial) = self.decide_admission(pod).await {
            self.shared.allocations.withdraw(&self.uid);
            self.shared.devices.release(&self.uid).await;
            self.shared.runtime.managers.release(&self.uid).await;
            match denial {
                Denial::Rejected(refusal) => self.reject(pod, refusal),
                Denial::Blocked { refusal, retry_in } => self.block(pod, status, refusal, retry_in),
            }
            return false;
        }
        if self.blocked.take().is_some() {
            self.waiting.retain(|_, waiting| waiting.reason != BLOCKED);
        }
        self.admitted = true;
        true
    }

    fn reject(&mut self, pod: &Pod, refusal: Refusal) {
        self.shared.recorder.warning(&client::reference(pod), &refusal.reason, refusal.message.clone());
        self.shared.metrics.count(&ADMISSION_REJECTIONS, &[&refusal.reason]);
        let message = format!("Pod was rejected: {}", refusal.message);
        let failure = PodFailure { reason: refusal.reason, message, rejected: true };
        self.apply(PodWorkerEvent::Rejected(failure));
    }

    fn block(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus, refusal: Refusal, retry_in: Duration) {
        self.shared.recorder.warning(&client::reference(&**pod), &refusal.reason, refusal.message.clone());
        for name in Self::kinds(pod).into_keys() {
            self.waiting.insert(name, WaitingReason { reason: BLOCKED.into(), message: refusal.message.clone() });
        }
        self.blocked = Some(refusal);
        self.report_syncing(pod, status);
        self.sync_again_in(retry_in);
    }

    async fn decide_admission(&self, pod: &Arc<Pod>) -> Result<(), Denial> {
        let rejected = |reason: &str, message: String| Denial::Rejected(Refusal::new(reason, message));
        if let Some(refusal) = self.shared.shutdown.refuse() {
            return Err(Denial::Rejected(refusal));
        }
        if let Some(message) = self.shared.pressures.refuse(pod) {
            return Err(rejected("Evicted", message));
        }
        // Those that were admitted, and of those that were not yet the older ones.
        let others = |admitted: &dyn Fn(&str) -> bool| -> Vec<Arc<Pod>> {
            let first = |other: &Arc<Pod>| before(other, pod) || admitted(pod_spec::uid(other));
            let others = self.shared.pods.list().into_iter();
            let others = others.filter(|other| pod_spec::uid(other) != self.uid && first(other));
            others.map(|other| self.shared.allocations.taken(&other)).collect()
        };
        let allowed = &self.shared.config.allowed_unsafe_sysctls;
        // One that the machine lost comes back with what it had.
        let granted = self.shared.allocations.granted(pod);
        let affinity = self.shared.runtime.managers.admit(&granted).await.map_err(Denial::Rejected)?;
        self.shared.devices.allocate(pod, &affinity).await.map_err(Denial::Rejected)?;
        let check = |node: Node| -> Result<Vec<PredicateFailure>, Refusal> {
            let node = &self.shared.devices.with_allocated(pod, node);
            admission::admit_os(pod)?;
            admission::admit_sysctls(pod, allowed)?;
            security::admit(pod, node)?;
            Ok(self
                .shared
                .allocations
                .admit(&self.uid, |admitted| admission::predicate_failures(&granted, &others(admitted), node)))
        };
        let known = self.shared.node.lock().clone();
        let mut found = check(known);
        if !matches!(&found, Ok(failures) if failures.is_empty())
            // The watch of the node may be behind that of the pods.
            && let Some(node) = self.fresh_node().await
        {
            found = check(node);
        }
        let failures = found.map_err(Denial::Rejected)?;
        if !failures.is_empty() {
            let mut running = Vec::new();
            self.shared.allocations.admit(&self.uid, |admitted| {
                running = others(admitted);
                // It takes the place of some of them.
                Vec::<()>::new()
            });
            self.make_room(pod, &running, &failures).await.map_err(Denial::Rejected)?;
        }
        if let Some(refusal) = security::block(pod) {
            return Err(Denial::Blocked { refusal, retry_in: BLOCKED_RETRY });
        }
        match &self.shared.admission_hook {
            Some(hook) => hook.admit(pod).await,
            None => Ok(()),
        }
    }

    /// Ends others for a critical pod, if resources are all that it lacks.
    async fn make_room(&self, pod: &Pod, others: &[Arc<Pod>], failures: &[PredicateFailure]) -> Result<(), Refusal> {
        let Some(first) = failures.first() else { return Ok(()) };
        if !preemption::is_critical(pod) {
            return Err(first.refusal());
        }
        let mut missing = Vec::new();
        for failure in failures {
            match failure {
                // Room alone would not help it.
                PredicateFailure::Other(refusal) => return Err(refusal.clone()),
                PredicateFailure::InsufficientResource { name, requested, used, capacity } => {
                    missing.push((name.clone(), requested.saturating_sub(capacity.saturating_sub(*used))));
                }
            }
        }
        let running: Vec<Arc<Pod>> = others.iter().filter(|other| admission::occupies(other)).cloned().collect();
        let missing = Requirements(missing);
        let chosen = preemption::pods_to_preempt(pod, &running, &missing).map_err(|why| {
            let message = format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set \
                 of pods to preempt: {why}"
            );
            Refusal::new(admission::UNEXPECTED_ADMISSION_ERROR, message)
        })?;
        let resource = missing.0.first().map(|(name, _)| name.as_str()).unwrap_or_default();
        let mut ends = Vec::new();
        for other in chosen {
            tracing::info!(pod = pod_spec::display(&other), "preempting a pod to free up resources for a critical one");
            self.shared.recorder.warning(&client::reference(&*other), preemption::REASON, preemption::MESSAGE);
            self.shared.metrics.count(&PREEMPTIONS, &[resource]);
            let Some(handle) = self.handles.lock().get(pod_spec::uid(&other)).cloned() else { continue };
            handle.apply_and_wake(PodWorkerEvent::Evicted(Eviction {
                reason: preemption::REASON.into(),
                message: preemption::MESSAGE.into(),
                disruption_message: Some(preemption::DISRUPTION_MESSAGE.into()),
                grace_period_seconds: pod_spec::grace_period_seconds(&other),
            }));
            ends.push(handle);
        }
        for handle in ends {
            handle.released.cancelled().await;
        }
        Ok(())
    }

    /// The Node object as the API server has it now.
    async fn fresh_node(&self) -> Option<Node> {
        self.shared.client.api::<Node>().find(&self.shared.config.node_name).await.ok().flatten()
    }

    pub(super) fn within_deadline(&mut self, pod: &Arc<Pod>) -> bool {
        let Some(limit) = pod_spec::spec(pod).active_deadline_seconds else { return true };
        let known = self.shared.statuses.get(&self.uid).and_then(|status| status.start_time);
        let start = known.or_else(|| pod.status.as_ref().and_then(|status| status.start_time.clone()));
        let Some(start) = start else {
            self.sync_again_in(Duration::from_secs(limit.max(0) as u64));
            return true;
        };
        let age = self.shared.env.now().as_second() - start.0.as_second();
        if age < limit {
            self.sync_again_in(Duration::from_secs((limit - age) as u64));
            return true;
        }
        let message = "Pod was active on the node longer than the specified deadline".to_string();
        self.shared.recorder.normal(&client::reference(&**pod), "DeadlineExceeded", message.clone());
        let failure = PodFailure { reason: "DeadlineExceeded".into(), message, rejected: false };
        self.apply(PodWorkerEvent::DeadlineExceeded(failure));
        false
    }
}

/// Whether `a` was there before `b`: older pods are admitted first.
fn before(a: &Pod, b: &Pod) -> bool {
    let age = |pod: &Pod| (pod.metadata.creation_timestamp.clone(), pod.metadata.uid.clone());
    age(a) < age(b)
}
