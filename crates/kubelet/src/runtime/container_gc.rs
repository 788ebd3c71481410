//! Removes dead containers beyond the last one of each name, logs included, and dead sandboxes that were replaced.
//! Run by `pod_cleanup`.
//! The newest incarnation and the one before it (whose logs `--previous` shows) stay while their pod does.

use std::{collections::HashMap, io};

use cri::v1;

use crate::{
    logs::container_logs,
    pod::pod_workers::PodWorkers,
    runtime::container_config::{CONTAINER_NAME, POD_UID},
};

/// Dead incarnations that are kept beside a newer one.
const DEAD_CONTAINERS_MAX: usize = 1;

#[derive(Debug, thiserror::Error)]
pub enum ContainerGcError {
    #[error(transparent)]
    List(#[from] cri::Error),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Remove(Vec<RemoveError>),
}

impl ContainerGcError {
    pub fn event_reason(&self) -> &'static str {
        "ContainerGCFailed"
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("failed to remove container {id:?}: {source}")]
    Container { id: String, source: cri::Error },
    #[error("failed to remove container {id:?}: {source}")]
    ContainerLogs { id: String, source: io::Error },
    #[error("failed to remove sandbox {id:?}: {source}")]
    Sandbox { id: String, source: cri::Error },
}

/// Does as much as it can, and says what it could not do.
pub async fn collect(workers: &PodWorkers) -> Result<(), ContainerGcError> {
    let runtime = &workers.shared.runtime.runtime;
    let mut errors = Vec::new();
    let mut containers = runtime.list_containers(None).await?;
    let ours = |labels: &HashMap<String, String>| labels.get(POD_UID).is_some_and(|uid| workers.knows(uid));
    containers.retain(|container| ours(&container.labels));
    for id in superfluous(&containers) {
        if let Err(error) = remove(workers, &id).await {
            errors.push(error);
        }
    }
    let mut sandboxes = runtime.list_pod_sandboxes(None).await?;
    sandboxes.retain(|sandbox| ours(&sandbox.labels));
    let occupied: Vec<String> = containers.iter().map(|c| c.pod_sandbox_id.clone()).collect();
    for id in replaced(&sandboxes).into_iter().filter(|id| !occupied.contains(id)) {
        if let Err(source) = runtime.remove_pod_sandbox(&id).await {
            errors.push(RemoveError::Sandbox { id, source });
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(ContainerGcError::Remove(errors)) }
}

/// Its logs go first: those of a container that nobody knows any more would stay for good.
async fn remove(workers: &PodWorkers, id: &str) -> Result<(), RemoveError> {
    let runtime = &workers.shared.runtime.runtime;
    let failed = |source: cri::Error| RemoveError::Container { id: id.into(), source };
    match runtime.container_status(id, false).await {
        Ok(answer) => container_logs::remove(&workers.shared.config, answer.status.unwrap_or_default())
            .await
            .map_err(|source| RemoveError::ContainerLogs { id: id.into(), source })?,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    runtime.remove_container(id).await.map_err(failed)
}

/// Ids of the dead containers to remove.
fn superfluous(containers: &[v1::Container]) -> Vec<String> {
    let mut groups: HashMap<(&str, &str), Vec<&v1::Container>> = HashMap::new();
    for container in containers {
        let label = |key: &str| container.labels.get(key).map(String::as_str).unwrap_or_default();
        if !label(POD_UID).is_empty() {
            groups.entry((label(POD_UID), label(CONTAINER_NAME))).or_default().push(container);
        }
    }
    let mut result = Vec::new();
    for group in groups.values_mut() {
        group.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        let old =
            group.iter().skip(1).filter(|c| c.state() == v1::ContainerState::ContainerExited).skip(DEAD_CONTAINERS_MAX);
        result.extend(old.map(|container| container.id.clone()));
    }
    result
}

/// Ids of dead sandboxes whose pod has a newer one.
fn replaced(sandboxes: &[v1::PodSandbox]) -> Vec<String> {
    let mut newest: HashMap<&str, i64> = HashMap::new();
    let uid = |sandbox: &v1::PodSandbox| sandbox.labels.get(POD_UID).cloned();
    for sandbox in sandboxes {
        if let Some(uid) = sandbox.labels.get(POD_UID) {
            let at = newest.entry(uid).or_default();
            *at = (*at).max(sandbox.created_at);
        }
    }
    let dead = sandboxes.iter().filter(|s| s.state() == v1::PodSandboxState::SandboxNotready);
    dead.filter(|s| uid(s).is_some_and(|uid| newest.get(uid.as_str()).is_some_and(|at| s.created_at < *at)))
        .map(|s| s.id.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_stay() {
        let container = |id: &str, name: &str, created_at: i64, state: v1::ContainerState| v1::Container {
            id: id.into(),
            created_at,
            state: state as i32,
            labels: [(POD_UID, "u"), (CONTAINER_NAME, name)].map(|(k, v)| (k.into(), v.into())).into(),
            ..Default::default()
        };
        use v1::ContainerState::{ContainerExited as Exited, ContainerRunning as Running};
        let mut removed = superfluous(&[
            container("a1", "a", 1, Exited),
            container("a2", "a", 2, Exited),
            container("a3", "a", 3, Exited),
            container("a4", "a", 4, Running),
            container("b1", "b", 1, Exited),
        ]);
        removed.sort();
        assert_eq!(removed, ["a1", "a2"]);
    }
}
