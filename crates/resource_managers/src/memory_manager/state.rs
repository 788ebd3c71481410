//! How much memory of each kind every NUMA node has, and which containers have blocks of it.
//! Changed by `static_policy`; kept by `checkpoint`.
//! Invariant: pure; free and reserved together are what is allocatable (tidy: `pure_files`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One kind of memory ("memory", "hugepages-2Mi") of one node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTable {
    pub total: u64,
    #[serde(rename = "systemReserved")]
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNodeState {
    /// Blocks that lie on this node.
    #[serde(rename = "numberOfAssignments")]
    pub number_of_assignments: i64,
    #[serde(rename = "memoryMap")]
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The group of nodes that containers use together, this one among them.
    pub cells: Vec<usize>,
}

/// By NUMA node.
pub type MachineState = BTreeMap<usize, NumaNodeState>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    #[serde(rename = "numaAffinity")]
    pub numa_affinity: Vec<usize>,
    #[serde(rename = "type")]
    pub resource: String,
    pub size: u64,
}

/// By pod UID and container.
pub type Assignments = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub machine: MachineState,
    pub assignments: Assignments,
}

impl MemoryState {
    pub fn blocks(&self, pod_uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.assignments.get(pod_uid)?.get(container)
    }
}

/// Counts a block on its nodes, and takes its bytes from them in order. False when a node or kind is unknown.
pub fn assign(machine: &mut MachineState, nodes: &[usize], resource: &str, mut bytes: u64) -> bool {
    for id in nodes {
        let Some(node) = machine.get_mut(id) else { return false };
        node.number_of_assignments += 1;
        node.cells = nodes.to_vec();
        let Some(memory) = node.memory_map.get_mut(resource) else { return false };
        let taken = memory.free.min(bytes);
        memory.free -= taken;
        memory.reserved += taken;
        bytes -= taken;
    }
    true
}

/// The reverse of `assign`. A node that nobody uses any more leaves its group.
pub fn release(machine: &mut MachineState, block: &Block) {
    let mut bytes = block.size;
    for id in &block.numa_affinity {
        let Some(node) = machine.get_mut(id) else { continue };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        let Some(memory) = node.memory_map.get_mut(&block.resource) else { continue };
        let given_back = memory.reserved.min(bytes);
        memory.reserved -= given_back;
        memory.free += given_back;
        bytes -= given_back;
    }
}

/// Whether two groups have the same nodes.
pub fn same_nodes(a: &[usize], b: &[usize]) -> bool {
    let sorted = |group: &[usize]| {
        let mut group = group.to_vec();
        group.sort_unstable();
        group
    };
    sorted(a) == sorted(b)
}

/// Equal but for how a group's nodes share what is taken from them together.
pub fn is_equivalent(a: &MachineState, b: &MachineState) -> bool {
    let sum = |machine: &MachineState, nodes: &[usize], resource: &str| {
        let memories = nodes.iter().filter_map(|id| machine.get(id)?.memory_map.get(resource));
        memories.fold((0, 0), |(free, reserved), memory| (free + memory.free, reserved + memory.reserved))
    };
    a.len() == b.len()
        && a.iter().all(|(id, node)| {
            let Some(other) = b.get(id) else { return false };
            node.number_of_assignments == other.number_of_assignments
                && same_nodes(&node.cells, &other.cells)
                && node.memory_map.len() == other.memory_map.len()
                && node.memory_map.iter().all(|(resource, memory)| {
                    other.memory_map.get(resource).is_some_and(|other| {
                        (memory.total, memory.system_reserved, memory.allocatable)
                            == (other.total, other.system_reserved, other.allocatable)
                    }) && sum(a, &node.cells, resource) == sum(b, &node.cells, resource)
                })
        })
}
