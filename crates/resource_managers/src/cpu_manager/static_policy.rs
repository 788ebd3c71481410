//! The CPU manager's static policy: containers of Guaranteed pods that ask for whole processors have them to themselves.
//! Owned by `cpu_manager`; `assignment` and `distribution` choose, `hints` says which NUMA nodes could give.
//! Invariant: pure; a processor is shared or has one pod, and reserved ones are never given away (tidy: `pure_files`).

use std::sync::Arc;

use api::pod_resources::is_sidecar;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    CpuState, PolicyError,
    assignment::{AssignmentError, SortingStrategy, take_packed},
    distribution::take_distributed,
    options::StaticPolicyOptions,
};
use crate::{
    bit_mask::BitMask,
    cpu_set::CpuSet,
    machine_topology::{CpuTopology, Level},
    topology_manager::pods::{self, AllocateError},
};

pub struct StaticPolicy {
    pub(super) topology: Arc<CpuTopology>,
    pub(super) reserved: CpuSet,
    /// Every thread of the cores that reserved processors are on.
    reserved_cores: CpuSet,
    /// Of the pod that was admitted last: processors of its init containers, which end before others start.
    pub(super) reusable: Option<(String, CpuSet)>,
    pub(super) options: StaticPolicyOptions,
}

impl StaticPolicy {
    /// `reserved` names processors; where it is empty, `reserved_count` of them are chosen.
    pub fn new(
        topology: Arc<CpuTopology>,
        reserved: &CpuSet,
        reserved_count: usize,
        options: StaticPolicyOptions,
    ) -> Result<Self, PolicyError> {
        let mut policy =
            Self { topology, reserved: reserved.clone(), reserved_cores: CpuSet::default(), reusable: None, options };
        if reserved.is_empty() {
            policy.reserved = policy.take(&policy.topology.details.cpus(), reserved_count).unwrap_or_default();
        }
        if policy.reserved.len() != reserved_count {
            return Err(PolicyError::Reserve { reserved: policy.reserved, wanted: reserved_count });
        }
        let details = &policy.topology.details;
        let mut cores = CpuSet::default();
        for cpu in policy.reserved.iter() {
            let info = details.get(cpu).ok_or(PolicyError::UnknownCpu(cpu))?;
            cores = cores.union(&details.cpus_in(Level::Core, info.core));
        }
        policy.reserved_cores = cores;
        Ok(policy)
    }

    /// Processors that containers could have to themselves.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.details.cpus().difference(&self.reserved)
    }

    pub fn available(&self, state: &CpuState) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    /// Fits a state that was read, or a new one, to this machine; else says what contradicts what.
    pub fn validate(&self, state: &mut CpuState) -> Result<(), PolicyError> {
        let mut all = self.topology.details.cpus();
        if self.options.strict_cpu_reservation {
            all = all.difference(&self.reserved);
        }
        if state.shared.is_empty() {
            if !state.assignments.is_empty() {
                return Err(PolicyError::EmptyDefault);
            }
            state.shared = all;
            return Ok(());
        }
        let (reserved, shared) = (&self.reserved, &state.shared);
        let both = reserved.intersection(shared);
        if self.options.strict_cpu_reservation && !both.is_empty() {
            return Err(PolicyError::StrictlyReserved { reserved: both, shared: shared.clone() });
        }
        if !self.options.strict_cpu_reservation && both != *reserved {
            return Err(PolicyError::ReservedNotShared { reserved: reserved.clone(), shared: shared.clone() });
        }
        let mut known = shared.clone();
        for (pod, container, cpus) in state.iter() {
            if !shared.intersection(cpus).is_empty() {
                let (pod, container) = (pod.into(), container.into());
                return Err(PolicyError::Overlap { pod, container, cpus: cpus.clone(), shared: shared.clone() });
            }
            known = known.union(cpus);
        }
        match known == all {
            true => Ok(()),
            false => Err(PolicyError::OtherCpus { available: all, known }),
        }
    }

    /// What the pod's earlier init containers leave to the next.
    pub(super) fn reusable(&self, pod: &Pod) -> CpuSet {
        let own = self.reusable.as_ref().filter(|(uid, _)| uid == pods::uid(pod));
        own.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    fn update_reusable(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let before = self.reusable(pod);
        let ends = pods::init_containers(pod).iter().any(|init| init.name == container.name && !is_sidecar(init));
        let after = if ends { before.union(cpus) } else { before.difference(cpus) };
        self.reusable = Some((pods::uid(pod).into(), after));
    }

    /// Moves processors from the shared ones to the container. True when something was given that was not before.
    pub fn allocate(
        &mut self,
        state: &mut CpuState,
        pod: &Pod,
        container: &Container,
        affinity: Option<BitMask>,
    ) -> Result<bool, AllocateError> {
        let count = guaranteed_cpus(pod, container);
        let (uid, name) = (pods::uid(pod), container.name.as_str());
        if self.options.full_physical_cpus_only {
            self.check_cores(state, count)?;
        }
        if let Some(cpus) = state.get(uid, name).cloned() {
            self.update_reusable(pod, container, &cpus);
            return Ok(false);
        }
        let cpus = self.choose(state, count, affinity, &self.reusable(pod));
        let cpus = cpus.map_err(|error| AllocateError::Unexpected(error.to_string()))?;
        state.shared = state.shared.difference(&cpus);
        state.assignments.entry(uid.into()).or_default().insert(name.into(), cpus.clone());
        self.update_reusable(pod, container, &cpus);
        Ok(true)
    }

    fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), AllocateError> {
        let per_core = self.topology.cpus_per_core();
        if per_core > 0 && !count.is_multiple_of(per_core) {
            return Err(AllocateError::SmtAlignment { requested: count, per_core });
        }
        let available = state.shared.difference(&self.reserved_cores).len();
        match count > available {
            true => Err(AllocateError::PhysicalCpus { requested: count, per_core, available }),
            false => Ok(()),
        }
    }

    fn choose(
        &self,
        state: &CpuState,
        count: usize,
        affinity: Option<BitMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, AssignmentError> {
        let allocatable = self.available(state).union(reusable);
        let mut chosen = CpuSet::default();
        if let Some(affinity) = affinity {
            let aligned = self.aligned(affinity, &allocatable);
            chosen = self.take(&aligned, count.min(aligned.len()))?;
        }
        let rest = self.take(&allocatable.difference(&chosen), count - chosen.len())?;
        Ok(chosen.union(&rest))
    }

    /// Those of the hint's NUMA nodes, or of all sockets that these nodes are on.
    fn aligned(&self, affinity: BitMask, allocatable: &CpuSet) -> CpuSet {
        let details = &self.topology.details;
        let nodes = affinity.bits();
        let groups: Vec<CpuSet> = match self.options.align_by_socket {
            true => {
                let sockets = nodes.flat_map(|node| {
                    details.ids_within(Level::Socket, Level::NumaNode, node).iter().collect::<Vec<_>>()
                });
                sockets.map(|socket| details.cpus_in(Level::Socket, socket)).collect()
            }
            false => nodes.map(|node| details.cpus_in(Level::NumaNode, node)).collect(),
        };
        groups.iter().fold(CpuSet::default(), |aligned, group| aligned.union(&allocatable.intersection(group)))
    }

    fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, AssignmentError> {
        let options = &self.options;
        let strategy = match options.distribute_across_cores {
            true => SortingStrategy::Spread,
            false => SortingStrategy::Packed,
        };
        if options.distribute_across_numa {
            let group = if options.full_physical_cpus_only { self.topology.cpus_per_core() } else { 1 };
            return take_distributed(&self.topology, available, count, group, strategy);
        }
        take_packed(&self.topology, available, count, strategy, options.prefer_uncore_cache)
    }

    /// Gives back what no other container of the pod has too. True when there was something.
    pub fn remove(&self, state: &mut CpuState, pod_uid: &str, container: &str) -> bool {
        let Some(containers) = state.assignments.get_mut(pod_uid) else { return false };
        let Some(cpus) = containers.remove(container) else { return false };
        let released = containers.values().fold(cpus, |cpus, others| cpus.difference(others));
        if containers.is_empty() {
            state.assignments.remove(pod_uid);
        }
        state.shared = state.shared.union(&released);
        true
    }
}

/// Processors that a container has to itself; 0 when it shares.
pub fn guaranteed_cpus(pod: &Pod, container: &Container) -> usize {
    if !pods::is_guaranteed(pod) || pods::has_pod_level_resources(pod) {
        return 0;
    }
    let Some(request) = pods::request(container, "cpu") else { return 0 };
    match request.milli_value() == request.value().saturating_mul(1000) {
        true => usize::try_from(request.value()).unwrap_or(0),
        false => 0,
    }
}

/// The most that all containers of the pod have to themselves at once.
pub fn pod_guaranteed_cpus(pod: &Pod) -> usize {
    let (mut init, mut sidecars) = (0, 0);
    for container in pods::init_containers(pod) {
        let own = guaranteed_cpus(pod, container);
        match is_sidecar(container) {
            true => sidecars += own,
            false => init = init.max(sidecars + own),
        }
    }
    let apps: usize = pods::containers(pod).iter().map(|container| guaranteed_cpus(pod, container)).sum();
    init.max(apps + sidecars)
}
