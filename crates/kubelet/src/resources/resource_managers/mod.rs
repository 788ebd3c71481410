//! CPU, memory and topology manager of this node: who has which processors and NUMA nodes, on disk and in the kernel.
//! Asked by `pod_workers` (admission, release) and `runtime_manager` (what a container is made with); `run` keeps the
//! containers that share processors on those that are left.
//! The decisions are `resource_managers`'; a decision is on disk before a container is made by it.

mod counts;
pub mod settings;
pub mod sysfs;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use api::quantity::{Format, Quantity};
use cri::{Runtime, v1};
use env::Env;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use metrics::Metrics;
use node_plugins::devices::manager::DeviceManager;
use parking_lot::Mutex;
use resource_managers::{
    HintProvider, MachineTopology,
    cpu_manager::{self, ContainerMap, CpuManager, CpuManagerConfig},
    machine_topology::SysfsFiles,
    memory_manager::{self, MemoryManager, MemoryManagerConfig},
    topology_manager::{PolicyName, TopologyManager, pods},
};
use tokio::sync::Notify;

use crate::{
    config::Config,
    files::file_work::FileWork,
    pod::{admission::Refusal, pod_manager::PodManager, pod_spec, pod_status, status_manager::StatusManager},
    resources::{
        device_hints::{DeviceAffinity, DeviceHints},
        eviction::{Signal, Threshold},
    },
};
use counts::CountsShown;
use settings::ManagerSettings;

/// Containers whose processors are set at the same time.
const UPDATES_MAX: usize = 4;

/// A running container and the processors that the runtime was last told.
struct PinnedContainer {
    pod_uid: String,
    name: String,
    cpu_set: String,
}

struct Managers {
    topology: TopologyManager,
    cpu: CpuManager,
    memory: MemoryManager,
    /// Asked before the CPU manager, as upstream does; None where no topology policy asks anybody.
    devices: Option<DeviceHints>,
    /// By container id.
    running: HashMap<String, PinnedContainer>,
    shown: CountsShown,
}

impl Managers {
    /// Where the containers' devices are to be.
    fn admit(&mut self, pod: &Pod) -> Result<DeviceAffinity, Refusal> {
        let mut providers: Vec<&mut dyn HintProvider> = vec![];
        if let Some(devices) = &mut self.devices {
            providers.push(devices);
        }
        providers.push(&mut self.cpu);
        providers.push(&mut self.memory);
        let admitted = self.topology.admit(pod, &mut providers);
        let affinity = self.devices.as_mut().map(DeviceHints::finish).unwrap_or_default();
        match admitted {
            Ok(()) => Ok(affinity),
            Err(error) => {
                self.release(pod_spec::uid(pod));
                Err(Refusal { reason: error.reason.into(), message: error.message })
            }
        }
    }

    /// True when the shared processors are now others.
    fn release(&mut self, pod_uid: &str) -> bool {
        self.running.retain(|_, container| container.pod_uid != pod_uid);
        self.memory.remove_stale(|pod, _| pod != pod_uid);
        self.cpu.remove_stale(|pod, _| pod != pod_uid)
    }

    fn wanted_cpu_set(&self, pod_uid: &str, container: &str) -> String {
        self.cpu.cpu_set(pod_uid, container).map(ToString::to_string).unwrap_or_default()
    }
}

/// What the managers use of the node.
pub struct NodeParts {
    pub pods: Arc<PodManager>,
    pub devices: Arc<DeviceManager>,
    pub env: Env,
    pub files: FileWork,
    pub metrics: Metrics,
}

pub struct ResourceManagers {
    managers: Arc<Mutex<Managers>>,
    settings: ManagerSettings,
    directory: PathBuf,
    node: NodeParts,
    /// Before all sources were heard, every pod that was here looks gone.
    sources_ready: AtomicBool,
    shared_pool_changed: Notify,
}

impl ResourceManagers {
    /// Reads the machine and what an earlier run left; refuses what does not fit together.
    pub fn start(
        config: &Config,
        sysfs: &SysfsFiles,
        thresholds: &[Threshold],
        memory_bytes: i64,
        node: NodeParts,
    ) -> Result<Self, String> {
        let settings = config.managers.clone();
        let machine = match MachineTopology::from_sysfs(sysfs) {
            Ok(machine) => machine,
            // Nobody asks where anything is.
            Err(_) if settings.is_off() => MachineTopology::default(),
            Err(error) => return Err(error.to_string()),
        };
        let topology = TopologyManager::new(
            &machine.nodes,
            &settings.topology_policy,
            &settings.topology_scope,
            &settings.topology_options,
        );
        let topology = topology.map_err(|error| format!("failed to initialize topology manager: {error}"))?;
        let cpu_config = CpuManagerConfig {
            policy: settings.cpu_policy.clone(),
            options: settings.cpu_options.clone(),
            gates: settings.cpu_option_gates,
            reserved: settings.reserved_cpus.clone(),
            reserved_cpu_milli: config.reserved.cpu_milli,
        };
        let cpu = CpuManager::new(&cpu_config, Arc::new(machine.cpus), topology.policy());
        let mut cpu = cpu.map_err(|error| format!("failed to initialize cpu manager: {error}"))?;
        let memory_config = MemoryManagerConfig {
            policy: settings.memory_policy.clone(),
            reserved: settings.reserved_memory.clone(),
            node_reserved: reserved_memory(config, thresholds, memory_bytes),
        };
        let memory = MemoryManager::new(&memory_config, &machine.nodes);
        let mut memory = memory.map_err(|error| format!("failed to initialize memory manager: {error}"))?;
        let directory = config.root_dir.clone();
        restore_cpu(&mut cpu, &directory)?;
        restore_memory(&mut memory, &directory)?;
        let numa_nodes = machine.nodes.iter().map(|node| node.id).collect();
        let is_asked = topology.policy() != PolicyName::None;
        let managers = Managers {
            devices: is_asked.then(|| DeviceHints::new(node.devices.clone(), numa_nodes)),
            topology,
            cpu,
            memory,
            running: HashMap::new(),
            shown: CountsShown::default(),
        };
        let managers = Arc::new(Mutex::new(managers));
        save(&managers, &directory).map_err(|error| format!("failed to save checkpoint: {error}"))?;
        let started = Self {
            managers,
            settings,
            directory,
            node,
            sources_ready: AtomicBool::new(false),
            shared_pool_changed: Notify::new(),
        };
        started.show_counts();
        Ok(started)
    }

    /// Gives every container of the pod what it is to have to itself, and says where its devices are to be; or refuses
    /// the pod.
    pub async fn admit(&self, pod: &Pod) -> Result<DeviceAffinity, Refusal> {
        let began = self.node.env.monotonic();
        self.remove_stale();
        let (before, admitted, after) = {
            let mut managers = self.managers.lock();
            let before = managers.cpu.state().shared.clone();
            let admitted = managers.admit(pod);
            (before, admitted, managers.cpu.state().shared.clone())
        };
        counts::observe_admission(&self.node.metrics, (self.node.env.monotonic() - began).as_millis() as f64);
        self.save().await;
        if before != after {
            self.shared_pool_changed.notify_one();
        }
        admitted
    }

    /// The pod has ended: what it had to itself is for all.
    pub async fn release(&self, pod_uid: &str) {
        if self.managers.lock().release(pod_uid) {
            self.shared_pool_changed.notify_one();
        }
        self.save().await;
    }

    /// All sources of pods were heard: whatever none of them has is gone.
    pub fn set_sources_ready(&self) {
        self.sources_ready.store(true, Ordering::Release);
        self.shared_pool_changed.notify_one();
    }

    fn remove_stale(&self) {
        if !self.sources_ready.load(Ordering::Acquire) {
            return;
        }
        let ended =
            |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(pod_status::is_terminal);
        let managers = self.managers.lock();
        if managers.cpu.state().assignments.is_empty() && managers.memory.state().assignments.is_empty() {
            return;
        }
        drop(managers);
        let pods = self.node.pods.list();
        let active: HashSet<(&str, &str)> = pods
            .iter()
            .filter(|pod| !ended(pod))
            .flat_map(|pod| {
                let all = pod_spec::init_containers(pod).iter().chain(pod_spec::containers(pod));
                all.map(|container| (pod_spec::uid(pod), container.name.as_str()))
            })
            .collect();
        let is_active = |pod: &str, container: &str| active.contains(&(pod, container));
        let mut managers = self.managers.lock();
        managers.memory.remove_stale(is_active);
        if managers.cpu.remove_stale(is_active) {
            self.shared_pool_changed.notify_one();
        }
        managers.running.retain(|_, container| self.node.pods.contains(&container.pod_uid));
    }

    /// Says where a container that is about to be made may run and have its memory.
    pub fn place(&self, pod: &Pod, container: &str, resources: &mut v1::LinuxContainerResources) {
        let uid = pod_spec::uid(pod);
        let managers = self.managers.lock();
        resources.cpuset_cpus = managers.wanted_cpu_set(uid, container);
        resources.cpuset_mems =
            managers.memory.numa_nodes(uid, container).map(|nodes| commas(&nodes)).unwrap_or_default();
        if self.settings.lifts_quota && managers.cpu.exclusive_cpus(uid, container).is_some() {
            resources.cpu_quota = -1;
        }
    }

    /// Processors that the container has to itself.
    pub fn exclusive_cpus(&self, pod_uid: &str, container: &str) -> Vec<usize> {
        let managers = self.managers.lock();
        managers.cpu.exclusive_cpus(pod_uid, container).into_iter().flat_map(|cpus| cpus.iter()).collect()
    }

    /// Processors that containers can have to themselves.
    pub fn allocatable_cpus(&self) -> Vec<usize> {
        self.managers.lock().cpu.allocatable().iter().collect()
    }

    /// Memory that the container has to itself.
    pub fn memory(&self, pod_uid: &str, container: &str) -> Vec<memory_manager::Block> {
        self.managers.lock().memory.memory(pod_uid, container).to_vec()
    }

    /// Memory that containers can have to themselves.
    pub fn allocatable_memory(&self) -> Vec<memory_manager::Block> {
        self.managers.lock().memory.allocatable()
    }

    /// Whether the pod as a whole is held to no quota, because some container of it has processors to itself.
    pub fn lifts_quota(&self, pod: &Pod) -> bool {
        self.settings.lifts_quota && self.managers.lock().cpu.state().assignments.contains_key(pod_spec::uid(pod))
    }

    /// A container was made with these processors. If others are left by now, `run` sets them.
    pub async fn started(&self, pod: &Pod, name: &str, id: &str, cpu_set: String) {
        if self.settings.is_off() {
            return;
        }
        let uid = pod_spec::uid(pod);
        let is_behind = {
            let mut managers = self.managers.lock();
            managers.memory.add_container(pod, name);
            let is_behind = managers.wanted_cpu_set(uid, name) != cpu_set;
            if managers.cpu.is_static() {
                let container = PinnedContainer { pod_uid: uid.into(), name: name.into(), cpu_set };
                managers.running.insert(id.into(), container);
            }
            is_behind
        };
        self.save().await;
        if is_behind {
            self.shared_pool_changed.notify_one();
        }
    }

    /// Why a Guaranteed pod cannot be resized in place beside these policies.
    pub fn refuse_resize(&self, granted: &Pod, asked: &Pod) -> Option<&'static str> {
        let changes = |resource: &str| requests(granted, resource) != requests(asked, resource);
        if pod_spec::qos_class(asked) != pod_spec::QosClass::Guaranteed {
            return None;
        }
        let managers = self.managers.lock();
        if managers.cpu.is_static() && !self.settings.resizes_exclusive_cpus && changes("cpu") {
            return Some("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"");
        }
        if managers.memory.is_static() && !self.settings.resizes_exclusive_memory && changes("memory") {
            return Some("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"");
        }
        None
    }

    /// Keeps running containers on their processors: at once when those that are shared change, and every now and then.
    pub async fn run(self: Arc<Self>, runtime: Arc<dyn Runtime>, statuses: Arc<StatusManager>) {
        if !self.managers.lock().cpu.is_static() {
            return;
        }
        loop {
            self.node.env.timeout(self.settings.cpu_reconcile_interval, self.shared_pool_changed.notified()).await;
            self.remove_stale();
            self.adopt(&statuses);
            self.save().await;
            self.update_containers(&runtime).await;
        }
    }

    /// Containers that ran before we did: nobody knows what the runtime was told.
    fn adopt(&self, statuses: &StatusManager) {
        for pod in self.node.pods.list() {
            let uid = pod_spec::uid(&pod);
            let Some(status) = statuses.get(uid) else { continue };
            let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
            for container in all.filter(|c| c.state.as_ref().is_some_and(|state| state.running.is_some())) {
                let Some((_, id)) = container.container_id.as_deref().and_then(|id| id.split_once("://")) else {
                    continue;
                };
                let unknown =
                    || PinnedContainer { pod_uid: uid.into(), name: container.name.clone(), cpu_set: String::new() };
                self.managers.lock().running.entry(id.into()).or_insert_with(unknown);
            }
        }
    }

    async fn update_containers(&self, runtime: &Arc<dyn Runtime>) {
        let behind: Vec<(String, String)> = {
            let managers = self.managers.lock();
            let wanted = |c: &PinnedContainer| managers.wanted_cpu_set(&c.pod_uid, &c.name);
            let all =
                managers.running.iter().map(|(id, container)| (id.clone(), wanted(container), &container.cpu_set));
            all.filter(|(_, wanted, has)| !wanted.is_empty() && wanted != *has)
                .map(|(id, wanted, _)| (id, wanted))
                .collect()
        };
        let update = |(id, cpu_set): (String, String)| async move {
            let resources = v1::LinuxContainerResources { cpuset_cpus: cpu_set.clone(), ..Default::default() };
            let result = runtime.update_container_resources(&id, resources).await;
            let mut managers = self.managers.lock();
            match result {
                Ok(()) => {
                    if let Some(container) = managers.running.get_mut(&id) {
                        container.cpu_set = cpu_set;
                    }
                }
                // It has ended, or is tried again with the next round if its status still says that it runs.
                Err(error) => {
                    managers.running.remove(&id);
                    tracing::debug!(id, cpu_set, %error, "failed to update a container's processors");
                }
            }
        };
        futures::stream::iter(behind).map(update).buffer_unordered(UPDATES_MAX).for_each(|()| async {}).await;
    }

    /// Brings the files up to date. Files are written one after the other, each with what holds then.
    async fn save(&self) {
        self.show_counts();
        if !self.managers.lock().is_behind() {
            return;
        }
        let (managers, directory) = (self.managers.clone(), self.directory.clone());
        let write = move || save(&managers, &directory).map_err(|error| error.to_string());
        if let Err(error) = self.node.files.run::<(), String>("resource managers".into(), write).await {
            tracing::error!(%error, "failed to save checkpoint");
        }
    }

    fn show_counts(&self) {
        let managers = &mut *self.managers.lock();
        managers.shown.show(&self.node.metrics, &managers.cpu, &managers.memory, &managers.topology);
    }
}

impl Managers {
    fn is_behind(&self) -> bool {
        self.cpu.is_checkpoint_behind() || self.memory.is_checkpoint_behind()
    }
}

/// What a pod's containers ask for, in order.
fn requests(pod: &Pod, resource: &str) -> Vec<Option<Quantity>> {
    let all = pod_spec::init_containers(pod).iter().chain(pod_spec::containers(pod));
    all.map(|container| pods::request(container, resource)).collect()
}

/// Memory that the system, Kubernetes and hard eviction keep from pods.
fn reserved_memory(config: &Config, thresholds: &[Threshold], memory_bytes: i64) -> BTreeMap<String, Quantity> {
    let hard = thresholds.iter().filter(|t| t.signal == Signal::Memory && t.grace.is_zero());
    let kept = hard.map(|threshold| threshold.least.resolve(memory_bytes)).max().unwrap_or(0);
    let bytes = config.reserved.memory_bytes + kept;
    BTreeMap::from([("memory".to_string(), Quantity::new(bytes, Format::BinarySI))])
}

fn commas(nodes: &resource_managers::CpuSet) -> String {
    nodes.iter().map(|node| node.to_string()).collect::<Vec<_>>().join(",")
}

fn save(managers: &Mutex<Managers>, directory: &Path) -> io::Result<()> {
    let (cpu, memory) = {
        let mut managers = managers.lock();
        (managers.cpu.checkpoint(), managers.memory.checkpoint())
    };
    let write = |name: &str, text: &Option<String>| match text {
        Some(text) => replace_file(directory, name, text),
        None => Ok(()),
    };
    let written =
        (write(cpu_manager::checkpoint::FILE_NAME, &cpu), write(memory_manager::checkpoint::FILE_NAME, &memory));
    let mut managers = managers.lock();
    written.0.inspect_err(|_| managers.cpu.checkpoint_failed())?;
    written.1.inspect_err(|_| managers.memory.checkpoint_failed())
}

/// Whole or not at all.
fn replace_file(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!(".{name}.new"));
    let mut file = std::fs::File::create(&new)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(name))
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn restore_cpu(cpu: &mut CpuManager, directory: &Path) -> Result<(), String> {
    let path = directory.join(cpu_manager::checkpoint::FILE_NAME);
    let refused = |error: String| {
        format!(
            "start cpu manager error: could not restore state from checkpoint: {error}, please drain this node and delete \
             the CPU manager checkpoint file {path:?} before restarting Kubelet"
        )
    };
    let text = read(&path).map_err(|error| refused(error.to_string()))?;
    cpu.restore(text.as_deref(), &ContainerMap::new()).map_err(|error| refused(error.to_string()))
}

fn restore_memory(memory: &mut MemoryManager, directory: &Path) -> Result<(), String> {
    let path = directory.join(memory_manager::checkpoint::FILE_NAME);
    let refused = |error: String| {
        format!(
            "start memory manager error: could not restore state from checkpoint: {error}, please drain this node and \
             delete the memory manager checkpoint file {path:?} before restarting Kubelet"
        )
    };
    let text = read(&path).map_err(|error| refused(error.to_string()))?;
    memory.restore(text.as_deref()).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_does_not_fit_stops_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let check = |text: &str, expected: &str| {
            std::fs::write(directory.path().join("cpu_manager_state"), text).unwrap();
            let error = restore_cpu(&mut CpuManager::none(Arc::default()), directory.path()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.contains("please drain this node and delete the CPU manager checkpoint file"), "{error}");
        };
        check("{\"policyName\":\"no", "unexpected end of JSON input");
        check("{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1}", "checkpoint is corrupted");
        let other = "configured policy \"none\" differs from state checkpoint policy \"static\"";
        check("{\"policyName\":\"static\",\"defaultCpuSet\":\"0-1\"}", other);
        std::fs::write(directory.path().join("memory_manager_state"), [0xff, 0]).unwrap();
        let error = restore_memory(&mut MemoryManager::default(), directory.path()).unwrap_err();
        assert!(error.contains("delete the memory manager checkpoint file"), "{error}");
    }

    #[test]
    fn files_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let managers = Mutex::new(Managers {
            topology: TopologyManager::default(),
            cpu: CpuManager::none(Arc::default()),
            memory: MemoryManager::new(&MemoryManagerConfig::default(), &[]).unwrap(),
            devices: None,
            running: HashMap::new(),
            shown: CountsShown::default(),
        });
        assert!(managers.lock().is_behind());
        save(&managers, directory.path()).unwrap();
        assert!(!managers.lock().is_behind());
        restore_cpu(&mut CpuManager::none(Arc::default()), directory.path()).unwrap();
        restore_memory(&mut MemoryManager::default(), directory.path()).unwrap();
        // What could not be written is written again.
        managers.lock().cpu.checkpoint_failed();
        save(&managers, &directory.path().join("gone")).unwrap_err();
        assert!(managers.lock().is_behind());
    }
}
