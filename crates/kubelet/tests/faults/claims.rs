//! Claims on volumes of the node: used as what they are, or refused with the reason.
//! No pod starts without a volume that it asked for.

use serde_json::{Value, json};

use crate::harness::{Node, condition, pod};

/// A claim "data" bound to a volume of this kind.
fn bind(node: &Node, mode: &str, source: (&str, Value)) {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", "uid": "claim-1"},
        "spec": {"volumeName": "pv", "volumeMode": mode}, "status": {"phase": "Bound"}});
    node.api.put("/api/v1/namespaces/default/persistentvolumeclaims/data", claim);
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"volumeMode": mode, "claimRef": {"name": "data", "namespace": "default", "uid": "claim-1"}}});
    volume["spec"][source.0] = source.1;
    node.api.put("/api/v1/persistentvolumes/pv", volume);
}

fn claiming(changes: Value, read_only: bool) -> Value {
    let mut spec = pod(changes);
    spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}]);
    spec
}

#[tokio::test(start_paused = true)]
async fn devices_that_cannot_be_had_are_told_of_and_nothing_starts() {
    let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/data"}]});
    for (number, (mode, source, message)) in [
        (
            "Block",
            ("hostPath", json!({"path": "/somewhere"})),
            "MapVolume.SetUpDevice failed for volume \"pv\" : PV pv at \"/somewhere\" is a hostPath, which has no device",
        ),
        (
            "Block",
            ("local", json!({"path": "/dev/null"})),
            "MapVolume.SetUpDevice failed for volume \"pv\" : path \"/dev/null\" is not a block device",
        ),
        (
            "Filesystem",
            ("local", json!({"path": "/"})),
            "MapVolume.SetUpDevice failed for volume \"v\" : volume v has volumeMode Filesystem, but is specified in volumeDevices",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(node) = Node::start(&format!("block{number}")) else { return };
        bind(&node, mode, source);
        node.api.create_pod("broken", claiming(device.clone(), false));
        node.event("FailedMapVolume", message).await;
        assert!(node.runtime.running("main").is_empty());
        node.others_go_on().await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_only_claim_is_mounted_read_only() {
    for (number, read_only) in [true, false].into_iter().enumerate() {
        let Some(node) = Node::start(&format!("claim{number}")) else { return };
        let place = node.directory.path().join("volume");
        std::fs::create_dir(&place).unwrap();
        bind(&node, "Filesystem", ("local", json!({"path": place})));
        let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        node.api.create_pod("reader", claiming(mounts, read_only));
        node.wait("reader", "ready", |pod| condition(pod, "Ready") == "True").await;
        let mounts = node.runtime.mounts("main");
        let found = mounts.iter().find(|mount| mount.container_path == "/v").map(|mount| mount.readonly);
        assert_eq!(found, Some(read_only));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_want_one_volume_for_other_groups_are_told_of_it() {
    let Some(node) = Node::start("groups") else { return };
    let place = node.directory.path().join("volume");
    std::fs::create_dir(&place).unwrap();
    bind(&node, "Filesystem", ("local", json!({"path": place})));
    let told = |group: u32| {
        let events = node.api.find("/events/").into_iter().filter(|e| e["reason"] == "AlreadyMountedVolume");
        let of = format!("The requested fsGroup is {group}, ");
        events.filter(|e| e["message"].as_str().unwrap_or_default().contains(&of)).count()
    };
    for (name, group) in [("first", 2000), ("same", 2000), ("other", 3000)] {
        let mut spec = claiming(json!({"name": name, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}), false);
        spec["securityContext"] = json!({"fsGroup": group});
        node.api.create_pod(name, spec);
        node.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await;
    }
    let message = "The requested fsGroup is 3000, but the volume pv has GID 2000. The volume may not be shareable.";
    node.event("AlreadyMountedVolume", message).await;
    assert_eq!(told(2000), 0, "neither the first nor one that wants the same");
    node.stop().await;
}

/// The claim and its volume, changed in one place.
fn change(node: &Node, path: &str, pointer: (&str, &str), value: Value) {
    let mut object = node.api.get(path).unwrap();
    object[pointer.0][pointer.1] = value;
    node.api.put(path, object);
}

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";
const VOLUME: &str = "/api/v1/persistentvolumes/pv";

#[tokio::test(start_paused = true)]
async fn claims_that_are_being_deleted_and_volumes_of_other_nodes_are_for_nobody_new() {
    let elsewhere = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]}]}]}});
    let affinity = "failed for volume \"pv\" : no matching NodeSelectorTerms";
    let directory = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/data"}]});
    for (number, (mode, uses, path, pointer, value, reason, message)) in [
        (
            "Filesystem",
            &directory,
            CLAIM,
            ("metadata", "deletionTimestamp"),
            json!("2026-01-01T00:00:00Z"),
            "FailedMount",
            "error processing PVC default/data: PVC is being deleted".to_string(),
        ),
        (
            "Filesystem",
            &directory,
            VOLUME,
            ("spec", "nodeAffinity"),
            elsewhere.clone(),
            "FailedMount",
            format!("MountVolume.NodeAffinity check {affinity}"),
        ),
        (
            "Block",
            &device,
            VOLUME,
            ("spec", "nodeAffinity"),
            elsewhere.clone(),
            "FailedMapVolume",
            format!("MapVolume.NodeAffinity check {affinity}"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(node) = Node::start(&format!("nobody{number}")) else { return };
        let place = node.directory.path().join("volume");
        std::fs::create_dir(&place).unwrap();
        bind(&node, mode, ("local", json!({"path": place})));
        change(&node, path, pointer, value);
        node.api.create_pod("late", claiming(uses.clone(), false));
        node.event(reason, &message).await;
        assert!(node.runtime.running("main").is_empty());
        node.others_go_on().await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_is_told_in_confidence_stays_in_memory() {
    use std::os::unix::fs::MetadataExt;
    let Some(node) = Node::start("memory") else { return };
    let object =
        |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "o", "namespace": "default"}});
    node.api.put("/api/v1/namespaces/default/secrets/o", object("Secret"));
    node.api.put("/api/v1/namespaces/default/configmaps/o", object("ConfigMap"));
    let items = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let mut spec = pod(json!({}));
    spec["volumes"] = json!([
        {"name": "secret", "secret": {"secretName": "o"}},
        {"name": "configmap", "configMap": {"name": "o"}},
        {"name": "downward-api", "downwardAPI": {"items": items}},
        {"name": "projected", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
    ]);
    node.api.create_pod("told", spec);
    node.wait("told", "ready", |pod| condition(pod, "Ready") == "True").await;
    let uid = node.api.pod("told").unwrap()["metadata"]["uid"].as_str().unwrap().to_string();
    let volumes = node.directory.path().join("kubelet/pods").join(uid).join("volumes");
    let disk = volumes.metadata().unwrap().dev();
    for (kind, in_memory) in [("secret", true), ("configmap", false), ("downward-api", true), ("projected", true)] {
        let place = volumes.join(format!("kubernetes.io~{kind}")).join(kind);
        assert_eq!(place.metadata().unwrap().dev() != disk, in_memory, "{kind}");
    }
    node.api.delete_pod("told", 1);
    node.wait("told", "gone", Value::is_null).await;
    node.stop().await;
}

/// No driver is there to make a local volume larger: the node does it, for a directory by doing nothing.
#[tokio::test(start_paused = true)]
async fn a_local_volume_grows_on_its_node_while_it_is_used() {
    let Some(node) = Node::start("grown") else { return };
    let place = node.directory.path().join("volume");
    std::fs::create_dir(&place).unwrap();
    bind(&node, "Filesystem", ("local", json!({"path": place})));
    change(&node, VOLUME, ("spec", "capacity"), json!({"storage": "1Gi"}));
    change(&node, CLAIM, ("status", "capacity"), json!({"storage": "1Gi"}));
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    node.api.create_pod("writer", claiming(mounts, false));
    node.wait("writer", "ready", |pod| condition(pod, "Ready") == "True").await;
    change(&node, VOLUME, ("spec", "capacity"), json!({"storage": "2Gi"}));
    change(&node, CLAIM, ("status", "allocatedResources"), json!({"storage": "2Gi"}));
    change(&node, CLAIM, ("status", "allocatedResourceStatuses"), json!({"storage": "NodeResizePending"}));
    let message = "MountVolume.NodeExpandVolume succeeded for volume \"pv\" ";
    node.event("FileSystemResizeSuccessful", message).await;
    node.until("the claim has its size", || {
        let status = &node.api.get(CLAIM).unwrap()["status"];
        status["capacity"]["storage"] == "2Gi" && status["allocatedResourceStatuses"]["storage"].is_null()
    })
    .await;
    node.stop().await;
}
