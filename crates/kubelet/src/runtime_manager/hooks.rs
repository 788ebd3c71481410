//! Runs lifecycle hooks: a command in the container, an HTTP request to it, a sleep.
//! Part of `runtime_manager`; used for postStart and preStop.
//! Invariant: a hook is given up when its limit passes.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use super::RuntimeManager;
use crate::http_probe::{self, HttpRequest};

pub async fn run(
    manager: &RuntimeManager,
    hook: &LifecycleHandler,
    container_id: &str,
    container: &Container,
    pod_ips: &[String],
    limit: Option<Duration>,
) -> Result<(), String> {
    let work = run_unlimited(manager, hook, container_id, container, pod_ips, limit);
    match limit {
        Some(limit) => {
            manager.env.timeout(limit, work).await.unwrap_or_else(|| Err("the hook did not end in time".into()))
        }
        None => work.await,
    }
}

async fn run_unlimited(
    manager: &RuntimeManager,
    hook: &LifecycleHandler,
    container_id: &str,
    container: &Container,
    pod_ips: &[String],
    limit: Option<Duration>,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let seconds = limit.map_or(0, |limit| limit.as_secs().max(1) as i64);
        let shown = format!("{command:?}");
        return match manager.runtime.exec_sync(container_id, command, seconds).await {
            Ok(result) if result.exit_code == 0 => Ok(()),
            Ok(result) => Err(format!(
                "Exec lifecycle hook ({shown}) for Container {:?} failed - error: command exited with {}: , message: {:?}",
                container.name,
                result.exit_code,
                String::from_utf8_lossy(&[result.stdout, result.stderr].concat())
            )),
            Err(error) => Err(error.to_string()),
        };
    }
    if let Some(get) = &hook.http_get {
        let host = get.host.clone().filter(|host| !host.is_empty()).or_else(|| pod_ips.first().cloned());
        let agent = http_probe::HOOK_AGENT;
        let request = HttpRequest::from_action(get, container, host.as_deref().unwrap_or_default(), agent)?;
        return http_probe::send(&request).await.map(drop);
    }
    if let Some(sleep) = &hook.sleep {
        manager.sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    // A tcpSocket is accepted by the API for old objects; nobody carries it out.
    Err(format!("invalid handler: {}", serde_json::to_string(hook).unwrap_or_default()))
}
