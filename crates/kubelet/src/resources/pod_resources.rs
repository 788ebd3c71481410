//! What monitors on the node are told: which pods there are, and the devices of their containers.
//! Answers for the PodResources server of `node_plugins`.
//! Processors and memory are those of no container alone, as with upstream's policies "none".

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use node_plugins::pod_resources::{
    PodResourcesServer, PodResourcesSource, allocatable_devices, container_devices,
    messages::{AllocatableResourcesResponse, ContainerResources},
};

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
        let devices = &self.0.devices;
        let of = |state: &_| container_devices(state, pod_spec::uid(pod), &container.name);
        ContainerResources {
            name: container.name.clone(),
            devices: devices.plugins.with_state(of),
            dynamic_resources: devices.claims.dynamic_resources(pod, container),
            ..Default::default()
        }
    }

    fn allocatable_resources(&self) -> AllocatableResourcesResponse {
        let devices = self.0.devices.plugins.with_state(allocatable_devices);
        AllocatableResourcesResponse { devices, ..Default::default() }
    }
}
