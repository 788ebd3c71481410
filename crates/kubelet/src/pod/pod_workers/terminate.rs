//! Ends a pod: stops it within its grace period, cleans up, and lets the API object go.
//! Part of `pod_workers`.
//! The object is removed only after nothing runs and every volume is gone (`state`).

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use k8s_openapi::api::core::v1::Pod;

use super::{
    error::SyncPodError,
    state::{PodWorkerEvent, PodWorkerState, Work},
    worker::Worker,
};
use crate::{
    logs::container_logs,
    node::node_metrics::CGROUP_DURATION,
    runtime::{runtime_manager::KillOrder, runtime_status::PodRuntimeStatus},
};

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const CGROUP_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(10), Duration::from_secs(5));
const UNPREPARE_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
const DELETE_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Control groups are busy for a moment after their last process has gone.
const CGROUP_RETRIES: u32 = 20;

impl Worker {
    /// Stops everything of the pod and reports its last status.
    pub(super) async fn sync_terminating_pod(&mut self) {
        if let PodWorkerState::Terminating { cause, grace_period_seconds, .. } = self.handle.state() {
            tracing::debug!(?cause, grace_period_seconds, "the pod is terminating");
        }
        let began = self.shared.env.monotonic();
        self.kill_until_stopped().await;
        self.observe_duration("kill", began);
        self.shared.probes.forget(&self.uid);
        self.release_devices().await;
        self.shared.runtime.managers.release(&self.uid).await;
        self.report_terminating(&self.handle.pod(), &self.last, true);
        self.apply(PodWorkerEvent::Stopped);
    }

    /// Stops containers and sandboxes, again until it is so. A shorter grace period takes effect at once.
    async fn kill_until_stopped(&mut self) {
        loop {
            let pod = self.handle.pod();
            let status = match self.snapshot(&pod).await {
                Ok(status) => status,
                Err(error) => {
                    tracing::warn!(%error, "failed to look at the pod");
                    self.shared.env.sleep(RETRY_INTERVAL).await;
                    continue;
                }
            };
            if status.is_stopped() {
                return;
            }
            self.shared.probes.update(&pod, &status, &self.shared.runtime.host_ips, true);
            self.report_terminating(&pod, &status, false);
            if let Err(error) = self.kill_within_grace(&pod, &status).await {
                self.record(&pod, &SyncPodError::KillPod(error));
                self.shared.env.sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Before the last status is told: whoever hears of it may give the devices to another pod.
    async fn release_devices(&self) {
        let shared = &self.shared;
        let mut backoff = UNPREPARE_BACKOFF;
        shared.devices.release(&self.uid).await;
        while let Err(error) = shared.devices.claims.unprepare(&self.uid).await {
            tracing::warn!(%error, "failed to unprepare dynamic resources; will try again");
            shared.env.sleep(backoff.next_delay()).await;
        }
    }

    fn grace_period_seconds(&self) -> i64 {
        match self.handle.state() {
            PodWorkerState::Terminating { grace_period_seconds, .. } => grace_period_seconds,
            _ => 0,
        }
    }

    async fn kill_within_grace(&self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> cri::Result<()> {
        let env = &self.shared.env;
        let grace_period_seconds = self.grace_period_seconds();
        let order =
            KillOrder { grace_period_seconds, endpoint_drain: self.endpoint_drain(pod), ..KillOrder::default() };
        let began = env.monotonic();
        let kill = self.shared.runtime.kill_pod(pod, status, &order);
        tokio::pin!(kill);
        loop {
            tokio::select! {
                result = &mut kill => return result,
                () = self.handle.wake.notified() => {
                    let left = grace_period_seconds - (env.monotonic() - began).as_secs() as i64;
                    if self.grace_period_seconds() < left {
                        // Hook, wait and the runtime's stop are given up here and begun again with the shorter time.
                        return Ok(());
                    }
                    // Containers are shown as they end.
                    let newest = self.handle.pod();
                    if let Ok(status) = self.shared.runtime.snapshot(&self.uid, &Self::kinds(&newest)).await {
                        self.report_terminating(&newest, &status, false);
                    }
                }
            }
        }
    }

    /// Only for a pod that was deleted: the endpoints of no other change because it ends here.
    fn endpoint_drain(&self, pod: &Pod) -> Option<Shared<BoxFuture<'static, ()>>> {
        let drain = self.shared.config.endpoint_drain.clone()?;
        pod.metadata.deletion_timestamp.as_ref()?;
        let uid = self.uid.clone();
        Some(async move { drain.drained(&uid).await }.boxed().shared())
    }

    /// Lets go of the pod's volumes and control group.
    pub(super) async fn sync_terminated_pod(&mut self, pod: &Pod) {
        let began = self.shared.env.monotonic();
        let shared = &self.shared;
        while let Err(error) = shared.volumes.tear_down(&self.uid).await {
            tracing::warn!(%error, "failed to clean up volumes");
            shared.recorder.warning(&client::reference(pod), error.event_reason(), error.to_string());
            shared.env.sleep(RETRY_INTERVAL).await;
        }
        self.remove_cgroup();
        self.observe_duration("terminated", began);
        self.apply(PodWorkerEvent::CleanedUp);
    }

    /// In the background: nobody waits for it.
    fn remove_cgroup(&self) {
        let shared = &self.shared;
        let uid = self.uid.clone();
        let (cgroups, env, metrics) = (shared.cgroups.clone(), shared.env.clone(), shared.metrics.clone());
        shared.env.spawn(async move {
            let mut backoff = CGROUP_BACKOFF;
            for _ in 0..CGROUP_RETRIES {
                let began = env.monotonic();
                if cgroups.remove_pod(&uid).is_ok() {
                    metrics.observe(&CGROUP_DURATION, &["destroy"], (env.monotonic() - began).as_secs_f64());
                    return;
                }
                env.sleep(backoff.next_delay()).await;
            }
        });
    }

    /// Removes the API object, unless the API server lets go of it before.
    pub(super) async fn delete_from_api(&self) {
        let mut backoff = DELETE_BACKOFF;
        while self.handle.work() == Work::DeleteFromApi {
            match self.shared.statuses.finalize(&self.handle.pod()).await {
                Ok(()) => return self.apply(PodWorkerEvent::DeletedFromApi),
                Err(error) => {
                    tracing::warn!(%error, "failed to remove a deleted pod");
                    self.shared.env.sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Removes what is left of the pod on this node, and all that is known of it.
    pub(super) async fn remove_from_runtime(&mut self, pod: &Pod) {
        loop {
            let result = match self.snapshot(pod).await {
                Ok(status) => self.shared.runtime.remove_pod(pod, &status).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to remove a pod's containers");
                    self.shared.env.sleep(RETRY_INTERVAL).await;
                }
            }
        }
        // The same pod goes on counting its containers by their logs.
        if !self.handle.state().is_recreated() {
            let logs = crate::runtime::container_config::log_directory(&self.shared.config.pod_logs_dir(), pod);
            if let Err(error) = container_logs::remove_directory(logs).await {
                tracing::warn!(%error, "failed to remove a pod's logs");
            }
        }
        self.forget();
        self.apply(PodWorkerEvent::RemovedFromRuntime);
    }

    fn forget(&self) {
        let shared = &self.shared;
        shared.statuses.forget(&self.uid);
        shared.references.forget(&self.uid);
        shared.images.forget(&self.uid);
        shared.allocations.forget(&self.uid);
        shared.crash_backoff.forget(&format!("{}/", self.uid));
        shared.probes.forget(&self.uid);
    }
}
