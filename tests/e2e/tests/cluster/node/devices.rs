//! Devices that reach a container: through a device plugin, and through a claim and its driver. Both are the examples of
//! `node_plugins`, run by the test beside the node.

use std::{path::PathBuf, thread};

use e2e::{Cluster, eventually};
use node_plugins::{
    devices::messages::DevicePluginOptions,
    example::{
        device_plugin::{ExampleDevicePlugin, device},
        dra_driver::ExampleDraDriver,
    },
};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{apply, pod, says, until};

const DRIVER: &str = "driver.example.com";

fn kubelet_dir() -> PathBuf {
    Cluster::shared().data.join("kubelet")
}

#[test]
fn a_device_plugin_gives_its_devices_to_containers() {
    let kubectl = crate::kubectl();
    let ns = kubectl.namespace("device-plugin");
    let runtime = Runtime::new().expect("a runtime");
    let directory = kubelet_dir().join("device-plugins");
    let devices = vec![device("widget0", true), device("widget1", false)];
    let plugin = ExampleDevicePlugin::new("example.com/widget", "/dev/null", DevicePluginOptions::default(), devices);
    let (serving, socket) = (plugin.clone(), directory.join("widget.sock"));
    runtime.spawn(async move { serving.serve(&socket).await });
    let env = env::Env::real();
    eventually("the kubelet takes the plugin in", || {
        runtime.block_on(plugin.register(&directory, "widget.sock", &env)).map_err(|error| error.to_string())
    });
    let shown = |wanted: [&str; 2]| {
        eventually(&format!("the node shows {wanted:?}"), || {
            let status = kubectl.json(&["get", "node", "e2e"])["status"].clone();
            let found = ["capacity", "allocatable"].map(|list| status[list]["example.com/widget"].clone());
            if found == wanted { Ok(()) } else { Err(found) }
        })
    };
    shown(["2", "1"]);
    let widget = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  initContainers:
  - name: first
    image: IMAGE
    command: [sh, -c, "test -c /dev/widget0"]
    resources: {limits: {example.com/widget: 1}}
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "test -c /dev/widget0 && echo $EXAMPLE_DEVICES"]
    resources: {limits: {example.com/widget: 1}}
"#;
    apply(&ns, &widget.replace("NAME", "one"));
    says(&ns, "one", &["widget0"]);
    // Straight to the node, which has no other.
    plugin.set_devices(vec![device("widget0", false)]);
    shown(["1", "0"]);
    apply(&ns, &widget.replace("NAME", "two").replace("spec:", "spec:\n  nodeName: e2e"));
    let refused = until(&ns, "two", "is rejected", |pod| pod["status"]["phase"] == "Failed");
    let expected = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices \
                    example.com/widget, which is unexpected";
    assert_eq!(refused["status"]["message"], expected);
    assert_eq!(refused["status"]["reason"], "UnexpectedAdmissionError");
}

#[test]
fn a_pod_starts_with_the_device_of_its_claim() {
    let kubectl = crate::kubectl();
    let ns = kubectl.namespace("claims");
    let socket = kubelet_dir().join("plugins_registry/driver.example.com-reg.sock");
    let driver = ExampleDraDriver::new(DRIVER, &["v1.DRAPlugin"], "/var/run/cdi".as_ref());
    let (serving, path) = (driver.clone(), socket.clone());
    thread::spawn(move || Runtime::new().expect("a runtime").block_on(serving.serve(&path)));
    apply(
        &ns,
        r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: file}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: files}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeName: e2e
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: device, resourceClaimName: file}]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "test -c /dev/example && echo $EXAMPLE_CLAIM && sleep 10000"]
    resources: {claims: [{name: device}]}
"#,
    );
    let waits = || {
        let events = ns.run(&["get", "events", "--field-selector", "reason=FailedPrepareDynamicResources"]);
        if events.contains("is not allowed to use ResourceClaim file") { Ok(()) } else { Err(events) }
    };
    eventually("the pod waits for its claim", waits);
    let uid = pod(&ns, "user")["metadata"]["uid"].clone();
    let result = json!({"request": "r", "driver": DRIVER, "pool": "files", "device": "file"});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "user", "uid": uid}]}});
    let patch = status.to_string();
    ns.run(&["patch", "resourceclaim", "file", "--subresource=status", "--type=merge", "-p", &patch]);
    until(&ns, "user", "runs", |pod| pod["status"]["phase"] == "Running");
    eventually("the container has its device", || {
        let logs = ns.run(&["logs", "user"]);
        if logs == "file\n" { Ok(()) } else { Err(logs) }
    });
    ns.run(&["delete", "pod", "user"]);
    let calls = driver.calls.lock();
    assert!(calls.prepared.is_empty(), "unprepared before the pod has gone: {:?}", calls.made);
    drop(calls);
    std::fs::remove_file(&socket).expect("the driver's socket");
}
