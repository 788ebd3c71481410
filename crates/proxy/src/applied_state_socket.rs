//! `AppliedState` for a kubelet in another process of the same node: one question and one answer per connection.
//! Served by `minke proxy`, asked by `minke kubelet`; the socket's directory keeps others out.
//! Invariant: whoever asks waits no longer than it wants to, and a silent peer is closed (test:
//! `who_asks_nothing_is_closed`).

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use env::Env;
use serve::Slots;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
};

use crate::{applied_state::AppliedState, model::PodUid};

/// A pod in no Service.
const UNKNOWN: &str = "unknown";
const QUESTION_BYTES_MAX: u64 = 128;
/// One for each pod that ends; the kubelet asks no longer than two seconds.
const QUESTIONS_MAX: usize = 1024;
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// What the rules say of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// No Service has it among its endpoints.
    Unknown,
    /// No rule uses it, in rules that hold this version.
    Withdrawn(u64),
}

/// Answers questions at `path` until it is dropped.
pub async fn serve_applied_state(path: &Path, applied_state: AppliedState, env: Env) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // What a proxy before us left behind.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let slots = Slots::new(QUESTIONS_MAX, QUESTIONS_MAX);
    loop {
        let (stream, _, slot) = serve::accept(&listener, &slots, &env).await;
        let (applied_state, limit) = (applied_state.clone(), env.clone());
        env.spawn(async move {
            if let Err(error) = answer(stream, &applied_state, &limit).await {
                tracing::debug!(%error, "a question about a pod's endpoints ended badly");
            }
            drop(slot);
        });
    }
}

async fn answer(stream: UnixStream, applied_state: &AppliedState, env: &Env) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read).take(QUESTION_BYTES_MAX);
    let mut question = String::new();
    env.timeout(QUESTION_TIMEOUT, read.read_line(&mut question)).await.ok_or(std::io::ErrorKind::TimedOut)??;
    let (uid, version) = question.trim().split_once(' ').unwrap_or((question.trim(), "0"));
    let version: u64 = version.parse().unwrap_or(0);
    let Some(pod) = PodUid::parse(uid) else { return write.write_all(UNKNOWN.as_bytes()).await };
    // Who asks about a version wants it in the rules, whether they know the pod or not.
    if version == 0 && !applied_state.knows(pod) {
        return write.write_all(UNKNOWN.as_bytes()).await;
    }
    let mut more = [0; 1];
    tokio::select! {
        held = applied_state.withdrawn(pod, version) => write.write_all(held.to_string().as_bytes()).await,
        // Nobody waits any longer.
        _ = read.read(&mut more) => Ok(()),
    }
}

/// Asks the proxy behind `path`; returns when it has answered.
pub async fn ask_applied_state(path: &Path, pod_uid: &str, version: u64) -> std::io::Result<Answer> {
    use tokio::io::AsyncReadExt;
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(format!("{pod_uid} {version}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(QUESTION_BYTES_MAX).read_to_string(&mut answer).await?;
    match answer.trim() {
        UNKNOWN => Ok(Answer::Unknown),
        held => held.parse().map(Answer::Withdrawn).map_err(std::io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_is_closed() {
        use tokio::io::AsyncReadExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy.sock");
        let task_path = path.clone();
        let served =
            env::spawn(async move { serve_applied_state(&task_path, AppliedState::default(), Env::real()).await });
        let mut silent = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let ended = env::timeout(Duration::from_secs(24 * 3600), silent.read(&mut [0])).await;
        assert_eq!(ended.expect("the proxy closes it").unwrap_or(0), 0);
        served.abort();
    }

    #[tokio::test]
    async fn a_kubelet_in_another_process_learns_what_the_rules_hold() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/proxy.sock");
        let uid = "5d6c1f0e-88a7-4a3e-9d8e-0f6b8f4d2a11";
        let pod = PodUid::parse(uid).unwrap();
        assert!(ask_applied_state(&path, uid, 0).await.is_err(), "no proxy runs");
        let applied_state = AppliedState::default();
        // Twice: a restarted proxy takes the place of the one before.
        for _ in 0..2 {
            let served = {
                let (path, applied_state) = (path.clone(), applied_state.clone());
                env::spawn(async move { serve_applied_state(&path, applied_state, Env::real()).await })
            };
            while ask_applied_state(&path, uid, 0).await.ok() != Some(Answer::Unknown) {
                tokio::task::yield_now().await;
            }
            served.abort();
            let _ = served.await;
        }
        let (task_path, task_state) = (path.clone(), applied_state.clone());
        let served = env::spawn(async move { serve_applied_state(&task_path, task_state, Env::real()).await });
        applied_state.replace(&[], &[(pod, true)]);
        applied_state.publish(3);
        while ask_applied_state(&path, "junk", 0).await.is_err() {
            tokio::task::yield_now().await;
        }
        let asked = ask_applied_state(&path, uid, 0);
        let change = async {
            tokio::task::yield_now().await;
            applied_state.replace(&[(pod, true)], &[(pod, false)]);
            applied_state.publish(4);
        };
        let (answer, ()) = tokio::join!(asked, change);
        assert_eq!(answer.unwrap(), Answer::Withdrawn(4));
        served.abort();
    }
}
