//! Ends a pod: stops it within its grace period, cleans up, and lets the API object go.
//! Part of `pod_workers`.
//! Invariant: the object is removed only after nothing runs and every volume is gone.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use k8s_openapi::api::core::v1::Pod;

use super::Worker;
use crate::{
    logs::container_logs,
    node::node_metrics::CGROUP_DURATION,
    pod::pod_spec,
    runtime::{runtime_manager::KillOrder, runtime_status::PodRuntimeStatus},
};

const RETRY: Duration = Duration::from_secs(1);
/// Groups are busy for a moment after their last process has gone.
const GROUP_RETRIES: u32 = 20;

impl Worker {
    /// From the moment the pod must end until nothing of it is left.
    pub(super) async fn end(mut self) {
        let began = self.shared.env.monotonic();
        self.stop_everything().await;
        self.took("kill", began);
        let began = self.shared.env.monotonic();
        let pod = self.handle.pod();
        self.shared.probes.forget(&self.uid);
        let last = self.last.clone();
        self.report(&pod, &last, true);
        self.clean_up(&pod).await;
        self.took("terminated", began);
        self.handle.terminated.cancel();
        // A completed pod stays, with its logs, until someone deletes it.
        loop {
            let pod = self.handle.pod();
            if self.handle.removed() || pod.metadata.deletion_timestamp.is_some() {
                break;
            }
            self.handle.wake.notified().await;
        }
        self.finalize().await;
        self.remove_from_runtime().await;
        self.forget();
    }

    fn grace(&self, pod: &Pod) -> i64 {
        if self.handle.has_no_grace() {
            return 0;
        }
        let deleted = pod.metadata.deletion_timestamp.is_some();
        match self.handle.eviction() {
            Some(eviction) if !deleted => eviction.grace_period_seconds,
            Some(eviction) => eviction.grace_period_seconds.min(pod_spec::grace_period_seconds(pod)),
            None => pod_spec::grace_period_seconds(pod),
        }
    }

    /// Stops containers and sandboxes, again until it is so. A shorter grace period takes effect at once.
    async fn stop_everything(&mut self) {
        loop {
            let pod = self.handle.pod();
            let status = match self.snapshot(&pod).await {
                Ok(status) => status,
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to look at a pod that ends");
                    self.shared.env.sleep(RETRY).await;
                    continue;
                }
            };
            if status.is_stopped() {
                return;
            }
            self.shared.probes.update(&pod, &status, &self.shared.runtime.host_ips, true);
            self.report(&pod, &status, false);
            if let Err(error) = self.stop_within_grace(&pod, &status).await {
                let message = format!("error killing pod: {error}");
                self.shared.recorder.warning(&client::reference(&*pod), "FailedKillPod", message);
                self.shared.env.sleep(RETRY).await;
            }
        }
    }

    async fn stop_within_grace(&self, pod: &Arc<Pod>, status: &PodRuntimeStatus) -> cri::Result<()> {
        let env = &self.shared.env;
        let grace = self.grace(pod);
        let order = KillOrder { grace_period_seconds: grace, withdrawal: self.withdrawal(pod), ..KillOrder::default() };
        let began = env.monotonic();
        let kill = self.shared.runtime.kill_pod(pod, status, &order);
        tokio::pin!(kill);
        loop {
            tokio::select! {
                result = &mut kill => return result,
                () = self.handle.wake.notified() => {
                    let newest = self.handle.pod();
                    let wanted = self.grace(&newest);
                    let left = grace - (env.monotonic() - began).as_secs() as i64;
                    if wanted < left {
                        // Hook, wait and the runtime's stop are given up here and begun again with the shorter time.
                        return Ok(());
                    }
                    // Containers are shown as they end.
                    if let Ok(status) = self.shared.runtime.snapshot(&self.uid, &Self::kinds(&newest)).await {
                        self.report(&newest, &status, false);
                    }
                }
            }
        }
    }

    /// Only for a pod that was deleted: the endpoints of no other change because it ends here.
    fn withdrawal(&self, pod: &Pod) -> Option<Shared<BoxFuture<'static, ()>>> {
        let drain = self.shared.config.endpoint_drain.clone()?;
        pod.metadata.deletion_timestamp.as_ref()?;
        let uid = self.uid.clone();
        Some(async move { drain.drained(&uid).await }.boxed().shared())
    }

    async fn clean_up(&mut self, pod: &Arc<Pod>) {
        let shared = self.shared.clone();
        while let Err(error) = shared.volumes.tear_down(&self.uid).await {
            tracing::warn!(pod = pod_spec::display(pod), %error, "failed to clean up volumes");
            shared.recorder.warning(&client::reference(&**pod), error.event_reason(), error.to_string());
            shared.env.sleep(RETRY).await;
        }
        let uid = self.uid.clone();
        let (cgroups, env, metrics) = (shared.cgroups.clone(), shared.env.clone(), shared.metrics.clone());
        shared.env.spawn(async move {
            let mut delay = Duration::from_millis(10);
            for _ in 0..GROUP_RETRIES {
                let began = env.monotonic();
                if cgroups.remove_pod(&uid).is_ok() {
                    metrics.observe(&CGROUP_DURATION, &["destroy"], (env.monotonic() - began).as_secs_f64());
                    return;
                }
                env.sleep(delay).await;
                delay = (delay * 2).min(Duration::from_secs(5));
            }
        });
    }

    /// Removes the API object, when it was deleted there and is ours to remove.
    async fn finalize(&self) {
        let mut delay = Duration::from_millis(100);
        loop {
            let pod = self.handle.pod();
            if self.handle.removed() || pod_spec::is_static(&pod) {
                return;
            }
            match self.shared.statuses.finalize(&pod).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to remove a deleted pod");
                    self.shared.env.sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(10));
                }
            }
        }
    }

    async fn remove_from_runtime(&mut self) {
        let pod = self.handle.pod();
        loop {
            let result = match self.snapshot(&pod).await {
                Ok(status) => self.shared.runtime.remove_pod(&pod, &status).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to remove a pod's containers");
                    self.shared.env.sleep(RETRY).await;
                }
            }
        }
        let logs = crate::runtime::container_config::log_directory(&self.shared.config.pod_logs_dir(), &pod);
        if let Err(error) = container_logs::remove_directory(logs).await {
            tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to remove a pod's logs");
        }
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
