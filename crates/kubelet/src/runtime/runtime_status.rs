//! What the runtime has of one pod: its sandboxes and containers as observed.
//! Made by `runtime_manager` from CRI answers; read by `pod_actions`, `pod_status` and the probes.
//! Plain data, newest first, only of one pod.

use k8s_openapi::api::core::v1::Pod;

use crate::pod::pod_spec::{self, Kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStatus {
    pub id: String,
    pub ready: bool,
    pub attempt: u32,
    /// Nanoseconds since the epoch, as CRI counts.
    pub created_at: i64,
    pub host_network: bool,
    pub ips: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ContainerStatus {
    pub id: String,
    pub name: String,
    pub sandbox_id: String,
    pub state: State,
    /// Nanoseconds since the epoch; 0 when it has not happened.
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    /// The image as the pod named it.
    pub image: String,
    /// A reference by digest, where the runtime knows one.
    pub image_id: String,
    /// Of the container's specification when it was created.
    pub hash: u64,
    pub restart_count: u32,
    pub kind: Kind,
    pub grace_period_seconds: Option<i64>,
    /// What it was given, where the runtime tells.
    pub resources: Option<cri::v1::LinuxContainerResources>,
    /// Whom its first process began as, where the runtime tells.
    pub user: Option<cri::v1::LinuxContainerUser>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodRuntimeStatus {
    /// Newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// Newest first; several of one name when it was restarted.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntimeStatus {
    /// The newest container of this name.
    pub fn find(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.name == name)
    }

    pub fn by_id(&self, id: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.id == id)
    }

    pub fn ready_sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.iter().find(|sandbox| sandbox.ready)
    }

    /// Where the pod is reached: at the node's own addresses when it is in the node's network, where sandboxes have none.
    pub fn ips<'a>(&'a self, pod: &Pod, host_ips: &'a [String]) -> &'a [String] {
        match self.ready_sandbox() {
            _ if pod_spec::host_network(pod) => host_ips,
            Some(sandbox) => &sandbox.ips,
            None => &[],
        }
    }

    pub fn running(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers.iter().filter(|c| matches!(c.state, State::Running | State::Unknown))
    }

    /// Nothing of it runs.
    pub fn is_stopped(&self) -> bool {
        self.running().next().is_none() && self.ready_sandbox().is_none()
    }
}
