//! The pod admission hook: somebody else's program or socket that is asked about every pod before it begins.
//! Asked by `pod_workers` after everything of our own; configured by `--pod-admission-hook`.
//! One that fails, hangs or answers nonsense decides nothing: the failure policy does, and the pod says so.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use env::Env;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use tokio::{net::UnixStream, sync::Semaphore};

use super::{Denial, Refusal, UNEXPECTED_ADMISSION_ERROR};
use crate::exec_plugin::{ExecPlugin, ExecPluginError};

const REASON: &str = "PodAdmissionHook";
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const MESSAGE_CHARACTERS_MAX: usize = 1024;
/// Programs that run at the same time; other pods wait for their turn.
const CALLS_MAX: usize = 8;
/// When a hook that failed is asked again.
const FAILURE_RETRY: Duration = Duration::from_secs(5);
/// The soonest and the latest that a hook may ask to be asked again.
const RETRY_SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookTarget {
    /// The pod on stdin, the answer on stdout.
    Program(PathBuf),
    /// HTTP over a unix socket: the pod is posted to `/`.
    Socket(PathBuf),
}

/// What happens to a pod when the hook gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It stays Pending until there is one.
    Wait,
    Fail,
    Ignore,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookConfig {
    pub target: HookTarget,
    pub timeout: Duration,
    pub failure_policy: FailurePolicy,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookConfigError {
    #[error("{0:?} is neither an absolute path nor unix:///PATH")]
    Target(String),
    #[error("{0:?} is not a failure policy: use Wait, Fail or Ignore")]
    FailurePolicy(String),
    #[error("{0:?} is not a duration between 1s and 10m")]
    Timeout(String),
}

impl HookConfig {
    pub fn parse(target: &str, timeout: &str, failure_policy: &str) -> Result<Self, HookConfigError> {
        let (path, is_socket) = match target.strip_prefix("unix://") {
            Some(path) => (Path::new(path), true),
            None => (Path::new(target), false),
        };
        if !path.is_absolute() {
            return Err(HookConfigError::Target(target.into()));
        }
        let limits = Duration::from_secs(1)..=Duration::from_secs(600);
        let parsed = crate::configuration::parse_duration(timeout).filter(|timeout| limits.contains(timeout));
        Ok(Self {
            target: if is_socket { HookTarget::Socket(path.into()) } else { HookTarget::Program(path.into()) },
            timeout: parsed.ok_or_else(|| HookConfigError::Timeout(timeout.into()))?,
            failure_policy: match failure_policy {
                "Wait" => FailurePolicy::Wait,
                "Fail" => FailurePolicy::Fail,
                "Ignore" => FailurePolicy::Ignore,
                other => return Err(HookConfigError::FailurePolicy(other.into())),
            },
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Answer {
    allowed: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    /// The pod waits and the hook is asked again, instead of the pod being rejected.
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Program(#[from] ExecPluginError),
    #[error("failed to ask {}: {cause}", .socket.display())]
    Socket { socket: PathBuf, cause: String },
    #[error("{} did not answer within {limit:?}", .socket.display())]
    Deadline { socket: PathBuf, limit: Duration },
    #[error("it gave no valid answer: {0}")]
    Answer(#[from] serde_json::Error),
}

pub struct PodAdmissionHook {
    config: HookConfig,
    env: Env,
    calls: Semaphore,
}

impl PodAdmissionHook {
    pub fn new(config: HookConfig, env: Env) -> Self {
        Self { config, env, calls: Semaphore::new(CALLS_MAX) }
    }

    pub async fn admit(&self, pod: &Pod) -> Result<(), Denial> {
        match self.ask(pod).await {
            Ok(answer) => verdict(answer),
            Err(error) => {
                tracing::warn!(pod = super::pod_spec::display(pod), %error, "the pod admission hook failed");
                failure(self.config.failure_policy, format!("Pod admission hook failed: {error}"))
            }
        }
    }

    async fn ask(&self, pod: &Pod) -> Result<Answer, HookError> {
        let _call = self.calls.acquire().await;
        let request = serde_json::to_vec(pod)?;
        let answer = match &self.config.target {
            HookTarget::Program(program) => {
                let plugin = ExecPlugin {
                    program,
                    arguments: &[],
                    environment: &[],
                    limit: self.config.timeout,
                    output_bytes_max: ANSWER_BYTES_MAX,
                };
                plugin.run(&self.env, request).await?
            }
            HookTarget::Socket(socket) => {
                let limit = self.config.timeout;
                let answered = self.env.timeout(limit, post(socket, request)).await;
                let answered = answered.ok_or_else(|| HookError::Deadline { socket: socket.clone(), limit })?;
                answered.map_err(|cause| HookError::Socket { socket: socket.clone(), cause })?
            }
        };
        Ok(serde_json::from_slice(&answer)?)
    }
}

fn verdict(answer: Answer) -> Result<(), Denial> {
    if answer.allowed {
        return Ok(());
    }
    let is_word = !answer.reason.is_empty() && answer.reason.chars().all(|c| c.is_ascii_alphanumeric());
    let reason = if is_word { answer.reason.as_str() } else { REASON };
    let message: String = match answer.message.is_empty() {
        true => "Pod was denied by the pod admission hook".into(),
        false => answer.message.chars().take(MESSAGE_CHARACTERS_MAX).collect(),
    };
    let refusal = Refusal::new(reason, message);
    Err(match answer.retry_after_seconds {
        None => Denial::Rejected(refusal),
        Some(seconds) => {
            let seconds = seconds.clamp(*RETRY_SECONDS.start(), *RETRY_SECONDS.end());
            Denial::Blocked { refusal, retry_in: Duration::from_secs(seconds) }
        }
    })
}

fn failure(policy: FailurePolicy, message: String) -> Result<(), Denial> {
    match policy {
        FailurePolicy::Ignore => Ok(()),
        FailurePolicy::Fail => Err(Denial::Rejected(Refusal::new(UNEXPECTED_ADMISSION_ERROR, message))),
        FailurePolicy::Wait => Err(Denial::Blocked { refusal: Refusal::new(REASON, message), retry_in: FAILURE_RETRY }),
    }
}

async fn post(socket: &Path, request: Vec<u8>) -> Result<Vec<u8>, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let exchange = async {
        let request = http::Request::post("/")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::<Bytes>::from(request))
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("it answered {status}"));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX as usize).collect().await;
        Ok(body.map_err(|error| error.to_string())?.to_bytes().to_vec())
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        ended = async { connection.await.err().map_or("it closed the connection".into(), |error| error.to_string()) } => Err(ended),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn the_configuration_is_checked() {
        let check = |target: &str, timeout: &str, policy: &str, expected: Result<HookTarget, &str>| {
            let found = HookConfig::parse(target, timeout, policy).map(|config| config.target);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        check("/bin/hook", "10s", "Wait", Ok(HookTarget::Program("/bin/hook".into())));
        check("unix:///run/hook.sock", "1m", "Fail", Ok(HookTarget::Socket("/run/hook.sock".into())));
        check("hook", "10s", "Wait", Err("is neither an absolute path nor"));
        check("/bin/hook", "0s", "Wait", Err("is not a duration between 1s and 10m"));
        check("/bin/hook", "10s", "Maybe", Err("is not a failure policy"));
    }

    #[tokio::test]
    async fn pods_are_let_in_by_the_hooks_answer() {
        let directory = tempfile::tempdir().unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap();
        let program = directory.path().join("hook");
        let check = async |text: &str, policy: FailurePolicy, expected: Option<(bool, &str, &str)>| {
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            let target = HookTarget::Program(program.clone());
            let timeout = Duration::from_secs(if text.contains("sleep") { 1 } else { 60 });
            let config = HookConfig { target, timeout, failure_policy: policy };
            let found = PodAdmissionHook::new(config, Env::real()).admit(&pod).await;
            let found = found.err().map(|denial| match denial {
                Denial::Rejected(refusal) => (false, refusal),
                Denial::Blocked { refusal, .. } => (true, refusal),
            });
            match (found, expected) {
                (None, None) => {}
                (Some((waits, refusal)), Some((expected, reason, part))) => {
                    assert_eq!((waits, refusal.reason.as_str()), (expected, reason), "{text}");
                    assert!(refusal.message.contains(part), "{text}: {}", refusal.message);
                }
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        };
        use FailurePolicy::{Fail, Ignore, Wait};
        check("grep -q '\"name\":\"web\"' && echo '{\"allowed\": true}'", Fail, None).await;
        let denied = "echo '{\"allowed\": false, \"reason\": \"NoLicense\", \"message\": \"none left\"}'";
        check(denied, Wait, Some((false, "NoLicense", "none left"))).await;
        let later = "echo '{\"allowed\": false, \"reason\": \"a b\", \"retryAfterSeconds\": 0}'";
        check(later, Fail, Some((true, REASON, "denied by the pod admission hook"))).await;
        check("echo nonsense", Wait, Some((true, REASON, "it gave no valid answer"))).await;
        check("echo '{\"allowed\": true, \"alowed\": 1}'", Fail, Some((false, UNEXPECTED_ADMISSION_ERROR, "alowed")))
            .await;
        check("exit 1", Ignore, None).await;
        check("sleep 1000", Wait, Some((true, REASON, "did not answer within 1s"))).await;
    }

    #[tokio::test]
    async fn sockets_are_asked_over_http() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("hook.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = env::spawn(async move {
            for answer in
                ["HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"allowed\": true}", "HTTP/1.1 500 No\r\n\r\n", ""]
            {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let count = stream.read(&mut request).await.unwrap();
                assert!(request[..count].starts_with(b"POST / HTTP/1.1"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let config = HookConfig {
            target: HookTarget::Socket(socket),
            timeout: Duration::from_secs(60),
            failure_policy: FailurePolicy::Fail,
        };
        let hook = PodAdmissionHook::new(config, Env::real());
        assert_eq!(hook.admit(&Pod::default()).await, Ok(()));
        assert!(matches!(hook.admit(&Pod::default()).await, Err(Denial::Rejected(_))));
        assert!(matches!(hook.admit(&Pod::default()).await, Err(Denial::Rejected(_))));
        server.await.unwrap();
    }
}
