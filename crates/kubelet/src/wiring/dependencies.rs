//! Builds the parts of a node, each with what it needs of the others.
//! Used by `wiring`; `loops` runs what is built here.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use api::feature_gates::RESOURCE_HEALTH_STATUS;
use client::InformerFactory;
use k8s_openapi::api::{
    core::v1::{Container, Pod, Service},
    storage::v1::CSIDriver,
};
use node_plugins::{
    HealthListener,
    devices::manager::DeviceManager,
    dra::{drivers::DraPluginHandler, manager::DraManager},
    registration::{PluginHandler, plugin_watcher::PluginWatcher},
};
use parking_lot::Mutex;
use resource_managers::topology_manager::pods;
use tokio::net::TcpListener;

use super::{
    Foundation,
    checks::{check_machine, has_swap},
};
use crate::{
    Error,
    csi::{
        mounter::{CsiManager, DriverObjects},
        registration::CsiPluginHandler,
    },
    files::file_work::FileWork,
    images::image_manager::{ImageManager, credential_provider::CredentialProviders, pull_records::PullRecords},
    node::{
        node_startup::{self, NodeStartup},
        node_status::{
            self, Allocatable, NodeStatusManager,
            events::{enforced_groups, node_reference, record_failed_enforcement},
        },
    },
    pod::{
        admission::hook::PodAdmissionHook,
        pod_manager::PodManager,
        pod_spec,
        pod_wakes::PodWakes,
        pod_workers::{PodWorkers, Shared},
        probe_manager::ProbeManager,
        status_manager::StatusManager,
    },
    resources::{
        allocation_manager::AllocationManager,
        container_devices::ContainerDevices,
        container_manager::ContainerManager,
        eviction::{self, Pressures, Threshold},
        resource_managers::{NodeParts, ResourceManagers},
    },
    runtime::{
        backoff::Backoff,
        container_config::downward::NodeFacts,
        container_exits::ContainerExits,
        pleg::Pleg,
        runtime_features::RuntimeFeatures,
        runtime_manager::{RuntimeLimiter, RuntimeManager},
        user_namespaces::UserNamespaces,
    },
    volumes::{
        certificates::CertificateManager, file_system, referenced_objects::ReferencedObjects,
        volume_manager::VolumeManager,
    },
};

/// The first wait of a container that ended, unless the longest is shorter.
const CRASH_BACKOFF_MIN: Duration = Duration::from_secs(10);
const RUNTIME_CALLS_PER_CPU: usize = 2;
const RUNTIME_CALLS_MIN: usize = 4;

/// Everything of a running node, put together.
pub struct Node {
    pub workers: Arc<PodWorkers>,
    pub plugins: Arc<PluginWatcher>,
    pub csi_plugins: Arc<CsiPluginHandler>,
    pub status: Arc<NodeStatusManager>,
    pub thresholds: Vec<Threshold>,
    pub pleg: Arc<Pleg>,
    pub exits: ContainerExits,
    pub wakes: PodWakes,
    pub listener: Option<TcpListener>,
}

impl Foundation {
    pub fn build(self, informers: &InformerFactory, listener: Option<TcpListener>) -> Result<Node, Error> {
        let thresholds = self.thresholds()?;
        let cgroups = self.container_manager()?;
        let allocatable = node_status::allocatable(&self.machine, &self.config, &thresholds);
        let (wakes, exits, pressures) =
            (PodWakes::default(), ContainerExits::default(), Arc::new(Pressures::default()));
        let features = Arc::new(RuntimeFeatures::new(&self.runtime_version));
        let images = self.image_manager();
        let pleg = Arc::new(self.pleg(&images, &wakes, &exits));
        let server_port = listener.as_ref().and_then(|l| l.local_addr().ok()).map(|address| address.port());
        let files = FileWork::new(self.env.clone());
        let csi = Arc::new(self.csi_manager(informers, &files));
        let devices = self.container_devices(&csi, &features, &wakes);
        let status = self.node_status(server_port, &pleg, &pressures, allocatable, &features, &csi, &devices);
        let status = Arc::new(status);
        *status.node.lock() = status.describe();
        let pods = Arc::new(PodManager::default());
        let managers = Arc::new(self.resource_managers(&thresholds, &pods, &devices.plugins, &files)?);
        let runtime = self.runtime_manager(&images, &cgroups, features, allocatable, &files, &devices, &managers);
        let (rules, groups) = (managers.clone(), cgroups.clone());
        let allocations =
            AllocationManager::new(pods.clone(), status.node.clone(), wakes.clone()).with_rule(move |before, after| {
                rules.refuse_resize(before, after).or_else(|| swap_rule(&groups, before, after))
            });
        let Self { config, client, env, recorder, metrics, .. } = self;
        let csi_plugins = Arc::new(CsiPluginHandler {
            client: client.clone(),
            env: env.clone(),
            node_name: config.node_name.clone(),
            csi: csi.clone(),
        });
        let dra_plugins = DraPluginHandler(devices.claims.drivers().clone());
        let handlers: [(&str, Arc<dyn PluginHandler>); 3] = [
            ("CSIPlugin", csi_plugins.clone()),
            ("DevicePlugin", devices.plugins.clone()),
            ("DRAPlugin", Arc::new(dra_plugins)),
        ];
        let plugins = PluginWatcher::new(env.clone(), config.root_dir.join("plugins_registry"), handlers.into());
        let shared = Arc::new(Shared {
            runtime,
            runtime_name: self.runtime_version.runtime_name,
            probes: ProbeManager::new(self.runtime, env.clone(), recorder.clone(), wakes.clone()),
            volumes: VolumeManager::new(
                client.clone(),
                env.clone(),
                &config,
                status.node.clone(),
                recorder.clone(),
                metrics.clone(),
                files,
                csi.clone(),
            )
            .with_certificates(CertificateManager::new(&client, &env, &config, &recorder, &metrics, &wakes)),
            references: ReferencedObjects::new(client.clone(), env.clone(), wakes.clone()),
            services: informers.informer::<Service>(),
            node: status.node.clone(),
            pressures,
            shutdown: status.shutdown.clone(),
            admission_hook: config.pod_admission_hook.clone().map(|hook| PodAdmissionHook::new(hook, env.clone())),
            crash_backoff: Backoff::new(CRASH_BACKOFF_MIN.min(config.crash_backoff_max), config.crash_backoff_max),
            allocations: allocations.kept_in(config.root_dir.join("granted_resources")),
            statuses: Arc::new(StatusManager::new(client.clone(), env.clone(), pods.clone(), metrics.clone())),
            config,
            env,
            client,
            recorder,
            pods,
            images,
            cgroups,
            devices,
            metrics,
            first_network_pod: AtomicBool::new(true),
        });
        let plugins = Arc::new(plugins);
        Ok(Node {
            workers: Arc::new(PodWorkers::new(shared)),
            plugins,
            csi_plugins,
            status,
            thresholds,
            pleg,
            exits,
            wakes,
            listener,
        })
    }

    /// Reads the machine's topology and the managers' checkpoints.
    fn resource_managers(
        &self,
        thresholds: &[Threshold],
        pods: &Arc<PodManager>,
        devices: &Arc<DeviceManager>,
        files: &FileWork,
    ) -> Result<ResourceManagers, Error> {
        let node = NodeParts {
            pods: pods.clone(),
            devices: devices.clone(),
            env: self.env.clone(),
            files: files.clone(),
            metrics: self.metrics.clone(),
        };
        ResourceManagers::start(&self.config, &self.sysfs, thresholds, self.machine.memory_bytes, node)
            .map_err(Error::ResourceManagers)
    }

    fn csi_manager(&self, informers: &InformerFactory, files: &FileWork) -> CsiManager {
        let drivers = informers.informer::<CSIDriver>();
        let (client, env, metrics) = (self.client.clone(), self.env.clone(), self.metrics.clone());
        let all = drivers.clone();
        let objects = DriverObjects {
            find: Box::new(move |name| drivers.get(name)),
            synced: Box::new(move || {
                let all = all.clone();
                Box::pin(async move { all.synced().await })
            }),
        };
        CsiManager::new(client, env, &self.config, objects, files.clone(), metrics)
    }

    fn container_devices(
        &self,
        csi: &CsiManager,
        features: &RuntimeFeatures,
        wakes: &PodWakes,
    ) -> Arc<ContainerDevices> {
        let (env, metrics, root_dir) = (self.env.clone(), self.metrics.clone(), &self.config.root_dir);
        let health = self.config.feature_gates.enabled(RESOURCE_HEALTH_STATUS).then(|| {
            let wakes = wakes.clone();
            Arc::new(move |uid: &str| wakes.wake(uid)) as HealthListener
        });
        let plugins = DeviceManager::open(env.clone(), metrics.clone(), root_dir, csi.in_use_changed.clone());
        let plugins = plugins.with_health_listener(health.clone());
        let (client, node_name) = (self.client.clone(), &self.config.node_name);
        let claims = DraManager::open(client, env, metrics, root_dir, node_name, health);
        let runtime_ignores_cdi = features.ignores_cdi();
        Arc::new(ContainerDevices { plugins: Arc::new(plugins), claims: Arc::new(claims), runtime_ignores_cdi })
    }

    fn thresholds(&self) -> Result<Vec<Threshold>, Error> {
        let config = &self.config;
        let mut thresholds = eviction::parse(&config.eviction_hard, &config.eviction_soft, &config.eviction_soft_grace)
            .map_err(|error| Error::Config(error.to_string()))?;
        eviction::with_reclaim(&mut thresholds, &config.eviction_minimum_reclaim)
            .map_err(|error| Error::Config(error.to_string()))?;
        if config.enforce_node_allocatable {
            eviction::with_allocatable(&mut thresholds);
        }
        Ok(thresholds)
    }

    /// Makes the control groups that all pods are below.
    fn container_manager(&self) -> Result<Arc<ContainerManager>, Error> {
        let (config, machine) = (&self.config, &self.machine);
        let cgroups = ContainerManager::configured(config, machine);
        check_machine(config, cgroups.is_unified())?;
        if has_swap() && !file_system::supports_noswap(&config.root_dir) {
            let text = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
                might be swapped to disk and should no longer be considered secure.";
            let about = node_reference(&config.node_name);
            self.recorder.warning(&about, "PossibleMemoryBackedVolumesOnDisk", text);
        }
        let enforced = config.enforce_node_allocatable;
        let memory_bytes = enforced.then_some(machine.memory_bytes - config.reserved.memory_bytes);
        let reserved_cpu_milli = if enforced { config.reserved.cpu_milli } else { 0 };
        cgroups.start(machine.cpus * 1000 - reserved_cpu_milli, memory_bytes).map_err(Error::Groups)?;
        if enforced && config.reserved.pids > 0 {
            let most = machine.most_processes - config.reserved.pids;
            cgroups.limit_processes(most.max(1)).map_err(Error::Groups)?;
        }
        for (title, group) in enforced_groups(config) {
            cgroups.enforce_reserved(group).map_err(|error| {
                let name = &config.node_name;
                Error::ResourceManagers(record_failed_enforcement(&self.recorder, name, title, group, &error))
            })?;
        }
        Ok(Arc::new(cgroups))
    }

    fn image_manager(&self) -> Arc<ImageManager> {
        let config = &self.config;
        let records = PullRecords::load(&config.root_dir.join("image_manager"), config.image_verification)
            .with_allowlist(config.image_verification_allowlist.clone());
        let images = ImageManager::new(
            self.runtime.clone(),
            self.env.clone(),
            self.recorder.clone(),
            config.max_parallel_pulls,
            self.metrics.clone(),
        );
        let images = images.with_records(records).with_rate(config.image_pull_rate);
        Arc::new(match config.credential_providers.clone() {
            Some(settings) => {
                let (client, env, metrics) = (self.client.clone(), self.env.clone(), self.metrics.clone());
                images.with_providers(CredentialProviders::new(settings, client, env, metrics))
            }
            None => images,
        })
    }

    fn pleg(&self, images: &Arc<ImageManager>, wakes: &PodWakes, exits: &ContainerExits) -> Pleg {
        Pleg::new(
            self.runtime.clone(),
            self.env.clone(),
            images.clone(),
            self.config.relist_interval,
            wakes.clone(),
            exits.clone(),
            self.metrics.clone(),
        )
    }

    fn node_status(
        &self,
        server_port: Option<u16>,
        pleg: &Arc<Pleg>,
        pressures: &Arc<Pressures>,
        allocatable: Allocatable,
        features: &Arc<RuntimeFeatures>,
        csi: &Arc<CsiManager>,
        devices: &Arc<ContainerDevices>,
    ) -> NodeStatusManager {
        let version = &self.runtime_version;
        NodeStatusManager {
            config: self.config.clone(),
            client: self.heartbeat_client.clone(),
            env: self.env.clone(),
            runtime: self.runtime.clone(),
            runtime_version: format!("{}://{}", version.runtime_name, version.runtime_version),
            recorder: self.recorder.clone(),
            machine: self.machine.clone(),
            addresses: self.config.node_ips.clone(),
            pleg: pleg.clone(),
            server_port: server_port.unwrap_or(self.config.port),
            node: Arc::new(Mutex::default()),
            pressures: pressures.clone(),
            shutdown: Arc::default(),
            allocatable,
            features: features.clone(),
            csi: csi.clone(),
            devices: devices.plugins.clone(),
            startup: NodeStartup::new(
                self.metrics.clone(),
                node_startup::boot_time(&std::fs::read_to_string("/proc/stat").unwrap_or_default()),
                self.began,
            ),
            wake: csi.in_use_changed.clone(),
        }
    }

    fn runtime_manager(
        &self,
        images: &Arc<ImageManager>,
        cgroups: &Arc<ContainerManager>,
        features: Arc<RuntimeFeatures>,
        allocatable: Allocatable,
        files: &FileWork,
        devices: &Arc<ContainerDevices>,
        managers: &Arc<ResourceManagers>,
    ) -> RuntimeManager {
        // More of them only make each slower.
        let calls_max = (self.machine.cpus.max(1) as usize * RUNTIME_CALLS_PER_CPU).max(RUNTIME_CALLS_MIN);
        RuntimeManager {
            runtime: self.runtime.clone(),
            env: self.env.clone(),
            recorder: self.recorder.clone(),
            config: self.config.clone(),
            images: images.clone(),
            cgroups: cgroups.clone(),
            user_namespaces: UserNamespaces::new(self.config.pods_dir(), self.config.user_namespace_ids),
            features,
            node: NodeFacts {
                cpu_milli: allocatable.cpu_milli,
                memory_bytes: allocatable.memory_bytes,
                ephemeral_bytes: allocatable.ephemeral_bytes,
            },
            host_ips: self.config.node_ips.iter().map(ToString::to_string).collect(),
            metrics: self.metrics.clone(),
            starts: RuntimeLimiter::new(self.env.clone(), calls_max),
            stops: RuntimeLimiter::new(self.env.clone(), calls_max),
            files: files.clone(),
            devices: devices.clone(),
            managers: managers.clone(),
        }
    }
}

/// Memory of containers that swap cannot be resized in place: their swap would have to change with it.
fn swap_rule(cgroups: &ContainerManager, before: &Pod, after: &Pod) -> Option<&'static str> {
    let all = |pod: &Pod| [pod_spec::containers(pod), pod_spec::init_containers(pod)].concat();
    let memory = |container: &Container| pods::request(container, "memory");
    let restarts = |container: &Container| {
        let policies = container.resize_policy.iter().flatten();
        policies
            .filter(|policy| policy.resource_name == "memory")
            .any(|policy| policy.restart_policy == "RestartContainer")
    };
    let stopped = all(before).into_iter().zip(all(after)).any(|(was, is)| {
        memory(&was) != memory(&is) && !restarts(&was) && (cgroups.swaps(before, &was) || cgroups.swaps(after, &is))
    });
    stopped.then_some("In-place resize of containers with swap is not supported.")
}
