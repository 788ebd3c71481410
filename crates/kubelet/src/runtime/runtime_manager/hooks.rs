//! Runs lifecycle hooks: a command in the container, an HTTP request to it, a sleep.
//! Part of `runtime_manager`; used for postStart and preStop.
//! A hook is given up when its limit passes.

use std::time::Duration;

use cri::v1::ExecSyncResponse;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};

use super::RuntimeManager;
use crate::{
    node::pod_metrics::{HOOK_HTTP_FALLBACKS, SLEEPS_CUT_SHORT},
    pod::{
        http_probe::{self, HttpError, HttpRequest},
        pod_spec,
    },
};

/// Whose hook it is, and where it runs.
#[derive(Clone, Copy)]
pub struct HookTarget<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub container_id: &'a str,
    pub pod_ips: &'a [String],
}

/// A hook that failed, in words that a waiting container shows.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("the hook did not end in time")]
    Timeout,
    #[error("Exec lifecycle hook ([{command}]) for Container {container:?} in Pod {pod:?} failed - error: {cause}")]
    Exec { command: String, container: String, pod: String, cause: ExecHookError },
    #[error("HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} failed - error: {cause}")]
    Http { path: String, container: String, pod: String, cause: HttpHookError },
    /// A tcpSocket is accepted by the API for old objects; nobody carries it out.
    #[error("Cannot run handler: invalid handler: {0}")]
    InvalidHandler(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ExecHookError {
    #[error("command '{command}' exited with {exit_code}: {stderr}, message: {output:?}")]
    Exited { command: String, exit_code: i32, stderr: String, output: String },
    #[error("{0}, message: \"\"")]
    Runtime(cri::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum HttpHookError {
    #[error("failed to find networking container")]
    NoAddress,
    #[error("{0}")]
    Request(HttpError),
}

pub async fn run(
    manager: &RuntimeManager,
    hook: &LifecycleHandler,
    target: HookTarget<'_>,
    limit: Option<Duration>,
) -> Result<(), HookError> {
    let work = run_unlimited(manager, hook, target, limit);
    match limit {
        Some(limit) => match manager.env.timeout(limit, work).await {
            Some(done) => done,
            None => {
                if hook.sleep.is_some() {
                    manager.metrics.count(&SLEEPS_CUT_SHORT, &[]);
                }
                Err(HookError::Timeout)
            }
        },
        None => work.await,
    }
}

async fn run_unlimited(
    manager: &RuntimeManager,
    hook: &LifecycleHandler,
    target: HookTarget<'_>,
    limit: Option<Duration>,
) -> Result<(), HookError> {
    let (container, pod) = (target.container.name.clone(), pod_spec::full_name(target.pod));
    if let Some(exec) = &hook.exec {
        let arguments = exec.command.clone().unwrap_or_default();
        let seconds = limit.map_or(0, |limit| limit.as_secs().max(1) as i64);
        let command = arguments.join(" ");
        let cause = match manager.runtime.exec_sync(target.container_id, arguments, seconds).await {
            Ok(result) if result.exit_code == 0 => return Ok(()),
            Ok(result) => exited(&command, result),
            Err(error) => ExecHookError::Runtime(error),
        };
        return Err(HookError::Exec { command, container, pod, cause });
    }
    if let Some(get) = &hook.http_get {
        let path = get.path.clone().unwrap_or_default();
        return ask(manager, get, target).await.map_err(|cause| HookError::Http { path, container, pod, cause });
    }
    if let Some(sleep) = &hook.sleep {
        manager.sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    Err(HookError::InvalidHandler(serde_json::to_string(hook).unwrap_or_default()))
}

fn exited(command: &str, result: ExecSyncResponse) -> ExecHookError {
    ExecHookError::Exited {
        command: command.into(),
        exit_code: result.exit_code,
        stderr: String::from_utf8_lossy(&result.stderr).into_owned(),
        output: String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned(),
    }
}

/// Any answer will do. Hooks were plain HTTP once whatever their scheme said, and some still rely on it.
async fn ask(manager: &RuntimeManager, get: &HTTPGetAction, target: HookTarget<'_>) -> Result<(), HttpHookError> {
    let host = get.host.clone().filter(|host| !host.is_empty()).or_else(|| target.pod_ips.first().cloned());
    let host = host.ok_or(HttpHookError::NoAddress)?;
    let request = HttpRequest::from_action(get, target.container, &host, http_probe::HOOK_AGENT);
    let mut request = request.map_err(HttpHookError::Request)?;
    let error = match http_probe::send(&request).await {
        Ok(_) => return Ok(()),
        Err(error @ HttpError::PlainAnswer { .. }) => error,
        Err(error) => return Err(HttpHookError::Request(error)),
    };
    request.tls = false;
    request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    http_probe::send(&request).await.map_err(|_| HttpHookError::Request(error))?;
    manager.metrics.count(&HOOK_HTTP_FALLBACKS, &[]);
    let text = "got HTTP response, retry with HTTP succeeded";
    let message = format!("request to HTTPS lifecycle hook {} {text}", request.authority());
    manager.recorder.warning(&client::reference(target.pod), "LifecycleHTTPFallback", message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_fail_are_told_as_other_kubelets_do() {
        let result = ExecSyncResponse { stdout: b"out\n".to_vec(), stderr: b"err".to_vec(), exit_code: 7 };
        let told = "command 'greet them' exited with 7: err, message: \"out\\nerr\"";
        assert_eq!(exited("greet them", result).to_string(), told);
    }
}
