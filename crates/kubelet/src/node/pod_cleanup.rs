//! Removes what nobody wants any more: sandboxes, directories, logs and groups of pods that are gone.
//! Run by `wiring` at the start and at a slow rate.
//! Touches only pods that this node made, that no source and no worker knows, and only after the sources were heard.

use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

use crate::{
    images::image_gc::ImageGc,
    logs::container_logs,
    node::pod_metrics::{ORPHAN_POD_VOLUMES, ORPHAN_POD_VOLUMES_ERRORS, ORPHANED_RUNTIME_PODS},
    pod::pod_workers::PodWorkers,
    runtime::{
        container_config::{OWNER, POD_UID},
        container_gc,
    },
};

const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

pub async fn run(workers: Arc<PodWorkers>, images: Arc<ImageGc>) {
    let mut round: u64 = 0;
    let mut images_failed = false;
    loop {
        remove_orphans(&workers).await;
        if let Err(error) = container_gc::collect(&workers).await {
            report_failure(&workers, error.event_reason(), &error);
        }
        // Images change rarely and cost more to look at.
        if round.is_multiple_of(5) {
            let result = images.collect(&workers).await;
            match result {
                // Once may be a runtime that has only just come up.
                Err(error) if images_failed => report_failure(&workers, error.event_reason(), &error),
                Err(error) => {
                    tracing::warn!(%error, "failed to look after images");
                    images_failed = true;
                }
                Ok(()) => images_failed = false,
            }
        }
        round += 1;
        workers.shared.env.sleep(CLEANUP_INTERVAL).await;
    }
}

fn report_failure(workers: &PodWorkers, reason: &str, error: &dyn std::error::Error) {
    tracing::warn!(%error, reason, "garbage collection failed");
    let node = client::reference(&*workers.shared.node.lock());
    workers.shared.recorder.warning(&node, reason, error.to_string());
}

/// What a node that was down may find: pods that were deleted meanwhile.
async fn remove_orphans(workers: &PodWorkers) {
    let shared = &workers.shared;
    let wanted = |uid: &str| shared.pods.contains(uid) || workers.knows(uid);
    let mut running: HashSet<String> = HashSet::new();
    let mut orphans: HashSet<String> = HashSet::new();
    match shared.runtime.runtime.list_pod_sandboxes(None).await {
        Ok(sandboxes) => {
            for sandbox in sandboxes {
                let Some(uid) = sandbox.labels.get(POD_UID) else { continue };
                running.insert(uid.clone());
                // A runtime that is not ours alone has other users.
                let Some(owner) = sandbox.annotations.get(OWNER).filter(|_| !wanted(uid)) else { continue };
                if !is_root(owner, &shared.config.root_dir).await {
                    continue;
                }
                tracing::info!(uid, sandbox = sandbox.id, "removing a pod that nobody wants");
                if orphans.insert(uid.clone()) {
                    shared.metrics.count(&ORPHANED_RUNTIME_PODS, &[]);
                }
                let runtime = &shared.runtime.runtime;
                let result = match runtime.stop_pod_sandbox(&sandbox.id).await {
                    Ok(()) => runtime.remove_pod_sandbox(&sandbox.id).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = result {
                    tracing::warn!(uid, %error, "failed to remove an orphaned sandbox");
                }
            }
        }
        Err(error) => {
            tracing::warn!(%error, "failed to look for orphans");
            return;
        }
    }
    shared.allocations.retain(wanted);
    let (mut cleaned, mut failed) = (0.0, 0.0);
    for uid in shared.volumes.pods_on_disk().await.into_iter().filter(|uid| !wanted(uid) && !running.contains(uid)) {
        match shared.volumes.tear_down(&uid).await {
            Ok(()) => cleaned += 1.0,
            Err(error) => {
                failed += 1.0;
                tracing::warn!(uid, %error, "failed to remove an orphaned pod's directory");
            }
        }
    }
    shared.metrics.set(&ORPHAN_POD_VOLUMES, &[], cleaned);
    shared.metrics.set(&ORPHAN_POD_VOLUMES_ERRORS, &[], failed);
    for (uid, directory) in container_logs::directories(&shared.config).await {
        if wanted(&uid) || running.contains(&uid) {
            continue;
        }
        if let Err(error) = container_logs::remove_directory(directory).await {
            tracing::warn!(uid, %error, "failed to remove an orphaned pod's logs");
        }
    }
    container_logs::remove_dead_links(&shared.config).await;
    for uid in shared.cgroups.pods().into_iter().filter(|uid| !wanted(uid) && !running.contains(uid)) {
        let _ = shared.cgroups.remove_pod(&uid);
    }
}

/// Whether a sandbox's owner is the node whose root directory is at `root`. A node wrote down its path as it was given
/// before it resolved links in it.
async fn is_root(owner: &str, root: &Path) -> bool {
    Path::new(owner) == root || tokio::fs::canonicalize(owner).await.is_ok_and(|owner| owner == root)
}
