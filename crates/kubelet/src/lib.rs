//! The node agent: runs the pods that are assigned to this node, and says how they are.
//! Reads and writes the API through `client`, drives containers through `cri`; started by `minke`.
//! Invariant: one worker per pod; what decides (`pod_actions`, `pod_status`, `container_config`) is pure, what acts
//! decides nothing.

pub mod config;
pub mod configuration;
pub mod endpoint_drain;
mod files;
mod images;
mod logs;
mod node;
mod pod;
pub mod resources;
mod runtime;
pub mod server;
pub mod sources;
mod stats;
#[cfg(test)]
mod test_api;
mod volumes;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use client::{Client, EventRecorder, InformerFactory, ListParams};
pub use config::{CgroupDriver, Config};
use cri::{RemoteRuntime, Runtime};
use env::Env;
use files::{directories, file_work};
use futures::future::BoxFuture;
use images::{image_gc, image_manager, image_manager::pull_records::PullRecords};
use k8s_openapi::api::core::v1::{Pod, Service};
use logs::log_rotation;
use metrics::Metrics;
use node::{
    node_status,
    node_status::{Machine, NodeStatusManager, default_address},
    pod_cleanup,
};
use parking_lot::Mutex;
use pod::{
    pod_manager,
    pod_workers::{PodWorkers, Shared},
    probe_manager, status_manager, sync_loop,
};
use resources::{allocation_manager, container_manager, eviction};
use runtime::{
    backoff, container_config, container_exits, metered_runtime, pleg, runtime_features, runtime_manager,
    user_namespaces,
};
use server::server_view;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use volumes::{referenced_objects, volume_manager};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to reach the container runtime at {endpoint}: {source}")]
    Runtime { endpoint: String, source: cri::Error },
    #[error("failed to prepare {path}: {source}")]
    Directory { path: String, source: std::io::Error },
    #[error("failed to make control groups: {0}")]
    Groups(std::io::Error),
    #[error("failed to listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("invalid configuration: {0}")]
    Config(String),
    #[error("this machine has no address; name one with --node-ip")]
    NoAddress,
}

/// Runs the node until `shutdown`. Containers keep running afterwards.
pub fn run(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let image = config.image_endpoint.as_deref().map(text);
    let runtime = RemoteRuntime::new(&text(&config.runtime_endpoint), image.as_deref());
    let runtime = Arc::new(runtime.with_limit(config.runtime_request_timeout));
    run_with(config, client, informers, env, runtime, shutdown)
}

/// As `run`, on any runtime.
pub fn run_with(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    runtime: Arc<dyn Runtime>,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(run_until(config, client, informers, env, runtime, shutdown))
}

async fn run_until(
    mut config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    runtime: Arc<dyn Runtime>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let metrics = Metrics::default();
    let runtime: Arc<dyn Runtime> =
        Arc::new(metered_runtime::MeteredRuntime::new(runtime, metrics.clone(), env.clone()));
    directories::prepare(&mut config)
        .map_err(|(path, source)| Error::Directory { path: path.display().to_string(), source })?;
    if config.node_ips.is_empty() {
        config.node_ips = default_address().into_iter().collect();
    }
    if config.node_ips.is_empty() {
        return Err(Error::NoAddress);
    }
    let version = runtime
        .version()
        .await
        .map_err(|source| Error::Runtime { endpoint: config.runtime_endpoint.display().to_string(), source })?;
    let listener = listen(&config).await?;
    let config = Arc::new(config);
    let node = Node::build(config, client, &informers, env.clone(), runtime, version, listener, metrics)?;
    node.start(&informers, shutdown).await;
    Ok(())
}

/// What the configuration asks for that this machine can't give.
fn refuse(config: &Config, unified: bool) -> Result<(), Error> {
    if config.single_process_oom_kill == Some(false) && !unified {
        let message = "singleProcessOOMKill must not be explicitly set to false when using cgroup v1";
        return Err(Error::Config(message.into()));
    }
    if config.fail_cgroup_v1 && !unified {
        let message = "kubelet is configured to not run on a host using cgroup v1. \
            cgroup v1 support is unsupported and will be removed in a future release";
        return Err(Error::Config(message.into()));
    }
    // The first line has the columns' names.
    let swaps = || std::fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() > 1;
    if config.fail_swap_on && swaps() {
        let message = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false";
        return Err(Error::Config(message.into()));
    }
    Ok(())
}

/// Everything of a running node, put together.
struct Node {
    workers: Arc<PodWorkers>,
    status: Arc<NodeStatusManager>,
    thresholds: Vec<eviction::Threshold>,
    pleg: Arc<pleg::Pleg>,
    exits: container_exits::ContainerExits,
    wake_sender: mpsc::UnboundedSender<String>,
    wake: mpsc::UnboundedReceiver<String>,
    listener: Option<TcpListener>,
}

/// The socket of the node's server, if it is to have one.
async fn listen(config: &Config) -> Result<Option<TcpListener>, Error> {
    if config.serving_certificate.is_none() || !config.enable_server {
        return Ok(None);
    }
    let address = SocketAddr::new(config.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), config.port);
    TcpListener::bind(metrics::http::everywhere(address))
        .await
        .map(Some)
        .map_err(|source| Error::Listen { address, source })
}

impl Node {
    #[allow(clippy::too_many_arguments)]
    fn build(
        config: Arc<Config>,
        client: Client,
        informers: &InformerFactory,
        env: Env,
        runtime: Arc<dyn Runtime>,
        version: cri::v1::VersionResponse,
        listener: Option<TcpListener>,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let mut thresholds = eviction::parse(&config.eviction_hard, &config.eviction_soft, &config.eviction_soft_grace)
            .map_err(Error::Config)?;
        eviction::with_reclaim(&mut thresholds, &config.eviction_minimum_reclaim).map_err(Error::Config)?;
        let pressures = Arc::new(eviction::Pressures::default());
        let machine = Machine::probe(&config.root_dir);
        let recorder = EventRecorder::new(client.clone(), env.clone(), "kubelet", &config.node_name);
        let (wake_sender, wake) = mpsc::unbounded_channel();
        let exits = container_exits::ContainerExits::default();
        let features = Arc::new(runtime_features::RuntimeFeatures::of(&version));
        let records = PullRecords::load(&config.root_dir.join("image_manager"), config.image_verification);
        let images = image_manager::ImageManager::new(
            runtime.clone(),
            env.clone(),
            recorder.clone(),
            config.max_parallel_pulls,
            metrics.clone(),
        );
        let images = Arc::new(images.with_records(records));
        let cgroups = Arc::new(container_manager::ContainerManager::configured(&config, &machine));
        refuse(&config, cgroups.is_unified())?;
        let enforced = config.enforce_node_allocatable;
        let memory = enforced.then_some(machine.memory_bytes - config.reserved.memory_bytes);
        let reserved_cpu = if enforced { config.reserved.cpu_milli } else { 0 };
        cgroups.start(machine.cpus * 1000 - reserved_cpu, memory).map_err(Error::Groups)?;
        let allocatable = node_status::allocatable(&machine, &config, &thresholds);
        let facts = container_config::downward::NodeFacts {
            cpu_milli: allocatable.cpu_milli,
            memory_bytes: allocatable.memory_bytes,
            ephemeral_bytes: allocatable.ephemeral_bytes,
        };
        let pods = Arc::new(pod_manager::PodManager::default());
        let statuses =
            Arc::new(status_manager::StatusManager::new(client.clone(), env.clone(), pods.clone(), metrics.clone()));
        let host_ips: Vec<String> = config.node_ips.iter().map(ToString::to_string).collect();
        let pleg = Arc::new(pleg::Pleg::new(
            runtime.clone(),
            env.clone(),
            images.clone(),
            config.relist_interval,
            wake_sender.clone(),
            exits.clone(),
            metrics.clone(),
        ));
        let status = Arc::new(NodeStatusManager {
            config: config.clone(),
            client: client.clone(),
            env: env.clone(),
            runtime: runtime.clone(),
            runtime_version: format!("{}://{}", version.runtime_name, version.runtime_version),
            recorder: recorder.clone(),
            machine: machine.clone(),
            addresses: config.node_ips.clone(),
            pleg: pleg.clone(),
            server_port: listener.as_ref().and_then(|l| l.local_addr().ok()).map_or(config.port, |a| a.port()),
            node: Arc::new(Mutex::default()),
            pressures: pressures.clone(),
            allocatable,
            features: features.clone(),
            wake: Arc::new(Notify::new()),
        });
        *status.node.lock() = status.describe();
        // More of them only make each slower.
        let at_once = (machine.cpus.max(1) as usize * 2).max(4);
        let files = file_work::FileWork::new(env.clone());
        let shared = Arc::new(Shared {
            runtime: runtime_manager::RuntimeManager {
                runtime: runtime.clone(),
                env: env.clone(),
                recorder: recorder.clone(),
                config: config.clone(),
                images: images.clone(),
                cgroups: cgroups.clone(),
                user_namespaces: user_namespaces::UserNamespaces::new(config.pods_dir()),
                features,
                node: facts,
                host_ips,
                metrics: metrics.clone(),
                starts: runtime_manager::Turns::new(env.clone(), at_once),
                stops: runtime_manager::Turns::new(env.clone(), at_once),
                files: files.clone(),
            },
            runtime_name: version.runtime_name,
            probes: probe_manager::ProbeManager::new(
                runtime.clone(),
                env.clone(),
                recorder.clone(),
                wake_sender.clone(),
            ),
            volumes: volume_manager::VolumeManager::new(
                client.clone(),
                env.clone(),
                &config,
                status.node.clone(),
                recorder.clone(),
                metrics.clone(),
                files.clone(),
            ),
            references: referenced_objects::ReferencedObjects::new(client.clone(), env.clone(), wake_sender.clone()),
            services: informers.informer::<Service>(),
            node: status.node.clone(),
            pressures,
            crash_backoff: backoff::Backoff::new(
                Duration::from_secs(10).min(config.crash_backoff_max),
                config.crash_backoff_max,
            ),
            allocations: allocation_manager::AllocationManager::new(
                pods.clone(),
                status.node.clone(),
                wake_sender.clone(),
            )
            .kept_in(config.root_dir.join("granted_resources")),
            config,
            env,
            client,
            recorder,
            pods,
            statuses,
            images,
            cgroups,
            metrics,
        });
        Ok(Self {
            workers: Arc::new(PodWorkers::new(shared)),
            status,
            thresholds,
            pleg,
            exits,
            wake_sender,
            wake,
            listener,
        })
    }

    async fn start(self, informers: &InformerFactory, shutdown: CancellationToken) {
        let Node { workers, status, thresholds, pleg, exits, wake_sender, wake, listener } = self;
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
        tasks.spawn(pleg.run());
        // A pod's environment names the services, so they are waited for once.
        env.timeout(Duration::from_secs(10), shared.services.synced()).await;
        let (static_sender, static_pods) = mpsc::unbounded_channel();
        let static_config = shared.config.clone();
        if let Some(dir) = &static_config.manifest_dir {
            sources::follow_directory(dir.clone(), config.clone(), env.clone(), static_sender.clone());
        }
        if let Some(url) = &static_config.manifest_url {
            sources::follow_url(url.clone(), config.clone(), env.clone(), static_sender.clone());
        }
        let image_gc = Arc::new(image_gc::ImageGc::default());
        let evictions = eviction::EvictionManager {
            workers: workers.clone(),
            images: image_gc.clone(),
            thresholds,
            tell: status.wake.clone(),
        };
        tasks.spawn(evictions.run());
        let cleanup_workers = workers.clone();
        let synced = api_pods.clone();
        let has_static = config.manifest_dir.is_some() || config.manifest_url.is_some();
        let task_env = env.clone();
        tasks.spawn(async move {
            // Before all sources were heard, everything looks like an orphan.
            synced.synced().await;
            task_env.sleep(Duration::from_secs(if has_static { 30 } else { 2 })).await;
            pod_cleanup::run(cleanup_workers, image_gc).await;
        });
        tasks.spawn(log_rotation::run(workers.clone()));
        let health = Arc::new(sync_loop::SyncLoopHealth::new(env.clone()));
        serve(&mut tasks, &workers, exits, listener, health.clone(), &shutdown);
        let all_workers = workers.clone();
        let sync_loop =
            sync_loop::SyncLoop { health, workers, api_pods, static_pods, wake, shutdown: shutdown.clone() };
        tasks.spawn(sync_loop.run());
        shutdown.cancelled().await;
        drop((wake_sender, static_sender));
        tasks.shutdown().await;
        all_workers.stop();
    }
}

/// The node's own server and its health check.
fn serve(
    tasks: &mut JoinSet<()>,
    workers: &Arc<PodWorkers>,
    exits: container_exits::ContainerExits,
    listener: Option<TcpListener>,
    health: Arc<sync_loop::SyncLoopHealth>,
    shutdown: &CancellationToken,
) {
    let shared = &workers.shared;
    let config = &shared.config;
    let view = Arc::new(server_view::NodeView::new(shared.clone(), exits));
    if config.read_only_port != 0 {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let address = SocketAddr::new(config.address.unwrap_or(everywhere), config.read_only_port);
        let (view, env, shutdown) = (view.clone(), shared.env.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server::serve_read_only(address, view, env, shutdown).await {
                tracing::error!(%address, %error, "failed to serve the read-only port");
            }
        });
    }
    if let (Some(listener), Some(certificate)) = (listener, config.serving_certificate.clone()) {
        let server = server::Server {
            view,
            runtime: shared.runtime.runtime.clone(),
            client: shared.client.clone(),
            env: shared.env.clone(),
            config: config.clone(),
            serving_certificate: certificate,
            client_ca_pem: config.client_ca_pem.clone(),
            endpoint_drain: config.endpoint_drain.clone(),
            metrics: shared.metrics.clone(),
            connections: serve::Limits::KUBELET,
        };
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            if let Err(error) = server.serve(listener, shutdown).await {
                tracing::error!(%error, "the node's server stopped");
            }
        });
    }
    if config.healthz_port != 0 {
        let address = SocketAddr::new(config.healthz_address, config.healthz_port);
        let (env, shutdown) = (shared.env.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server::serve_health(address, move || health.is_alive(), env, shutdown).await {
                tracing::error!(%address, %error, "failed to serve health checks");
            }
        });
    }
}
