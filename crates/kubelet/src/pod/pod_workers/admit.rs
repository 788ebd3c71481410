//! Whether a pod may begin on this node, and whether its time is over.
//! Part of `pod_workers`.
//! A pod that runs is never rejected; one that is rejected says why, once.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};

use super::{state::PodWorkerEvent, worker::Worker};
use crate::{
    node::node_metrics::ADMISSION_REJECTIONS,
    pod::{admission, pod_spec, pod_status::PodFailure, security_admission},
    runtime::runtime_status::PodRuntimeStatus,
};

impl Worker {
    /// False when the pod was rejected.
    pub(super) async fn admit(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> bool {
        if self.admitted {
            return true;
        }
        // What runs already was admitted before we were restarted.
        if !status.sandboxes.is_empty() {
            self.starting_since = None;
            self.starting = false;
            // It has what the checkpoint says; without one it is given it now.
            if let Err(refusal) = self.shared.runtime.managers.admit(&self.shared.allocations.granted(pod)).await {
                tracing::warn!(reason = refusal.reason, message = refusal.message, "a running pod has lost its place");
            }
            if self.shared.runtime.managers.lifts_quota(pod) {
                self.shared.cgroups.lift_quota(&self.uid);
            }
            self.shared.cgroups.adopt_pod(pod);
        } else {
            let others: Vec<Arc<Pod>> = self
                .shared
                .pods
                .list()
                .into_iter()
                .filter(|other| pod_spec::uid(other) != self.uid && before(other, pod))
                .map(|other| self.shared.allocations.taken(&other))
                .collect();
            let short = self.shared.pressures.refuse(pod);
            let short = short.map(|message| admission::Refusal { reason: "Evicted".into(), message });
            let allowed = &self.shared.config.allowed_unsafe_sysctls;
            // One that the machine lost comes back with what it had.
            let granted = self.shared.allocations.granted(pod);
            let fits = |node: &Node| {
                admission::admit_os(pod)
                    .and_then(|()| admission::admit_sysctls(pod, allowed))
                    .and_then(|()| security_admission::admit(pod, node))
                    .and_then(|()| admission::admit(&granted, &others, node))
            };
            let placed = match short {
                Some(refusal) => Err(refusal),
                None => self.shared.runtime.managers.admit(&granted).await,
            };
            let known = self.shared.node.lock().clone();
            let verdict = match (placed, fits(&known)) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), Ok(())) => Ok(()),
                // The watch of the node may be behind that of the pods.
                (Ok(()), Err(refusal)) => self.fresh_node().await.map_or(Err(refusal), |node| fits(&node)),
            };
            if let Err(refusal) = verdict {
                self.shared.runtime.managers.release(&self.uid).await;
                let about = client::reference(&**pod);
                self.shared.recorder.warning(&about, &refusal.reason, refusal.message.clone());
                self.shared.metrics.count(&ADMISSION_REJECTIONS, &[&refusal.reason]);
                let message = format!("Pod was rejected: {}", refusal.message);
                let failure = PodFailure { reason: refusal.reason, message, rejected: true };
                self.apply(PodWorkerEvent::Rejected(failure));
                return false;
            }
        }
        self.admitted = true;
        true
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
