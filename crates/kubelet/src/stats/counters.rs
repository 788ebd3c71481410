//! The pages of what the node has counted, together with what is only looked at when somebody asks.
//! Part of `stats`; the families are in `node_metrics` and `pod_metrics`.
//! Only reads.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use api::volume_claims::claim_name;
use cri::v1;
use metrics::{Family, Metrics, Text};

use crate::{
    files::disk::{Disk, Usage},
    node::{
        node_metrics::{
            ACTIVE_PODS, CGROUP_VERSION, DESIRED_PODS, IN_PROGRESS_RESIZES, MIRROR_PODS, NODE_NAME, PENDING_RESIZES,
            RUNNING_CONTAINERS, RUNNING_PODS, VOLUME_ABNORMAL, VOLUME_AVAILABLE, VOLUME_CAPACITY, VOLUME_INODES,
            VOLUME_INODES_FREE, VOLUME_INODES_USED, VOLUME_USED, VOLUMES,
        },
        pod_metrics::EPHEMERAL_CONTAINERS,
    },
    pod::{
        pod_spec,
        pod_status::{condition, is_terminal},
        pod_workers::Shared,
    },
    resources::resizes::{IN_PROGRESS, PENDING},
    runtime::container_config::POD_UID,
    volumes::plugins::PLUGINS,
};

/// A scrape is not to wait longer for a runtime that hangs.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(5);

/// `/metrics`.
pub async fn page(shared: &Shared) -> String {
    let mut text = Text::default();
    let present = Metrics::default();
    // What else is counted is shown without the runtime, too.
    match shared.env.timeout(RUNTIME_TIMEOUT, runtime(shared, &present)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "metrics lack what the runtime has"),
        None => tracing::debug!("metrics lack what the runtime has: it does not answer"),
    }
    pods(shared, &present);
    volumes(shared, &present).await;
    present.set(&NODE_NAME, &[&shared.config.node_name], 1.0);
    present.set(
        &CGROUP_VERSION,
        &[],
        if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2.0 } else { 1.0 },
    );
    shared.metrics.render(&mut text);
    present.render(&mut text);
    metrics::process(&mut text);
    text.finish()
}

/// `/metrics/probes`.
pub fn probes(shared: &Shared) -> String {
    let mut text = Text::default();
    shared.probes.metrics.render(&mut text);
    text.finish()
}

/// What the runtime has of ours.
async fn runtime(shared: &Shared, present: &Metrics) -> cri::Result<()> {
    let runtime = &shared.runtime.runtime;
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let filter = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let (sandboxes, containers) =
        tokio::try_join!(runtime.list_pod_sandboxes(Some(filter)), runtime.list_containers(None))?;
    let ours: HashSet<&String> = sandboxes.iter().filter_map(|sandbox| sandbox.labels.get(POD_UID)).collect();
    present.set(&RUNNING_PODS, &[], ours.len() as f64);
    for container in containers.iter().filter(|container| container.labels.contains_key(POD_UID)) {
        let state = match container.state() {
            v1::ContainerState::ContainerCreated => "created",
            v1::ContainerState::ContainerRunning => "running",
            v1::ContainerState::ContainerExited => "exited",
            v1::ContainerState::ContainerUnknown => "unknown",
        };
        present.count(&RUNNING_CONTAINERS, &[state]);
    }
    Ok(())
}

fn pods(shared: &Shared, present: &Metrics) {
    present.set(&IN_PROGRESS_RESIZES, &[], 0.0);
    present.set(&EPHEMERAL_CONTAINERS, &[], 0.0);
    for fixed in ["", "true"] {
        present.add(&DESIRED_PODS, &[fixed], 0.0);
        present.add(&ACTIVE_PODS, &[fixed], 0.0);
    }
    for pod in shared.pods.list() {
        let fixed = if pod_spec::is_static(&pod) { "true" } else { "" };
        present.count(&DESIRED_PODS, &[fixed]);
        present.add(&EPHEMERAL_CONTAINERS, &[], pod_spec::ephemeral_containers(&pod).len() as f64);
        let status = shared.statuses.get(pod_spec::uid(&pod)).or_else(|| pod.status.clone()).unwrap_or_default();
        if !status.phase.as_deref().is_some_and(is_terminal) {
            present.count(&ACTIVE_PODS, &[fixed]);
        }
        if let Some(pending) = condition(&status, PENDING) {
            let reason = pending.reason.as_deref().unwrap_or_default().to_lowercase();
            present.count(&PENDING_RESIZES, &[&reason]);
        }
        if condition(&status, IN_PROGRESS).is_some() {
            present.count(&IN_PROGRESS_RESIZES, &[]);
        }
    }
    present.set(&MIRROR_PODS, &[], shared.pods.mirrors().len() as f64);
}

async fn volumes(shared: &Shared, present: &Metrics) {
    let mut claims = BTreeMap::new();
    let pods = shared.pods.list();
    let drivers = shared.volumes.driver_stats(&pods).await;
    for pod in &pods {
        let there = shared.volumes.paths(pod_spec::uid(pod));
        for volume in pod_spec::spec(pod).volumes.iter().flatten() {
            let plugin = PLUGINS.metric_name(volume);
            present.count(&VOLUMES, &[&plugin, "desired_state_of_world"]);
            let Some(path) = there.get(&volume.name) else { continue };
            present.count(&VOLUMES, &[&plugin, "actual_state_of_world"]);
            if let Some(claim) = claim_name(pod, volume) {
                claims.insert((pod_spec::namespace(pod).to_string(), claim), path.clone());
            }
        }
    }
    for ((namespace, claim), path) in claims {
        let set = |family: &'static Family, value: u64| present.set(family, &[&namespace, &claim], value as f64);
        // A driver knows best; of a device nothing else is known.
        let (disk, used) = match drivers.get(&path) {
            Some(Some(told)) => {
                if let Some(condition) = &told.condition {
                    set(&VOLUME_ABNORMAL, u64::from(condition.abnormal));
                }
                (told.disk, told.used)
            }
            Some(None) => continue,
            None if !path.is_dir() => continue,
            None => {
                let Ok(system) = nix::sys::statvfs::statvfs(&path) else { continue };
                let disk = Disk {
                    bytes: system.blocks() * system.fragment_size(),
                    bytes_free: system.blocks_available() * system.fragment_size(),
                    inodes: system.files(),
                    inodes_free: system.files_free(),
                };
                let bytes = system.blocks().saturating_sub(system.blocks_free()) * system.fragment_size();
                (disk, Usage { bytes, inodes: system.files().saturating_sub(system.files_free()) })
            }
        };
        set(&VOLUME_CAPACITY, disk.bytes);
        set(&VOLUME_AVAILABLE, disk.bytes_free);
        set(&VOLUME_USED, used.bytes);
        set(&VOLUME_INODES, disk.inodes);
        set(&VOLUME_INODES_FREE, disk.inodes_free);
        set(&VOLUME_INODES_USED, used.inodes);
    }
}
