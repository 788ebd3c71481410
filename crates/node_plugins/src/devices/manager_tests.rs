//! The device manager with the example plugin over real sockets: registration, allocation, faults, restarts.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use env::Env;
use k8s_openapi::api::core::v1::{Container, Pod};
use metrics::Metrics;
use serde_json::json;
use tokio::{sync::Notify, task::JoinHandle};
use tonic::Code;

use super::{checkpoint, manager::DeviceManager, messages::DevicePluginOptions};
use crate::{
    example::device_plugin::{ExampleDevicePlugin, device},
    registration::{PluginHandler, plugin_watcher::PluginWatcher},
};

const RESOURCE: &str = "example.com/widget";
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    root: tempfile::TempDir,
    env: Env,
    manager: Arc<DeviceManager>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    fn start_in(root: tempfile::TempDir) -> Self {
        let (env, changed) = (Env::real(), Arc::new(Notify::new()));
        let manager = DeviceManager::open(env.clone(), Metrics::default(), root.path(), changed.clone());
        let manager = Arc::new(manager);
        let task = env::spawn(manager.clone().run());
        Self { root, env, manager, changed, task }
    }

    async fn restart(self) -> Self {
        self.task.abort();
        // A process that has ended writes nothing any more.
        until("the end of what serves its plugins", || Arc::strong_count(&self.manager) == 1).await;
        self.manager.write().await.unwrap();
        Self::start_in(self.root)
    }

    fn directory(&self) -> std::path::PathBuf {
        self.root.path().join("device-plugins")
    }

    /// Serves the plugin and registers it.
    async fn plug(&self, plugin: &ExampleDevicePlugin) -> JoinHandle<()> {
        until("the kubelet's socket", || self.directory().join("kubelet.sock").exists()).await;
        let socket = self.directory().join("widget.sock");
        let serving = plugin.clone();
        let task = env::spawn(async move { serving.serve(&socket).await.unwrap() });
        until("the plugin's socket", || self.directory().join("widget.sock").exists()).await;
        plugin.register(&self.directory(), "widget.sock", &self.env).await.unwrap();
        task
    }

    async fn shows(&self, capacity: usize, allocatable: usize) {
        let shown = async {
            loop {
                let found = self.manager.capacity().await;
                let of = |counts: &std::collections::BTreeMap<String, usize>| counts.get(RESOURCE).copied();
                if (of(&found.capacity), of(&found.allocatable)) == (Some(capacity), Some(allocatable)) {
                    return;
                }
                self.changed.notified().await;
            }
        };
        self.env.timeout(PATIENCE, shown).await.unwrap_or_else(|| panic!("{capacity}/{allocatable} never shown"));
    }

    async fn allocate(&self, pod: &Pod) -> Result<(), String> {
        self.manager.allocate_pod(pod, &BTreeMap::new()).await.map_err(|error| error.to_string())
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        env::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come");
}

fn plugin(devices: &[&str]) -> ExampleDevicePlugin {
    let devices = devices.iter().map(|id| device(id, true)).collect();
    ExampleDevicePlugin::new(RESOURCE, "/dev/null", DevicePluginOptions::default(), devices)
}

fn pod(uid: &str, count: u32) -> Pod {
    let container = json!({"name": "main", "resources": {"limits": {RESOURCE: count.to_string(), "cpu": "1"}}});
    serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"containers": [container]}})).unwrap()
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

#[tokio::test]
async fn a_pod_gets_devices_and_gives_them_back() {
    let node = Node::start();
    let plugin = plugin(&["a", "b"]);
    let serving = node.plug(&plugin).await;
    node.shows(2, 2).await;
    let (one, two, three) = (pod("1", 1), pod("2", 1), pod("3", 1));
    node.allocate(&one).await.unwrap();
    node.allocate(&two).await.unwrap();
    let short = node.allocate(&three).await.unwrap_err();
    let expected = "requested number of devices unavailable for example.com/widget. Requested: 1, Available: 0";
    assert_eq!(short, expected);
    let options = node.manager.run_container_options(&one, container(&one)).await.unwrap().unwrap();
    assert_eq!(options.envs.get("EXAMPLE_DEVICES").map(String::as_str), Some("a"));
    assert_eq!(options.devices[0].container_path, "/dev/a");
    node.manager.release("1").await;
    node.allocate(&three).await.unwrap();
    plugin.set_devices(vec![device("a", true), device("b", false)]);
    node.shows(2, 1).await;
    serving.abort();
    node.shows(2, 0).await;
    let gone = node.allocate(&pod("4", 1)).await.unwrap_err();
    assert_eq!(gone, "no healthy devices present; cannot allocate unhealthy devices example.com/widget");
}

#[tokio::test]
async fn what_pods_have_outlives_restarts_of_either_side() {
    let node = Node::start();
    let plugin = plugin(&["a", "b"]);
    let serving = node.plug(&plugin).await;
    node.shows(2, 2).await;
    let one = pod("1", 1);
    node.allocate(&one).await.unwrap();
    serving.abort();
    node.shows(2, 0).await;
    let serving = node.plug(&plugin).await;
    node.shows(2, 2).await;
    serving.abort();
    node.shows(2, 0).await;
    let node = node.restart().await;
    node.shows(0, 0).await;
    let options = node.manager.run_container_options(&one, container(&one)).await.unwrap().unwrap();
    assert_eq!(options.devices[0].container_path, "/dev/a", "known before the plugin is back");
    node.plug(&plugin).await;
    node.shows(2, 2).await;
    node.allocate(&one).await.unwrap();
    node.allocate(&pod("2", 1)).await.unwrap();
    assert!(node.allocate(&pod("3", 1)).await.is_err());
    node.manager.release_unknown(|uid| uid == "2").await;
    node.allocate(&pod("3", 1)).await.unwrap();
    let calls = plugin.calls.lock().made.clone();
    let allocations: Vec<&String> = calls.iter().filter(|call| call.starts_with("Allocate")).collect();
    assert_eq!(allocations, ["Allocate a", "Allocate b", "Allocate a"]);
}

#[tokio::test]
async fn a_torn_checkpoint_is_left_behind() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("device-plugins").join(checkpoint::FILE_NAME);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, b"{\"Data\":{\"PodDev").unwrap();
    let node = Node::start_in(root);
    node.plug(&plugin(&["a"])).await;
    node.shows(1, 1).await;
    node.allocate(&pod("1", 1)).await.unwrap();
    let text = std::fs::read(&file).unwrap();
    assert_eq!(checkpoint::decode(&text).unwrap().pods.pod_uids().collect::<Vec<_>>(), ["1"]);
}

#[tokio::test]
async fn a_failed_allocation_leaves_nothing_behind() {
    let node = Node::start();
    let plugin = plugin(&["a"]);
    node.plug(&plugin).await;
    node.shows(1, 1).await;
    plugin.fail("Allocate", &[Some(Code::Internal), None]);
    let failed = node.allocate(&pod("1", 1)).await.unwrap_err();
    assert_eq!(failed, "rpc error: code = Internal desc = Allocate fails");
    // One that hangs: its pod is deleted meanwhile.
    let hanging = pod("2", 1);
    let cut_off = node.env.timeout(Duration::from_millis(200), node.allocate(&hanging)).await;
    assert!(cut_off.is_none());
    node.allocate(&pod("3", 1)).await.unwrap();
}

#[tokio::test]
async fn a_plugin_may_prefer_devices_and_make_them_ready() {
    let node = Node::start();
    let options = DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let devices = ["a", "b", "c"].map(|id| device(id, true)).to_vec();
    let plugin = ExampleDevicePlugin::new(RESOURCE, "/dev/null", options, devices);
    plugin.calls.lock().preferred = vec!["c".into()];
    plugin.calls.lock().cdi_devices = vec!["example.com/widget=c".into()];
    node.plug(&plugin).await;
    node.shows(3, 3).await;
    let one = pod("1", 1);
    node.allocate(&one).await.unwrap();
    let options = node.manager.run_container_options(&one, container(&one)).await.unwrap().unwrap();
    assert_eq!(options.cdi_devices, ["example.com/widget=c"]);
    plugin.fail("PreStartContainer", &[Some(Code::Internal)]);
    let refused = node.manager.run_container_options(&one, container(&one)).await.unwrap_err().to_string();
    let expected = "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = \
                    PreStartContainer fails";
    assert_eq!(refused, expected);
    let calls = plugin.calls.lock().made.clone();
    let expected = [
        "GetDevicePluginOptions",
        "GetPreferredAllocation a,b,c",
        "Allocate c",
        "PreStartContainer c",
        "PreStartContainer c",
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn plugins_that_cannot_be_used_are_told_why() {
    let node = Node::start();
    until("the kubelet's socket", || node.directory().join("kubelet.sock").exists()).await;
    let check = async |resource: &str, expected: &str| {
        let plugin = ExampleDevicePlugin::new(resource, "/dev/null", DevicePluginOptions::default(), vec![]);
        let refused = plugin.register(&node.directory(), "none.sock", &node.env).await.unwrap_err();
        assert!(refused.message.contains(expected), "{refused}");
    };
    check("cpu", "the ResourceName \"cpu\" is invalid").await;
    check("kubernetes.io/x", "the ResourceName \"kubernetes.io/x\" is invalid").await;
    check(RESOURCE, "failed to get device plugin options").await;
    assert!(node.manager.capacity().await.capacity.is_empty());
}

#[tokio::test]
async fn plugins_are_found_in_the_directory_of_all_plugins() {
    let node = Node::start();
    let registry = node.root.path().join("plugins_registry");
    let handler: Arc<dyn PluginHandler> = node.manager.clone();
    let watcher = PluginWatcher::new(node.env.clone(), registry.clone(), [("DevicePlugin", handler)].into());
    env::spawn(Arc::new(watcher).run());
    let plugin = plugin(&["a"]);
    let serving = plugin.clone();
    let socket = registry.join("widget.sock");
    let path = socket.clone();
    env::spawn(async move { serving.serve(Path::new(&path)).await.unwrap() });
    node.shows(1, 1).await;
    until("the answer", || plugin.calls.lock().registration.iter().any(|status| status.plugin_registered)).await;
    std::fs::remove_file(&socket).unwrap();
    node.shows(1, 0).await;
}
