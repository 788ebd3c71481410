//! The Container Runtime Interface: one trait, a gRPC client for it, a fake for tests, and a supervisor for our own
//! containerd.
//! Used by `kubelet` (everything) and `minke` (the supervisor, image import).
//! Knows nothing of Pods beyond what CRI itself carries; never decides what should run.

pub mod containerd;
pub mod events;
pub mod fake;
mod fake_resources;
pub mod image_sub_path;
mod remote;

use async_trait::async_trait;
use futures::stream::BoxStream;
pub use k8s_cri::v1;
pub use remote::RemoteRuntime;

pub type Result<T> = std::result::Result<T, Error>;

/// What a runtime answered instead of a result. The text is the runtime's own, because it ends up in Events.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Unimplemented(String),
    /// The runtime could not be reached.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    DeadlineExceeded(String),
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound(_))
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        let text = format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
        match status.code() {
            tonic::Code::NotFound => Error::NotFound(text),
            tonic::Code::Unimplemented => Error::Unimplemented(text),
            tonic::Code::Unavailable => Error::Unavailable(text),
            tonic::Code::DeadlineExceeded => Error::DeadlineExceeded(text),
            _ => Error::Other(text),
        }
    }
}

/// Something the runtime tells unasked. A wake-up: whoever receives it looks again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// A container or a sandbox started.
    Started {
        id: String,
    },
    /// The main process of a container or a sandbox ended.
    Exited {
        id: String,
    },
    Deleted {
        id: String,
    },
    /// The kernel killed a process in this container for want of memory.
    OutOfMemory {
        id: String,
    },
    /// Images were imported, pulled or removed, by whomever.
    ImagesChanged,
}

pub type EventStream = BoxStream<'static, Result<RuntimeEvent>>;

/// CRI v1: the runtime service and the image service.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<v1::VersionResponse>;
    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse>;
    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()>;
    /// How the runtime itself is configured; older ones don't say.
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        Err(Error::Unimplemented("this runtime does not tell its configuration".into()))
    }

    /// Returns the new sandbox's id.
    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, runtime_handler: &str) -> Result<String>;
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;
    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<v1::PodSandboxStatusResponse>;
    async fn list_pod_sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>>;

    /// Returns the new container's id.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Sends the stop signal, and SIGKILL after `timeout_seconds`. Returns when the container has exited.
    async fn stop_container(&self, id: &str, timeout_seconds: i64) -> Result<()>;
    async fn remove_container(&self, id: &str) -> Result<()>;
    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>>;
    async fn container_status(&self, id: &str, verbose: bool) -> Result<v1::ContainerStatusResponse>;
    async fn update_container_resources(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()>;
    async fn reopen_container_log(&self, id: &str) -> Result<()>;
    /// Writes what a container is just now to `location`; `timeout_seconds` 0 leaves it to the runtime.
    async fn checkpoint_container(&self, _id: &str, _location: &str, _timeout_seconds: i64) -> Result<()> {
        Err(Error::Unimplemented("this runtime makes no checkpoints".into()))
    }

    /// `timeout_seconds` 0 means no limit.
    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout_seconds: i64) -> Result<v1::ExecSyncResponse>;
    /// Returns the URL of the runtime's streaming server for this session; so do the next two.
    async fn exec(&self, request: v1::ExecRequest) -> Result<String>;
    async fn attach(&self, request: v1::AttachRequest) -> Result<String>;
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String>;

    async fn container_stats(&self, id: &str) -> Result<Option<v1::ContainerStats>>;
    async fn list_container_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Result<Vec<v1::ContainerStats>>;
    async fn pod_sandbox_stats(&self, id: &str) -> Result<Option<v1::PodSandboxStats>>;
    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>>;

    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>>;
    /// `None` when the runtime has no such image.
    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>>;
    /// Returns the reference (usually the id) under which the image is now known.
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String>;
    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()>;
    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse>;

    /// Runtime events from now on. The first item is `Unimplemented` when this runtime has none: the caller must
    /// then relist.
    async fn events(&self) -> Result<EventStream>;
}

/// Stops and removes every sandbox with its containers: what `minke down` wants of a runtime that is ours alone.
pub async fn remove_all(runtime: &dyn Runtime) -> Result<usize> {
    let sandboxes = runtime.list_pod_sandboxes(None).await?;
    let count = sandboxes.len();
    let mut failures: Vec<Error> = Vec::new();
    let removals = sandboxes.into_iter().map(|sandbox| async move {
        runtime.stop_pod_sandbox(&sandbox.id).await?;
        runtime.remove_pod_sandbox(&sandbox.id).await
    });
    use futures::StreamExt;
    let mut results = futures::stream::iter(removals).buffer_unordered(4);
    while let Some(result) = results.next().await {
        if let Err(error) = result
            && !error.is_not_found()
        {
            failures.push(error);
        }
    }
    failures.into_iter().next().map_or(Ok(count), Err)
}
