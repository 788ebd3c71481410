//! The file `memory_manager_state` in upstream's form.
//! Written and read by `memory_manager`.
//! Invariant: pure; a file whose checksum is wrong is refused (tidy: `pure_files`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::state::{Assignments, Block, MachineState, MemoryState, MemoryTable, NumaNodeState};
use crate::checkpoint::{CheckpointError, checksum, go_map, json_error};

pub const FILE_NAME: &str = "memory_manager_state";

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    #[serde(rename = "policyName", default)]
    policy_name: String,
    #[serde(rename = "machineState", default)]
    machine_state: Option<MachineState>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Assignments,
    #[serde(default)]
    checksum: u32,
}

impl Checkpoint {
    /// Over upstream's dump of the same values.
    fn computed_checksum(&self) -> u32 {
        let machine = self.machine_state.as_ref().map_or_else(|| "<nil>".into(), |state| go_map(state, node));
        let entries = go_map(&self.entries, |containers| go_map(containers, |blocks| list(blocks, block)));
        checksum(&format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap){machine} \
             Entries:(state.ContainerMemoryAssignments){entries} Checksum:(checksum.Checksum)0}}",
            self.policy_name
        ))
    }
}

fn list<V>(list: &[V], dump: impl Fn(&V) -> String) -> String {
    format!("[{}]", list.iter().map(dump).collect::<Vec<_>>().join(" "))
}

fn node(state: &NumaNodeState) -> String {
    format!(
        "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){} Cells:([]int){}}}",
        state.number_of_assignments,
        go_map(&state.memory_map, memory_table),
        list(&state.cells, usize::to_string)
    )
}

fn memory_table(memory: &MemoryTable) -> String {
    format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} \
         Free:(uint64){}}}",
        memory.total, memory.system_reserved, memory.allocatable, memory.reserved, memory.free
    )
}

fn block(block: &Block) -> String {
    let nodes = list(&block.numa_affinity, usize::to_string);
    format!("{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){} Size:(uint64){}}}", block.resource, block.size)
}

pub fn write(policy: &'static str, state: &MemoryState) -> String {
    let mut checkpoint = Checkpoint {
        policy_name: policy.into(),
        machine_state: Some(state.machine.clone()),
        entries: state.assignments.clone(),
        checksum: 0,
    };
    checkpoint.checksum = checkpoint.computed_checksum();
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

pub fn read(text: &str, policy: &'static str) -> Result<MemoryState, CheckpointError> {
    let checkpoint: Checkpoint = serde_json::from_str(text).map_err(|error| json_error(&error))?;
    if checkpoint.checksum != checkpoint.computed_checksum() {
        return Err(CheckpointError::Corrupt);
    }
    if checkpoint.policy_name != policy {
        return Err(CheckpointError::MemoryPolicy { configured: policy, found: checkpoint.policy_name });
    }
    Ok(MemoryState { machine: checkpoint.machine_state.unwrap_or_default(), assignments: checkpoint.entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPSTREAMS: &str = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":
        {"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},
        "entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;

    #[test]
    fn upstreams_file_is_read() {
        let state = read(UPSTREAMS, "static").unwrap();
        assert_eq!(state.machine[&0].memory_map["memory"].free, 1024);
        assert_eq!(state.assignments["pod"]["container1"][0].size, 512);
        assert_eq!(read(&write("static", &state), "static"), Ok(state));
    }

    #[test]
    fn other_files_are_refused() {
        let check = |text: &str, policy, expected: &str| {
            assert_eq!(read(text, policy).unwrap_err().to_string(), expected, "{text}");
        };
        check("{", "static", "unexpected end of JSON input");
        check(&UPSTREAMS.replace("4215593881", "101010"), "static", "checkpoint is corrupted");
        let differs = "[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"static\"";
        check(UPSTREAMS, "Static", differs);
    }
}
