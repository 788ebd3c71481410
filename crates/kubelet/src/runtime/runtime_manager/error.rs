//! Why a sandbox was not made or a container not started, with the reasons that Events and waiting states give.
//! Part of `runtime_manager`; read by `pod_workers`.
//! The text is what a user sees; code matches on the variants.

use std::io;

use api::ApiError;

use super::{hooks::HookError, host_dns::HostDnsError};
use crate::{
    images::image_manager::ImageError,
    pod::pod_status::WaitingReason,
    runtime::{container_config::environment::EnvironmentError, user_namespaces::UserNamespaceError},
};

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    RuntimeClassNotFound(ApiError),
    #[error("failed to lookup RuntimeClass {name}: {error}")]
    RuntimeClassLookup { name: String, error: ApiError },
    #[error("{0}")]
    UserNamespace(#[from] UserNamespaceError),
    #[error("{0}")]
    HostDns(#[from] HostDnsError),
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    LogDirectory(String),
    #[error("failed to ensure that the pod: {uid} cgroups exist: {error}")]
    Cgroup { uid: String, error: io::Error },
    #[error("{0}")]
    Runtime(#[from] cri::Error),
}

impl SandboxError {
    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::Cgroup { .. } => "FailedCreatePodContainer",
            _ => "FailedCreatePodSandBox",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartContainerError {
    #[error("{0}")]
    Image(ImageError),
    /// The image of a volume.
    #[error("{0}")]
    VolumeImage(ImageError),
    #[error("ImageVolumeMountFailed: volume {volume:?}: {problem}")]
    ImageVolumesUnsupported { volume: String, problem: String },
    #[error("{0}")]
    Config(ContainerConfigError),
    #[error("{0}")]
    Create(cri::Error),
    #[error("{0}")]
    Run(cri::Error),
    #[error("{0}")]
    PostStartHook(HookError),
}

/// What keeps a container from being described to the runtime.
#[derive(Debug, thiserror::Error)]
pub enum ContainerConfigError {
    #[error("{0}")]
    Files(String),
    #[error("{0}")]
    Environment(#[from] EnvironmentError),
    #[error("{0}")]
    Mounts(String),
    #[error("{0}")]
    Devices(String),
    #[error("{0}")]
    UserNamespace(#[from] UserNamespaceError),
    #[error("{0}")]
    Specification(String),
    #[error("unable to find target container {0}")]
    TargetNotFound(String),
}

impl StartContainerError {
    /// What the container's waiting state shows.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Image(error) | Self::VolumeImage(error) => error.reason(),
            Self::Config(_) => "CreateContainerConfigError",
            Self::Create(_) | Self::ImageVolumesUnsupported { .. } => "CreateContainerError",
            Self::Run(_) => "RunContainerError",
            Self::PostStartHook(_) => "PostStartHookError",
        }
    }

    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::PostStartHook(_) => "FailedPostStartHook",
            _ => "Failed",
        }
    }

    /// The message of the Event that is still to be told: `image_manager` tells of the images of volumes, and a failed
    /// hook is told before its container is killed.
    pub(super) fn event_message(&self) -> Option<String> {
        match self {
            Self::VolumeImage(_) | Self::PostStartHook(_) => None,
            Self::Image(error) => Some(format!("Error: {}", error.reason())),
            other => Some(format!("Error: {other}")),
        }
    }

    pub fn waiting_reason(&self) -> WaitingReason {
        WaitingReason { reason: self.reason().into(), message: self.to_string() }
    }
}
