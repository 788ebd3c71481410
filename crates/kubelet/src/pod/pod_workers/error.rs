//! Why a step of a pod's life failed, with the reason of the Event that tells of it.
//! Part of `pod_workers`.
//! The text is the Event's message; code matches on the variants.

use std::io;

use node_plugins::dra::manager::DraError;

use crate::{runtime::runtime_manager::SandboxError, volumes::error::SetUpError};

#[derive(Debug, thiserror::Error)]
pub enum SyncPodError {
    #[error("error killing pod: {0}")]
    KillPod(cri::Error),
    #[error("{}", sandbox_text(.0))]
    Sandbox(#[from] SandboxError),
    /// What was just made has gone already; it is made again.
    #[error("the sandbox is gone")]
    SandboxGone,
    #[error("failed to look at the pod: {0}")]
    Snapshot(cri::Error),
    #[error(transparent)]
    Volumes(#[from] SetUpError),
    #[error("Failed to prepare dynamic resources: prepare dynamic resources: {0}")]
    DynamicResources(#[from] DraError),
}

/// A group that can't be made is no failure of the runtime.
fn sandbox_text(error: &SandboxError) -> String {
    match error {
        SandboxError::Cgroup { error, .. } => format!("unable to ensure pod container exists: {error}"),
        error => format!("Failed to create pod sandbox: {error}"),
    }
}

impl SyncPodError {
    /// `None` where another look finds out more.
    pub fn event_reason(&self) -> Option<&'static str> {
        match self {
            Self::KillPod(_) => Some("FailedKillPod"),
            Self::Sandbox(error) => Some(error.event_reason()),
            Self::Volumes(error) => Some(error.event_reason()),
            Self::DynamicResources(_) => Some("FailedPrepareDynamicResources"),
            Self::SandboxGone | Self::Snapshot(_) => None,
        }
    }
}

/// Why granted resources could not be put into effect.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    #[error("failed to resize the pod's group: {0}")]
    Cgroup(io::Error),
    #[error("failed to resize container {name}: {error}")]
    Container { name: String, error: cri::Error },
    #[error("cannot decrease memory limits: {}", listed(.0))]
    MemoryLimit(Vec<MemoryLimitError>),
}

impl ResizeError {
    pub fn event_reason(&self) -> &'static str {
        "ResizeError"
    }
}

/// The kernel would end processes that use more than their new limit.
#[derive(Debug, thiserror::Error)]
pub enum MemoryLimitError {
    #[error("attempting to set pod memory limit ({limit_bytes}) below current usage ({usage_bytes})")]
    PodUsage { limit_bytes: i64, usage_bytes: i64 },
    #[error("missing pod memory usage")]
    PodUsageUnknown,
    #[error("attempting to set container {name:?} memory limit ({limit_bytes}) below current usage ({usage_bytes})")]
    ContainerUsage { name: String, limit_bytes: i64, usage_bytes: u64 },
    #[error("missing container {name:?} memory usage")]
    ContainerUsageUnknown { name: String },
}

/// As upstream prints several errors.
fn listed(errors: &[MemoryLimitError]) -> String {
    match errors {
        [one] => one.to_string(),
        all => format!("[{}]", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_can_not_be_made_has_an_event_of_its_own() {
        let check = |error: SandboxError, reason: &str, message: &str| {
            let error = SyncPodError::from(error);
            assert_eq!((error.event_reason(), error.to_string().as_str()), (Some(reason), message));
        };
        let full = || io::Error::other("no space left");
        let message = "unable to ensure pod container exists: no space left";
        check(SandboxError::Cgroup { uid: "u".into(), error: full() }, "FailedCreatePodContainer", message);
        let message = "Failed to create pod sandbox: no";
        check(SandboxError::Config("no".into()), "FailedCreatePodSandBox", message);
    }
}
