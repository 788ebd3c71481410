//! Runs lifecycle hooks: a command in the container, an HTTP request to it, a sleep.
//! Part of `runtime_manager`; used for postStart and preStop.
//! Invariant: a hook is given up when its limit passes.

use std::time::Duration;

use cri::v1::ExecSyncResponse;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};

use super::RuntimeManager;
use crate::pod::{
    http_probe::{self, HttpRequest, PLAIN_ANSWER},
    pod_spec,
};

/// Whose hook it is, and where it runs.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub container_id: &'a str,
    pub pod_ips: &'a [String],
}

/// `Err` says what failed, in words that a waiting container shows.
pub async fn run(
    manager: &RuntimeManager,
    hook: &LifecycleHandler,
    place: Place<'_>,
    limit: Option<Duration>,
) -> Result<(), String> {
    let work = run_unlimited(manager, hook, place, limit);
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
    place: Place<'_>,
    limit: Option<Duration>,
) -> Result<(), String> {
    let Place { pod, container, .. } = place;
    let of = format!("for Container {:?} in Pod {:?} failed", container.name, pod_spec::full_name(pod));
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let seconds = limit.map_or(0, |limit| limit.as_secs().max(1) as i64);
        let shown = command.join(" ");
        let said = match manager.runtime.exec_sync(place.container_id, command, seconds).await {
            Ok(result) if result.exit_code == 0 => return Ok(()),
            Ok(result) => command_failed(&shown, result),
            Err(error) => format!("{error}, message: \"\""),
        };
        return Err(format!("Exec lifecycle hook ([{shown}]) {of} - error: {said}"));
    }
    if let Some(get) = &hook.http_get {
        let path = get.path.as_deref().unwrap_or_default();
        let asked = ask(manager, get, place).await;
        return asked.map_err(|error| format!("HTTP lifecycle hook ({path}) {of} - error: {error}"));
    }
    if let Some(sleep) = &hook.sleep {
        manager.sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    // A tcpSocket is accepted by the API for old objects; nobody carries it out.
    Err(format!("Cannot run handler: invalid handler: {}", serde_json::to_string(hook).unwrap_or_default()))
}

fn command_failed(command: &str, result: ExecSyncResponse) -> String {
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    let output = String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned();
    format!("command '{command}' exited with {}: {errors}, message: {output:?}", result.exit_code)
}

/// Any answer will do. Hooks were plain HTTP once whatever their scheme said, and some still rely on it.
async fn ask(manager: &RuntimeManager, get: &HTTPGetAction, place: Place<'_>) -> Result<(), String> {
    let host = get.host.clone().filter(|host| !host.is_empty()).or_else(|| place.pod_ips.first().cloned());
    let host = host.ok_or("failed to find networking container")?;
    let mut request = HttpRequest::from_action(get, place.container, &host, http_probe::HOOK_AGENT)?;
    let Err(error) = http_probe::send(&request).await else { return Ok(()) };
    if !error.ends_with(PLAIN_ANSWER) {
        return Err(error);
    }
    request.tls = false;
    request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    http_probe::send(&request).await.map_err(|_| error)?;
    let text = "got HTTP response, retry with HTTP succeeded";
    let message = format!("request to HTTPS lifecycle hook {} {text}", request.authority());
    manager.recorder.warning(&client::reference(place.pod), "LifecycleHTTPFallback", message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_fail_are_told_as_other_kubelets_do() {
        let result = ExecSyncResponse { stdout: b"out\n".to_vec(), stderr: b"err".to_vec(), exit_code: 7 };
        let told = "command 'greet them' exited with 7: err, message: \"out\\nerr\"";
        assert_eq!(command_failed("greet them", result), told);
    }
}
