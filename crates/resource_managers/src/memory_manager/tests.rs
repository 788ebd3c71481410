//! The memory manager as the topology manager uses it: allocation, groups of nodes, reuse, release and restore.

use serde_json::{Value, json};

use super::*;
use crate::topology_manager::TopologyManager;

const GIB: u64 = 1 << 30;

/// Two nodes of 8 GiB, of which 1 is reserved and 1 in huge pages each.
fn nodes() -> Vec<NumaNode> {
    [0, 1].map(|id| NumaNode { id, memory_bytes: 8 * GIB, hugepages: vec![(1 << 20, 1)], distances: vec![] }).into()
}

fn config() -> MemoryManagerConfig {
    let limits = BTreeMap::from([("memory".to_string(), Quantity::parse("1Gi").unwrap())]);
    MemoryManagerConfig {
        policy: "Static".into(),
        reserved: [0, 1].map(|numa_node| MemoryReservation { numa_node, limits: limits.clone() }).into(),
        node_reserved: BTreeMap::from([("memory".to_string(), Quantity::parse("2Gi").unwrap())]),
    }
}

fn manager() -> MemoryManager {
    let mut manager = MemoryManager::new(&config(), &nodes()).unwrap();
    manager.restore(None).unwrap();
    manager
}

fn container(name: &str, memory: &str) -> Value {
    let mut amounts = json!({"cpu": "1", "memory": memory});
    if let Some((memory, pages)) = memory.split_once('+') {
        amounts = json!({"cpu": "1", "memory": memory, "hugepages-1Gi": pages});
    }
    json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
}

fn pod(uid: &str, init: &[Value], containers: &[Value]) -> Pod {
    serde_json::from_value(
        json!({"metadata": {"uid": uid}, "spec": {"initContainers": init, "containers": containers}}),
    )
    .unwrap()
}

fn admit(manager: &mut MemoryManager, policy: &str, scope: &str, pod: &Pod) -> Result<(), String> {
    let mut topology = TopologyManager::new(&nodes(), policy, scope, &BTreeMap::new()).unwrap();
    topology.admit(pod, &mut [manager]).map_err(|error| format!("{}: {}", error.reason, error.message))
}

/// Free GiB by node.
fn free(manager: &MemoryManager, resource: &str) -> Vec<u64> {
    manager.state().machine.values().map(|node| node.memory_map[resource].free / GIB).collect()
}

#[test]
fn containers_are_bound_to_nodes_that_have_enough() {
    let mut manager = manager();
    assert_eq!((free(&manager, "memory"), free(&manager, "hugepages-1Gi")), (vec![6, 6], vec![1, 1]));
    let mut check = |uid: &str, policy: &str, memory: &str, expected: Result<(&str, &[u64]), &str>| {
        let found = admit(&mut manager, policy, "container", &pod(uid, &[], &[container("app", memory)]));
        let nodes = manager.numa_nodes(uid, "app").map(|nodes| nodes.to_string());
        match expected {
            Ok((place, left)) => {
                assert_eq!((found, nodes.as_deref()), (Ok(()), Some(place)), "{uid}");
                assert_eq!(free(&manager, "memory"), left, "{uid}");
            }
            Err(message) => assert_eq!(found, Err(message.into()), "{uid}"),
        }
    };
    check("a", "none", "2Gi", Ok(("0", &[4, 6])));
    check("b", "single-numa-node", "5Gi", Ok(("1", &[4, 1])));
    check("c", "best-effort", "1Gi+1Gi", Ok(("0", &[3, 1])));
    // Both nodes are used alone: no container can have memory of both.
    let none = "UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to get the default NUMA \
                affinity, no NUMA nodes with enough memory is available, which is unexpected";
    check("d", "none", "4Gi", Err(none));
    let both = "UnexpectedAdmissionError: Allocate failed due to [memorymanager] preferred hint violates NUMA node \
                allocation, which is unexpected";
    check("e", "best-effort", "4Gi", Err(both));
    manager.remove_stale(|pod, _| pod == "b");
    assert_eq!((free(&manager, "memory"), free(&manager, "hugepages-1Gi")), (vec![6, 1], vec![1, 1]));
    assert_eq!((manager.counts.pinning_requests, manager.counts.pinning_errors), (5, 2));
}

#[test]
fn several_nodes_make_a_group() {
    let mut manager = manager();
    admit(&mut manager, "restricted", "container", &pod("a", &[], &[container("app", "8Gi")])).unwrap();
    assert_eq!(manager.numa_nodes("a", "app").unwrap().to_string(), "0-1");
    assert_eq!(free(&manager, "memory"), [0, 4]);
    assert_eq!(manager.state().machine[&1].cells, [0, 1]);
    // The group is taken as one; none of its nodes is given alone.
    admit(&mut manager, "best-effort", "container", &pod("b", &[], &[container("app", "2Gi")])).unwrap();
    assert_eq!(manager.numa_nodes("b", "app").unwrap().to_string(), "0-1");
    let refused = admit(&mut manager, "single-numa-node", "container", &pod("c", &[], &[container("app", "1Gi")]));
    assert_eq!(refused, Err("TopologyAffinityError: Resources cannot be allocated with Topology locality".into()));
    manager.remove_stale(|_, _| false);
    assert_eq!((free(&manager, "memory"), manager.state().machine[&1].cells.clone()), (vec![6, 6], vec![1]));
}

#[test]
fn memory_of_init_containers_is_used_again() {
    let mut manager = manager();
    let mut side = container("side", "1Gi");
    side["restartPolicy"] = "Always".into();
    let pod = pod("a", &[container("init", "4Gi"), side], &[container("app", "2Gi")]);
    for scope in ["container", "pod"] {
        admit(&mut manager, "single-numa-node", scope, &pod).unwrap();
        assert_eq!(free(&manager, "memory"), [2, 6], "{scope}: four for the first, of which the others have three");
    }
    let text = manager.checkpoint().unwrap();
    let mut again = MemoryManager::new(&config(), &nodes()).unwrap();
    again.restore(Some(&text)).unwrap();
    assert_eq!(again.state(), manager.state());
    manager.add_container(&pod, "app");
    assert_eq!(free(&manager, "memory"), [3, 6], "the init container has ended");
    manager.remove_stale(|_, _| false);
    assert_eq!(free(&manager, "memory"), [6, 6]);
}

#[test]
fn what_does_not_concern_it_is_left_alone() {
    let mut manager = manager();
    let best_effort = serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).unwrap();
    admit(&mut manager, "single-numa-node", "pod", &best_effort).unwrap();
    assert_eq!(free(&manager, "memory"), [6, 6]);
    let mut none = MemoryManager::new(&MemoryManagerConfig::default(), &nodes()).unwrap();
    admit(&mut none, "none", "container", &pod("a", &[], &[container("app", "1Gi")])).unwrap();
    assert_eq!((none.numa_nodes("a", "app"), none.allocatable()), (None, vec![]));
    assert_eq!(manager.allocatable().len(), 4);
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let mut kept = manager();
    admit(&mut kept, "none", "container", &pod("a", &[], &[container("app", "2Gi")])).unwrap();
    let check = |change: &dyn Fn(&mut MemoryState), expected: Option<&str>| {
        let mut state = kept.state().clone();
        change(&mut state);
        let mut manager = MemoryManager::new(&config(), &nodes()).unwrap();
        let found = manager.restore(Some(&checkpoint::write("Static", &state))).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), expected);
    };
    check(&|_| {}, None);
    let empty = "[memorymanager] machine state can not be empty when it has memory assignments";
    check(&|state| state.machine.clear(), Some(empty));
    let other = "[memorymanager] the expected machine state is different from the real one";
    check(&|state| state.assignments.clear(), Some(other));
    check(&|state| state.machine.get_mut(&0).unwrap().memory_map.get_mut("memory").unwrap().total += 1, Some(other));
    let block = |state: &mut MemoryState, change: fn(&mut Block)| {
        change(&mut state.assignments.get_mut("a").unwrap().get_mut("app").unwrap()[0]);
    };
    let node = "[memorymanager] (pod: a, container: app) the memory assignment uses the NUMA that does not exist";
    check(&|state| block(state, |block| block.numa_affinity = vec![7]), Some(node));
    let resource =
        "[memorymanager] (pod: a, container: app) the memory assignment uses memory resource that does not exist";
    check(&|state| block(state, |block| block.resource = "hugepages-2Mi".into()), Some(resource));
    let mut none = MemoryManager::new(&MemoryManagerConfig::default(), &nodes()).unwrap();
    let error = none.restore(Some(&checkpoint::write("Static", kept.state()))).unwrap_err().to_string();
    assert_eq!(error, "[memorymanager] configured policy \"None\" differs from state checkpoint policy \"Static\"");
}
