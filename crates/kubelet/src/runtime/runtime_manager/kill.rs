//! Stops containers and whole pods within their grace period.
//! Part of `runtime_manager`.
//! The preStop hook, the stop signal and the wait together take no longer than the grace period, save two seconds for a
//! process whose hook used it all up.

use std::time::Duration;

use cri::v1;
use futures::future::{BoxFuture, Shared, join_all};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use tokio_util::sync::CancellationToken;

use super::{
    RuntimeManager, container_reference,
    hooks::{self, HookTarget},
    stop_signal,
};
use crate::{
    logs::container_logs,
    pod::pod_spec::{self, Kind},
    runtime::runtime_status::{ContainerStatus, PodRuntimeStatus},
};

/// How often it is looked whether a container has ended after its own stop signal.
const STOP_LOOK_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// Least time between a hook that overran and the kill.
const GRACE_AFTER_HOOK_SECONDS_MIN: i64 = 2;

#[derive(Debug, Clone, Default)]
pub struct KillOrder {
    /// For the Event; empty says only that it stops.
    pub message: String,
    pub grace_period_seconds: i64,
    /// The stop signal is sent once the pod's endpoints are drained; the hook does not wait for it.
    pub endpoint_drain: Option<Shared<BoxFuture<'static, ()>>>,
    /// Cancelled by the ends of containers that stop before this one: only its hook doesn't wait for them.
    pub after: Vec<CancellationToken>,
}

impl RuntimeManager {
    /// Stops one container and waits for its end; false when it may still run.
    pub async fn kill_container(
        &self,
        pod: &Pod,
        id: &str,
        name: &str,
        container: Option<(Kind, &Container)>,
        pod_ips: &[String],
        order: &KillOrder,
    ) -> bool {
        let kind = container.map_or(Kind::App, |(kind, _)| kind);
        let about = container_reference(pod, kind, name);
        let text = match order.message.as_str() {
            "" => format!("Stopping container {name}"),
            message => message.to_string(),
        };
        self.recorder.normal(&about, "Killing", text);
        let mut left = order.grace_period_seconds;
        if left > 0 {
            let began = self.env.monotonic();
            let pre_stop = container.and_then(|(_, c)| Some((c, c.lifecycle.as_ref()?.pre_stop.as_ref()?)));
            let hook = async {
                if let Some((container, hook)) = pre_stop {
                    self.pre_stop(pod, kind, container, hook, id, pod_ips, left).await;
                }
            };
            let endpoint_drain = async {
                if let Some(endpoint_drain) = order.endpoint_drain.clone() {
                    self.env.timeout(Duration::from_secs(left as u64), endpoint_drain).await;
                }
            };
            tokio::join!(hook, endpoint_drain);
            left -= (self.env.monotonic() - began).as_secs() as i64;
        }
        if left > 0 {
            let began = self.env.monotonic();
            let turn = join_all(order.after.iter().map(CancellationToken::cancelled));
            self.env.timeout(Duration::from_secs(left as u64), turn).await;
            left -= (self.env.monotonic() - began).as_secs() as i64;
        }
        if order.grace_period_seconds > 0 {
            left = left.max(GRACE_AFTER_HOOK_SECONDS_MIN);
        }
        let signal = container.and_then(|(_, c)| c.lifecycle.as_ref()?.stop_signal.as_deref());
        if let Some(signal) = signal.filter(|_| left > 0)
            && self.send_stop_signal(id, signal, left).await
        {
            left = 0;
        }
        match self.runtime.stop_container(id, left).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(container = name, %error, "failed to stop a container");
                false
            }
            _ => true,
        }
    }

    /// Sends the signal that the container asks for and waits for its end, for no longer than `left` seconds. False when
    /// it could not be sent: CRI has no word for it, so it goes to the process that the runtime names.
    async fn send_stop_signal(&self, id: &str, signal: &str, left: i64) -> bool {
        let began = self.env.monotonic();
        let limit = Duration::from_secs(left.max(0) as u64);
        let Ok(answer) = self.runtime.container_status(id, true).await else { return false };
        let Some(process) = stop_signal::process(&answer, id) else { return false };
        if let Err(error) = stop_signal::send(process, signal) {
            tracing::warn!(container = id, signal, %error, "failed to send a container's own stop signal");
            return false;
        }
        let mut backoff = STOP_LOOK_BACKOFF;
        while self.env.monotonic() - began < limit {
            let state = self.runtime.container_status(id, false).await.map(|answer| answer.status.unwrap_or_default());
            match state {
                Ok(status) if status.state() == v1::ContainerState::ContainerRunning => {}
                _ => break,
            }
            self.env.sleep(backoff.next_delay().min(limit)).await;
        }
        true
    }

    /// Runs the hook, for no longer than the grace period.
    #[allow(clippy::too_many_arguments)]
    async fn pre_stop(
        &self,
        pod: &Pod,
        kind: Kind,
        container: &Container,
        hook: &LifecycleHandler,
        id: &str,
        pod_ips: &[String],
        grace: i64,
    ) {
        let limit = Duration::from_secs(grace as u64);
        let target = HookTarget { pod, container, container_id: id, pod_ips };
        if let Err(error) = hooks::run(self, hook, target, Some(limit)).await {
            let about = container_reference(pod, kind, &container.name);
            self.recorder.warning(&about, "FailedPreStopHook", "PreStopHook failed");
            tracing::warn!(container = container.name, %error, "preStop hook failed");
        }
    }

    /// Stops all containers (sidecars after the apps, in reverse order, though all hooks run at once), then the sandboxes.
    pub async fn kill_pod(&self, pod: &Pod, status: &PodRuntimeStatus, order: &KillOrder) -> cri::Result<()> {
        self.kill_containers(pod, status, order).await;
        self.stop_sandboxes(status).await
    }

    pub async fn stop_sandboxes(&self, status: &PodRuntimeStatus) -> cri::Result<()> {
        let stops = status.sandboxes.iter().filter(|sandbox| sandbox.ready).map(|sandbox| async {
            match self.stops.run(self.runtime.stop_pod_sandbox(&sandbox.id)).await {
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(()),
            }
        });
        join_all(stops).await.into_iter().collect()
    }

    async fn kill_containers(&self, pod: &Pod, status: &PodRuntimeStatus, order: &KillOrder) {
        let ips = status.ips(pod, &self.host_ips);
        // Sidecars stop after all others, the last started first.
        let position = |c: &ContainerStatus| {
            let own = |i: &Container| i.name == c.name && pod_spec::is_sidecar(i);
            pod_spec::init_containers(pod).iter().position(own)
        };
        let mut running: Vec<(Option<usize>, &ContainerStatus)> = status.running().map(|c| (position(c), c)).collect();
        running.sort_by_key(|(position, _)| position.map_or(usize::MIN, |position| usize::MAX - position));
        let ends: Vec<CancellationToken> = running.iter().map(|_| CancellationToken::new()).collect();
        let kills = running.iter().zip(&ends).enumerate().map(|(number, ((position, observed), end))| {
            let after = position.map_or(vec![], |_| ends[..number].to_vec());
            let order = KillOrder { after, ..order.clone() };
            async move {
                self.kill_observed(pod, observed, ips, order).await;
                end.cancel();
            }
        });
        join_all(kills).await;
    }

    async fn kill_observed(&self, pod: &Pod, observed: &ContainerStatus, ips: &[String], order: KillOrder) {
        let found = pod_spec::find_container(pod, &observed.name);
        let container = found.as_ref().map(|(kind, container)| (*kind, container));
        // Its sandbox is stopped next, and whatever is still in there with it.
        self.kill_container(pod, &observed.id, &observed.name, container, ips, &order).await;
    }

    /// Removes every trace of the pod from the runtime.
    pub async fn remove_pod(&self, pod: &Pod, status: &PodRuntimeStatus) -> cri::Result<()> {
        let remove = async {
            for sandbox in &status.sandboxes {
                self.runtime.stop_pod_sandbox(&sandbox.id).await?;
                self.runtime.remove_pod_sandbox(&sandbox.id).await?;
            }
            let alone = |c: &&ContainerStatus| !status.sandboxes.iter().any(|s| s.id == c.sandbox_id);
            for container in status.containers.iter().filter(alone) {
                self.runtime.remove_container(&container.id).await?;
            }
            for container in &status.containers {
                container_logs::unlink(&self.config, pod, &container.name, &container.id).await;
            }
            Ok(())
        };
        // Behind those that are being stopped: nobody waits for what is removed.
        self.stops.run(remove).await
    }
}
