//! Which sets of NUMA nodes could give a container, or a whole pod, its processors.
//! Part of `static_policy`; merged by `topology_manager`.
//! Invariant: pure (tidy: `pure_files`).

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    CpuState,
    static_policy::{StaticPolicy, guaranteed_cpus, pod_guaranteed_cpus},
};
use crate::{
    bit_mask::BitMask,
    cpu_set::CpuSet,
    machine_topology::Level,
    topology_manager::{ProviderHints, TopologyHint, pods},
};

impl StaticPolicy {
    pub fn topology_hints(&self, state: &CpuState, pod: &Pod, container: &Container) -> ProviderHints {
        let requested = guaranteed_cpus(pod, container);
        if requested == 0 {
            return ProviderHints::new();
        }
        let hints = match state.get(pods::uid(pod), &container.name) {
            Some(cpus) if cpus.len() != requested => vec![],
            Some(cpus) => self.hints(cpus, &CpuSet::default(), requested),
            None => self.hints(&self.available(state), &self.reusable(pod), requested),
        };
        cpu_hints(hints)
    }

    pub fn pod_topology_hints(&self, state: &CpuState, pod: &Pod) -> ProviderHints {
        let requested = pod_guaranteed_cpus(pod);
        if requested == 0 {
            return ProviderHints::new();
        }
        let mut assigned = CpuSet::default();
        for container in pods::all_containers(pod) {
            let Some(cpus) = state.get(pods::uid(pod), &container.name) else { continue };
            if cpus.len() != guaranteed_cpus(pod, container) {
                return cpu_hints(vec![]);
            }
            assigned = assigned.union(cpus);
        }
        cpu_hints(match assigned.len() == requested {
            true => self.hints(&assigned, &CpuSet::default(), requested),
            false => self.hints(&self.available(state), &self.reusable(pod).union(&assigned), requested),
        })
    }

    /// Every set of nodes that holds all reusable processors and has enough; the smallest are preferred.
    fn hints(&self, available: &CpuSet, reusable: &CpuSet, requested: usize) -> Vec<TopologyHint> {
        let details = &self.topology.details;
        let nodes: Vec<usize> = details.ids(Level::NumaNode).iter().collect();
        let node_of = |cpu: usize| details.get(cpu).map(|info| info.numa_node);
        let mut least = nodes.len();
        let mut masks: Vec<BitMask> = vec![];
        for mask in BitMask::subsets(&nodes) {
            let inside = |cpu: &usize| node_of(*cpu).is_some_and(|node| mask.is_set(node));
            if details.cpus().iter().filter(inside).count() >= requested {
                least = least.min(mask.count());
            }
            let matching = reusable.len() + available.iter().filter(inside).count();
            if reusable.iter().all(|cpu| inside(&cpu)) && matching >= requested {
                masks.push(mask);
            }
        }
        let preferred = |mask: BitMask| {
            mask.count() == least || (self.options.align_by_socket && self.is_socket_aligned(mask, least))
        };
        masks.into_iter().map(|mask| TopologyHint { affinity: Some(mask), preferred: preferred(mask) }).collect()
    }

    /// Whether the nodes lie on no more sockets than the fewest nodes would need.
    fn is_socket_aligned(&self, mask: BitMask, least: usize) -> bool {
        let per_socket = self.topology.numa_nodes.checked_div(self.topology.sockets).unwrap_or(0);
        if per_socket == 0 {
            return false;
        }
        let sockets: CpuSet = mask
            .bits()
            .flat_map(|node| {
                self.topology.details.ids_within(Level::Socket, Level::NumaNode, node).iter().collect::<Vec<_>>()
            })
            .collect();
        sockets.len() == least.div_ceil(per_socket)
    }
}

fn cpu_hints(hints: Vec<TopologyHint>) -> ProviderHints {
    ProviderHints::from([("cpu".to_string(), Some(hints))])
}
