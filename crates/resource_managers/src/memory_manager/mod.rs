//! The memory manager: policy None, or Static with its state and checkpoint.
//! A hint provider of `topology_manager`; `kubelet` writes what `checkpoint` returns and tells the runtime of `numa_nodes`.
//! Invariant: pure (tidy: `pure_files`).

pub mod checkpoint;
mod reserved_memory;
mod state;
mod static_policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use api::{pod_resources::is_sidecar, quantity::Quantity};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{
    checkpoint::CheckpointError,
    cpu_set::CpuSet,
    machine_topology::NumaNode,
    topology_manager::{
        HintProvider, ProviderHints, TopologyHint,
        pods::{self, AllocateError},
    },
};
pub use reserved_memory::{MemoryReservation, ReservedMemoryError, is_memory};
pub use state::{Block, MemoryState};
use static_policy::StaticPolicy;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("unknown policy: {0:?}")]
    UnknownPolicy(String),
    #[error("policy \"BestEffort\" is not available for platform \"linux\"")]
    BestEffort,
    #[error(transparent)]
    Reserved(#[from] ReservedMemoryError),
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    EmptyMachine,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA that does not exist"
    )]
    UnknownNode { pod: String, container: String },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory resource that does not \
         exist"
    )]
    UnknownResource { pod: String, container: String },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
}

/// What the node was told of the memory manager.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryManagerConfig {
    /// "None" (also when empty) or "Static".
    pub policy: String,
    pub reserved: Vec<MemoryReservation>,
    /// What the system, Kubernetes and hard eviction keep from pods in all.
    pub node_reserved: BTreeMap<String, Quantity>,
}

/// Counts of what happened, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryManagerCounts {
    pub pinning_requests: u64,
    pub pinning_errors: u64,
}

#[derive(Default)]
pub struct MemoryManager {
    policy: Option<StaticPolicy>,
    state: MemoryState,
    /// Whether the checkpoint on disk is behind `state`.
    is_dirty: bool,
    pub counts: MemoryManagerCounts,
}

impl MemoryManager {
    pub fn new(config: &MemoryManagerConfig, nodes: &[NumaNode]) -> Result<Self, PolicyError> {
        let policy = match config.policy.as_str() {
            "" | "None" => None,
            "Static" => {
                let reserved = reserved_memory::system_reserved(nodes, &config.node_reserved, &config.reserved)?;
                Some(StaticPolicy::new(nodes, reserved))
            }
            "BestEffort" => return Err(PolicyError::BestEffort),
            other => return Err(PolicyError::UnknownPolicy(other.into())),
        };
        Ok(Self { policy, is_dirty: true, ..Self::default() })
    }

    /// Takes up what an earlier run left. Without a file everything begins anew.
    pub fn restore(&mut self, checkpoint: Option<&str>) -> Result<(), PolicyError> {
        if let Some(text) = checkpoint {
            self.state = checkpoint::read(text, self.policy_name())?;
        }
        match &self.policy {
            Some(policy) => policy.validate(&mut self.state),
            None => Ok(()),
        }
    }

    pub fn policy_name(&self) -> &'static str {
        if self.is_static() { "Static" } else { "None" }
    }

    pub fn is_static(&self) -> bool {
        self.policy.is_some()
    }

    pub fn state(&self) -> &MemoryState {
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

    /// Blocks of memory that the container has to itself.
    pub fn memory(&self, pod_uid: &str, container: &str) -> &[Block] {
        self.state.blocks(pod_uid, container).map(Vec::as_slice).unwrap_or_default()
    }

    /// Where the container's memory is; None is everywhere.
    pub fn numa_nodes(&self, pod_uid: &str, container: &str) -> Option<CpuSet> {
        let nodes: BTreeSet<usize> =
            self.memory(pod_uid, container).iter().flat_map(|block| block.numa_affinity.clone()).collect();
        (!nodes.is_empty()).then(|| nodes.into_iter().collect())
    }

    pub fn allocatable(&self) -> Vec<Block> {
        self.policy.as_ref().map(|policy| policy.allocatable(&self.state)).unwrap_or_default()
    }

    /// A container starts: the init containers before it have ended, and what they had is free.
    pub fn add_container(&mut self, pod: &Pod, container: &str) {
        let before = pods::init_containers(pod).iter().take_while(|init| init.name != container);
        for init in before.filter(|init| !is_sidecar(init)) {
            self.remove_container(pods::uid(pod), &init.name);
        }
    }

    pub fn remove_container(&mut self, pod_uid: &str, container: &str) -> bool {
        let Some(policy) = &self.policy else { return false };
        let removed = policy.remove(&mut self.state, pod_uid, container);
        self.is_dirty |= removed;
        removed
    }

    /// Forgets every container that `is_active` does not know.
    pub fn remove_stale(&mut self, is_active: impl Fn(&str, &str) -> bool) {
        let all = self.state.assignments.iter();
        let all = all.flat_map(|(pod, containers)| containers.keys().map(move |name| (pod.clone(), name.clone())));
        let stale: Vec<(String, String)> = all.filter(|(pod, container)| !is_active(pod, container)).collect();
        for (pod, container) in stale {
            self.remove_container(&pod, &container);
        }
    }
}

impl HintProvider for MemoryManager {
    fn topology_hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        self.policy.as_ref().map(|policy| policy.topology_hints(&self.state, pod, container)).unwrap_or_default()
    }

    fn pod_topology_hints(&self, pod: &Pod) -> ProviderHints {
        self.policy.as_ref().map(|policy| policy.pod_topology_hints(&self.state, pod)).unwrap_or_default()
    }

    fn allocate(&mut self, pod: &Pod, container: &Container, hint: &TopologyHint) -> Result<(), AllocateError> {
        let Some(policy) = self.policy.as_mut().filter(|_| static_policy::applies(pod)) else { return Ok(()) };
        let result = policy.allocate(&mut self.state, pod, container, hint);
        self.is_dirty |= matches!(result, Ok(true));
        self.counts.pinning_requests += 1;
        self.counts.pinning_errors += u64::from(result.is_err());
        result.map(drop)
    }
}
