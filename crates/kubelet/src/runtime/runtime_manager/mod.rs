//! Carries out what `pod_actions` decided, over CRI: sandboxes, containers, hooks, kills.
//! Called by `pod_workers`, one pod at a time.
//! Invariant: decides nothing about which container should run; reports every failure as the reason a container waits.

mod container_files;
mod hooks;
mod host_dns;
mod kill;
mod message;
mod snapshot;
mod turns;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use client::{EventRecorder, ObjectRef};
use container_files::ContainerFiles;
use cri::{Runtime, v1};
use env::Env;
use k8s_openapi::api::core::v1::{Container, Pod, Secret, Service};
pub use kill::KillOrder;
use metrics::Metrics;
use tokio::sync::{Mutex, Notify};
pub use turns::Turns;

use crate::{
    config::Config,
    files::file_work::FileWork,
    images::image_manager::{ImageManager, PresentImage},
    logs::container_logs,
    node::node_metrics::{
        CGROUP_DURATION, STARTED_CONTAINERS, STARTED_CONTAINERS_ERRORS, STARTED_PODS, STARTED_PODS_ERRORS,
    },
    pod::{
        pod_spec::{self, Kind},
        pod_status::WaitingReason,
    },
    resources::container_manager::ContainerManager,
    runtime::{
        container_config::{
            self, ContainerInput, SandboxInput,
            downward::NodeFacts,
            env_file,
            environment::{self, References},
            mounts,
            network_files::{self, ClusterDns},
        },
        runtime_features::RuntimeFeatures,
        runtime_status::PodRuntimeStatus,
        user_namespaces::{self, UserNamespaces},
    },
};

pub struct RuntimeManager {
    pub runtime: Arc<dyn Runtime>,
    pub env: Env,
    pub recorder: EventRecorder,
    pub config: Arc<Config>,
    pub images: Arc<ImageManager>,
    pub cgroups: Arc<ContainerManager>,
    pub user_namespaces: UserNamespaces,
    pub features: Arc<RuntimeFeatures>,
    pub node: NodeFacts,
    pub host_ips: Vec<String>,
    pub metrics: Metrics,
    /// Sandboxes and containers that are made.
    pub starts: Turns,
    /// Sandboxes that are stopped and removed; what starts does not wait for them.
    pub stops: Turns,
    pub files: FileWork,
}

/// What every container of a pod is started with.
pub struct StartContext<'a> {
    pub pod: &'a Pod,
    pub sandbox_id: &'a str,
    pub sandbox_config: &'a v1::PodSandboxConfig,
    /// The runtime's handler that the pod's RuntimeClass names.
    pub handler: &'a str,
    pub references: &'a References,
    pub services: &'a [Arc<Service>],
    pub volumes: &'a BTreeMap<String, PathBuf>,
    pub pod_ips: &'a [String],
    pub pull_secrets: &'a [Arc<Secret>],
    pub status: &'a PodRuntimeStatus,
    /// Held while the runtime makes and starts a container, which is not cut off: what is left of it says that it failed.
    pub at_work: &'a Mutex<()>,
}

/// A reference to a container, as Events name it.
pub fn container_reference(pod: &Pod, kind: Kind, container: &str) -> ObjectRef {
    let list = match kind {
        Kind::Init => "initContainers",
        Kind::App => "containers",
        Kind::Ephemeral => "ephemeralContainers",
    };
    let mut reference = client::reference(pod);
    reference.field_path = Some(format!("spec.{list}{{{container}}}"));
    reference
}

impl RuntimeManager {
    /// The configuration from which a pod's sandbox was or will be made.
    pub fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<v1::PodSandboxConfig, String> {
        let file = Some(&self.config.resolv_conf).filter(|file| !file.as_os_str().is_empty());
        // Also for a pod that takes nothing from it: other kubelets start none without this file.
        let host = file.map(|file| host_dns::read(file)).transpose()?;
        let cluster = ClusterDns {
            servers: self.config.cluster_dns.iter().map(ToString::to_string).collect(),
            domain: self.config.cluster_domain.clone(),
        };
        let (dns, warnings) = network_files::dns(pod, host.as_ref(), &cluster, &self.config.node_ips);
        for warning in warnings {
            self.recorder.warning(&client::reference(pod), "DNSConfigForming", warning);
        }
        let users = self.users(pod)?;
        let mut config = container_config::sandbox(SandboxInput {
            pod,
            attempt,
            dns,
            cluster_domain: &self.config.cluster_domain,
            cgroup_parent: self.cgroups.cgroup_parent(pod),
            log_root: &self.config.pod_logs_dir(),
            owner: &self.config.root_dir,
        })?;
        let mut context = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let Some(context) = context.as_mut().filter(|_| self.config.sandbox_guards_itself) {
            let profile_type = v1::security_profile::ProfileType::Unconfined.into();
            context.seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: String::new() });
        }
        if let (Some(users), Some(options)) = (users, context.and_then(|c| c.namespace_options.as_mut())) {
            options.userns_options = Some(user_namespaces::options(&users));
        }
        Ok(config)
    }

    /// The pod's own range of users, if it is to have one.
    fn users(&self, pod: &Pod) -> Result<Option<Vec<v1::IdMapping>>, String> {
        user_namespaces::wanted(pod).then(|| self.user_namespaces.allocate(pod)).transpose()
    }

    /// Says what a pod asks for that its handler can't do.
    pub fn check_handler(&self, pod: &Pod, handler: &str) -> Result<(), String> {
        if user_namespaces::wanted(pod) { self.features.check_user_namespaces(handler) } else { Ok(()) }
    }

    /// Makes the pod's control group, directories and sandbox. When it is its turn, it tells `began`.
    pub async fn create_sandbox(
        &self,
        pod: &Pod,
        config: &v1::PodSandboxConfig,
        handler: &str,
        began: &Notify,
    ) -> Result<String, String> {
        self.metrics.count(&STARTED_PODS, &[]);
        let create = async {
            began.notify_one();
            let logs = config.log_directory.clone();
            let make =
                move || std::fs::create_dir_all(&logs).map_err(|error| format!("failed to create {logs}: {error}"));
            self.files.run(config.log_directory.clone(), make).await?;
            let began = self.env.monotonic();
            self.cgroups.create_pod(pod).map_err(|error| {
                format!("failed to ensure that the pod: {} cgroups exist: {error}", pod_spec::uid(pod))
            })?;
            self.metrics.observe(&CGROUP_DURATION, &["create"], (self.env.monotonic() - began).as_secs_f64());
            self.runtime.run_pod_sandbox(config.clone(), handler).await.map_err(|error| error.to_string())
        };
        // Pods that have theirs already get their containers first.
        let made = self.starts.take_last(create).await;
        made.inspect_err(|_| self.metrics.count(&STARTED_PODS_ERRORS, &[]))
    }

    /// Pulls, creates and starts one container and runs its postStart hook.
    pub async fn start_container(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
    ) -> Result<String, WaitingReason> {
        let of = match kind {
            Kind::Init => "init_container",
            Kind::App => "container",
            Kind::Ephemeral => "ephemeral_container",
        };
        self.metrics.count(&STARTED_CONTAINERS, &[of]);
        let started = self.try_start_container(context, kind, container).await;
        started.inspect_err(|waiting| self.metrics.count(&STARTED_CONTAINERS_ERRORS, &[of, &waiting.reason]))
    }

    async fn try_start_container(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
    ) -> Result<String, WaitingReason> {
        let pod = context.pod;
        let about = container_reference(pod, kind, &container.name);
        let failed = |reason: &str, message: String| {
            self.recorder.warning(&about, "Failed", format!("Error: {message}"));
            WaitingReason { reason: reason.into(), message }
        };
        let image = match self.images.ensure(&about, pod_spec::uid(pod), container, context.pull_secrets).await {
            Ok(image) => image,
            Err(reason) => {
                self.recorder.warning(&about, "Failed", format!("Error: {}", reason.reason));
                return Err(reason);
            }
        };
        let image_volumes = self.image_volumes(context, kind, container).await?;
        let config = self
            .container_config(context, kind, container, &image, &image_volumes)
            .await
            .map_err(|message| failed("CreateContainerConfigError", message))?;
        let log = PathBuf::from(&context.sandbox_config.log_directory).join(&config.log_path);
        let create_and_start = async {
            let _at_work = context.at_work.lock().await;
            let made = self.runtime.create_container(context.sandbox_id, config, context.sandbox_config.clone()).await;
            let id = made.map_err(|error| failed("CreateContainerError", error.to_string()))?;
            self.recorder.normal(&about, "Created", "Container created");
            let started = self.runtime.start_container(&id).await;
            started.map_err(|error| failed("RunContainerError", error.to_string()))?;
            Ok(id)
        };
        let id = self.starts.take(create_and_start).await?;
        self.recorder.normal(&about, "Started", "Container started");
        container_logs::link(&self.config, pod, &container.name, &id, &log).await;
        if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) {
            self.post_start(context, kind, container, &id, hook).await?;
        }
        Ok(id)
    }

    /// Makes the images present that the container mounts, by the volumes' names.
    async fn image_volumes(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
    ) -> Result<BTreeMap<String, String>, WaitingReason> {
        let about = container_reference(context.pod, kind, &container.name);
        let mut found = BTreeMap::new();
        for volume in pod_spec::spec(context.pod).volumes.iter().flatten() {
            let Some(source) = &volume.image else { continue };
            if !container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name) {
                continue;
            }
            if let Some(problem) = self.features.without_image_volumes() {
                let message = format!("ImageVolumeMountFailed: volume {:?}: {problem}", volume.name);
                self.recorder.warning(&about, "Failed", format!("Error: {message}"));
                return Err(WaitingReason { reason: "CreateContainerError".into(), message });
            }
            let wanted = Container {
                image: source.reference.clone(),
                image_pull_policy: source.pull_policy.clone(),
                ..Container::default()
            };
            let image = self.images.ensure(&about, pod_spec::uid(context.pod), &wanted, context.pull_secrets).await?;
            found.insert(volume.name.clone(), image.id);
        }
        Ok(found)
    }

    async fn post_start(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
        id: &str,
        hook: &k8s_openapi::api::core::v1::LifecycleHandler,
    ) -> Result<(), WaitingReason> {
        let place = hooks::Place { pod: context.pod, container, container_id: id, pod_ips: context.pod_ips };
        let Err(error) = hooks::run(self, hook, place, None).await else { return Ok(()) };
        let about = container_reference(context.pod, kind, &container.name);
        self.recorder.warning(&about, "FailedPostStartHook", "PostStartHook failed");
        tracing::warn!(
            pod = pod_spec::display(context.pod),
            container = container.name,
            error,
            "postStart hook failed"
        );
        let order = KillOrder {
            message: "FailedPostStartHook".into(),
            grace_period_seconds: pod_spec::grace_period_seconds(context.pod),
            ..KillOrder::default()
        };
        let of = Some((kind, container));
        // One that can't be stopped is found running at the next look.
        self.kill_container(context.pod, id, &container.name, of, context.pod_ips, &order).await;
        Err(WaitingReason { reason: "PostStartHookError".into(), message: error })
    }

    async fn container_config(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
        image: &PresentImage,
        image_volumes: &BTreeMap<String, String>,
    ) -> Result<v1::ContainerConfig, String> {
        let pod = context.pod;
        let key = format!("{}/{}", pod_spec::uid(pod), container.name);
        let named = env_file::named(container, context.volumes);
        let files = match named.is_empty() {
            true => env_file::Files::new(),
            false => self.files.run(key.clone(), move || Ok::<_, String>(env_file::read_all(&named))).await?,
        };
        let environment = environment::environment(
            &environment::Context {
                pod,
                references: context.references,
                services: context.services,
                pod_ips: context.pod_ips,
                host_ips: &self.host_ips,
                node: &self.node,
                files: &files,
            },
            container,
        )?;
        let directory = self.config.pod_dir(pod_spec::uid(pod));
        let hosts_file = mounts::wants_hosts_file(pod, container).then(|| directory.join("etc-hosts"));
        // A fresh one for each incarnation, so that none shows the message of another.
        let message_file = format!("containers/{}/{:08x}", container.name, self.env.random_u64() as u32);
        let message_file = directory.join(message_file);
        let (mounts, sub_paths) = mounts::mounts(&mounts::Input {
            pod,
            container,
            volumes: context.volumes,
            images: image_volumes,
            environment: &environment,
            sub_paths: &directory.join("volume-subpaths"),
            hosts_file: hosts_file.as_deref(),
            message_file: Some(&message_file),
            recursive_read_only: self.features.of_handler(context.handler).is_some_and(|f| f.recursive_read_only),
        })?;
        let own = pod_spec::host_network(pod).then(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default());
        let text = network_files::hosts_file(pod, context.pod_ips, &self.config.cluster_domain, own.as_deref());
        let files = ContainerFiles {
            hosts: hosts_file.map(|path| (path, text)),
            message: message_file,
            logs: PathBuf::from(&context.sandbox_config.log_directory).join(&container.name),
            sub_paths,
        };
        let logged = self.files.run(key, move || files.make()).await?;
        // One more than the newest incarnation's, also when the runtime has forgotten it.
        let newest = context.status.find(&container.name).map(|newest| newest.restart_count).or(logged);
        let restart_count = newest.map_or(0, |newest| newest + 1);
        let users = self.users(pod)?;
        let mounts = match &users {
            // The kernel shows files of a volume as the pod's own users.
            Some(users) => mounts
                .into_iter()
                .map(|mount| v1::Mount { uid_mappings: users.clone(), gid_mappings: users.clone(), ..mount })
                .collect(),
            None => mounts,
        };
        let target = self.target(context, kind, container)?;
        let mut config = container_config::container(ContainerInput {
            pod,
            container,
            kind,
            restart_count,
            image_ref: &image.id,
            image_user: &image.user,
            environment,
            mounts,
            node_memory: self.node.memory_bytes,
            root_dir: &self.config.root_dir,
            seccomp_default: self.config.seccomp_default,
            target,
        })?;
        config.devices = mounts::devices(pod, container, context.volumes)?;
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            self.cgroups.enforce(resources);
        }
        let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let (Some(users), Some(options)) = (users, security.and_then(|s| s.namespace_options.as_mut())) {
            options.userns_options = Some(user_namespaces::options(&users));
        }
        Ok(config)
    }

    /// The container whose processes an ephemeral container is to see.
    fn target(&self, context: &StartContext, kind: Kind, container: &Container) -> Result<Option<String>, String> {
        if kind != Kind::Ephemeral {
            return Ok(None);
        }
        let all = pod_spec::spec(context.pod).ephemeral_containers.iter().flatten();
        let target = all.filter(|e| e.name == container.name).find_map(|e| e.target_container_name.clone());
        let Some(target) = target.filter(|name| !name.is_empty()) else { return Ok(None) };
        match context.status.running().find(|c| c.name == target) {
            Some(found) => Ok(Some(found.id.clone())),
            None => Err(format!("unable to find target container {target}")),
        }
    }

    pub async fn update_resources(&self, pod: &Pod, id: &str, kind: Kind, container: &Container) -> cri::Result<()> {
        let mut resources = container_config::resources::linux_resources(pod, container, kind, self.node.memory_bytes);
        self.cgroups.enforce(&mut resources);
        self.runtime.update_container_resources(id, resources).await
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.env.sleep(duration).await;
    }
}
