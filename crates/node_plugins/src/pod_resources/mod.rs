//! The PodResources API v1: tells monitors on the node which container has which devices, processors and memory.
//! `kubelet` says what pods there are and what they have (`PodResourcesSource`); anyone who may open the socket may ask.
//! Limited in calls per second, as upstream.

pub mod messages;
mod rate_limit;
#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc, time::Duration};

use env::Env;
use k8s_openapi::api::core::v1::{Container, Pod};
use messages::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources, GET,
    GET_ALLOCATABLE_RESOURCES, GetPodResourcesRequest, GetPodResourcesResponse, LIST, LIST_V1ALPHA1,
    ListPodResourcesRequest, ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
};
use metrics::{Family, Metrics};
use rate_limit::RateLimit;
use tonic::Status;

use crate::{
    devices::{
        pod_devices::{ContainerAllocation, WITHOUT_NUMA_NODE},
        state::DeviceState,
    },
    grpc::service::{GrpcService, bind},
    plugin_metrics::{
        POD_RESOURCES_ERRORS_GET, POD_RESOURCES_REQUESTS_GET, POD_RESOURCES_REQUESTS_GET_ALLOCATABLE,
        POD_RESOURCES_REQUESTS_LIST, POD_RESOURCES_REQUESTS_TOTAL,
    },
};

const CALLS_PER_SECOND: u32 = 100;
const CALLS_BURST: u32 = 10;

pub trait PodResourcesSource: Send + Sync {
    /// Those that have not ended.
    fn active_pods(&self) -> Vec<Arc<Pod>>;
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
    fn container_resources(&self, pod: &Pod, container: &Container) -> ContainerResources;
    fn allocatable_resources(&self) -> AllocatableResourcesResponse;
}

pub struct PodResourcesServer {
    source: Arc<dyn PodResourcesSource>,
    env: Env,
    metrics: Metrics,
    limit: RateLimit,
}

impl PodResourcesServer {
    pub fn new(source: Arc<dyn PodResourcesSource>, env: Env, metrics: Metrics) -> Self {
        Self { source, env, metrics, limit: RateLimit::new(CALLS_PER_SECOND, CALLS_BURST) }
    }

    /// Serves `<root>/pod-resources/kubelet.sock` for as long as the node runs.
    pub async fn run(self, root_dir: &Path) {
        let path = root_dir.join("pod-resources/kubelet.sock");
        let mut backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let listener = loop {
            match bind(&path) {
                Ok(listener) => break listener,
                Err(error) => tracing::error!(%error, socket = %path.display(), "failed to serve pod resources"),
            }
            self.env.sleep(backoff.next_delay()).await;
        };
        let server = Arc::new(self);
        let [list, allocatable, get, list_v1alpha1] = [(); 4].map(|()| server.clone());
        let service = GrpcService::default()
            .unary(LIST_V1ALPHA1, move |_: ListPodResourcesRequest| {
                futures::future::ready(list_v1alpha1.list_v1alpha1())
            })
            .unary(LIST, move |_: ListPodResourcesRequest| futures::future::ready(list.list()))
            .unary(GET_ALLOCATABLE_RESOURCES, move |_: AllocatableResourcesRequest| {
                futures::future::ready(allocatable.allocatable())
            })
            .unary(GET, move |request: GetPodResourcesRequest| futures::future::ready(get.get(&request)));
        service.serve(listener).await;
    }

    fn begin(&self, family: &'static Family) -> Result<(), Status> {
        self.begin_version("v1")?;
        self.metrics.count(family, &["v1"]);
        Ok(())
    }

    fn begin_version(&self, version: &str) -> Result<(), Status> {
        if !self.limit.allows(self.env.monotonic()) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        self.metrics.count(&POD_RESOURCES_REQUESTS_TOTAL, &[version]);
        Ok(())
    }

    /// Names and ids alone, of the containers themselves.
    fn list_v1alpha1(&self) -> Result<ListPodResourcesResponse, Status> {
        self.begin_version("v1alpha1")?;
        let devices = |device: ContainerDevices| ContainerDevices { topology: None, ..device };
        let container = |pod: &Pod, container: &Container| {
            let ContainerResources { name, devices: found, .. } = self.source.container_resources(pod, container);
            ContainerResources { name, devices: found.into_iter().map(devices).collect(), ..Default::default() }
        };
        let pod = |pod: &Arc<Pod>| PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: pod.spec.iter().flat_map(|spec| &spec.containers).map(|one| container(pod, one)).collect(),
        };
        Ok(ListPodResourcesResponse { pod_resources: self.source.active_pods().iter().map(pod).collect() })
    }

    fn list(&self) -> Result<ListPodResourcesResponse, Status> {
        self.begin(&POD_RESOURCES_REQUESTS_LIST)?;
        let pod_resources = self.source.active_pods().iter().map(|pod| self.pod_resources(pod)).collect();
        Ok(ListPodResourcesResponse { pod_resources })
    }

    fn allocatable(&self) -> Result<AllocatableResourcesResponse, Status> {
        self.begin(&POD_RESOURCES_REQUESTS_GET_ALLOCATABLE)?;
        Ok(self.source.allocatable_resources())
    }

    fn get(&self, request: &GetPodResourcesRequest) -> Result<GetPodResourcesResponse, Status> {
        self.begin(&POD_RESOURCES_REQUESTS_GET)?;
        let GetPodResourcesRequest { pod_name, pod_namespace } = request;
        match self.source.pod(pod_namespace, pod_name) {
            Some(pod) => Ok(GetPodResourcesResponse { pod_resources: Some(self.pod_resources(&pod)) }),
            None => {
                self.metrics.count(&POD_RESOURCES_ERRORS_GET, &["v1"]);
                Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")))
            }
        }
    }

    /// Of containers that run for as long as the pod does.
    fn pod_resources(&self, pod: &Pod) -> PodResources {
        let spec = pod.spec.iter();
        let sidecars = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten());
        let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let containers = sidecars.chain(spec.flat_map(|spec| &spec.containers));
        PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: containers.map(|container| self.source.container_resources(pod, container)).collect(),
        }
    }
}

/// One entry per device and NUMA node.
pub fn container_devices(state: &DeviceState, uid: &str, container: &str) -> Vec<ContainerDevices> {
    let resources = state.pods.container(uid, container).into_iter().flatten();
    let of = |(resource, allocation): (&String, &ContainerAllocation)| {
        let by_node = allocation.devices.iter();
        let entries = by_node.flat_map(|(node, ids)| ids.iter().map(|id| entry(resource, id, Some(*node))));
        entries.collect::<Vec<_>>()
    };
    resources.flat_map(of).collect()
}

pub fn allocatable_devices(state: &DeviceState) -> Vec<ContainerDevices> {
    let of = |(resource, id, nodes): (&str, &str, &[i64])| match nodes {
        [] => vec![entry(resource, id, None)],
        nodes => nodes.iter().map(|node| entry(resource, id, Some(*node))).collect(),
    };
    state.allocatable_devices().flat_map(of).collect()
}

fn entry(resource: &str, id: &str, node: Option<i64>) -> ContainerDevices {
    let node = node.filter(|node| *node != WITHOUT_NUMA_NODE);
    let topology = node.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
    ContainerDevices { resource_name: resource.into(), device_ids: vec![id.into()], topology }
}
