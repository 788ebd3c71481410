//! Starts the containers of a pod, in order, with back-off for those that keep ending.
//! Part of `pod_workers`.
//! A container that was not started says why it waits.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, Pod, Secret, Service};

use super::{
    prepare::PodContext,
    sync::{PREPARE_RETRY_MAX, RUNTIME_RETRY},
    worker::Worker,
};
use crate::{
    images::image_manager::ImageError,
    pod::{
        pod_actions::{ActuatedResources, PodActions},
        pod_spec::{self, Kind},
        pod_status::WaitingReason,
    },
    runtime::{
        runtime_manager::{StartContainerError, StartContext, container_reference},
        runtime_status::{PodRuntimeStatus, State},
    },
};

impl Worker {
    /// Starts what is to be started, in order. True when a sidecar or an app was started.
    pub(super) async fn start_containers(
        &mut self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        status: &PodRuntimeStatus,
        made: &PodContext,
    ) -> bool {
        let services = self.services(pod);
        let pull_secrets = self.pull_secrets(pod).await;
        let ephemeral = pod_spec::ephemeral_containers(pod);
        let starts = self.container_starts.clone();
        let context = StartContext {
            pod,
            sandbox_id: &made.sandbox_id,
            sandbox_config: &made.sandbox_config,
            handler: &made.handler,
            references: &made.references,
            services: &services,
            volumes: &made.mounted.paths,
            relabelled: made.mounted.relabelled.as_ref(),
            pod_ips: &made.pod_ips,
            pull_secrets: &pull_secrets,
            status,
            starts: &starts,
        };
        for index in &actions.start_ephemeral {
            if let Some(container) = ephemeral.get(*index) {
                self.start(&context, Kind::Ephemeral, container).await;
            }
        }
        let mut progress = false;
        for index in &actions.start_init {
            let Some(container) = pod_spec::init_containers(pod).get(*index) else { continue };
            let started = self.start(&context, Kind::Init, container).await;
            let sidecar = pod_spec::is_sidecar(container);
            progress |= started && sidecar;
            if !started && !sidecar {
                return progress;
            }
        }
        for index in &actions.start {
            if self.handle.pod().metadata.deletion_timestamp.is_some() {
                return false;
            }
            if let Some(container) = pod_spec::containers(pod).get(*index) {
                self.start(&context, Kind::App, container).await;
            }
        }
        // Only a new sidecar lets something else begin.
        progress
    }

    async fn start(&mut self, context: &StartContext<'_>, kind: Kind, container: &Container) -> bool {
        if let Some(reason) = self.crash_backoff(context, kind, container) {
            self.waiting.insert(container.name.clone(), reason);
            return false;
        }
        match self.shared.runtime.start_container(context, kind, container).await {
            Ok(id) => {
                let memory = self.shared.runtime.node.memory_bytes;
                self.follow(context, &id).await;
                let actuated = ActuatedResources::wanted(context.pod, container, kind, memory);
                self.shared.allocations.put_into_effect(&self.uid, [(&*container.name, &actuated.declared)]);
                self.actuated.insert(id, actuated);
                self.waiting.remove(&container.name);
                true
            }
            Err(error) => {
                // The runtime may have something of it all the same.
                self.followed = None;
                let wait = match &error {
                    // Soon it is shown that the next attempt waits.
                    StartContainerError::Image(image) | StartContainerError::VolumeImage(image)
                        if image.is_failed_pull() =>
                    {
                        Some(RUNTIME_RETRY)
                    }
                    StartContainerError::Image(ImageError::BackOff { .. })
                    | StartContainerError::VolumeImage(ImageError::BackOff { .. }) => {
                        self.shared.images.retry_in(&self.uid, container)
                    }
                    _ => None,
                };
                self.waiting.insert(container.name.clone(), error.waiting_reason());
                self.sync_again_in(wait.unwrap_or(PREPARE_RETRY_MAX));
                false
            }
        }
    }

    /// Adds a container that was just started to what is known of a pod that is being made.
    async fn follow(&mut self, context: &StartContext<'_>, id: &str) {
        if self.followed.is_none() {
            return;
        }
        let seen = self.shared.runtime.container_status(id, context.sandbox_id, &Self::kinds(context.pod)).await;
        match (seen, &mut self.followed) {
            (Ok(Some(container)), Some(followed)) => followed.containers.insert(0, container),
            _ => self.followed = None,
        }
    }

    /// A container that keeps ending waits longer each time.
    fn crash_backoff(&mut self, context: &StartContext, kind: Kind, container: &Container) -> Option<WaitingReason> {
        let ended = context.status.find(&container.name).filter(|c| c.state == State::Exited)?;
        let shared = self.shared.clone();
        let key = backoff_key(&self.uid, container);
        let now = Duration::from_nanos(shared.env.now().as_nanosecond().max(0) as u64);
        let event = Duration::from_nanos(ended.finished_at.max(0) as u64);
        let Some((left, wait)) = shared.crash_backoff.remaining(&key, event, now) else {
            shared.crash_backoff.next(&key, event, now);
            return None;
        };
        self.sync_again_in(left);
        let name = pod_spec::full_name(context.pod);
        let about = container_reference(context.pod, kind, &container.name);
        shared.recorder.warning(
            &about,
            "BackOff",
            format!("Back-off restarting failed container {} in pod {name}", container.name),
        );
        Some(WaitingReason {
            reason: "CrashLoopBackOff".into(),
            message: format!(
                "back-off {} restarting failed container={} pod={name}",
                api::printing::go_duration(wait),
                container.name
            ),
        })
    }

    fn services(&self, pod: &Pod) -> Vec<Arc<Service>> {
        let namespace = pod_spec::namespace(pod);
        let relevant = |service: &Arc<Service>| {
            let own = service.metadata.namespace.as_deref();
            own == Some(namespace) || (own == Some("default") && service.metadata.name.as_deref() == Some("kubernetes"))
        };
        self.shared.services.list().into_iter().filter(relevant).collect()
    }

    async fn pull_secrets(&self, pod: &Pod) -> Vec<Arc<Secret>> {
        let mut secrets = Vec::new();
        for reference in pod_spec::spec(pod).image_pull_secrets.iter().flatten() {
            match self.shared.references.secret(pod, &reference.name).await {
                Ok(Some(secret)) => secrets.push(secret),
                _ => {
                    let message = format!(
                        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                        reference.name
                    );
                    self.shared.recorder.warning(&client::reference(pod), "FailedToRetrieveImagePullSecret", message);
                }
            }
        }
        secrets
    }
}

/// What a container waits under after it ended. Another image or other resources may have cured it, so they wait anew.
fn backoff_key(uid: &str, container: &Container) -> String {
    let resources = container.resources.as_ref().and_then(|resources| serde_json::to_string(resources).ok());
    let image = container.image.as_deref().unwrap_or_default();
    format!("{uid}/{}/{image}/{}", container.name, resources.unwrap_or_default())
}
