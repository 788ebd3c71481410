//! What the node's server may know: pods with their present status, containers by name, statistics.
//! Implements `server::View` over what `pod_workers` share.
//! Only reads.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use api::{ApiError, Reason};
use async_trait::async_trait;
use cri::v1;
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use metrics::{Metrics, Text, slis};
use serde_json::Value;

use crate::{
    pod::{pod_spec, pod_workers::Shared, sync_loop::SyncLoopHealth},
    runtime::{
        container_config::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID},
        container_exits::{ContainerExit, ContainerExits},
    },
    server::{ContainerView, View},
    stats::Stats,
};

const CREATED: v1::ContainerState = v1::ContainerState::ContainerCreated;

pub struct NodeView {
    shared: Arc<Shared>,
    stats: Stats,
    exits: ContainerExits,
    health: Arc<SyncLoopHealth>,
    /// How health checks went.
    slis: Metrics,
}

impl NodeView {
    pub fn new(shared: Arc<Shared>, exits: ContainerExits, health: Arc<SyncLoopHealth>) -> Self {
        Self { stats: Stats::new(shared.clone()), shared, exits, health, slis: Metrics::default() }
    }

    /// What port 4194 shows.
    pub fn monitor(&self) -> Arc<cadvisor::Monitor> {
        self.stats.monitor()
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
        let of = pod_spec::name(pod);
        if pod_spec::find_container(pod, name).is_none() {
            return Err(missing(format!("container {name:?} in pod {of:?} is not available")));
        }
        let id = match previous {
            true => previous_container(pod, name)?,
            // One that could not be started has said nothing.
            false => match self.incarnations(pod, name).await?.into_iter().find(|c| c.state() != CREATED) {
                Some(container) => container.id,
                None => return Err(missing(waiting(pod, name))),
            },
        };
        let status = match self.shared.runtime.runtime.container_status(&id, false).await {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(error) if error.is_not_found() => {
                return Err(missing(format!(
                    "unable to retrieve container logs for {}://{id}",
                    self.shared.runtime_name
                )));
            }
            Err(error) => return Err(ApiError::internal(error.to_string())),
        };
        Ok(ContainerView {
            id,
            running: status.state() == v1::ContainerState::ContainerRunning,
            log_path: PathBuf::from(status.log_path),
        })
    }

    fn exit(&self, container_id: &str) -> ContainerExit {
        self.exits.watch(container_id)
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

    async fn running_pods(&self) -> Result<Vec<Pod>, ApiError> {
        let runtime = &self.shared.runtime.runtime;
        let ready = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 }),
            ..Default::default()
        };
        let running = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 }),
            ..Default::default()
        };
        let found = tokio::try_join!(runtime.list_pod_sandboxes(Some(ready)), runtime.list_containers(Some(running)));
        let (sandboxes, containers) = found.map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(running_pods(sandboxes, containers))
    }

    async fn stats_summary(&self, only_cpu_and_memory: bool) -> Result<Value, ApiError> {
        self.stats.summary(only_cpu_and_memory).await
    }

    async fn machine(&self) -> Result<Value, ApiError> {
        let monitor = self.stats.monitor();
        let machine = env::spawn_blocking(move || serde_json::to_value(&*monitor.machine())).await;
        machine.map_err(|e| ApiError::internal(e.to_string()))?.map_err(|e| ApiError::internal(e.to_string()))
    }

    async fn metrics(&self, page: &str) -> Result<String, ApiError> {
        match page {
            "slis" => {
                let mut text = Text::default();
                self.slis.render(&mut text);
                Ok(text.finish())
            }
            page => self.stats.metrics(page).await,
        }
    }

    fn is_alive(&self) -> bool {
        self.health.is_alive()
    }

    fn observe_health(&self, check: &str, passed: bool) {
        slis::observe(&self.slis, check, "healthz", passed);
    }
}

/// As much of a pod as the runtime itself knows.
fn running_pods(mut sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Vec<Pod> {
    let label = |labels: &HashMap<String, String>, key: &str| labels.get(key).cloned();
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    let mut pods: Vec<Pod> = Vec::new();
    // Containers may outlive their sandbox for a moment.
    let owners = sandboxes.iter().map(|s| &s.labels).chain(containers.iter().map(|c| &c.labels));
    for labels in owners {
        let Some(uid) = label(labels, POD_UID) else { continue };
        if pods.iter().any(|pod| pod_spec::uid(pod) == uid) {
            continue;
        }
        let of_pod = |container: &&v1::Container| container.labels.get(POD_UID) == Some(&uid);
        let shown = |container: &v1::Container| Container {
            name: label(&container.labels, CONTAINER_NAME).unwrap_or_default(),
            image: container.image.as_ref().map(|image| image.image.clone()),
            ..Default::default()
        };
        pods.push(Pod {
            metadata: ObjectMeta {
                name: label(labels, POD_NAME),
                namespace: label(labels, POD_NAMESPACE),
                uid: Some(uid.clone()),
                ..Default::default()
            },
            spec: Some(PodSpec {
                containers: containers.iter().filter(of_pod).map(shown).collect(),
                ..Default::default()
            }),
            status: None,
        });
    }
    pods
}

fn reported<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// There is no such container, or none that has a log.
fn missing(message: String) -> ApiError {
    ApiError::new(Reason::BadRequest, message)
}

/// The id of the life before the present one, as the pod's status counts lives: while a container waits for its next
/// one, the previous is the newest that the runtime has.
fn previous_container(pod: &Pod, name: &str) -> Result<String, ApiError> {
    let last = reported(pod, name).and_then(|status| status.last_state.as_ref()?.terminated.as_ref());
    let id = last.and_then(|terminated| terminated.container_id.as_deref()).unwrap_or_default();
    match id.rsplit("://").next().unwrap_or_default() {
        "" => {
            Err(missing(format!("previous terminated container {name:?} in pod {:?} not found", pod_spec::name(pod))))
        }
        id => Ok(id.into()),
    }
}

/// Why a container that never ran has no log.
fn waiting(pod: &Pod, name: &str) -> String {
    let state = reported(pod, name).and_then(|status| status.state.as_ref());
    let reason = state.and_then(|state| Some(state.waiting.as_ref()?.reason.as_deref().unwrap_or_default()));
    let begins = format!("container {name:?} in pod {:?} is waiting to start", pod_spec::name(pod));
    match reason {
        Some("ErrImagePull") => format!("{begins}: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{begins}: trying and failing to pull image"),
        Some(reason) => format!("{begins}: {reason}"),
        None => format!("{begins} - no logs yet"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(list: &str, status: Value) -> Pod {
        let mut whole = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 2});
        whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {list: [whole]}})).unwrap()
    }

    #[test]
    fn the_previous_life_is_the_one_that_the_status_calls_so() {
        let check = |status: Value, expected: Result<&str, &str>| {
            let found = previous_container(&pod("containerStatuses", status.clone()), "c");
            assert_eq!(found.as_deref().map_err(|error| error.message.as_str()), expected, "{status}");
        };
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let none = Err("previous terminated container \"c\" in pod \"p\" not found");
        // While it waits for its third life, the newest container is the previous life.
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        check(
            json!({"state": waiting, "lastState": ended("containerd://two"), "containerID": "containerd://two"}),
            Ok("two"),
        );
        check(json!({"state": {"running": {}}, "lastState": ended("containerd://one")}), Ok("one"));
        check(json!({"state": {"running": {}}, "lastState": {}}), none);
        check(json!({"state": {"running": {}}, "lastState": ended("")}), none);
    }

    #[test]
    fn running_pods_are_what_the_runtime_says() {
        let labels = |uid: &str, container: &str| -> HashMap<String, String> {
            let name = format!("name of {uid}");
            [(POD_UID, uid), (POD_NAME, &name), (POD_NAMESPACE, "ns"), (CONTAINER_NAME, container)]
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .into()
        };
        let sandbox =
            |uid: &str, created_at| v1::PodSandbox { labels: labels(uid, ""), created_at, ..Default::default() };
        let container = |uid: &str, name: &str| v1::Container {
            labels: labels(uid, name),
            image: Some(v1::ImageSpec { image: format!("image of {name}"), ..Default::default() }),
            ..Default::default()
        };
        let foreign = v1::PodSandbox { created_at: 9, ..Default::default() };
        let sandboxes = vec![sandbox("old", 1), foreign, sandbox("new", 2)];
        let containers = vec![container("old", "a"), container("alone", "c"), container("old", "b")];
        let found = serde_json::to_value(running_pods(sandboxes, containers)).unwrap();
        let shown: Vec<String> = found
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| {
                let of = |c: &Value| format!("{}={}", c["name"], c["image"]).replace('"', "");
                let containers: Vec<String> = pod["spec"]["containers"].as_array().unwrap().iter().map(of).collect();
                format!("{}: {}", pod["metadata"]["name"].as_str().unwrap(), containers.join(", "))
            })
            .collect();
        assert_eq!(shown, ["name of new: ", "name of old: a=image of a, b=image of b", "name of alone: c=image of c"]);
    }

    #[test]
    fn what_never_ran_says_what_it_waits_for() {
        let check = |list: &str, reason: Option<&str>, expected: &str| {
            let state = reason.map_or(json!({}), |reason| json!({"waiting": {"reason": reason}}));
            let expected = format!("container \"c\" in pod \"p\" is waiting to start{expected}");
            assert_eq!(waiting(&pod(list, json!({"state": state})), "c"), expected);
        };
        check("containerStatuses", Some("ErrImagePull"), ": image can't be pulled");
        check("initContainerStatuses", Some("ImagePullBackOff"), ": trying and failing to pull image");
        check("ephemeralContainerStatuses", Some("ContainerCreating"), ": ContainerCreating");
        check("containerStatuses", None, " - no logs yet");
    }
}
