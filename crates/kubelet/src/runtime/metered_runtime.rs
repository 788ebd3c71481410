//! The container runtime with every call counted and timed.
//! Wraps whatever `cri::Runtime` the node was given; counts into `node_metrics`.
//! Changes no call and no answer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cri::{EventStream, Result, Runtime, v1};
use env::Env;
use metrics::Metrics;

use crate::node::node_metrics::{
    RUNTIME_DURATION, RUNTIME_ERRORS, RUNTIME_OPERATIONS, SANDBOX_DURATION, SANDBOX_ERRORS,
};

pub struct MeteredRuntime {
    runtime: Arc<dyn Runtime>,
    metrics: Metrics,
    env: Env,
}

/// One call: `measured!(self, "name of the operation", method(arguments))`.
macro_rules! measured {
    ($self:ident, $operation:literal, $method:ident($($argument:expr),*)) => {{
        let began = $self.env.monotonic();
        let result = $self.runtime.$method($($argument),*).await;
        $self.done($operation, began, result.is_err());
        result
    }};
}

impl MeteredRuntime {
    pub fn new(runtime: Arc<dyn Runtime>, metrics: Metrics, env: Env) -> Self {
        Self { runtime, metrics, env }
    }

    fn done(&self, operation: &'static str, began: Duration, failed: bool) {
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.count(&RUNTIME_OPERATIONS, &[operation]);
        self.metrics.observe(&RUNTIME_DURATION, &[operation], took);
        if failed {
            self.metrics.count(&RUNTIME_ERRORS, &[operation]);
        }
    }
}

#[async_trait]
impl Runtime for MeteredRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        measured!(self, "version", version())
    }

    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse> {
        measured!(self, "status", status(verbose))
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        measured!(self, "update_runtime_config", update_runtime_config(pod_cidr))
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        measured!(self, "runtime_config", runtime_config())
    }

    async fn checkpoint_container(&self, id: &str, location: &str, timeout_seconds: i64) -> Result<()> {
        measured!(self, "checkpoint_container", checkpoint_container(id, location, timeout_seconds))
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        let began = self.env.monotonic();
        let result = measured!(self, "run_podsandbox", run_pod_sandbox(config, runtime_handler));
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.observe(&SANDBOX_DURATION, &[runtime_handler], took);
        if result.is_err() {
            self.metrics.count(&SANDBOX_ERRORS, &[runtime_handler]);
        }
        result
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        measured!(self, "stop_podsandbox", stop_pod_sandbox(id))
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        measured!(self, "remove_podsandbox", remove_pod_sandbox(id))
    }

    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<v1::PodSandboxStatusResponse> {
        measured!(self, "podsandbox_status", pod_sandbox_status(id, verbose))
    }

    async fn list_pod_sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>> {
        measured!(self, "list_podsandbox", list_pod_sandboxes(filter))
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        measured!(self, "create_container", create_container(sandbox_id, config, sandbox_config))
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        measured!(self, "start_container", start_container(id))
    }

    async fn stop_container(&self, id: &str, timeout_seconds: i64) -> Result<()> {
        measured!(self, "stop_container", stop_container(id, timeout_seconds))
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        measured!(self, "remove_container", remove_container(id))
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        measured!(self, "list_containers", list_containers(filter))
    }

    async fn container_status(&self, id: &str, verbose: bool) -> Result<v1::ContainerStatusResponse> {
        measured!(self, "container_status", container_status(id, verbose))
    }

    async fn update_container_resources(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        measured!(self, "update_container", update_container_resources(id, resources))
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        measured!(self, "reopen_container_log", reopen_container_log(id))
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout_seconds: i64) -> Result<v1::ExecSyncResponse> {
        measured!(self, "exec_sync", exec_sync(id, command, timeout_seconds))
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        measured!(self, "exec", exec(request))
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        measured!(self, "attach", attach(request))
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        measured!(self, "port_forward", port_forward(request))
    }

    async fn container_stats(&self, id: &str) -> Result<Option<v1::ContainerStats>> {
        measured!(self, "container_stats", container_stats(id))
    }

    async fn list_container_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Result<Vec<v1::ContainerStats>> {
        measured!(self, "list_container_stats", list_container_stats(filter))
    }

    async fn pod_sandbox_stats(&self, id: &str) -> Result<Option<v1::PodSandboxStats>> {
        measured!(self, "podsandbox_stats", pod_sandbox_stats(id))
    }

    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>> {
        measured!(self, "list_podsandbox_stats", list_pod_sandbox_stats(filter))
    }

    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>> {
        measured!(self, "list_images", list_images(filter))
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        measured!(self, "image_status", image_status(image))
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        measured!(self, "pull_image", pull_image(image, auth, sandbox_config))
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        measured!(self, "remove_image", remove_image(image))
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        measured!(self, "image_fs_info", image_fs_info())
    }

    async fn events(&self) -> Result<EventStream> {
        measured!(self, "get_container_events", events())
    }
}
