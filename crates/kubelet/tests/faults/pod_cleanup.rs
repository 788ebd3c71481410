//! What the node does for itself: its labels, its cleaning up, and what it says when that fails.
//! Nothing here depends on how full the machine's disks are.

use cri::v1;
use serde_json::{Value, json};

use crate::harness::{Node, condition, pod};

#[tokio::test(start_paused = true)]
async fn labels_are_given_once() {
    let started = Node::start_with("labels", |_, config| {
        config.labels = [("team", "a"), ("topology.kubernetes.io/zone", "z")].map(|(k, v)| (k.into(), v.into())).into();
    });
    let Some(mut node) = started else { return };
    let path = "/api/v1/nodes/node";
    node.until("a node", || node.api.get(path).is_some()).await;
    let mut object = node.api.get(path).unwrap();
    let labels = &mut object["metadata"]["labels"];
    assert_eq!((&labels["team"], &labels["topology.kubernetes.io/zone"]), (&json!("a"), &json!("z")));
    labels["team"] = "b".into();
    labels["topology.kubernetes.io/zone"] = "other".into();
    labels["kubernetes.io/hostname"] = "other".into();
    node.restart_after(|api| drop(api.put(path, object))).await;
    let zone = |node: &Node| node.api.get(path).unwrap_or_default()["metadata"]["labels"].clone();
    node.until("its own zone again", || zone(&node)["topology.kubernetes.io/zone"] == "z").await;
    assert_eq!((&zone(&node)["team"], &zone(&node)["kubernetes.io/hostname"]), (&json!("b"), &json!("node")));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_cleaned_up_is_told_of() {
    let started = Node::start_on("collect", |runtime| {
        runtime.refuse("image_fs_info", "no file systems");
        runtime.refuse("remove_container", "device or resource busy");
    });
    let Some(node) = started else { return };
    node.event("ImageGCFailed", "no file systems").await;
    node.api.create_pod("crashes", pod(json!({})));
    for restarts in 0..4 {
        let count = move |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == restarts;
        node.wait("crashes", "started again", count).await;
        node.until("a running container", || !node.runtime.running("main").is_empty()).await;
        node.runtime.running("main").iter().for_each(|id| node.runtime.exit(id, 1));
    }
    node.event("ContainerGCFailed", "failed to remove container").await;
    node.event("ContainerGCFailed", "device or resource busy").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_the_network_but_those_of_the_host() {
    let without = |kind: &str| v1::RuntimeCondition {
        r#type: kind.into(),
        status: false,
        reason: "NetworkPluginNotReady".into(),
        message: "cni plugin not initialized".into(),
    };
    let conditions = vec![without("NetworkReady")];
    let status = v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() };
    let Some(node) = Node::start_on("network", |runtime| runtime.say(status)) else { return };
    let unready = || node.api.get("/api/v1/nodes/node").is_some_and(|node| condition(&node, "Ready") == "False");
    node.until("the node is not ready", unready).await;
    let mut host = pod(json!({}));
    host["hostNetwork"] = true.into();
    node.api.create_pod("plain", pod(json!({})));
    node.api.create_pod("host", host);
    node.wait("host", "ready", |pod| condition(pod, "Ready") == "True").await;
    let words = "network is not ready: container runtime network not ready: NetworkReady=false \
                 reason:NetworkPluginNotReady message:cni plugin not initialized";
    node.event("NetworkNotReady", words).await;
    assert_eq!(node.api.pod("plain").unwrap()["status"]["phase"], "Pending");
    assert!(!node.runtime.calls().contains(&"run_pod_sandbox plain".to_string()));
    node.runtime.say(v1::StatusResponse::default());
    node.wait("plain", "ready", |pod| condition(pod, "Ready") == "True").await;
    node.stop().await;
}
