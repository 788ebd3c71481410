//! The PodResources socket, asked as a monitor asks.

use std::{sync::Arc, time::Duration};

use env::Env;
use k8s_openapi::api::core::v1::{Container, Pod};
use metrics::Metrics;
use serde_json::json;
use tonic::Code;

use super::{PodResourcesServer, PodResourcesSource, allocatable_devices, container_devices, messages::*};
use crate::{
    devices::{
        messages::{Device, HEALTHY, NumaNode as Near, TopologyInfo as Topology},
        state::{DeviceRequest, DeviceState},
    },
    grpc::PluginChannel,
};

const RESOURCE: &str = "example.com/widget";
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    pod: Arc<Pod>,
    state: DeviceState,
}

impl Node {
    fn new() -> Self {
        let mut state = DeviceState::default();
        state.connected(RESOURCE, 1, Default::default());
        let device = |id: &str, nodes: &[i64]| Device {
            id: id.into(),
            health: HEALTHY.into(),
            topology: Some(Topology { nodes: nodes.iter().map(|id| Near { id: *id }).collect() }),
        };
        state.updated(RESOURCE, 1, vec![device("a", &[0, 1]), device("b", &[])]).unwrap();
        let request = DeviceRequest {
            uid: "uid",
            container: "main",
            resource: RESOURCE,
            required: 1,
            reusable: Default::default(),
            affinity: None,
        };
        state.allocated(&request, &["a".to_string()].into(), Default::default());
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "uid"}, "spec": {
            "initContainers": [{"name": "init"}, {"name": "sidecar", "restartPolicy": "Always"}],
            "containers": [{"name": "main"}]}});
        Self { pod: Arc::new(serde_json::from_value(pod).unwrap()), state }
    }
}

impl PodResourcesSource for Node {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        vec![self.pod.clone()]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        ((namespace, name) == ("n", "p")).then(|| self.pod.clone())
    }

    fn container_resources(&self, _: &Pod, container: &Container) -> ContainerResources {
        let devices = container_devices(&self.state, "uid", &container.name);
        ContainerResources { name: container.name.clone(), devices, ..Default::default() }
    }

    fn allocatable_resources(&self) -> AllocatableResourcesResponse {
        AllocatableResourcesResponse { devices: allocatable_devices(&self.state), ..Default::default() }
    }
}

fn shown(devices: &[ContainerDevices]) -> Vec<String> {
    let near = |device: &ContainerDevices| device.topology.iter().flat_map(|t| &t.nodes).map(|n| n.id).collect();
    let one = |device: &ContainerDevices| {
        let nodes: Vec<i64> = near(device);
        format!("{}{nodes:?}", device.device_ids.join(","))
    };
    devices.iter().map(one).collect()
}

#[tokio::test]
async fn monitors_are_told_who_has_which_device() {
    let (env, root) = (Env::real(), tempfile::tempdir().unwrap());
    let server = PodResourcesServer::new(Arc::new(Node::new()), env.clone(), Metrics::default());
    let path = root.path().to_path_buf();
    env::spawn(async move { server.run(&path).await });
    let socket = root.path().join("pod-resources/kubelet.sock");
    let channel = PluginChannel::new("the kubelet", &socket.to_string_lossy(), env.clone()).unwrap();
    let list: ListPodResourcesResponse = loop {
        match channel.call(LIST, ListPodResourcesRequest {}, PATIENCE).await {
            Ok(list) => break list,
            Err(error) if error.code == Code::Unavailable => env::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let pod = list.pod_resources.first().cloned().unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("n", "p"));
    let containers: Vec<_> = pod.containers.iter().map(|c| (&*c.name, shown(&c.devices))).collect();
    assert_eq!(containers, [("sidecar", vec![]), ("main", vec!["a[0]".to_string(), "a[1]".to_string()])]);
    let alpha: ListPodResourcesResponse =
        channel.call(LIST_V1ALPHA1, ListPodResourcesRequest {}, PATIENCE).await.unwrap();
    let containers: Vec<_> = alpha.pod_resources[0].containers.iter().map(|c| (&*c.name, shown(&c.devices))).collect();
    assert_eq!(containers, [("main", vec!["a[]".to_string(), "a[]".to_string()])]);
    let get = |name: &str| GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "n".into() };
    let got: GetPodResourcesResponse = channel.call(GET, get("p"), PATIENCE).await.unwrap();
    assert_eq!(got.pod_resources, Some(pod));
    let missing = channel.call::<_, GetPodResourcesResponse>(GET, get("x"), PATIENCE).await.unwrap_err();
    assert_eq!(missing.message, "pod x in namespace n not found");
    let all: AllocatableResourcesResponse =
        channel.call(GET_ALLOCATABLE_RESOURCES, AllocatableResourcesRequest {}, PATIENCE).await.unwrap();
    assert_eq!(shown(&all.devices), ["a[0]", "a[1]", "b[]"]);
}
