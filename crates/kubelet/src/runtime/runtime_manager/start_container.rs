//! Starts one container: image, configuration, creation, start, postStart hook.
//! Part of `runtime_manager`.
//! Every failure is a `StartContainerError`, which knows what a waiting container shows; each is told once.

use std::{collections::BTreeMap, path::PathBuf};

use cri::v1;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use super::{
    KillOrder, RuntimeManager, StartContainerError, StartContext, container_files::ContainerFiles, container_reference,
    error::ContainerConfigError, hooks,
};
use crate::{
    files::file_work::FileWorkError,
    images::image_manager::{PodIdentity, PresentImage},
    logs::container_logs,
    node::{
        node_metrics::{STARTED_CONTAINERS, STARTED_CONTAINERS_ERRORS},
        pod_metrics::{IMAGE_VOLUMES, IMAGE_VOLUMES_ERRORS, IMAGE_VOLUMES_MOUNTED},
    },
    pod::pod_spec::{self, Kind},
    resources::container_devices,
    runtime::{
        container_config::{self, ContainerInput, env_file, environment, mounts, network_files},
        user_namespaces,
    },
};

impl RuntimeManager {
    /// Pulls, creates and starts one container and runs its postStart hook.
    pub async fn start_container(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
    ) -> Result<String, StartContainerError> {
        let container_type = match kind {
            Kind::Init => "init_container",
            Kind::App => "container",
            Kind::Ephemeral => "ephemeral_container",
        };
        self.metrics.count(&STARTED_CONTAINERS, &[container_type]);
        let started = self.try_start_container(context, kind, container).await;
        started.inspect_err(|error| {
            if let Some(message) = error.event_message() {
                let about = container_reference(context.pod, kind, &container.name);
                self.recorder.warning(&about, error.event_reason(), message);
            }
            self.metrics.count(&STARTED_CONTAINERS_ERRORS, &[container_type, error.reason()]);
        })
    }

    async fn try_start_container(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
    ) -> Result<String, StartContainerError> {
        let pod = context.pod;
        let about = container_reference(pod, kind, &container.name);
        let image = self.images.ensure(&about, PodIdentity::new(pod), container, context.pull_secrets).await;
        let image = image.map_err(StartContainerError::Image)?;
        let image_volumes = self.image_volumes(context, kind, container).await?;
        let mounted = container.volume_mounts.iter().flatten();
        let mounted = mounted.filter(|mount| image_volumes.contains_key(&mount.name)).count() as f64;
        self.metrics.add(&IMAGE_VOLUMES, &[], image_volumes.len() as f64);
        let config = self
            .container_config(context, kind, container, &image, &image_volumes)
            .await
            .map_err(StartContainerError::Config)?;
        let log = PathBuf::from(&context.sandbox_config.log_directory).join(&config.log_path);
        let resources = config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let cpu_set = resources.map(|resources| resources.cpuset_cpus.clone()).unwrap_or_default();
        let create_and_start = async {
            let _start = context.starts.begin();
            let made = self.runtime.create_container(context.sandbox_id, config, context.sandbox_config.clone()).await;
            let id = made.map_err(|error| {
                if mounted > 0.0 && error.to_string().contains("ImageVolumeMountFailed") {
                    self.metrics.add(&IMAGE_VOLUMES_ERRORS, &[], mounted);
                }
                StartContainerError::Create(error)
            })?;
            self.metrics.add(&IMAGE_VOLUMES_MOUNTED, &[], mounted);
            self.recorder.normal(&about, "Created", "Container created");
            self.runtime.start_container(&id).await.map_err(StartContainerError::Run)?;
            self.managers.started(pod, &container.name, &id, cpu_set).await;
            Ok(id)
        };
        let id = self.starts.run(create_and_start).await?;
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
    ) -> Result<BTreeMap<String, String>, StartContainerError> {
        let about = container_reference(context.pod, kind, &container.name);
        let mut found = BTreeMap::new();
        for volume in pod_spec::spec(context.pod).volumes.iter().flatten() {
            let Some(source) = &volume.image else { continue };
            if !container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name) {
                continue;
            }
            if let Some(problem) = self.features.without_image_volumes() {
                let (volume, problem) = (volume.name.clone(), problem.to_string());
                return Err(StartContainerError::ImageVolumesUnsupported { volume, problem });
            }
            let wanted = Container {
                image: source.reference.clone(),
                image_pull_policy: source.pull_policy.clone(),
                ..Container::default()
            };
            let image = self.images.ensure(&about, PodIdentity::new(context.pod), &wanted, context.pull_secrets).await;
            found.insert(volume.name.clone(), image.map_err(StartContainerError::VolumeImage)?.id);
        }
        Ok(found)
    }

    async fn post_start(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
        id: &str,
        hook: &LifecycleHandler,
    ) -> Result<(), StartContainerError> {
        let target = hooks::HookTarget { pod: context.pod, container, container_id: id, pod_ips: context.pod_ips };
        let Err(error) = hooks::run(self, hook, target, None).await else { return Ok(()) };
        tracing::warn!(container = container.name, %error, "postStart hook failed");
        let error = StartContainerError::PostStartHook(error);
        let about = container_reference(context.pod, kind, &container.name);
        self.recorder.warning(&about, error.event_reason(), "PostStartHook failed");
        let order = KillOrder {
            message: "FailedPostStartHook".into(),
            grace_period_seconds: pod_spec::grace_period_seconds(context.pod),
            ..KillOrder::default()
        };
        let of = Some((kind, container));
        // One that can't be stopped is found running at the next look.
        self.kill_container(context.pod, id, &container.name, of, context.pod_ips, &order).await;
        Err(error)
    }

    async fn container_config(
        &self,
        context: &StartContext<'_>,
        kind: Kind,
        container: &Container,
        image: &PresentImage,
        image_volumes: &BTreeMap<String, String>,
    ) -> Result<v1::ContainerConfig, ContainerConfigError> {
        let pod = context.pod;
        let key = format!("{}/{}", pod_spec::uid(pod), container.name);
        let named = env_file::named(container, context.volumes);
        let files = match named.is_empty() {
            true => env_file::Files::new(),
            false => {
                let read =
                    self.files.run(key.clone(), move || Ok::<_, FileWorkError>(env_file::read_all(&named))).await;
                read.map_err(|error| ContainerConfigError::Files(error.to_string()))?
            }
        };
        let device_options = self.devices.options(pod, container).await;
        let device_options = device_options.map_err(|error| ContainerConfigError::Devices(error.to_string()))?;
        let mut environment = environment::environment(
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
        )
        .map_err(ContainerConfigError::Environment)?;
        container_devices::add_environment(&mut environment, &device_options);
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
            relabelled: context.relabelled,
            environment: &environment,
            sub_paths: &directory.join("volume-subpaths"),
            hosts_file: hosts_file.as_deref(),
            message_file: Some(&message_file),
            recursive_read_only: self.features.of_handler(context.handler).is_some_and(|f| f.recursive_read_only),
        })
        .map_err(|error| ContainerConfigError::Mounts(error.to_string()))?;
        let own = pod_spec::host_network(pod).then(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default());
        let text = network_files::hosts_file(pod, context.pod_ips, &self.config.cluster_domain, own.as_deref());
        let files = ContainerFiles {
            hosts: hosts_file.map(|path| (path, text)),
            message: message_file,
            logs: PathBuf::from(&context.sandbox_config.log_directory).join(&container.name),
            sub_paths,
        };
        let made = self.files.run(key, move || files.make().map_err(|error| error.to_string())).await;
        let logged = made.map_err(|error| ContainerConfigError::Files(error.to_string()))?;
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
        })
        .map_err(|error| ContainerConfigError::Specification(error.to_string()))?;
        let devices = mounts::devices(pod, container, context.volumes);
        config.devices = devices.map_err(|error| ContainerConfigError::Devices(error.to_string()))?;
        container_devices::add_to_config(&mut config, device_options);
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            self.cgroups.enforce(pod, container, resources);
            self.managers.place(pod, &container.name, resources);
        }
        let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
        if let (Some(users), Some(options)) = (users, security.and_then(|s| s.namespace_options.as_mut())) {
            options.userns_options = Some(user_namespaces::options(&users));
        }
        Ok(config)
    }

    /// The container whose processes an ephemeral container is to see.
    fn target(
        &self,
        context: &StartContext,
        kind: Kind,
        container: &Container,
    ) -> Result<Option<String>, ContainerConfigError> {
        if kind != Kind::Ephemeral {
            return Ok(None);
        }
        let all = pod_spec::spec(context.pod).ephemeral_containers.iter().flatten();
        let target = all.filter(|e| e.name == container.name).find_map(|e| e.target_container_name.clone());
        let Some(target) = target.filter(|name| !name.is_empty()) else { return Ok(None) };
        match context.status.running().find(|c| c.name == target) {
            Some(found) => Ok(Some(found.id.clone())),
            None => Err(ContainerConfigError::TargetNotFound(target)),
        }
    }
}
