//! The memory manager's Static policy: containers of Guaranteed pods get their memory from certain NUMA nodes.
//! Owned by `memory_manager`; `state` has the sums.
//! Invariant: pure; a node is used alone or in one group of nodes at a time (tidy: `pure_files`).

use std::collections::BTreeMap;

use api::pod_resources::is_sidecar;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    PolicyError,
    reserved_memory::{SystemReserved, is_memory},
    state::{Block, MachineState, MemoryState, MemoryTable, NumaNodeState, assign, is_equivalent, release, same_nodes},
};
use crate::{
    bit_mask::BitMask,
    machine_topology::NumaNode,
    topology_manager::{
        ProviderHints, TopologyHint,
        pods::{self, AllocateError},
    },
};

/// Bytes by kind of memory.
type Requests = BTreeMap<String, u64>;

pub struct StaticPolicy {
    nodes: Vec<NumaNode>,
    reserved: SystemReserved,
    /// Of the pod that was admitted last: what its init containers leave to the others, by nodes and kind.
    reusable: Option<(String, BTreeMap<(BitMask, String), u64>)>,
}

impl StaticPolicy {
    pub fn new(nodes: &[NumaNode], reserved: SystemReserved) -> Self {
        Self { nodes: nodes.to_vec(), reserved, reusable: None }
    }

    /// The machine with nobody on it.
    pub fn empty_machine(&self) -> MachineState {
        self.nodes.iter().map(|node| (node.id, self.empty_node(node))).collect()
    }

    fn empty_node(&self, node: &NumaNode) -> NumaNodeState {
        let reserved = |resource: &str| self.reserved.get(&node.id).and_then(|r| r.get(resource)).copied().unwrap_or(0);
        let memory_table = |total: u64, resource: &str, elsewhere: u64| {
            let system_reserved = reserved(resource);
            let allocatable = total.saturating_sub(system_reserved).saturating_sub(elsewhere);
            MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
        };
        let mut memory_map = BTreeMap::new();
        let mut in_hugepages = 0;
        for (page_kib, count) in &node.hugepages {
            let total = page_kib * 1024 * count;
            let resource = format!("hugepages-{}", page_size(*page_kib));
            memory_map.insert(resource.clone(), memory_table(total, &resource, 0));
            in_hugepages += total;
        }
        memory_map.insert("memory".into(), memory_table(node.memory_bytes, "memory", in_hugepages));
        NumaNodeState { number_of_assignments: 0, memory_map, cells: vec![node.id] }
    }

    /// Fits a state that was read, or a new one, to this machine; else says what contradicts what.
    pub fn validate(&self, state: &mut MemoryState) -> Result<(), PolicyError> {
        if state.machine.is_empty() {
            if !state.assignments.is_empty() {
                return Err(PolicyError::EmptyMachine);
            }
            state.machine = self.empty_machine();
            return Ok(());
        }
        let mut expected = self.empty_machine();
        for (pod, containers) in &state.assignments {
            for (container, blocks) in containers {
                for block in blocks {
                    let (pod, container) = (pod.clone(), container.clone());
                    if block.numa_affinity.iter().any(|id| !expected.contains_key(id)) {
                        return Err(PolicyError::UnknownNode { pod, container });
                    }
                    if !assign(&mut expected, &block.numa_affinity, &block.resource, block.size) {
                        return Err(PolicyError::UnknownResource { pod, container });
                    }
                }
            }
        }
        match is_equivalent(&state.machine, &expected) {
            true => Ok(()),
            false => Err(PolicyError::OtherMachine),
        }
    }

    /// True when something was given that was not before.
    pub fn allocate(
        &mut self,
        state: &mut MemoryState,
        pod: &Pod,
        container: &Container,
        hint: &TopologyHint,
    ) -> Result<bool, AllocateError> {
        if let Some(blocks) = state.blocks(pods::uid(pod), &container.name).cloned() {
            self.update_reusable(pod, container, &blocks);
            return Ok(false);
        }
        let requested = requests(container)?;
        let mask = self.nodes_for(&state.machine, pod, &requested, hint)?;
        let nodes: Vec<usize> = mask.bits().collect();
        let mut blocks = vec![];
        for (resource, size) in &requested {
            blocks.push(Block { numa_affinity: nodes.clone(), resource: resource.clone(), size: *size });
            let needed = size.saturating_sub(self.reusable_bytes(pod, mask, resource));
            assign(&mut state.machine, &nodes, resource, needed);
        }
        self.update_reusable(pod, container, &blocks);
        shrink_init_blocks(state, pod, container, &blocks);
        state.assignments.entry(pods::uid(pod).into()).or_default().insert(container.name.clone(), blocks);
        Ok(true)
    }

    /// The hint's nodes, or more where these have too little.
    fn nodes_for(
        &self,
        machine: &MachineState,
        pod: &Pod,
        requested: &Requests,
        hint: &TopologyHint,
    ) -> Result<BitMask, AllocateError> {
        let fail = |message: &str| Err(AllocateError::Unexpected(format!("[memorymanager] {message}")));
        let mut best = *hint;
        if best.affinity.is_none() {
            let hints = self.calculate_hints(machine, pod, requested);
            let Some(found) = best_hint(hints.get("memory"), |_| true) else {
                return fail("failed to get the default NUMA affinity, no NUMA nodes with enough memory is available");
            };
            if best.preferred && !found.preferred {
                return fail("failed to find the default preferred hint");
            }
            best = found;
        }
        let mask = best.affinity.unwrap_or_default();
        let free = |resource: &str| -> u64 { memory(machine, mask, resource).map(|memory| memory.free).sum() };
        if requested.iter().any(|(resource, size)| free(resource) < *size) {
            let hints = self.calculate_hints(machine, pod, requested);
            let Some(found) = best_hint(hints.get("memory"), |wider| wider.contains(mask)) else {
                return fail("failed to find NUMA nodes to extend the current topology hint");
            };
            if best.preferred && !found.preferred {
                return fail("failed to find the extended preferred hint");
            }
            best = found;
        }
        let mask = best.affinity.unwrap_or_default();
        match mask.count() > 1 && !is_group_free(machine, mask) {
            true => fail("preferred hint violates NUMA node allocation"),
            false => Ok(mask),
        }
    }

    pub fn remove(&self, state: &mut MemoryState, pod_uid: &str, container: &str) -> bool {
        let Some(containers) = state.assignments.get_mut(pod_uid) else { return false };
        let Some(blocks) = containers.remove(container) else { return false };
        if containers.is_empty() {
            state.assignments.remove(pod_uid);
        }
        blocks.iter().for_each(|block| release(&mut state.machine, block));
        true
    }

    pub fn topology_hints(&self, state: &MemoryState, pod: &Pod, container: &Container) -> ProviderHints {
        if !applies(pod) {
            return ProviderHints::new();
        }
        let Ok(requested) = requests(container) else { return ProviderHints::new() };
        match state.blocks(pods::uid(pod), &container.name) {
            Some(blocks) => regenerated(blocks, &requested),
            None => self.calculate_hints(&state.machine, pod, &requested),
        }
    }

    pub fn pod_topology_hints(&self, state: &MemoryState, pod: &Pod) -> ProviderHints {
        if !applies(pod) {
            return ProviderHints::new();
        }
        let Ok(requested) = pod_requests(pod) else { return ProviderHints::new() };
        match pods::all_containers(pod).find_map(|container| state.blocks(pods::uid(pod), &container.name)) {
            Some(blocks) => regenerated(blocks, &requested),
            None => self.calculate_hints(&state.machine, pod, &requested),
        }
    }

    /// Every set of nodes with enough of each kind that breaks into no other group; the smallest are preferred.
    fn calculate_hints(&self, machine: &MachineState, pod: &Pod, requested: &Requests) -> ProviderHints {
        let nodes: Vec<usize> = machine.keys().copied().collect();
        let mut least = nodes.len();
        let mut masks: Vec<BitMask> = vec![];
        for mask in BitMask::subsets(&nodes) {
            let sum =
                |resource: &str, of: fn(&MemoryTable) -> u64| -> u64 { memory(machine, mask, resource).map(of).sum() };
            if requested.iter().any(|(resource, size)| sum(resource, |memory| memory.allocatable) < *size) {
                continue;
            }
            least = least.min(mask.count());
            let in_group = |id: usize| machine.get(&id).is_some_and(|node| node.cells.len() > 1);
            let fits = match mask.count() {
                1 => !mask.bits().any(in_group),
                _ => is_group_free(machine, mask),
            };
            let enough = requested.iter().all(|(resource, size)| {
                sum(resource, |memory| memory.free) + self.reusable_bytes(pod, mask, resource) >= *size
            });
            if fits && enough {
                masks.push(mask);
            }
        }
        if masks.is_empty() {
            return ProviderHints::new();
        }
        let hint = |mask: &BitMask| TopologyHint { affinity: Some(*mask), preferred: mask.count() == least };
        let hints: Vec<TopologyHint> = masks.iter().map(hint).collect();
        requested.keys().map(|resource| (resource.clone(), Some(hints.clone()))).collect()
    }

    fn reusable_bytes(&self, pod: &Pod, mask: BitMask, resource: &str) -> u64 {
        let own = self.reusable.as_ref().filter(|(uid, _)| uid == pods::uid(pod));
        own.and_then(|(_, memory)| memory.get(&(mask, resource.into())).copied()).unwrap_or(0)
    }

    fn update_reusable(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let uid = pods::uid(pod);
        let own = self.reusable.take().filter(|(pod, _)| pod == uid).map(|(_, memory)| memory);
        let mut memory = own.unwrap_or_default();
        let ends = pods::init_containers(pod).iter().any(|init| init.name == container.name && !is_sidecar(init));
        for block in blocks {
            let mask = BitMask::new(block.numa_affinity.iter().copied()).unwrap_or_default();
            let left = memory.entry((mask, block.resource.clone())).or_default();
            *left = if ends { (*left).max(block.size) } else { left.saturating_sub(block.size) };
        }
        self.reusable = Some((uid.into(), memory));
    }

    /// What containers can be given, by node and kind.
    pub fn allocatable(&self, state: &MemoryState) -> Vec<Block> {
        let blocks =
            state.machine.iter().flat_map(|(id, node)| {
                node.memory_map.iter().filter(|(_, memory)| memory.allocatable > 0).map(move |(resource, memory)| {
                    Block { numa_affinity: vec![*id], resource: resource.clone(), size: memory.allocatable }
                })
            });
        blocks.collect()
    }
}

pub fn applies(pod: &Pod) -> bool {
    pods::is_guaranteed(pod) && !pods::has_pod_level_resources(pod)
}

/// As resource names have it: "2Mi", "1Gi".
fn page_size(kib: u64) -> String {
    match kib {
        kib if kib.is_multiple_of(1 << 20) => format!("{}Gi", kib >> 20),
        kib if kib.is_multiple_of(1 << 10) => format!("{}Mi", kib >> 10),
        kib => format!("{kib}Ki"),
    }
}

fn memory<'a>(machine: &'a MachineState, mask: BitMask, resource: &'a str) -> impl Iterator<Item = &'a MemoryTable> {
    mask.bits().filter_map(move |id| machine.get(&id)?.memory_map.get(resource))
}

/// Whether containers can use these nodes together: each is unused, or in just this group.
fn is_group_free(machine: &MachineState, mask: BitMask) -> bool {
    let nodes: Vec<usize> = mask.bits().collect();
    let mut states = nodes.iter().filter_map(|id| machine.get(id));
    states.all(|node| node.number_of_assignments == 0 || (node.cells.len() > 1 && same_nodes(&node.cells, &nodes)))
}

fn best_hint(hints: Option<&Option<Vec<TopologyHint>>>, fits: impl Fn(BitMask) -> bool) -> Option<TopologyHint> {
    let hints = hints.into_iter().flatten().flatten().filter(|hint| hint.affinity.is_some_and(&fits));
    let better = |best: TopologyHint, hint: TopologyHint| match (hint.preferred, best.preferred) {
        (true, false) => hint,
        (false, true) => best,
        _ => match (hint.affinity, best.affinity) {
            (Some(mask), Some(narrowest)) if mask.is_narrower_than(narrowest) => hint,
            _ => best,
        },
    };
    hints.copied().reduce(better)
}

/// Hints for what a container has already; "any" when it now asks for something else.
fn regenerated(blocks: &[Block], requested: &Requests) -> ProviderHints {
    let same = blocks.len() == requested.len() && blocks.iter().all(|b| requested.get(&b.resource) == Some(&b.size));
    if !same {
        return ProviderHints::new();
    }
    let hint = |block: &Block| {
        let affinity = BitMask::new(block.numa_affinity.iter().copied());
        (block.resource.clone(), Some(vec![TopologyHint { affinity, preferred: true }]))
    };
    blocks.iter().map(hint).collect()
}

fn requests(container: &Container) -> Result<Requests, AllocateError> {
    let resources = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let names = resources.into_iter().flatten().map(|(name, _)| name).filter(|name| is_memory(name));
    names
        .map(|name| {
            let bytes = pods::request(container, name).and_then(|amount| u64::try_from(amount.value()).ok());
            let error = || AllocateError::Unexpected("[memorymanager] failed to represent quantity as int64".into());
            Ok((name.clone(), bytes.ok_or_else(error)?))
        })
        .collect()
}

/// The most that all containers of the pod have at once.
fn pod_requests(pod: &Pod) -> Result<Requests, AllocateError> {
    let (mut init, mut sidecars, mut apps) = (Requests::new(), Requests::new(), Requests::new());
    for container in pods::init_containers(pod) {
        for (resource, size) in requests(container)? {
            let beside = sidecars.entry(resource.clone()).or_default();
            match is_sidecar(container) {
                true => *beside += size,
                false => {
                    let most = init.entry(resource).or_default();
                    *most = (*most).max(*beside + size);
                }
            }
        }
    }
    for container in pods::containers(pod) {
        for (resource, size) in requests(container)? {
            *apps.entry(resource).or_default() += size;
        }
    }
    for (resource, size) in &mut apps {
        let of = |requests: &Requests| requests.get(resource).copied().unwrap_or(0);
        *size = (*size + of(&sidecars)).max(of(&init));
    }
    Ok(apps)
}

/// What a later container takes over is no longer its init containers': else it would be given back twice.
fn shrink_init_blocks(state: &mut MemoryState, pod: &Pod, container: &Container, blocks: &[Block]) {
    let Some(containers) = state.assignments.get_mut(pods::uid(pod)) else { return };
    for block in blocks {
        let mut bytes = block.size;
        let before = pods::init_containers(pod).iter().take_while(|init| init.name != container.name);
        for init in before.filter(|init| !is_sidecar(init)) {
            for own in containers.get_mut(&init.name).into_iter().flatten() {
                if own.resource == block.resource && same_nodes(&own.numa_affinity, &block.numa_affinity) {
                    let taken = own.size.min(bytes);
                    own.size -= taken;
                    bytes -= taken;
                }
            }
        }
    }
}
