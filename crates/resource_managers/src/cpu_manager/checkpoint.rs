//! The file `cpu_manager_state` in upstream's form: which processors are shared, and which a container has to itself.
//! Written and read by `cpu_manager`.
//! Invariant: pure; a file whose checksum is wrong is refused (tidy: `pure_files`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ContainerMap, CpuState};
use crate::{
    checkpoint::{CheckpointError, checksum, go_map, json_error},
    cpu_set::CpuSet,
};

pub const FILE_NAME: &str = "cpu_manager_state";

#[derive(Serialize, Deserialize)]
struct Checkpoint<E> {
    #[serde(rename = "policyName", default)]
    policy_name: String,
    #[serde(rename = "defaultCpuSet", alias = "defaultCPUSet", default)]
    default_cpu_set: String,
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, E>,
    #[serde(default)]
    checksum: u32,
}

/// By pod and container.
type Entries = BTreeMap<String, String>;

/// How an entry looks in upstream's dump, over which the checksum goes.
trait Entry {
    const GO_TYPE: &'static str;
    fn dump(&self) -> String;
}

impl Entry for Entries {
    const GO_TYPE: &'static str = "map[string]map[string]string";

    fn dump(&self) -> String {
        go_map(self, String::clone)
    }
}

/// The first format has containers' ids for keys.
impl Entry for String {
    const GO_TYPE: &'static str = "map[string]string";

    fn dump(&self) -> String {
        self.clone()
    }
}

impl<E: Entry> Checkpoint<E> {
    fn computed_checksum(&self) -> u32 {
        checksum(&format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:({}){} \
             Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            E::GO_TYPE,
            go_map(&self.entries, E::dump)
        ))
    }

    /// Files of long ago have none.
    fn is_intact(&self) -> bool {
        self.checksum == 0 || self.checksum == self.computed_checksum()
    }
}

pub fn write(policy: &'static str, state: &CpuState) -> String {
    let sets = |containers: &BTreeMap<String, CpuSet>| -> Entries {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let mut checkpoint = Checkpoint {
        policy_name: policy.into(),
        default_cpu_set: state.shared.to_string(),
        entries: state.assignments.iter().map(|(pod, containers)| (pod.clone(), sets(containers))).collect(),
        checksum: 0,
    };
    checkpoint.checksum = checkpoint.computed_checksum();
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

pub fn read(text: &str, policy: &'static str, containers: &ContainerMap) -> Result<CpuState, CheckpointError> {
    let checkpoint = parse(text, containers)?;
    if checkpoint.policy_name != policy {
        return Err(CheckpointError::CpuPolicy { configured: policy, found: checkpoint.policy_name });
    }
    let list = checkpoint.default_cpu_set;
    let shared = CpuSet::parse(&list).map_err(|source| CheckpointError::DefaultCpuSet { list, source })?;
    let mut state = CpuState { shared, assignments: BTreeMap::new() };
    for (pod, entries) in checkpoint.entries {
        for (container, list) in entries {
            let cpus = CpuSet::parse(&list).map_err(|source| CheckpointError::CpuSet {
                list,
                container: container.clone(),
                pod: pod.clone(),
                source,
            })?;
            state.assignments.entry(pod.clone()).or_default().insert(container, cpus);
        }
    }
    Ok(state)
}

fn parse(text: &str, containers: &ContainerMap) -> Result<Checkpoint<Entries>, CheckpointError> {
    let first = serde_json::from_str::<Checkpoint<String>>(text).ok().filter(Checkpoint::is_intact);
    let Some(first) = first else {
        let checkpoint: Checkpoint<Entries> = serde_json::from_str(text).map_err(|error| json_error(&error))?;
        return match checkpoint.is_intact() {
            true => Ok(checkpoint),
            false => Err(CheckpointError::Corrupt),
        };
    };
    let mut entries: BTreeMap<String, Entries> = BTreeMap::new();
    for (id, list) in first.entries {
        let Some((pod, container)) = containers.get(&id) else { return Err(CheckpointError::UnknownContainer(id)) };
        entries.entry(pod.clone()).or_default().insert(container.clone(), list);
    }
    let Checkpoint { policy_name, default_cpu_set, checksum, .. } = first;
    Ok(Checkpoint { policy_name, default_cpu_set, entries, checksum })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(shared: &str, assignments: &[(&str, &str, &str)]) -> CpuState {
        let mut state = CpuState { shared: CpuSet::parse(shared).unwrap(), assignments: BTreeMap::new() };
        for (pod, container, cpus) in assignments {
            let cpus = CpuSet::parse(cpus).unwrap();
            state.assignments.entry(pod.to_string()).or_default().insert(container.to_string(), cpus);
        }
        state
    }

    #[test]
    fn upstreams_files_are_read() {
        let containers = ContainerMap::from([
            ("containerID1".into(), ("pod".into(), "container1".into())),
            ("containerID2".into(), ("pod".into(), "container2".into())),
        ]);
        let check = |text: &str, expected: Result<CpuState, &str>| {
            let found = read(text, "none", &containers).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(String::from), "{text}");
        };
        // Checksums that upstream computed.
        check(
            r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":354655845}"#,
            Ok(state("4-6", &[])),
        );
        check(
            r#"{"policyName":"none","defaultCPUSet":"1-3","checksum":3610638499,
                "entries":{"pod":{"container1":"4-6","container2":"1-3"}}}"#,
            Ok(state("1-3", &[("pod", "container1", "4-6"), ("pod", "container2", "1-3")])),
        );
        check(
            r#"{"policyName":"none","defaultCPUSet":"1-3","checksum":3680390589,
                "entries":{"containerID1":"4-6","containerID2":"1-3"}}"#,
            Ok(state("1-3", &[("pod", "container1", "4-6"), ("pod", "container2", "1-3")])),
        );
        check(r#"{"policyName":"none","defaultCPUSet":"1-3","checksum":1694838852}"#, Ok(state("1-3", &[])));
        check(r#"{"policyName":"none","defaultCpuSet":"4-6"}"#, Ok(state("4-6", &[])));
        check(
            r#"{"policyName":"none","defaultCPUSet":"1-3","checksum":962272150,
                "entries":{"pod":{"container1":"4-6","container2":"asd"}}}"#,
            Err(
                r#"could not parse cpuset "asd" for container "container2" in pod "pod": strconv.Atoi: parsing "asd": invalid syntax"#,
            ),
        );
        check(
            r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":1337}"#,
            Err("checkpoint is corrupted"),
        );
        check("{", Err("unexpected end of JSON input"));
        check("", Err("unexpected end of JSON input"));
        check(
            r#"{"policyName":"other","defaultCPUSet":"1-3","entries":{},"checksum":1394507217}"#,
            Err(r#"configured policy "none" differs from state checkpoint policy "other""#),
        );
        check(
            r#"{"policyName":"none","defaultCPUSet":"1.3","entries":{},"checksum":3021697696}"#,
            Err(r#"could not parse default cpu set "1.3": strconv.Atoi: parsing "1.3": invalid syntax"#),
        );
        check(
            r#"{"policyName":"none","defaultCpuSet":"1","entries":{"gone":"4"}}"#,
            Err("error migrating v1 checkpoint state to v2 checkpoint state: containerID 'gone' not found in initial \
                 containers list"),
        );
    }

    #[test]
    fn what_is_written_is_read() {
        let kept = state("0,3-7", &[("uid", "app", "1-2")]);
        let text = write("static", &kept);
        assert_eq!(
            text.split(",\"checksum\"").next().unwrap(),
            r#"{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"uid":{"app":"1-2"}}"#
        );
        assert_eq!(read(&text, "static", &ContainerMap::new()), Ok(kept));
        let torn = &text[..text.len() - 3];
        assert!(read(torn, "static", &ContainerMap::new()).is_err());
        let other = text.replace("1-2", "1-3");
        assert_eq!(read(&other, "static", &ContainerMap::new()), Err(CheckpointError::Corrupt));
    }
}
