//! The gRPC client for a CRI v1 runtime on a unix socket.
//! Implements `Runtime`; `events` adds what CRI itself does not offer on containerd 1.6.
//! Connects lazily and again after a failure, so a runtime that restarts needs no action here.

use std::{future::Future, path::PathBuf, time::Duration};

use async_trait::async_trait;
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Response, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint, Uri},
};

use crate::{
    Error, EventStream, Result, Runtime, RuntimeEvent, events, image_sub_path,
    v1::{self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient},
};

/// Longest ordinary call, unless told otherwise; a runtime that takes longer is reported as hanging.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Events that wait for a slow reader; beyond it the runtime is made to wait.
const EVENTS_BUFFERED_MAX: usize = 1024;
/// A node with thousands of containers lists in one message.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

#[derive(Clone)]
pub struct RemoteRuntime {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    channel: Channel,
    limit: Duration,
}

impl RemoteRuntime {
    /// `runtime` and `image` are socket paths, with or without `unix://`. No connection is made until the first call.
    /// Must be called inside a tokio runtime.
    pub fn new(runtime: &str, image: Option<&str>) -> Self {
        let channel = connect_lazily(runtime);
        let image_channel = match image {
            Some(image) if image != runtime => connect_lazily(image),
            _ => channel.clone(),
        };
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
            channel,
            limit: CALL_TIMEOUT,
        }
    }

    /// The longest an ordinary call may take.
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
}

/// A channel that dials the socket whenever it has no connection.
pub(crate) fn connect_lazily(endpoint: &str) -> Channel {
    let path = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    }))
}

async fn call<T>(
    limit: Option<Duration>,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    let response = match limit {
        Some(limit) => env::timeout(limit, call).await.ok_or_else(|| {
            Error::DeadlineExceeded(format!(
                "rpc error: code = DeadlineExceeded desc = the runtime did not answer within {} s",
                limit.as_secs()
            ))
        })?,
        None => call.await,
    };
    Ok(response?.into_inner())
}

/// One line per plain call: clone the client (a cheap handle), send, unwrap the answer.
macro_rules! rpc {
    ($this:expr, $service:ident, $method:ident, $request:expr) => {
        rpc!($this, $service, $method, $request, Some($this.limit))
    };
    ($this:expr, $service:ident, $method:ident, $request:expr, $limit:expr) => {{
        let mut service = $this.$service.clone();
        call($limit, service.$method(Request::new($request))).await
    }};
}

#[async_trait]
impl Runtime for RemoteRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        rpc!(self, runtime, version, v1::VersionRequest { version: "0.1.0".into() })
    }

    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse> {
        rpc!(self, runtime, status, v1::StatusRequest { verbose })
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.into() });
        let runtime_config = Some(v1::RuntimeConfig { network_config });
        rpc!(self, runtime, update_runtime_config, v1::UpdateRuntimeConfigRequest { runtime_config }).map(drop)
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        rpc!(self, runtime, runtime_config, v1::RuntimeConfigRequest {})
    }

    async fn checkpoint_container(&self, id: &str, location: &str, timeout_seconds: i64) -> Result<()> {
        let request = v1::CheckpointContainerRequest {
            container_id: id.into(),
            location: location.into(),
            timeout: timeout_seconds,
        };
        // As long as it takes, unless somebody says otherwise: memory is written to disk.
        let limit = u64::try_from(timeout_seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
        rpc!(self, runtime, checkpoint_container, request, limit).map(drop)
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.into() };
        // Sandbox creation includes the network plugins, so it gets more.
        Ok(rpc!(self, runtime, run_pod_sandbox, request, Some(self.limit * 2))?.pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        rpc!(self, runtime, stop_pod_sandbox, v1::StopPodSandboxRequest { pod_sandbox_id: id.into() }).map(drop)
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        rpc!(self, runtime, remove_pod_sandbox, v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() }).map(drop)
    }

    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<v1::PodSandboxStatusResponse> {
        rpc!(self, runtime, pod_sandbox_status, v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose })
    }

    async fn list_pod_sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>> {
        Ok(rpc!(self, runtime, list_pod_sandbox, v1::ListPodSandboxRequest { filter })?.items)
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let request = image_sub_path::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.into(),
            config: image_sub_path::encode(config),
            sandbox_config: Some(sandbox_config),
        };
        let mut grpc = Grpc::new(self.channel.clone());
        let path = PathAndQuery::from_static("/runtime.v1.RuntimeService/CreateContainer");
        let create = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = tonic_prost::ProstCodec::<_, v1::CreateContainerResponse>::default();
            grpc.unary(Request::new(request), path, codec).await
        };
        Ok(call(Some(self.limit), create).await?.container_id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        rpc!(self, runtime, start_container, v1::StartContainerRequest { container_id: id.into() }).map(drop)
    }

    async fn stop_container(&self, id: &str, timeout_seconds: i64) -> Result<()> {
        let limit = self.limit + Duration::from_secs(timeout_seconds.max(0) as u64);
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: timeout_seconds };
        rpc!(self, runtime, stop_container, request, Some(limit)).map(drop)
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        rpc!(self, runtime, remove_container, v1::RemoveContainerRequest { container_id: id.into() }).map(drop)
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        Ok(rpc!(self, runtime, list_containers, v1::ListContainersRequest { filter })?.containers)
    }

    async fn container_status(&self, id: &str, verbose: bool) -> Result<v1::ContainerStatusResponse> {
        rpc!(self, runtime, container_status, v1::ContainerStatusRequest { container_id: id.into(), verbose })
    }

    async fn update_container_resources(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(resources),
            ..Default::default()
        };
        rpc!(self, runtime, update_container_resources, request).map(drop)
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        rpc!(self, runtime, reopen_container_log, v1::ReopenContainerLogRequest { container_id: id.into() }).map(drop)
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, timeout_seconds: i64) -> Result<v1::ExecSyncResponse> {
        // Without a limit of its own the command may run for ever; otherwise the runtime ends it and gets some slack.
        let limit = (timeout_seconds > 0).then(|| self.limit + Duration::from_secs(timeout_seconds as u64));
        let request = v1::ExecSyncRequest { container_id: id.into(), cmd: command, timeout: timeout_seconds };
        rpc!(self, runtime, exec_sync, request, limit)
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        Ok(rpc!(self, runtime, exec, request)?.url)
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        Ok(rpc!(self, runtime, attach, request)?.url)
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        Ok(rpc!(self, runtime, port_forward, request)?.url)
    }

    async fn container_stats(&self, id: &str) -> Result<Option<v1::ContainerStats>> {
        Ok(rpc!(self, runtime, container_stats, v1::ContainerStatsRequest { container_id: id.into() })?.stats)
    }

    async fn list_container_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Result<Vec<v1::ContainerStats>> {
        Ok(rpc!(self, runtime, list_container_stats, v1::ListContainerStatsRequest { filter })?.stats)
    }

    async fn pod_sandbox_stats(&self, id: &str) -> Result<Option<v1::PodSandboxStats>> {
        Ok(rpc!(self, runtime, pod_sandbox_stats, v1::PodSandboxStatsRequest { pod_sandbox_id: id.into() })?.stats)
    }

    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>> {
        Ok(rpc!(self, runtime, list_pod_sandbox_stats, v1::ListPodSandboxStatsRequest { filter })?.stats)
    }

    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>> {
        Ok(rpc!(self, images, list_images, v1::ListImagesRequest { filter })?.images)
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        Ok(rpc!(self, images, image_status, v1::ImageStatusRequest { image: Some(image), verbose: false })?.image)
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        // A pull has no limit: the runtime itself gives up when there is no progress.
        let request = v1::PullImageRequest { image: Some(image), auth, sandbox_config };
        Ok(rpc!(self, images, pull_image, request, None)?.image_ref)
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        rpc!(self, images, remove_image, v1::RemoveImageRequest { image: Some(image) }).map(drop)
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        rpc!(self, images, image_fs_info, v1::ImageFsInfoRequest {})
    }

    async fn events(&self) -> Result<EventStream> {
        // Neither service answers before its first event, so the subscription runs in a task and this returns at once.
        let (sender, receiver) = tokio::sync::mpsc::channel(EVENTS_BUFFERED_MAX);
        env::spawn(forward_events(self.channel.clone(), self.runtime.clone(), sender));
        Ok(tokio_stream::wrappers::ReceiverStream::new(receiver).boxed())
    }
}

async fn forward_events(
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    sender: tokio::sync::mpsc::Sender<Result<RuntimeEvent>>,
) {
    let subscription = async {
        // containerd's own service also tells of image imports and of memory kills, so it is asked first.
        match events::subscribe(channel).await {
            Err(Error::Unimplemented(_)) => cri_events(runtime).await,
            other => other,
        }
    };
    let mut stream = tokio::select! {
        stream = subscription => match stream {
            Ok(stream) => stream,
            Err(error) => {
                let _ = sender.send(Err(error)).await;
                return;
            }
        },
        _ = sender.closed() => return,
    };
    loop {
        tokio::select! {
            event = stream.next() => match event {
                Some(event) => if sender.send(event).await.is_err() { return },
                None => return,
            },
            _ = sender.closed() => return,
        }
    }
}

async fn cri_events(mut runtime: RuntimeServiceClient<Channel>) -> Result<EventStream> {
    let stream = call(None, runtime.get_container_events(Request::new(v1::GetEventsRequest {}))).await?;
    Ok(stream
        .map(|event| {
            let event = event?;
            let id = event.container_id.clone();
            Ok(match event.container_event_type() {
                v1::ContainerEventType::ContainerStartedEvent | v1::ContainerEventType::ContainerCreatedEvent => {
                    RuntimeEvent::Started { id }
                }
                v1::ContainerEventType::ContainerStoppedEvent => RuntimeEvent::Exited { id },
                v1::ContainerEventType::ContainerDeletedEvent => RuntimeEvent::Deleted { id },
            })
        })
        .boxed())
}
