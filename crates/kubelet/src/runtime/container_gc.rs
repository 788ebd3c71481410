//! Removes dead containers beyond what the configuration keeps of each name, logs included, and dead sandboxes that were
//! replaced.
//! Run by `pod_cleanup`.
//! The newest incarnation stays while its pod does; so does by default the one before it, whose logs `--previous` shows.

use std::{collections::HashMap, io};

use cri::v1;
use jiff::Timestamp;

use crate::{
    config::DeadContainerLimits,
    logs::container_logs,
    pod::pod_workers::PodWorkers,
    runtime::container_config::{CONTAINER_NAME, POD_UID},
};

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
    let now = workers.shared.env.now();
    for id in superfluous(&containers, &workers.shared.config.dead_containers, now) {
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
fn superfluous(containers: &[v1::Container], limits: &DeadContainerLimits, now: Timestamp) -> Vec<String> {
    let mut groups: HashMap<(&str, &str), Vec<&v1::Container>> = HashMap::new();
    for container in containers {
        let label = |key: &str| container.labels.get(key).map(String::as_str).unwrap_or_default();
        if !label(POD_UID).is_empty() {
            groups.entry((label(POD_UID), label(CONTAINER_NAME))).or_default().push(container);
        }
    }
    let (mut result, mut kept) = (Vec::new(), Vec::new());
    let per_container = usize::try_from(limits.per_container).unwrap_or(usize::MAX);
    let oldest = (now.as_nanosecond() - i128::try_from(limits.age_min.as_nanos()).unwrap_or(0)) as i64;
    for group in groups.values_mut() {
        group.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        let dead = group.iter().skip(1).filter(|c| c.state() == v1::ContainerState::ContainerExited);
        let old = dead.filter(|container| limits.age_min.is_zero() || container.created_at < oldest);
        for (index, container) in old.enumerate() {
            match index < per_container {
                true => kept.push((container.created_at, container.id.clone())),
                false => result.push(container.id.clone()),
            }
        }
    }
    if let Ok(total) = usize::try_from(limits.total) {
        kept.sort();
        let beyond = kept.len().saturating_sub(total);
        result.extend(kept.into_iter().take(beyond).map(|(_, id)| id));
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn as_many_stay_as_the_configuration_says() {
        let container = |id: &str, name: &str, created_at: i64, state: v1::ContainerState| v1::Container {
            id: id.into(),
            created_at,
            state: state as i32,
            labels: [(POD_UID, "u"), (CONTAINER_NAME, name)].map(|(k, v)| (k.into(), v.into())).into(),
            ..Default::default()
        };
        use v1::ContainerState::{ContainerExited as Exited, ContainerRunning as Running};
        let all = [
            container("a1", "a", 1, Exited),
            container("a2", "a", 2, Exited),
            container("a3", "a", 3, Exited),
            container("a4", "a", 4, Running),
            container("b1", "b", 1, Exited),
            container("b2", "b", 2, Exited),
        ];
        let check = |per_container: i32, total: i32, age_min: u64, expected: &[&str]| {
            let limits = DeadContainerLimits { per_container, total, age_min: Duration::from_secs(age_min) };
            let mut removed = superfluous(&all, &limits, Timestamp::from_second(60).unwrap());
            removed.sort();
            assert_eq!(removed, expected, "{limits:?}");
        };
        check(1, -1, 0, &["a1", "a2"]);
        check(0, -1, 0, &["a1", "a2", "a3", "b1"]);
        check(2, -1, 0, &["a1"]);
        check(-1, -1, 0, &[]);
        check(2, 1, 0, &["a1", "a2", "b1"]);
        check(0, -1, 30, &["a1", "a2", "a3", "b1"]);
        check(0, -1, 90, &[]);
    }
}
