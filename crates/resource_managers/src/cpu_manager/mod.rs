//! The CPU manager: policy none, or static with its state and checkpoint.
//! A hint provider of `topology_manager`; `kubelet` writes what `checkpoint` returns and tells the runtime of `cpu_set`.
//! Invariant: pure (tidy: `pure_files`).

mod assignment;
pub mod checkpoint;
mod distribution;
mod hints;
mod options;
mod static_policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{
    checkpoint::CheckpointError,
    cpu_set::CpuSet,
    machine_topology::{CpuTopology, Level},
    topology_manager::{HintProvider, PolicyName, ProviderHints, TopologyHint, pods::AllocateError},
};
pub use options::{OptionError, OptionGates, StaticPolicyOptions};
pub use static_policy::{StaticPolicy, guaranteed_cpus};

/// Pod UID and container name by container id.
pub type ContainerMap = BTreeMap<String, (String, String)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// What containers without processors of their own run on.
    pub shared: CpuSet,
    /// By pod UID and container name.
    pub assignments: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuState {
    pub fn get(&self, pod_uid: &str, container: &str) -> Option<&CpuSet> {
        self.assignments.get(pod_uid)?.get(container)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &CpuSet)> {
        self.assignments
            .iter()
            .flat_map(|(pod, containers)| containers.iter().map(|(name, cpus)| (pod.as_str(), name.as_str(), cpus)))
    }

    /// All that belong to containers alone.
    pub fn exclusive(&self) -> CpuSet {
        self.iter().fold(CpuSet::default(), |all, (_, _, cpus)| all.union(cpus))
    }
}

/// Why the static policy cannot run, or not with the state that was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("new none policy error: None policy: received unsupported options={0}")]
    NoneWithOptions(String),
    #[error("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")]
    NothingReserved,
    #[error("new static policy error: {0}")]
    Option(#[from] OptionError),
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not \
         equal {wanted})"
    )]
    Reserve { reserved: CpuSet, wanted: usize },
    #[error(
        "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: \
         unknown CPU ID: {0}"
    )]
    UnknownCpu(usize),
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    #[error("default cpuset cannot be empty")]
    EmptyDefault,
    #[error("some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    StrictlyReserved { reserved: CpuSet, shared: CpuSet },
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedNotShared { reserved: CpuSet, shared: CpuSet },
    #[error("pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\"")]
    Overlap { pod: String, container: String, cpus: CpuSet, shared: CpuSet },
    #[error("current set of available CPUs \"{available}\" doesn't match with CPUs in state \"{known}\"")]
    OtherCpus { available: CpuSet, known: CpuSet },
}

/// What the node was told of the CPU manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuManagerConfig {
    /// "none" (also when empty) or "static".
    pub policy: String,
    pub options: BTreeMap<String, String>,
    pub gates: OptionGates,
    /// reservedSystemCPUs; empty lets the policy choose as many as `reserved_cpu_milli` asks for.
    pub reserved: CpuSet,
    pub reserved_cpu_milli: i64,
}

/// Counts of what happened, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuManagerCounts {
    pub pinning_requests: u64,
    pub pinning_errors: u64,
    pub aligned_physical_cpu: u64,
    pub unaligned_physical_cpu: u64,
    pub aligned_uncore_cache: u64,
}

pub struct CpuManager {
    policy: Option<StaticPolicy>,
    topology: Arc<CpuTopology>,
    state: CpuState,
    /// Whether the checkpoint on disk is behind `state`.
    is_dirty: bool,
    pub counts: CpuManagerCounts,
}

impl CpuManager {
    /// Policy none: every container runs everywhere.
    pub fn none(topology: Arc<CpuTopology>) -> Self {
        Self { policy: None, topology, state: CpuState::default(), is_dirty: true, counts: CpuManagerCounts::default() }
    }

    pub fn new(
        config: &CpuManagerConfig,
        topology: Arc<CpuTopology>,
        topology_policy: PolicyName,
    ) -> Result<Self, PolicyError> {
        match config.policy.as_str() {
            "" | "none" if config.options.is_empty() => return Ok(Self::none(topology)),
            "" | "none" => {
                let options: Vec<String> =
                    config.options.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                return Err(PolicyError::NoneWithOptions(format!("map[{}]", options.join(" "))));
            }
            "static" => {}
            other => return Err(PolicyError::UnknownPolicy(other.into())),
        }
        if config.reserved_cpu_milli <= 0 {
            return Err(PolicyError::NothingReserved);
        }
        let options = StaticPolicyOptions::parse(&config.options, config.gates)?;
        options.check(&topology, topology_policy)?;
        let count = config.reserved_cpu_milli.unsigned_abs().div_ceil(1000) as usize;
        let policy = StaticPolicy::new(topology.clone(), &config.reserved, count, options)?;
        Ok(Self { policy: Some(policy), ..Self::none(topology) })
    }

    /// Takes up what an earlier run left. Without a file everything begins anew.
    pub fn restore(&mut self, checkpoint: Option<&str>, containers: &ContainerMap) -> Result<(), PolicyError> {
        if let Some(text) = checkpoint {
            self.state = checkpoint::read(text, self.policy_name(), containers)?;
        }
        match &self.policy {
            Some(policy) => policy.validate(&mut self.state),
            None => Ok(()),
        }
    }

    pub fn policy_name(&self) -> &'static str {
        if self.is_static() { "static" } else { "none" }
    }

    pub fn is_static(&self) -> bool {
        self.policy.is_some()
    }

    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// What the file must hold, when that has changed since this was asked last.
    pub fn checkpoint(&mut self) -> Option<String> {
        std::mem::take(&mut self.is_dirty).then(|| checkpoint::write(self.policy_name(), &self.state))
    }

    pub fn is_checkpoint_behind(&self) -> bool {
        self.is_dirty
    }

    /// What `checkpoint` returned could not be written.
    pub fn checkpoint_failed(&mut self) {
        self.is_dirty = true;
    }

    /// Where the container runs; None is everywhere.
    pub fn cpu_set(&self, pod_uid: &str, container: &str) -> Option<&CpuSet> {
        let cpus = self.state.get(pod_uid, container).unwrap_or(&self.state.shared);
        Some(cpus).filter(|cpus| !cpus.is_empty())
    }

    pub fn exclusive_cpus(&self, pod_uid: &str, container: &str) -> Option<&CpuSet> {
        self.state.get(pod_uid, container)
    }

    /// Processors that containers can have to themselves; with policy none there are none.
    pub fn allocatable(&self) -> CpuSet {
        self.policy.as_ref().map(StaticPolicy::allocatable).unwrap_or_default()
    }

    /// Shared processors that are not reserved, in thousandths.
    pub fn shared_pool_milli(&self) -> usize {
        self.policy.as_ref().map_or(0, |policy| policy.available(&self.state).len() * 1000)
    }

    /// How many processors containers have to themselves, by NUMA node.
    pub fn allocations_per_numa(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for cpu in self.state.exclusive().iter() {
            if let Some(info) = self.topology.details.get(cpu) {
                *counts.entry(info.id(Level::NumaNode)).or_default() += 1;
            }
        }
        counts
    }

    /// Whether the shared processors are now others.
    pub fn remove_container(&mut self, pod_uid: &str, container: &str) -> bool {
        let Some(policy) = &self.policy else { return false };
        let removed = policy.remove(&mut self.state, pod_uid, container);
        self.is_dirty |= removed;
        removed
    }

    /// Forgets every container that `is_active` does not know. True when the shared processors are now others.
    pub fn remove_stale(&mut self, is_active: impl Fn(&str, &str) -> bool) -> bool {
        let stale: Vec<(String, String)> = self
            .state
            .iter()
            .filter(|(pod, container, _)| !is_active(pod, container))
            .map(|(pod, container, _)| (pod.into(), container.into()))
            .collect();
        stale.iter().fold(false, |changed, (pod, container)| self.remove_container(pod, container) | changed)
    }

    fn count(&mut self, result: &Result<bool, AllocateError>, full_cores: bool, cpus: Option<CpuSet>) {
        self.counts.pinning_requests += 1;
        let failed = result.is_err();
        self.counts.pinning_errors += u64::from(failed);
        self.counts.unaligned_physical_cpu += u64::from(full_cores && failed);
        self.counts.aligned_physical_cpu += u64::from(full_cores && !failed);
        let aligned =
            matches!(result, Ok(true)) && cpus.is_some_and(|cpus| self.topology.is_uncore_cache_aligned(&cpus));
        self.counts.aligned_uncore_cache += u64::from(aligned);
    }
}

impl HintProvider for CpuManager {
    fn topology_hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        self.policy.as_ref().map(|policy| policy.topology_hints(&self.state, pod, container)).unwrap_or_default()
    }

    fn pod_topology_hints(&self, pod: &Pod) -> ProviderHints {
        self.policy.as_ref().map(|policy| policy.pod_topology_hints(&self.state, pod)).unwrap_or_default()
    }

    fn allocate(&mut self, pod: &Pod, container: &Container, hint: &TopologyHint) -> Result<(), AllocateError> {
        let Some(policy) = self.policy.as_mut().filter(|_| guaranteed_cpus(pod, container) > 0) else { return Ok(()) };
        let full_cores = policy.options.full_physical_cpus_only;
        let result = policy.allocate(&mut self.state, pod, container, hint.affinity);
        self.is_dirty |= matches!(result, Ok(true));
        let cpus = self.state.get(crate::topology_manager::pods::uid(pod), &container.name).cloned();
        self.count(&result, full_cores, cpus);
        result.map(drop)
    }
}
