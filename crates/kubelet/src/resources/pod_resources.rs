//! What monitors on the node are told: which pods there are, and the devices, processors and memory that their
//! containers have to themselves.
//! Answers for the PodResources server of `node_plugins`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use node_plugins::pod_resources::{
    PodResourcesServer, PodResourcesSource, allocatable_devices, container_devices,
    messages::{AllocatableResourcesResponse, ContainerMemory, ContainerResources, NumaNode, TopologyInfo},
};
use resource_managers::memory_manager::Block;

use crate::pod::{pod_spec, pod_status::is_terminal, pod_workers::Shared};

struct NodePods(Arc<Shared>);

/// Serves for as long as the node runs.
pub async fn run(shared: Arc<Shared>) {
    let (env, metrics) = (shared.env.clone(), shared.metrics.clone());
    let server = PodResourcesServer::new(Arc::new(NodePods(shared.clone())), env, metrics);
    server.run(&shared.config.root_dir).await;
}

impl PodResourcesSource for NodePods {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.0.pods.list();
        // What was last told of a pod may be ahead of what the API has.
        pods.retain(|pod| {
            let told = self.0.statuses.get(pod_spec::uid(pod)).or_else(|| pod.status.clone());
            !told.and_then(|status| status.phase).is_some_and(|phase| is_terminal(&phase))
        });
        pods
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.pods.by_name(namespace, name)
    }

    fn container_resources(&self, pod: &Pod, container: &Container) -> ContainerResources {
        let (devices, managers) = (&self.0.devices, &self.0.runtime.managers);
        let uid = pod_spec::uid(pod);
        ContainerResources {
            name: container.name.clone(),
            devices: devices.plugins.with_state(|state| container_devices(state, uid, &container.name)),
            cpu_ids: cpu_ids(managers.exclusive_cpus(uid, &container.name)),
            memory: container_memory(managers.memory(uid, &container.name)),
            dynamic_resources: devices.claims.dynamic_resources(pod, container),
        }
    }

    fn allocatable_resources(&self) -> AllocatableResourcesResponse {
        let devices = self.0.devices.plugins.with_state(allocatable_devices);
        let managers = &self.0.runtime.managers;
        let memory = container_memory(managers.allocatable_memory());
        AllocatableResourcesResponse { devices, cpu_ids: cpu_ids(managers.allocatable_cpus()), memory }
    }
}

fn cpu_ids(cpus: Vec<usize>) -> Vec<i64> {
    cpus.into_iter().map(|cpu| cpu as i64).collect()
}

fn container_memory(blocks: Vec<Block>) -> Vec<ContainerMemory> {
    let memory = |block: Block| {
        let nodes = block.numa_affinity.into_iter().map(|id| NumaNode { id: id as i64 }).collect();
        ContainerMemory { memory_type: block.resource, size: block.size, topology: Some(TopologyInfo { nodes }) }
    };
    blocks.into_iter().map(memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_by_its_numa_nodes() {
        let block = Block { numa_affinity: vec![0, 1], resource: "memory".into(), size: 7 };
        let topology = Some(TopologyInfo { nodes: vec![NumaNode { id: 0 }, NumaNode { id: 1 }] });
        let expected = ContainerMemory { memory_type: "memory".into(), size: 7, topology };
        assert_eq!(container_memory(vec![block]), [expected]);
    }
}
