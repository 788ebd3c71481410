//! What the node's server may know: pods with their present status, containers by name, statistics.
//! Implements `server::View` over what `pod_workers` share.
//! Invariant: only reads.

use std::{path::PathBuf, sync::Arc};

use api::{ApiError, Reason};
use async_trait::async_trait;
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::{
    container_config::{CONTAINER_NAME, POD_UID},
    exits::{ExitOf, Exits},
    pod_spec,
    pod_workers::Shared,
    server::{ContainerView, View},
    stats::Stats,
};

pub struct NodeView {
    shared: Arc<Shared>,
    stats: Stats,
    exits: Exits,
}

impl NodeView {
    pub fn new(shared: Arc<Shared>, exits: Exits) -> Self {
        Self { stats: Stats::new(shared.clone()), shared, exits }
    }

    /// The container's incarnations, the newest first.
    async fn incarnations(&self, pod: &Pod, name: &str) -> Result<Vec<v1::Container>, ApiError> {
        let labels = [(POD_UID, self.runtime_uid(pod)), (CONTAINER_NAME, name.to_string())];
        let filter = v1::ContainerFilter {
            label_selector: labels.map(|(key, value)| (key.to_string(), value)).into(),
            ..Default::default()
        };
        let runtime = &self.shared.runtime.runtime;
        let mut found = runtime.list_containers(Some(filter)).await.map_err(|e| ApiError::internal(e.to_string()))?;
        found.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        Ok(found)
    }

    /// A mirror pod has another UID than what the runtime knows.
    fn runtime_uid(&self, pod: &Pod) -> String {
        let own = self.shared.pods.by_name(pod_spec::namespace(pod), pod_spec::name(pod));
        own.as_deref().map_or_else(|| pod_spec::uid(pod).to_string(), |own| pod_spec::uid(own).to_string())
    }
}

#[async_trait]
impl View for NodeView {
    fn pods(&self) -> Vec<Arc<Pod>> {
        let with_status = |pod: Arc<Pod>| match self.shared.statuses.get(pod_spec::uid(&pod)) {
            Some(status) => Arc::new(Pod { status: Some(status), ..(*pod).clone() }),
            None => pod,
        };
        self.shared.pods.list().into_iter().map(with_status).collect()
    }

    async fn container(&self, pod: &Pod, name: &str, previous: bool) -> Result<ContainerView, ApiError> {
        let missing = |text: String| ApiError::new(Reason::BadRequest, text);
        let of = pod_spec::name(pod);
        if pod_spec::find_container(pod, name).is_none() {
            return Err(missing(format!("container {name:?} in pod {of:?} is not available")));
        }
        let found = self.incarnations(pod, name).await?;
        let Some(container) = found.get(usize::from(previous)) else {
            return Err(missing(match previous {
                true => format!("previous terminated container {name:?} in pod {of:?} not found"),
                false => {
                    let statuses = pod
                        .status
                        .iter()
                        .flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses).flatten());
                    let waiting = statuses.filter(|s| s.name == name).find_map(|s| s.state.as_ref()?.waiting.clone());
                    let reason = waiting.and_then(|w| w.reason).unwrap_or_default();
                    format!("container {name:?} in pod {of:?} is waiting to start: {reason}")
                }
            }));
        };
        let status = self.shared.runtime.runtime.container_status(&container.id, false).await;
        let status = status.map_err(|e| ApiError::internal(e.to_string()))?.status.unwrap_or_default();
        Ok(ContainerView {
            id: container.id.clone(),
            running: status.state() == v1::ContainerState::ContainerRunning,
            log_path: PathBuf::from(status.log_path),
        })
    }

    fn exit(&self, container_id: &str) -> ExitOf {
        self.exits.of(container_id)
    }

    async fn is_running(&self, container_id: &str) -> bool {
        let answer = self.shared.runtime.runtime.container_status(container_id, false).await;
        answer.ok().and_then(|a| a.status).is_some_and(|s| s.state() == v1::ContainerState::ContainerRunning)
    }

    async fn sandbox(&self, pod: &Pod) -> Result<String, ApiError> {
        let filter = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 }),
            label_selector: [(POD_UID.to_string(), self.runtime_uid(pod))].into(),
            ..Default::default()
        };
        let found = self.shared.runtime.runtime.list_pod_sandboxes(Some(filter)).await;
        let found = found.map_err(|e| ApiError::internal(e.to_string()))?;
        let newest = found.into_iter().max_by_key(|sandbox| sandbox.created_at);
        newest.map(|s| s.id).ok_or_else(|| ApiError::new(Reason::NotFound, "failed to find sandbox for pod"))
    }

    async fn stats_summary(&self) -> Result<Value, ApiError> {
        self.stats.summary().await
    }

    async fn metrics(&self, page: &str) -> Result<String, ApiError> {
        self.stats.metrics(page).await
    }
}
