//! Starts everything that runs for as long as the node does, and ends it.
//! Used by `wiring`.

use std::{sync::Arc, time::Duration};

use client::{Informer, InformerFactory, ListParams};
use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{dependencies::Node, listeners};
use crate::{
    Config,
    images::image_gc::ImageGc,
    logs::log_rotation,
    node::{node_shutdown::NodeShutdownManager, pod_cleanup},
    pod::{
        pod_workers::PodWorkers,
        sync_loop::{SyncLoop, SyncLoopHealth},
    },
    resources::{eviction::EvictionManager, oom_watcher, pod_resources},
    sources::{self, STATIC_POD_LISTS_MAX, submission::Submissions},
    volumes::local_storage,
};

/// How long Services are waited for at the start.
const SERVICES_SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after the API's pods are known orphans are looked for; static pods come later than those of the API.
const CLEANUP_DELAY: Duration = Duration::from_secs(2);
const CLEANUP_DELAY_WITH_STATIC_PODS: Duration = Duration::from_secs(30);

/// As upstream's.
const UNPREPARE_RETRY: Duration = Duration::from_secs(60);

impl Node {
    pub async fn run(self, informers: &InformerFactory, shutdown: CancellationToken) {
        let Node { workers, plugins, csi_plugins, status, thresholds, pleg, exits, wakes, listener } = self;
        let shared = workers.shared.clone();
        let (config, env) = (shared.config.clone(), shared.env.clone());
        let selector = format!("spec.nodeName={}", config.node_name);
        let api_pods = informers.informer_with::<Pod>(ListParams::fields(selector));
        status.register().await;
        let about = client::reference(&*status.node.lock());
        shared.recorder.normal(&about, "Starting", "Starting kubelet.");
        let mut tasks = JoinSet::new();
        tasks.spawn(status.clone().run_status());
        let own = informers.informer_with(ListParams::fields(format!("metadata.name={}", config.node_name)));
        tasks.spawn(status.clone().run_watch(own));
        tasks.spawn(status.clone().run_network_watch());
        tasks.spawn(status.clone().run_lease());
        tasks.spawn(csi_plugins.clone().ensure_csi_node());
        tasks.spawn(csi_plugins.run_allocatable_updates());
        tasks.spawn(shared.devices.plugins.clone().run());
        tasks.spawn(shared.devices.claims.drivers().clone().run());
        tasks.spawn(pod_resources::run(shared.clone()));
        tasks.spawn(plugins.run());
        tasks.spawn(pleg.run());
        // A pod's environment names the services, so they are waited for once.
        env.timeout(SERVICES_SYNC_TIMEOUT, shared.services.synced()).await;
        let (static_sender, static_pods) = mpsc::channel(STATIC_POD_LISTS_MAX);
        if let Some(dir) = &config.manifest_dir {
            sources::follow_directory(dir.clone(), config.clone(), env.clone(), static_sender.clone());
        }
        if let Some(url) = &config.manifest_url {
            sources::follow_url(url.clone(), config.clone(), env.clone(), static_sender.clone());
        }
        let submissions = (config.manifest_server_port != 0)
            .then(|| Submissions::new(config.clone(), env.clone(), static_sender.clone()));
        let image_gc = Arc::new(ImageGc::default());
        let (images, tell) = (image_gc.clone(), status.wake.clone());
        tasks.spawn(EvictionManager { workers: workers.clone(), images, thresholds, tell }.run());
        tasks.spawn(oom_watcher::run(shared.clone()));
        if !config.shutdown_grace_periods.is_empty() {
            let (periods, tell) = (config.shutdown_grace_periods.clone(), status.wake.clone());
            tasks.spawn(NodeShutdownManager { workers: workers.clone(), periods, tell }.run());
        }
        tasks.spawn(run_cleanup(workers.clone(), image_gc, api_pods.clone()));
        tasks.spawn(run_unprepare(workers.clone(), api_pods.clone()));
        tasks.spawn(run_local_storage(workers.clone(), informers.clone(), api_pods.clone()));
        tasks.spawn(log_rotation::run(workers.clone()));
        let managers = shared.runtime.managers.clone();
        tasks.spawn(managers.run(shared.runtime.runtime.clone(), shared.statuses.clone()));
        tasks.spawn(run_sources_ready(workers.clone(), api_pods.clone()));
        let health = Arc::new(SyncLoopHealth::new(env));
        listeners::serve(&mut tasks, &workers, exits, listener, health.clone(), submissions, &shutdown);
        let all_workers = workers.clone();
        tasks.spawn(SyncLoop { health, workers, api_pods, static_pods, wakes, shutdown: shutdown.clone() }.run());
        shutdown.cancelled().await;
        drop(static_sender);
        tasks.shutdown().await;
        all_workers.stop();
    }
}

async fn run_cleanup(workers: Arc<PodWorkers>, images: Arc<ImageGc>, api_pods: Informer<Pod>) {
    // Before all sources were heard, everything looks like an orphan.
    api_pods.synced().await;
    workers.shared.env.sleep(cleanup_delay(&workers.shared.config)).await;
    workers.shared.devices.plugins.release_unknown(|uid| workers.knows(uid)).await;
    pod_cleanup::run(workers, images).await;
}

/// Lets go of claims of pods that ended while nobody looked.
async fn run_unprepare(workers: Arc<PodWorkers>, api_pods: Informer<Pod>) {
    api_pods.synced().await;
    let (env, config) = (&workers.shared.env, &workers.shared.config);
    env.sleep(cleanup_delay(config)).await;
    while !workers.shared.devices.claims.unprepare_unknown(|uid| workers.knows(uid)).await {
        env.sleep(UNPREPARE_RETRY).await;
    }
}

async fn run_local_storage(workers: Arc<PodWorkers>, informers: InformerFactory, api_pods: Informer<Pod>) {
    // Before the pods are known, every volume looks unused.
    api_pods.synced().await;
    workers.shared.env.sleep(cleanup_delay(&workers.shared.config)).await;
    local_storage::run(workers.shared.clone(), informers).await;
}

/// Tells the resource managers once whatever no source has is gone.
async fn run_sources_ready(workers: Arc<PodWorkers>, api_pods: Informer<Pod>) {
    api_pods.synced().await;
    workers.shared.env.sleep(cleanup_delay(&workers.shared.config)).await;
    workers.shared.runtime.managers.set_sources_ready();
}

fn cleanup_delay(config: &Config) -> Duration {
    match config.manifest_dir.is_some() || config.manifest_url.is_some() || config.manifest_server_port != 0 {
        true => CLEANUP_DELAY_WITH_STATIC_PODS,
        false => CLEANUP_DELAY,
    }
}
