//! Brings a living pod to what is wanted: observe, decide, do, report.
//! Part of `pod_workers`; `prepare` and `start` make what is missing.
//! Every way out has reported the pod's status and said when to sync again, or has told the pod's end.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;

use super::{error::SyncPodError, state::PodWorkerEvent, worker::Worker};
use crate::{
    pod::{
        pod_actions::{Actuated, Kill, KillReason, PodActions, pod_actions},
        pod_spec,
    },
    runtime::{runtime_manager::KillOrder, runtime_status::PodRuntimeStatus},
};

/// The first and the longest wait after a failure to make a sandbox or volumes.
pub(super) const PREPARE_RETRY_MAX: Duration = Duration::from_secs(10);
const PREPARE_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(500), PREPARE_RETRY_MAX);
pub(super) const RUNTIME_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn sync_pod<'a>(&'a mut self, pod: &'a Arc<Pod>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.handler.is_none() {
                self.handler = self.runtime_handler(pod).await.ok();
            }
            // Each round may let the next init container follow a sidecar that has just started.
            let rounds = pod_spec::init_containers(pod).len() + 2;
            let mut granted = pod.clone();
            for _ in 0..rounds {
                let status = match self.observe(pod).await {
                    Ok(status) => status,
                    Err(error) => {
                        tracing::warn!(%error, "failed to look at the pod");
                        let message = format!("error determining status: {error}");
                        self.shared.recorder.warning(&client::reference(&**pod), "FailedSync", message);
                        return self.sync_again_in(RUNTIME_RETRY);
                    }
                };
                if !self.admit(pod, &status).await || !self.within_deadline(pod) {
                    return;
                }
                granted = self.allocate(pod, &status);
                let pod = &granted;
                self.shared.probes.update(pod, &status, &self.shared.runtime.host_ips, false);
                self.observe_actuated(pod, &status);
                let actions = self.pod_actions(pod, &status);
                if actions.kill_pod && !actions.create_sandbox {
                    return self.apply(PodWorkerEvent::Completed);
                }
                self.observe_resize(pod, &actions);
                if actions.are_none() {
                    if self.resize(pod, &actions).await {
                        self.resize_completed(pod);
                    }
                    self.refresh_volumes(pod, &status).await;
                    self.report_syncing(pod, &status);
                    return;
                }
                self.report_syncing(pod, &status);
                if self.must_wait_for_network(pod) {
                    return;
                }
                let progress = self.carry_out(pod, status, &actions).await;
                if !progress {
                    break;
                }
            }
            // What was just made was looked at as it was made.
            let seen = match self.followed.take() {
                Some(status) => Ok(status),
                None => self.snapshot(pod).await,
            };
            let pod = &granted;
            match seen {
                Ok(status) => {
                    self.last = status.clone();
                    self.shared.probes.update(pod, &status, &self.shared.runtime.host_ips, false);
                    let reported = self.report_syncing(pod, &status);
                    self.observe_start(pod, &reported);
                    // It may have ended before anyone listened for it.
                    let next = self.pod_actions(pod, &status);
                    if next.kill_pod && !next.create_sandbox {
                        self.apply(PodWorkerEvent::Completed);
                    }
                }
                Err(_) => self.sync_again_in(RUNTIME_RETRY),
            }
        })
    }

    /// Nothing is started or stopped in a pod's own network while the runtime says that there is none.
    fn must_wait_for_network(&mut self, pod: &Pod) -> bool {
        let problem = self.shared.runtime.features.network_problem().filter(|_| !pod_spec::host_network(pod));
        let Some(problem) = problem else { return false };
        let message = format!("network is not ready: {problem}");
        self.shared.recorder.warning(&client::reference(pod), "NetworkNotReady", message);
        self.sync_again_in(RUNTIME_RETRY);
        true
    }

    async fn observe(&mut self, pod: &Pod) -> cri::Result<PodRuntimeStatus> {
        self.followed = None;
        match std::mem::take(&mut self.fresh) {
            true => Ok(PodRuntimeStatus::default()),
            false => self.snapshot(pod).await,
        }
    }

    /// True when another round may get further.
    async fn carry_out(&mut self, pod: &Arc<Pod>, mut status: PodRuntimeStatus, actions: &PodActions) -> bool {
        if actions.kill_pod {
            if !status.sandboxes.is_empty() {
                let about = client::reference(&**pod);
                self.shared.recorder.normal(
                    &about,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                );
            }
            let order = KillOrder { grace_period_seconds: pod_spec::grace_period_seconds(pod), ..KillOrder::default() };
            if let Err(error) = self.shared.runtime.kill_pod(pod, &status, &order).await {
                self.record(pod, &SyncPodError::KillPod(error));
                self.sync_again_in(RUNTIME_RETRY);
                return false;
            }
        }
        for kill in &actions.kill {
            // What may still run is not started once more beside itself.
            if !self.kill(pod, kill, &status).await {
                self.sync_again_in(RUNTIME_RETRY);
                return false;
            }
        }
        // Now that what used the old limits has ended.
        if !actions.kill_pod && self.resize(pod, actions).await {
            self.sync_again_in(Duration::ZERO);
        }
        let context = match self.prepare(pod, actions, &mut status).await {
            Ok(context) => context,
            Err(error) => {
                self.record(pod, &error);
                self.back_off();
                return false;
            }
        };
        self.start_containers(pod, actions, &status, &context).await
    }

    /// Tells of what failed.
    pub(super) fn record(&self, pod: &Pod, error: &SyncPodError) {
        match error.event_reason() {
            Some(reason) => self.shared.recorder.warning(&client::reference(pod), reason, error.to_string()),
            None => tracing::debug!(%error, "sync failed"),
        }
    }

    /// Waits longer after each failure to make the sandbox or volumes.
    fn back_off(&mut self) {
        self.failures += 1;
        self.sync_again_in(PREPARE_BACKOFF.delay_after(self.failures));
    }

    fn pod_actions(&self, pod: &Pod, status: &PodRuntimeStatus) -> PodActions {
        let actuated = Actuated {
            containers: &self.actuated,
            pod_limits: self.pod_limits,
            node_memory_bytes: self.shared.runtime.node.memory_bytes,
        };
        pod_actions(pod, status, self.shared.probes.results(), &actuated)
    }

    async fn kill(&mut self, pod: &Arc<Pod>, kill: &Kill, status: &PodRuntimeStatus) -> bool {
        let found = pod_spec::find_container(pod, &kill.name);
        let own = found.as_ref().and_then(|(_, container)| {
            let probe = match kill.reason {
                KillReason::LivenessProbe => container.liveness_probe.as_ref(),
                KillReason::StartupProbe => container.startup_probe.as_ref(),
                KillReason::Changed | KillReason::Resized | KillReason::Unknown => None,
            };
            probe.and_then(|probe| probe.termination_grace_period_seconds)
        });
        let order = KillOrder {
            message: kill.message.clone(),
            grace_period_seconds: own.unwrap_or_else(|| pod_spec::grace_period_seconds(pod)),
            ..KillOrder::default()
        };
        let ips = status.ips(pod, &self.shared.runtime.host_ips);
        let container = found.as_ref().map(|(kind, container)| (*kind, container));
        self.shared.runtime.kill_container(pod, &kill.id, &kill.name, container, ips, &order).await
    }
}
