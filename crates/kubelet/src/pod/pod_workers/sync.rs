//! Brings a living pod to what is wanted: observe, decide, do, report.
//! Part of `pod_workers`.
//! Invariant: every way out has reported the pod's status and said when to look again.

use std::{sync::Arc, time::Duration};

use cri::v1;
use k8s_openapi::api::{
    core::v1::{Container, Pod, Secret, Service},
    node::v1::RuntimeClass,
};
use tokio::sync::Notify;

use super::{
    Worker,
    resize::{Applied, Change},
};
use crate::{
    pod::{
        pod_actions::{Kill, KillReason, PodActions, pod_actions},
        pod_spec::{self, Kind},
        pod_status::WaitingReason,
    },
    runtime::{
        container_config::{environment::References, resources::pod_limits},
        runtime_manager::{KillOrder, StartContext, container_reference},
        runtime_status::{PodRuntimeStatus, State},
    },
    volumes::{
        error::SetUpError,
        plugins::PLUGINS,
        volume_manager::{MountFacts, MountedVolumes},
    },
};

/// The first and the longest wait after a failure to make a sandbox or volumes.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
const RUNTIME_RETRY: Duration = Duration::from_secs(1);

/// What a pod's containers are started with, once it is all there.
struct Surroundings {
    sandbox_id: String,
    sandbox_config: v1::PodSandboxConfig,
    handler: String,
    references: References,
    mounted: MountedVolumes,
    pod_ips: Vec<String>,
}

impl Worker {
    pub(super) async fn sync(&mut self, pod: &Arc<Pod>) {
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
                    tracing::warn!(pod = pod_spec::display(pod), %error, "failed to look at a pod");
                    return self.look_again_in(RUNTIME_RETRY);
                }
            };
            if !self.admit(pod, &status).await || !self.within_deadline(pod) {
                return;
            }
            granted = self.allocate(pod, &status);
            let pod = &granted;
            self.shared.probes.update(pod, &status, &self.shared.runtime.host_ips, false);
            let mut actions = pod_actions(pod, &status, self.shared.probes.results());
            if actions.kill_pod && !actions.create_sandbox {
                self.completed = true;
                return;
            }
            let changes = self.changes(pod, &status, &mut actions);
            if actions.are_none() {
                if self.resize(pod, &changes).await {
                    self.resize_completed(pod);
                }
                self.refresh(pod, &status).await;
                self.report(pod, &status, false);
                return;
            }
            self.report(pod, &status, false);
            if self.must_wait_for_network(pod) {
                return;
            }
            let progress = self.carry_out(pod, status, &actions, &changes).await;
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
                let reported = self.report(pod, &status, false);
                self.note_start(pod, &reported);
                // It may have ended before anyone listened for it.
                let over = pod_actions(pod, &status, self.shared.probes.results());
                self.completed = over.kill_pod && !over.create_sandbox;
            }
            Err(_) => self.look_again_in(RUNTIME_RETRY),
        }
    }

    /// Nothing is started or stopped in a pod's own network while the runtime says that there is none.
    fn must_wait_for_network(&mut self, pod: &Pod) -> bool {
        let problem = self.shared.runtime.features.network_problem().filter(|_| !pod_spec::host_network(pod));
        let Some(problem) = problem else { return false };
        let message = format!("network is not ready: {problem}");
        self.shared.recorder.warning(&client::reference(pod), "NetworkNotReady", message);
        self.look_again_in(RUNTIME_RETRY);
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
    async fn carry_out(
        &mut self,
        pod: &Arc<Pod>,
        mut status: PodRuntimeStatus,
        actions: &PodActions,
        changes: &[Change<'_>],
    ) -> bool {
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
                let message = format!("error killing pod: {error}");
                self.shared.recorder.warning(&client::reference(&**pod), "FailedKillPod", message);
                self.look_again_in(RUNTIME_RETRY);
                return false;
            }
        }
        for kill in &actions.kill {
            // What may still run is not started once more beside itself.
            if !self.kill(pod, kill, &status).await {
                self.look_again_in(RUNTIME_RETRY);
                return false;
            }
        }
        // Now that what used the old limits has ended.
        if !actions.kill_pod && self.resize(pod, changes).await {
            self.look_again_in(Duration::ZERO);
        }
        let Some(surroundings) = self.prepare(pod, actions, &mut status).await else { return false };
        self.start_all(pod, actions, &status, &surroundings).await
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

    /// Volumes and sandbox, at the same time.
    async fn prepare(
        &mut self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        status: &mut PodRuntimeStatus,
    ) -> Option<Surroundings> {
        let shared = self.shared.clone();
        let about = client::reference(&**pod);
        let handler = match &self.handler {
            Some(handler) => Ok(handler.clone()),
            None => self.runtime_handler(pod).await,
        };
        let made = handler.and_then(|handler| {
            shared.runtime.check_handler(pod, &handler)?;
            Ok((handler, shared.runtime.sandbox_config(pod, actions.attempt)?))
        });
        let (handler, sandbox_config) = match made {
            Ok(made) => made,
            Err(error) => {
                shared.recorder.warning(
                    &about,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {error}"),
                );
                self.failed();
                return None;
            }
        };
        let began = Notify::new();
        let sandbox = async {
            if !actions.create_sandbox {
                began.notify_one();
                return Ok(actions.sandbox_id.clone().unwrap_or_default());
            }
            self.tell_missing_dns(pod);
            shared.runtime.create_sandbox(pod, &sandbox_config, &handler, &began).await
        };
        // What depends on the pod's address waits for it; everything else does not.
        let early_ips = status.ips(pod, &shared.runtime.host_ips).to_vec();
        let needs_address = PLUGINS.needs_pod_ip(pod) && early_ips.is_empty();
        let volumes = async {
            // Many that wait for their turn do not hold as many mounts, which would make every call slower.
            began.notified().await;
            let references = shared.references.get(pod).await?;
            if needs_address {
                return Ok((references, None));
            }
            let mounted = self.mount(pod, &references, &early_ips).await?;
            Ok::<_, SetUpError>((references, Some(mounted)))
        };
        let (sandbox, volumes) = tokio::join!(sandbox, volumes);
        let sandbox_id = match sandbox {
            Ok(id) => id,
            Err(error) => {
                shared.recorder.warning(
                    &about,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {error}"),
                );
                self.failed();
                return None;
            }
        };
        if actions.create_sandbox {
            self.group = Some(pod_limits(pod));
            *status = match status.sandboxes.is_empty() && status.containers.is_empty() {
                true => {
                    let Some(seen) = shared.runtime.sandbox_of(&sandbox_id).await.ok().flatten() else {
                        // One that is gone already is made again at the next look.
                        self.failed();
                        return None;
                    };
                    let status = PodRuntimeStatus { sandboxes: vec![seen], containers: vec![] };
                    self.followed = Some(status.clone());
                    status
                }
                false => self.snapshot(pod).await.ok()?,
            };
            self.report(pod, status, false);
        }
        let ips = status.ips(pod, &shared.runtime.host_ips).to_vec();
        let volumes = match volumes {
            Ok((references, Some(mounted))) => Ok((references, mounted)),
            Ok((references, None)) => self.mount(pod, &references, &ips).await.map(|mounted| (references, mounted)),
            Err(error) => Err(error),
        };
        match volumes {
            Ok((references, mounted)) => {
                self.failures = 0;
                if let Some(wait) = mounted.refresh_after {
                    self.look_again_in(wait);
                }
                Some(Surroundings { sandbox_id, sandbox_config, handler, references, mounted, pod_ips: ips })
            }
            Err(error) => {
                shared.recorder.warning(&about, error.event_reason(), error.to_string());
                self.failed();
                None
            }
        }
    }

    /// A pod that resolves names with the cluster's servers where there are none uses the node's instead.
    fn tell_missing_dns(&self, pod: &Pod) {
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

    fn failed(&mut self) {
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(5)).min(LONGEST_RETRY);
        self.failures += 1;
        self.look_again_in(wait);
    }

    async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        let Some(name) = pod_spec::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(String::new());
        };
        match self.shared.client.api::<RuntimeClass>().get(name).await {
            Ok(class) => Ok(class.handler),
            Err(error) if error.is_not_found() => Err(error.to_string()),
            Err(error) => Err(format!("failed to lookup RuntimeClass {name}: {error}")),
        }
    }

    /// Files of configMap and other volumes follow what they show, also when nothing is to be started.
    async fn refresh(&mut self, pod: &Arc<Pod>, status: &PodRuntimeStatus) {
        if !PLUGINS.requires_remount(pod) || status.running().next().is_none() {
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
                    self.look_again_in(wait);
                }
            }
            Err(error) => {
                tracing::debug!(pod = pod_spec::display(pod), %error, "failed to refresh volumes");
                self.look_again_in(LONGEST_RETRY);
            }
        }
    }

    /// Starts what is to be started, in order. True when a sidecar or an app was started.
    async fn start_all(
        &mut self,
        pod: &Arc<Pod>,
        actions: &PodActions,
        status: &PodRuntimeStatus,
        surroundings: &Surroundings,
    ) -> bool {
        let services = self.services(pod);
        let pull_secrets = self.pull_secrets(pod).await;
        let ephemeral = pod_spec::ephemeral_containers(pod);
        let at_work = self.at_work.clone();
        let context = StartContext {
            pod,
            sandbox_id: &surroundings.sandbox_id,
            sandbox_config: &surroundings.sandbox_config,
            handler: &surroundings.handler,
            references: &surroundings.references,
            services: &services,
            volumes: &surroundings.mounted.paths,
            pod_ips: &surroundings.pod_ips,
            pull_secrets: &pull_secrets,
            status,
            at_work: &at_work,
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
            self.reasons.insert(container.name.clone(), reason);
            return false;
        }
        match self.shared.runtime.start_container(context, kind, container).await {
            Ok(id) => {
                let memory = self.shared.runtime.node.memory_bytes;
                self.follow(context, &id).await;
                let applied = Applied::new(context.pod, container, kind, memory);
                self.shared.allocations.put_into_effect(&self.uid, [(&*container.name, &applied.declared)]);
                self.applied.insert(id, applied);
                self.reasons.remove(&container.name);
                true
            }
            Err(reason) => {
                // The runtime may have something of it all the same.
                self.followed = None;
                let wait = match reason.reason.as_str() {
                    // Soon it is shown that the next attempt waits.
                    reason if crate::images::image_manager::is_failed_pull(reason) => Some(RUNTIME_RETRY),
                    "ImagePullBackOff" => self.shared.images.retry_in(&self.uid, container),
                    _ => None,
                };
                self.reasons.insert(container.name.clone(), reason);
                self.look_again_in(wait.unwrap_or(LONGEST_RETRY));
                false
            }
        }
    }

    /// Adds a container that was just started to what is known of a pod that is being made.
    async fn follow(&mut self, context: &StartContext<'_>, id: &str) {
        if self.followed.is_none() {
            return;
        }
        let seen = self.shared.runtime.container_of(id, context.sandbox_id, &Self::kinds(context.pod)).await;
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
        self.look_again_in(left);
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
                crate::images::image_manager::go_duration(wait),
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
