//! Which NUMA nodes could give a container, or a whole pod, its devices: the device manager as a hint provider.
//! Asked by `resource_managers` in a pod's admission; `container_devices` then allocates by what `finish` returns.
//! Device plugins answer over sockets, so devices are only planned here: they stay reserved until the admission is over,
//! and later containers of the pod get hints for what is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Pod};
use node_plugins::devices::{
    manager::DeviceManager,
    state::{Choice, DeviceIds, DeviceRequest, DeviceState, device_limits},
};
use resource_managers::{
    BitMask, HintProvider, ProviderHints, TopologyHint,
    topology_manager::pods::{self, AllocateError},
};

/// The NUMA nodes that the topology manager wants for devices, by container; any node where it has none.
pub type DeviceAffinity = BTreeMap<String, BTreeSet<i64>>;

struct PlannedDevices {
    container: String,
    resource: String,
    devices: DeviceIds,
}

pub struct DeviceHints {
    manager: Arc<DeviceManager>,
    numa_nodes: Vec<usize>,
    planned: Vec<PlannedDevices>,
    affinity: DeviceAffinity,
}

impl DeviceHints {
    pub fn new(manager: Arc<DeviceManager>, numa_nodes: Vec<usize>) -> Self {
        Self { manager, numa_nodes, planned: vec![], affinity: DeviceAffinity::new() }
    }

    /// Ends a pod's admission: nothing stays reserved.
    pub fn finish(&mut self) -> DeviceAffinity {
        let planned = std::mem::take(&mut self.planned);
        self.manager.with_state_mut(|state| {
            for plan in planned {
                state.unreserve(&plan.resource, &plan.devices);
            }
        });
        std::mem::take(&mut self.affinity)
    }

    fn reusable(&self, state: &DeviceState, pod: &Pod, container: &str, resource: &str) -> DeviceIds {
        let had = |other: &str| {
            let plan = self.planned.iter().find(|plan| plan.container == other && plan.resource == resource);
            let planned = plan.map(|plan| plan.devices.clone());
            planned.or_else(|| state.pods.devices(pods::uid(pod), other, resource)).unwrap_or_default()
        };
        DeviceState::reusable_by(pod, container, had)
    }

    fn plan(&self, state: &DeviceState, pod: &Pod, container: &Container) -> Vec<PlannedDevices> {
        let uid = pods::uid(pod);
        let limits = device_limits(container).filter(|(resource, _)| state.is_device_plugin_resource(resource));
        let plan = |(resource, required): (&str, usize)| {
            let reusable = self.reusable(state, pod, &container.name, resource);
            let affinity = self.affinity.get(&container.name);
            let request = DeviceRequest { uid, container: &container.name, resource, required, reusable, affinity };
            // What can't be given is said when the plugin is asked.
            let Ok(Choice::Devices(devices)) = state.choose(&request, Some(&DeviceIds::new())) else { return None };
            Some(PlannedDevices { container: container.name.clone(), resource: resource.into(), devices })
        };
        limits.filter_map(plan).collect()
    }
}

impl HintProvider for DeviceHints {
    fn topology_hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        self.manager.with_state(|state| {
            let limits = device_limits(container).filter(|(resource, _)| state.is_device_plugin_resource(resource));
            let hint = |(resource, requested): (&str, usize)| {
                let allocated = state.pods.devices(pods::uid(pod), &container.name, resource);
                let reusable = self.reusable(state, pod, &container.name, resource);
                (resource.into(), resource_hints(state, &self.numa_nodes, resource, allocated, reusable, requested))
            };
            limits.map(hint).collect()
        })
    }

    fn pod_topology_hints(&self, pod: &Pod) -> ProviderHints {
        self.manager.with_state(|state| {
            let mut hints = ProviderHints::new();
            for (resource, amount) in api::pod_resources::limits(pod) {
                if !state.is_device_plugin_resource(&resource) {
                    continue;
                }
                let requested = usize::try_from(amount.value()).unwrap_or(0);
                let of = |container: &Container| state.pods.devices(pods::uid(pod), &container.name, &resource);
                let allocated: DeviceIds = pods::all_containers(pod).filter_map(of).flatten().collect();
                let allocated = Some(allocated).filter(|allocated| !allocated.is_empty());
                let found = resource_hints(state, &self.numa_nodes, &resource, allocated, DeviceIds::new(), requested);
                hints.insert(resource, found);
            }
            hints
        })
    }

    fn allocate(&mut self, pod: &Pod, container: &Container, hint: &TopologyHint) -> Result<(), AllocateError> {
        if let Some(mask) = hint.affinity {
            self.affinity.insert(container.name.clone(), mask.bits().map(|node| node as i64).collect());
        }
        let planned = self.manager.with_state_mut(|state| {
            let planned = self.plan(state, pod, container);
            for plan in &planned {
                state.reserve(&plan.resource, &plan.devices);
            }
            planned
        });
        self.planned.extend(planned);
        Ok(())
    }
}

/// None where no device of the resource is near to any NUMA node; empty where there are too few.
fn resource_hints(
    state: &DeviceState,
    numa_nodes: &[usize],
    resource: &str,
    allocated: Option<DeviceIds>,
    reusable: DeviceIds,
    requested: usize,
) -> Option<Vec<TopologyHint>> {
    let devices: BTreeMap<&str, &[i64]> = state.devices(resource).collect();
    if devices.values().all(|nodes| nodes.is_empty()) {
        return None;
    }
    let (available, reusable) = match allocated {
        // It has them: after a restart the same hints come out again.
        Some(allocated) => (allocated, DeviceIds::new()),
        None => (state.available(resource), reusable),
    };
    if available.union(&reusable).count() < requested {
        return Some(vec![]);
    }
    let mut least = numa_nodes.len();
    let mut masks: Vec<BitMask> = vec![];
    for mask in BitMask::subsets(numa_nodes) {
        let is_near =
            |nodes: &[i64]| nodes.iter().any(|node| usize::try_from(*node).is_ok_and(|node| mask.is_set(node)));
        let count = |ids: &DeviceIds| {
            ids.iter().filter(|id| devices.get(id.as_str()).is_some_and(|nodes| is_near(nodes))).count()
        };
        if devices.values().filter(|nodes| is_near(nodes)).count() >= requested {
            least = least.min(mask.count());
        }
        let with_topology = reusable.iter().filter_map(|id| devices.get(id.as_str())).filter(|nodes| !nodes.is_empty());
        if with_topology.clone().all(|nodes| is_near(nodes)) && with_topology.count() + count(&available) >= requested {
            masks.push(mask);
        }
    }
    let hint = |mask: BitMask| TopologyHint { affinity: Some(mask), preferred: mask.count() == least };
    Some(masks.into_iter().map(hint).collect())
}

#[cfg(test)]
mod tests {
    use env::Env;
    use metrics::Metrics;
    use node_plugins::devices::messages::{Device, DevicePluginOptions, HEALTHY, NumaNode, TopologyInfo};
    use resource_managers::{machine_topology, topology_manager::TopologyManager};
    use serde_json::json;

    use super::*;

    const RESOURCE: &str = "example.com/widget";

    /// A manager whose plugin offers `a@0 b@1 c`: where a device is near to a NUMA node, it is after the `@`.
    fn manager(directory: &std::path::Path, text: &str) -> Arc<DeviceManager> {
        let manager = DeviceManager::open(Env::real(), Metrics::default(), directory, Arc::default());
        let device = |text: &str| {
            let (id, node) = text.split_once('@').unwrap_or((text, ""));
            let topology = node.parse().ok().map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
            Device { id: id.into(), health: HEALTHY.into(), topology }
        };
        manager.with_state_mut(|state| {
            state.connected(RESOURCE, 1, DevicePluginOptions::default());
            state.updated(RESOURCE, 1, text.split_whitespace().map(device).collect()).unwrap();
        });
        Arc::new(manager)
    }

    /// Containers by the number of devices that each wants; those with a `-` are init containers.
    fn pod(text: &str) -> Pod {
        let container = |(index, text): (usize, &str)| {
            let limits = json!({RESOURCE: text.trim_start_matches('-')});
            json!({"name": format!("c{index}"), "resources": {"limits": limits}})
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let of = |init: bool| -> Vec<_> {
            words.iter().copied().enumerate().filter(|(_, word)| word.starts_with('-') == init).map(container).collect()
        };
        let spec = json!({"initContainers": of(true), "containers": of(false)});
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn devices_are_wanted_where_the_topology_manager_says() {
        let check = |devices: &str, policy: &str, scope: &str, containers: &str, expected: Result<&str, &str>| {
            let directory = tempfile::tempdir().unwrap();
            let manager = manager(directory.path(), devices);
            let nodes = machine_topology::NumaNode::default();
            let nodes = [0, 1].map(|id| machine_topology::NumaNode { id, ..nodes.clone() });
            let mut topology = TopologyManager::new(&nodes, policy, scope, &BTreeMap::new()).unwrap();
            let mut hints = DeviceHints::new(manager.clone(), vec![0, 1]);
            let admitted = topology.admit(&pod(containers), &mut [&mut hints]);
            let affinity = hints.finish();
            let shown: Vec<String> = affinity
                .iter()
                .map(|(container, nodes)| {
                    format!("{container}:{}", nodes.iter().map(i64::to_string).collect::<String>())
                })
                .collect();
            let found = admitted.map(|()| shown.join(" ")).map_err(|error| error.reason);
            assert_eq!(found.as_deref().map_err(|e| *e), expected, "{devices} {policy} {scope} {containers}");
            let left = manager.with_state(|state| state.available(RESOURCE).len());
            assert_eq!(left, devices.split_whitespace().count(), "nothing stays reserved");
        };
        let refused = Err("TopologyAffinityError");
        check("a@0 b@0 c@1", "single-numa-node", "container", "2", Ok("c0:0"));
        check("a@0 b@0 c@1", "single-numa-node", "container", "3", refused);
        check("a@0 b@0 c@1", "best-effort", "container", "3", Ok("c0:01"));
        // The second container sees what the first one leaves.
        check("a@0 b@0 c@1 d@1", "single-numa-node", "container", "2 2", Ok("c0:0 c1:1"));
        check("a@0 b@0 c@1 d@1", "single-numa-node", "container", "2 2 1", refused);
        // What an init container had, the next one has again.
        check("a@0 b@1 c@1", "single-numa-node", "container", "-1 1", Ok("c0:0 c1:0"));
        check("a@0 b@0 c@1", "single-numa-node", "pod", "1 1", Ok("c0:0 c1:0"));
        check("a@0 b@1", "single-numa-node", "pod", "1 1", refused);
        // Devices that are near to no node may be anywhere.
        check("a b", "single-numa-node", "container", "2", Ok(""));
    }
}
