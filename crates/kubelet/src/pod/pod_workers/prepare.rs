//! Makes what a pod's containers need before one can start: its sandbox and its volumes.
//! Part of `pod_workers`.
//! Every failure is a `SyncPodError`, told by `sync`.

use std::sync::Arc;

use cri::v1;
use futures::future::BoxFuture;
use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use tokio::sync::Notify;

use super::{error::SyncPodError, sync::PREPARE_RETRY_MAX, worker::Worker};
use crate::{
    pod::{pod_actions::PodActions, pod_spec},
    runtime::{
        container_config::{environment::References, resources::pod_limits},
        runtime_manager::SandboxError,
        runtime_status::PodRuntimeStatus,
    },
    volumes::{
        error::SetUpError,
        plugins::PLUGINS,
        volume_manager::{MountFacts, MountedVolumes},
    },
};

/// What a pod's containers are started with, once it is all there.
pub(super) struct PodContext {
    pub(super) sandbox_id: String,
    pub(super) sandbox_config: v1::PodSandboxConfig,
    pub(super) handler: String,
    pub(super) references: References,
    pub(super) mounted: MountedVolumes,
    pub(super) pod_ips: Vec<String>,
}

impl Worker {
    /// Has the pod's claims prepared, then makes volumes and sandbox, at the same time.
    /// Boxed, as `set_up` is: what is awaited below is large, and each level of polling would carry it on its stack.
    pub(super) fn prepare<'a>(
        &'a mut self,
        pod: &'a Arc<Pod>,
        actions: &'a PodActions,
        status: &'a mut PodRuntimeStatus,
    ) -> BoxFuture<'a, Result<PodContext, SyncPodError>> {
        Box::pin(async move {
            let shared = self.shared.clone();
            let handler = match &self.handler {
                Some(handler) => handler.clone(),
                None => self.runtime_handler(pod).await?,
            };
            shared.runtime.check_handler(pod, &handler)?;
            let sandbox_config = shared.runtime.sandbox_config(pod, actions.attempt)?;
            // Nothing is made for a pod whose claims are not ready.
            shared.devices.claims.prepare(pod, actions.create_sandbox).await?;
            let began = Notify::new();
            let sandbox = async {
                if !actions.create_sandbox {
                    began.notify_one();
                    return Ok(actions.sandbox_id.clone().unwrap_or_default());
                }
                self.warn_of_missing_dns(pod);
                shared.runtime.create_sandbox(pod, &sandbox_config, &handler, &began).await
            };
            // What depends on the pod's address waits for it; everything else does not.
            let early_ips = status.ips(pod, &shared.runtime.host_ips).to_vec();
            let needs_address = PLUGINS.needs_pod_ip(pod) && early_ips.is_empty();
            let volumes = async {
                // Pods that wait for the runtime limiter hold no mounts: many mounts make every call slower.
                began.notified().await;
                let references = shared.references.get(pod).await.map_err(SetUpError::from)?;
                if needs_address {
                    return Ok((references, None));
                }
                let mounted = self.mount(pod, &references, &early_ips).await?;
                Ok::<_, SyncPodError>((references, Some(mounted)))
            };
            let (sandbox, volumes) = tokio::join!(sandbox, volumes);
            let sandbox_id = sandbox?;
            if actions.create_sandbox {
                self.pod_limits = Some(pod_limits(pod));
                *status = match status.sandboxes.is_empty() && status.containers.is_empty() {
                    true => {
                        let seen = shared.runtime.sandbox_status(&sandbox_id).await.ok().flatten();
                        let seen = seen.ok_or(SyncPodError::SandboxGone)?;
                        let status = PodRuntimeStatus { sandboxes: vec![seen], containers: vec![] };
                        self.followed = Some(status.clone());
                        status
                    }
                    false => self.snapshot(pod).await.map_err(SyncPodError::Snapshot)?,
                };
                self.report_syncing(pod, status);
            }
            let ips = status.ips(pod, &shared.runtime.host_ips).to_vec();
            let (references, mounted) = match volumes? {
                (references, Some(mounted)) => (references, mounted),
                (references, None) => {
                    let mounted = self.mount(pod, &references, &ips).await?;
                    (references, mounted)
                }
            };
            self.failures = 0;
            if let Some(wait) = mounted.refresh_after {
                self.sync_again_in(wait);
            }
            Ok(PodContext { sandbox_id, sandbox_config, handler, references, mounted, pod_ips: ips })
        })
    }

    /// A pod that resolves names with the cluster's servers where there are none uses the node's instead.
    fn warn_of_missing_dns(&self, pod: &Pod) {
        let shared = &self.shared;
        if !shared.config.cluster_dns.is_empty() || !pod_spec::wants_cluster_dns(pod) {
            return;
        }
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                    Falling back to \"Default\" policy.";
        let mut node = client::reference(&*shared.node.lock());
        node.uid = Some(shared.config.node_name.clone());
        shared.recorder.warning(&node, "MissingClusterDNS", text);
        let full = pod_spec::full_name(pod);
        shared.recorder.warning(&client::reference(pod), "MissingClusterDNS", format!("pod: {full:?}. {text}"));
    }

    async fn mount(&self, pod: &Pod, references: &References, ips: &[String]) -> Result<MountedVolumes, SetUpError> {
        let shared = &self.shared;
        let facts =
            MountFacts { references, pod_ips: ips, host_ips: &shared.runtime.host_ips, node: shared.runtime.node };
        shared.volumes.set_up(pod, &facts).await
    }

    pub(super) async fn runtime_handler(&self, pod: &Pod) -> Result<String, SandboxError> {
        let Some(name) = pod_spec::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(String::new());
        };
        match self.shared.client.api::<RuntimeClass>().get(name).await {
            Ok(class) => Ok(class.handler),
            Err(error) if error.is_not_found() => Err(SandboxError::RuntimeClassNotFound(error)),
            Err(error) => Err(SandboxError::RuntimeClassLookup { name: name.into(), error }),
        }
    }

    /// Files of configMap and other volumes follow what they show, also when nothing is to be started.
    pub(super) async fn refresh_volumes(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) {
        if !self.shared.volumes.requires_remount(pod) || status.running().next().is_none() {
            return;
        }
        let ips = status.ips(pod, &self.shared.runtime.host_ips);
        let result = match self.shared.references.get(pod).await {
            Ok(references) => self.mount(pod, &references, ips).await,
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(mounted) => {
                if let Some(wait) = mounted.refresh_after {
                    self.sync_again_in(wait);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "failed to refresh volumes");
                self.sync_again_in(PREPARE_RETRY_MAX);
            }
        }
    }
}
