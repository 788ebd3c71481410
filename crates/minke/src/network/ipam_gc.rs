//! Frees the addresses of pods that the runtime has lost: one that is killed in the middle of starting a pod comes back
//! without it and never calls DEL.
//! Started by `agent` once the node has its range; `cni` has the list.
//! Frees only what was there before the kubelet and unknown to the runtime long after, as DEL would.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, Result};
use cni::Attachment;
use cri::Runtime;
use env::Env;
use serde_json::Value;

/// A runtime lists a pod only when its network is there: one that is being started is unknown meanwhile. What the
/// kubelet before us had begun ended with its connection, and the runtime cleans up after that within a minute.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(300);

/// `before` is what was there before this process could ask for a pod.
pub async fn free(before: Vec<Attachment>, conflist: Value, runtime: &dyn Runtime, env: &Env) -> Result<()> {
    if before.is_empty() {
        return Ok(());
    }
    env.sleep(SANDBOX_START_TIMEOUT).await;
    let sandboxes = runtime.list_pod_sandboxes(None).await.context("failed to list pods")?;
    let known: HashSet<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    let lost: Vec<Attachment> = before.into_iter().filter(|a| !known.contains(a.container_id.as_str())).collect();
    if lost.is_empty() {
        return Ok(());
    }
    tracing::warn!(count = lost.len(), "freeing addresses of pods that the runtime does not know");
    env::spawn_blocking(move || {
        for attachment in &lost {
            cni::detach(&conflist, attachment)
                .with_context(|| format!("failed to free the addresses of {}", attachment.container_id))?;
        }
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use cri::{fake::FakeRuntime, v1};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// In a network namespace that ends with its thread.
    #[test]
    fn only_what_the_runtime_lost_is_freed() {
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("run this test as root");
            let data = tempfile::tempdir().unwrap();
            let conflist = cni::conflist(&cni::ConfListParams {
                name: "test".into(),
                bridge: "mk0".into(),
                pod_cidrs: vec!["10.99.0.0/24".parse().unwrap()],
                mtu: None,
                data_dir: data.path().into(),
                table: "mk-cni".into(),
                cluster_cidrs: vec![],
                policy_socket: None,
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.unwrap().block_on(check(&conflist, data.path()));
        });
        thread.join().unwrap();
    }

    async fn check(conflist: &Value, data: &std::path::Path) {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let fake = FakeRuntime::default();
        let known = fake.run_pod_sandbox(v1::PodSandboxConfig::default(), "").await.unwrap();
        cni::prepare(conflist).unwrap();
        let hold = |address: &str, id: &str| std::fs::write(data.join("test").join(address), format!("{id}\neth0"));
        hold("10.99.0.2", &known).unwrap();
        hold("10.99.0.3", "lost").unwrap();
        let before = cni::attachments(data, "test").unwrap();
        let freeing = free(before, conflist.clone(), &fake, &env);
        let late = async {
            // Begun while the others were waited for, and not listed yet.
            env.sleep(SANDBOX_START_TIMEOUT / 2).await;
            hold("10.99.0.4", "late").unwrap();
        };
        let (freed, ()) = tokio::join!(freeing, late);
        freed.unwrap();
        let left: Vec<String> = cni::attachments(data, "test").unwrap().into_iter().map(|a| a.container_id).collect();
        let mut expected = vec![known, "late".to_string()];
        expected.sort();
        assert_eq!(left, expected);
    }
}
