//! Reads what the runtime has of a pod.
//! Part of `runtime_manager`.
//! Asks only about the one pod, by its label.

use std::collections::HashMap;

use cri::v1;
use futures::future::try_join_all;

use super::{RuntimeManager, message};
use crate::{
    pod::pod_spec::Kind,
    runtime::{
        container_config::{self, CONTAINER_NAME, HASH, POD_UID, RESTART_COUNT, TERMINATION_GRACE_PERIOD},
        runtime_status::{ContainerStatus, PodRuntimeStatus, SandboxStatus, State},
    },
};

impl RuntimeManager {
    /// The pod's sandboxes and containers. `kinds` tells which list of the pod each container name is in.
    pub async fn snapshot(&self, uid: &str, kinds: &HashMap<String, Kind>) -> cri::Result<PodRuntimeStatus> {
        let label = HashMap::from([(POD_UID.to_string(), uid.to_string())]);
        let sandbox_filter = v1::PodSandboxFilter { label_selector: label.clone(), ..Default::default() };
        let container_filter = v1::ContainerFilter { label_selector: label, ..Default::default() };
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_pod_sandboxes(Some(sandbox_filter)),
            self.runtime.list_containers(Some(container_filter))
        )?;
        let sandboxes = try_join_all(sandboxes.iter().map(|sandbox| self.sandbox_status(&sandbox.id)));
        let containers =
            try_join_all(containers.iter().map(|found| self.container_status(&found.id, &found.pod_sandbox_id, kinds)));
        let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
        let mut status = PodRuntimeStatus {
            sandboxes: sandboxes.into_iter().flatten().collect(),
            containers: containers.into_iter().flatten().collect(),
        };
        status.sandboxes.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.created_at, sandbox.attempt)));
        status.containers.sort_by_key(|container| std::cmp::Reverse((container.created_at, container.restart_count)));
        Ok(status)
    }

    /// One sandbox; `None` when it went away in between.
    pub async fn sandbox_status(&self, id: &str) -> cri::Result<Option<SandboxStatus>> {
        let answer = match self.runtime.pod_sandbox_status(id, false).await {
            Ok(answer) => answer,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(status) = answer.status else { return Ok(None) };
        let network = status.network.clone().unwrap_or_default();
        let more = network.additional_ips.into_iter().map(|ip| ip.ip);
        let ips = std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect();
        let options = status.linux.as_ref().and_then(|l| l.namespaces.as_ref()).and_then(|n| n.options.as_ref());
        Ok(Some(SandboxStatus {
            ready: status.state() == v1::PodSandboxState::SandboxReady,
            attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
            created_at: status.created_at,
            host_network: options.is_some_and(|o| o.network == v1::NamespaceMode::Node as i32),
            ips,
            id: status.id,
        }))
    }

    /// One container; `None` when it went away in between.
    pub async fn container_status(
        &self,
        id: &str,
        sandbox_id: &str,
        kinds: &HashMap<String, Kind>,
    ) -> cri::Result<Option<ContainerStatus>> {
        let answer = match self.runtime.container_status(id, false).await {
            Ok(answer) => answer,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(status) = answer.status else { return Ok(None) };
        let text = match status.state() {
            v1::ContainerState::ContainerExited => message::termination_message(self, &status).await,
            _ => String::new(),
        };
        Ok(Some(convert(status, sandbox_id, kinds, text)))
    }
}

fn convert(
    status: v1::ContainerStatus,
    sandbox_id: &str,
    kinds: &HashMap<String, Kind>,
    message: String,
) -> ContainerStatus {
    let state = match status.state() {
        v1::ContainerState::ContainerCreated => State::Created,
        v1::ContainerState::ContainerRunning => State::Running,
        v1::ContainerState::ContainerExited => State::Exited,
        v1::ContainerState::ContainerUnknown => State::Unknown,
    };
    let name = status
        .labels
        .get(CONTAINER_NAME)
        .cloned()
        .or_else(|| status.metadata.as_ref().map(|m| m.name.clone()))
        .unwrap_or_default();
    let number = |key: &str| status.annotations.get(key).and_then(|text| text.parse::<u32>().ok());
    let image = status.image.clone().unwrap_or_default();
    let image_name = Some(image.user_specified_image).filter(|name| !name.is_empty()).unwrap_or(image.image);
    ContainerStatus {
        kind: kinds.get(&name).copied().unwrap_or(Kind::App),
        name,
        sandbox_id: sandbox_id.into(),
        state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message,
        image: image_name,
        image_id: status.image_ref.clone(),
        hash: status.annotations.get(HASH).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0),
        restart_count: number(RESTART_COUNT).or_else(|| status.metadata.as_ref().map(|m| m.attempt)).unwrap_or(0),
        grace_period_seconds: status
            .annotations
            .get(container_config::DELETION_GRACE_PERIOD)
            .or_else(|| status.annotations.get(TERMINATION_GRACE_PERIOD))
            .and_then(|text| text.parse().ok()),
        resources: status.resources.and_then(|resources| resources.linux),
        user: status.user.and_then(|user| user.linux),
        id: status.id,
    }
}
