//! Carries out what `pod_actions` decided, over CRI: sandboxes, containers, hooks, kills.
//! Called by `pod_workers`, one pod at a time.
//! Decides nothing about which container should run; reports every failure as the reason a container waits.

mod container_files;
mod container_starts;
mod error;
mod hooks;
mod host_dns;
mod kill;
mod message;
mod runtime_limiter;
mod sandbox;
mod snapshot;
mod start_container;
mod stop_signal;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use client::{EventRecorder, ObjectRef};
pub use container_starts::ContainerStarts;
use cri::{Runtime, v1};
use env::Env;
pub use error::{SandboxError, StartContainerError};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
pub use kill::KillOrder;
use metrics::Metrics;
pub use runtime_limiter::RuntimeLimiter;

use crate::{
    config::Config,
    files::file_work::FileWork,
    images::image_manager::ImageManager,
    pod::pod_spec::{self, Kind},
    resources::{
        container_devices::ContainerDevices, container_manager::ContainerManager, resource_managers::ResourceManagers,
    },
    runtime::{
        container_config::{downward::NodeFacts, environment::References},
        runtime_features::RuntimeFeatures,
        runtime_status::PodRuntimeStatus,
        user_namespaces::UserNamespaces,
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
    /// For sandboxes and containers that are made.
    pub starts: RuntimeLimiter,
    /// For sandboxes that are stopped and removed; what starts does not wait for them.
    pub stops: RuntimeLimiter,
    pub files: FileWork,
    pub devices: Arc<ContainerDevices>,
    pub managers: Arc<ResourceManagers>,
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
    /// Volumes whose files the runtime is to label; `None` where SELinux is off.
    pub relabelled: Option<&'a BTreeSet<String>>,
    pub pod_ips: &'a [String],
    pub pull_secrets: &'a [Arc<Secret>],
    pub status: &'a PodRuntimeStatus,
    /// Those of this pod.
    pub starts: &'a ContainerStarts,
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
    /// Changes the resources of a running container.
    pub async fn update_resources(
        &self,
        pod: &Pod,
        name: &str,
        id: &str,
        mut resources: v1::LinuxContainerResources,
    ) -> cri::Result<()> {
        if let Some((_, container)) = pod_spec::find_container(pod, name) {
            self.cgroups.enforce(pod, &container, &mut resources);
            self.managers.place(pod, name, &mut resources);
        }
        self.runtime.update_container_resources(id, resources).await
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.env.sleep(duration).await;
    }
}
