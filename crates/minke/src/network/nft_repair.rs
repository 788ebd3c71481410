//! Writes nftables rules anew when somebody else has deleted from them.
//! Listens through `proxy::NftMonitor`; used by `pod_network` for pods and their host ports, and by `nodes` for the switch.
//! Looks before it writes, so its own writing makes it look once more and write no more.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use env::{Backoff, Env};
use proxy::NftMonitor;
use tokio_util::sync::CancellationToken;

/// Two who write the same tables would fight for ever; not at full speed.
const REPAIR_DELAY_MAX: Duration = Duration::from_secs(30);
const REPAIR_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), REPAIR_DELAY_MAX);

/// Runs until shutdown. `restore` blocks, and says whether anything was missing.
pub async fn repair_on_change(
    tables: Vec<String>,
    restore: impl Fn() -> Result<bool> + Send + Sync + 'static,
    env: Env,
    shutdown: CancellationToken,
) {
    let restore = Arc::new(restore);
    let kept = async {
        let mut backoff = REPAIR_BACKOFF;
        loop {
            let Err(error) = listen(&tables, &restore, &env, &mut backoff).await;
            tracing::error!(error = format!("{error:#}"), ?tables, "failed to keep nftables rules; will try again");
            env.sleep(backoff.next_delay()).await;
        }
    };
    shutdown.run_until_cancelled(kept).await;
}

async fn listen<F: Fn() -> Result<bool> + Send + Sync + 'static>(
    tables: &[String],
    restore: &Arc<F>,
    env: &Env,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible> {
    let mut monitor = NftMonitor::open_all(tables)?;
    loop {
        // What is waiting happened before this look.
        monitor.drain();
        let (began, restore) = (env.monotonic(), restore.clone());
        if env::spawn_blocking(move || restore()).await?? {
            tracing::warn!(?tables, "somebody else changed our nftables rules; they were written anew");
            env.sleep(backoff.next_delay()).await;
        } else {
            monitor.next().await?;
            if env.monotonic() - began > REPAIR_DELAY_MAX {
                backoff.reset();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// How long a busy machine may take for what must happen.
    const TEST_TIMEOUT: Duration = Duration::from_secs(120);

    fn nft(command: &str) -> String {
        let output = Command::new("nft").args(command.split(' ')).output().expect("apt-get install -y nftables");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// In a network namespace that ends with its thread.
    fn apart(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("run this test as root");
            test();
        });
        thread.join().unwrap();
    }

    async fn repaired_after(flush: &str) {
        nft(flush);
        let end = env::instant_now() + TEST_TIMEOUT;
        while !nft("list ruleset").contains("masquerade") {
            assert!(env::instant_now() < end, "{flush}");
            env::sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    fn pod_rules_survive_a_foreign_flush() {
        apart(|| {
            let data = tempfile::tempdir().unwrap();
            let conflist = cni::conflist(&cni::ConfListParams {
                name: "test".into(),
                bridge: "mk0".into(),
                pod_cidrs: vec!["10.99.0.0/24".parse().unwrap()],
                mtu: None,
                data_dir: data.path().into(),
                table: "mk-cni".into(),
                cluster_cidrs: vec!["10.99.0.0/16".parse().unwrap()],
                policy_socket: None,
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let shutdown = CancellationToken::new();
                let kept = repair_on_change(
                    cni::tables("mk-cni"),
                    move || Ok(cni::restore(&conflist)?),
                    Env::real(),
                    shutdown.clone(),
                );
                let kept = env::spawn(kept);
                repaired_after("list ruleset").await;
                for flush in ["flush ruleset", "flush table inet mk-cni", "delete table inet mk-cni"] {
                    repaired_after(flush).await;
                }
                shutdown.cancel();
                kept.await.unwrap();
            });
        });
    }

    #[test]
    fn the_switch_survives_a_foreign_flush() {
        apart(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let shutdown = CancellationToken::new();
                let switch = crate::cluster::members::switch::Switch::new(
                    "mk-nodes",
                    "mkbr",
                    "198.18.7.0/24".parse().unwrap(),
                    &[],
                );
                let kept = env::spawn(switch.keep_rules(&Env::real(), &shutdown));
                repaired_after("list ruleset").await;
                for flush in ["flush ruleset", "flush table ip mk-nodes"] {
                    repaired_after(flush).await;
                }
                shutdown.cancel();
                kept.await.unwrap();
            });
        });
    }
}
