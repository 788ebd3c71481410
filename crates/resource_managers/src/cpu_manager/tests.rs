//! The CPU manager as the topology manager uses it: allocation, reuse, hints, release and restore.

use serde_json::{Value, json};

use super::*;
use crate::{
    machine_topology::{
        MachineTopology,
        fixtures::{dual_socket, four_nodes, single_socket},
    },
    topology_manager::TopologyManager,
};

/// Containers by name and processors: "i" init, "s" sidecar, "a" app.
fn pod(uid: &str, containers: &[(&str, char, &str)]) -> Pod {
    let container = |(name, kind, cpu): &(&str, char, &str)| {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        let mut container = json!({"name": name, "resources": {"requests": amounts, "limits": amounts}});
        if *kind == 's' {
            container["restartPolicy"] = "Always".into();
        }
        container
    };
    let of = |kinds: &str| -> Vec<Value> {
        containers.iter().filter(|(_, kind, _)| kinds.contains(*kind)).map(container).collect()
    };
    serde_json::from_value(
        json!({"metadata": {"uid": uid}, "spec": {"initContainers": of("is"), "containers": of("a")}}),
    )
    .unwrap()
}

fn config(reserved: &str, options: &[(&str, &str)]) -> CpuManagerConfig {
    let reserved = CpuSet::parse(reserved).unwrap();
    CpuManagerConfig {
        policy: "static".into(),
        options: options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        gates: OptionGates { alpha: true, beta: true },
        reserved_cpu_milli: reserved.len() as i64 * 1000,
        reserved,
    }
}

fn manager(machine: &MachineTopology, reserved: &str, options: &[(&str, &str)]) -> CpuManager {
    let topology = Arc::new(machine.cpus.clone());
    let mut manager = CpuManager::new(&config(reserved, options), topology, PolicyName::None).unwrap();
    manager.restore(None, &ContainerMap::new()).unwrap();
    manager
}

/// Admits under a topology policy; the reason and message of a refusal.
fn admit(manager: &mut CpuManager, machine: &MachineTopology, policy: &str, pod: &Pod) -> Result<(), String> {
    let mut topology = TopologyManager::new(&machine.nodes, policy, "container", &BTreeMap::new()).unwrap();
    let admitted = topology.admit(pod, &mut [manager]);
    admitted.map_err(|error| format!("{}: {}", error.reason, error.message))
}

fn assigned(manager: &CpuManager) -> Vec<String> {
    manager.state().iter().map(|(pod, container, cpus)| format!("{pod}/{container}={cpus}")).collect()
}

#[test]
fn whole_processors_of_guaranteed_pods_are_exclusive() {
    let machine = single_socket();
    let mut manager = manager(&machine, "0", &[]);
    assert_eq!(manager.allocatable().to_string(), "1-7");
    let mut check = |pod: Pod, expected: Result<&[&str], &str>, shared: &str| {
        let found = admit(&mut manager, &machine, "none", &pod);
        assert_eq!(found.clone().err().as_deref(), expected.err());
        if let Ok(expected) = expected {
            assert_eq!(assigned(&manager), expected);
        }
        assert_eq!(manager.state().shared.to_string(), shared);
    };
    check(pod("a", &[("app", 'a', "2")]), Ok(&["a/app=1,5"]), "0,2-4,6-7");
    check(pod("b", &[("app", 'a', "1500m")]), Ok(&["a/app=1,5"]), "0,2-4,6-7");
    check(pod("a", &[("app", 'a', "2")]), Ok(&["a/app=1,5"]), "0,2-4,6-7");
    let mut burstable = pod("c", &[("app", 'a', "1")]);
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    check(burstable, Ok(&["a/app=1,5"]), "0,2-4,6-7");
    let mut pod_level = pod("d", &[("app", 'a', "1")]);
    pod_level.spec.as_mut().unwrap().resources = serde_json::from_value(
        json!({"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "2", "memory": "2Gi"}}),
    )
    .unwrap();
    check(pod_level, Ok(&["a/app=1,5"]), "0,2-4,6-7");
    let too_many = "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: \
                    requested=6, available=5, which is unexpected";
    check(pod("e", &[("app", 'a', "6")]), Err(too_many), "0,2-4,6-7");
    assert_eq!((manager.counts.pinning_requests, manager.counts.pinning_errors), (3, 1));
    assert_eq!((manager.shared_pool_milli(), manager.allocations_per_numa()), (5000, BTreeMap::from([(0, 2)])));
    assert_eq!(manager.cpu_set("a", "app").unwrap().to_string(), "1,5");
    assert_eq!(manager.cpu_set("b", "app").unwrap().to_string(), "0,2-4,6-7");
    assert!(manager.remove_stale(|pod, _| pod != "a"));
    assert_eq!(manager.state().shared.to_string(), "0-7");
    assert!(!manager.remove_stale(|_, _| false));
}

#[test]
fn init_containers_leave_theirs_to_the_next() {
    let machine = single_socket();
    let check = |containers: &[(&str, char, &str)], expected: &[&str], shared: &str| {
        let mut manager = manager(&machine, "0", &[]);
        admit(&mut manager, &machine, "none", &pod("p", containers)).unwrap();
        assert_eq!(assigned(&manager), expected, "{containers:?}");
        assert_eq!(manager.state().shared.to_string(), shared, "{containers:?}");
        // What two containers have is given back once both have ended.
        assert!(manager.remove_stale(|_, _| false));
        assert_eq!(manager.state().shared.to_string(), "0-7");
    };
    check(&[("one", 'i', "4"), ("app", 'a', "2")], &["p/app=1,5", "p/one=1-2,5-6"], "0,3-4,7");
    check(
        &[("one", 'i', "1"), ("two", 'i', "2"), ("app", 'a', "2")],
        &["p/app=1,5", "p/one=4", "p/two=1,5"],
        "0,2-3,6-7",
    );
    // A sidecar keeps running beside the app.
    check(&[("side", 's', "2"), ("app", 'a', "2")], &["p/app=2,6", "p/side=1,5"], "0,3-4,7");
    check(
        &[("one", 'i', "2"), ("side", 's', "2"), ("app", 'a', "2")],
        &["p/app=2,6", "p/one=1,5", "p/side=1,5"],
        "0,3-4,7",
    );
}

#[test]
fn full_cores_are_given_or_nothing() {
    let machine = single_socket();
    let check = |reserved: &str, cpu: &str, expected: Result<&[&str], &str>| {
        let mut manager = manager(&machine, reserved, &[("full-pcpus-only", "true")]);
        let found = admit(&mut manager, &machine, "none", &pod("p", &[("app", 'a', cpu)]));
        let found = found.map(|()| assigned(&manager));
        assert_eq!(found, expected.map(|e| e.iter().map(|s| s.to_string()).collect()).map_err(String::from));
        let failed = u64::from(expected.is_err());
        assert_eq!((manager.counts.aligned_physical_cpu, manager.counts.unaligned_physical_cpu), (1 - failed, failed));
    };
    check("0", "2", Ok(&["p/app=1,5"]));
    check("0", "3", Err("SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"));
    let few = "SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, \
               requested CPUs = 8, CPUs per core = 2";
    check("0", "8", Err(few));
}

#[test]
fn cpus_come_from_the_hint() {
    let dual = dual_socket();
    let check = |machine: &MachineTopology, policy, taken: &str, cpu, expected: Result<&str, &str>| {
        let mut manager = manager(machine, "0", &[]);
        manager.state.shared = manager.state.shared.difference(&CpuSet::parse(taken).unwrap());
        let found = admit(&mut manager, machine, policy, &pod("p", &[("app", 'a', cpu)]));
        let found = found.map(|()| manager.state().get("p", "app").unwrap().to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{policy} {taken} {cpu}");
    };
    let affinity = "TopologyAffinityError: Resources cannot be allocated with Topology locality";
    check(&dual, "single-numa-node", "", "4", Ok("1-2,7-8"));
    check(&dual, "single-numa-node", "", "6", Ok("3-5,9-11"));
    check(&dual, "single-numa-node", "", "8", Err(affinity));
    // No node has four left.
    check(&dual, "restricted", "1,7,3-4", "5", Err(affinity));
    check(&dual, "best-effort", "1,7,3-4", "5", Ok("2,5-6,8,11"));
    check(&dual, "restricted", "", "8", Ok("1,3-5,7,9-11"));
    let four = four_nodes();
    check(&four, "restricted", "", "4", Ok("2-3,10-11"));
}

#[test]
fn distribution_and_alignment_follow_the_options() {
    let check = |machine: &MachineTopology, options: &[(&str, &str)], policy, cpu, expected: &str| {
        let mut manager = manager(machine, "0", options);
        admit(&mut manager, machine, policy, &pod("p", &[("app", 'a', cpu)])).unwrap();
        assert_eq!(manager.state().get("p", "app").unwrap().to_string(), expected, "{options:?}");
    };
    let dual = dual_socket();
    check(&dual, &[("distribute-cpus-across-numa", "true")], "none", "8", "1-4,7-10");
    check(&dual, &[("distribute-cpus-across-cores", "true")], "none", "4", "1-2,6-7");
    // Two nodes of one socket are as good as one.
    check(&four_nodes(), &[("align-by-socket", "true")], "restricted", "6", "1-3,9-11");
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let machine = single_socket();
    let check = |reserved: &str, options: &[(&str, &str)], shared: &str, own: &[&str], expected: Option<&str>| {
        let mut state = CpuState { shared: CpuSet::parse(shared).unwrap(), ..CpuState::default() };
        for (index, cpus) in own.iter().enumerate() {
            let cpus = CpuSet::parse(cpus).unwrap();
            state.assignments.entry("p".into()).or_default().insert(format!("c{index}"), cpus);
        }
        let topology = Arc::new(machine.cpus.clone());
        let mut manager = CpuManager::new(&config(reserved, options), topology, PolicyName::None).unwrap();
        let text = checkpoint::write("static", &state);
        let found = manager.restore(Some(&text), &ContainerMap::new()).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), expected, "{shared} {own:?}");
    };
    check("0", &[], "0,2-7", &["1"], None);
    check("0", &[], "", &["1"], Some("default cpuset cannot be empty"));
    check("0", &[], "1-7", &[], Some("not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-7\""));
    let overlap = "pod: p, container: c0 cpuset: \"1-2\" overlaps with default cpuset \"0,2-7\"";
    check("0", &[], "0,2-7", &["1-2"], Some(overlap));
    let fewer = "current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0-9\"";
    check("0", &[], "0-9", &[], Some(fewer));
    let strict = "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-7\"";
    check("0", &[("strict-cpu-reservation", "true")], "0-7", &[], Some(strict));
    check("0", &[("strict-cpu-reservation", "true")], "1-7", &[], None);
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let check = |config: CpuManagerConfig, topology_policy, expected: &str| {
        let topology = Arc::new(single_socket().cpus);
        let found = CpuManager::new(&config, topology, topology_policy).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), Some(expected));
    };
    let none = CpuManagerConfig { policy: "none".into(), ..config("", &[("full-pcpus-only", "true")]) };
    let message = "new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]";
    check(none, PolicyName::None, message);
    check(
        CpuManagerConfig { policy: "magic".into(), ..config("0", &[]) },
        PolicyName::None,
        "unknown policy: \"magic\"",
    );
    let nothing =
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero";
    check(config("", &[]), PolicyName::None, nothing);
    let unknown = "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved \
                   set: unknown CPU ID: 9";
    check(config("9", &[]), PolicyName::None, unknown);
    let size = "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 0-1 did \
                not equal 1)";
    check(CpuManagerConfig { reserved_cpu_milli: 500, ..config("0-1", &[]) }, PolicyName::None, size);
    let socket = "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager \
                  align-by-socket policy option";
    check(config("0", &[("align-by-socket", "true")]), PolicyName::SingleNumaNode, socket);
}

#[test]
fn checkpoints_are_written_once_per_change() {
    let machine = single_socket();
    let mut manager = manager(&machine, "0", &[]);
    assert!(manager.checkpoint().is_some_and(|text| text.contains("\"defaultCpuSet\":\"0-7\"")));
    assert_eq!(manager.checkpoint(), None);
    admit(&mut manager, &machine, "none", &pod("p", &[("app", 'a', "1")])).unwrap();
    let text = manager.checkpoint().unwrap();
    assert_eq!(manager.checkpoint(), None);
    let mut again = CpuManager::new(&config("0", &[]), Arc::new(machine.cpus.clone()), PolicyName::None).unwrap();
    again.restore(Some(&text), &ContainerMap::new()).unwrap();
    assert_eq!(again.state(), manager.state());
    let mut none = CpuManager::none(Arc::new(machine.cpus));
    let error = none.restore(Some(&text), &ContainerMap::new()).unwrap_err().to_string();
    assert_eq!(error, "configured policy \"none\" differs from state checkpoint policy \"static\"");
    assert_eq!(none.cpu_set("p", "app"), None);
}
