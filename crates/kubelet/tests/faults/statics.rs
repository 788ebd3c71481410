//! Static pods and their mirrors, and pods that only pretend to be static.
//! What runs follows the manifest, whatever happens to its mirror.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{Node, condition, pod},
};

const MIRROR: &str = "fixed-node";

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

fn start(name: &str) -> Option<Node> {
    Node::start_with(name, |_, config| {
        let directory = config.root_dir.with_file_name("manifests");
        std::fs::create_dir_all(&directory).unwrap();
        config.manifest_dir = Some(directory);
    })
}

fn write(node: &Node, spec: &Value) {
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fixed"}, "spec": spec});
    std::fs::write(node.directory.path().join("manifests/fixed.json"), manifest.to_string()).unwrap();
}

fn hash(node: &Node) -> Value {
    node.api.pod(MIRROR).unwrap_or_default()["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone()
}

#[tokio::test(start_paused = true)]
async fn an_edited_manifest_waits_for_the_end_of_what_it_was() {
    let Some(node) = start("edited") else { return };
    write(&node, &pod(json!({})));
    node.wait(MIRROR, "ready", ready).await;
    let (first, hash_before) = (node.runtime.running("main"), hash(&node));
    node.runtime.hang("stop_container", &first[0]);
    write(&node, &pod(json!({"args": ["edited"]})));
    node.event("Killing", "Stopping container main").await;
    node.env.sleep(Duration::from_secs(120)).await;
    assert_eq!(node.runtime.running("main"), first, "the new one waits");
    assert_eq!(hash(&node), hash_before, "the mirror shows the old one to its end");
    // Edited again and back while the first one ends: it runs once more, when its turn comes.
    write(&node, &pod(json!({"args": ["edited", "again"]})));
    node.env.sleep(Duration::from_secs(60)).await;
    write(&node, &pod(json!({})));
    node.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(node.runtime.running("main"), first);
    node.runtime.release();
    let other = || node.runtime.running("main").first().is_some_and(|id| *id != first[0]);
    node.until("did the manifest run again", other).await;
    node.wait(MIRROR, "ready", ready).await;
    assert_eq!((node.runtime.running("main").len(), hash(&node)), (1, hash_before));
    let made = node.runtime.calls().into_iter().filter(|call| call == "run_pod_sandbox fixed-node").count();
    assert_eq!(made, 2, "those that were removed before their turn never ran");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_was_removed_and_put_back_runs_again() {
    let Some(node) = start("put_back") else { return };
    write(&node, &pod(json!({})));
    node.wait(MIRROR, "ready", ready).await;
    let first = node.runtime.running("main");
    // As a runtime writes it.
    let uid = hash(&node).as_str().unwrap_or_default().to_string();
    let logs = node.directory.path().join(format!("log/pods/default_{MIRROR}_{uid}/main"));
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("0.log"), "").unwrap();
    // Faster than anybody looks.
    std::fs::remove_file(node.directory.path().join("manifests/fixed.json")).unwrap();
    write(&node, &pod(json!({})));
    let counted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    node.wait(MIRROR, "restarted", |pod| counted(pod) && ready(pod)).await;
    assert!(!node.runtime.running("main").contains(&first[0]));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_shows_its_pod_to_the_end() {
    let Some(node) = start("to_the_end") else { return };
    write(&node, &pod(json!({})));
    node.wait(MIRROR, "ready", ready).await;
    let (first, uid) = (node.runtime.running("main"), node.api.pod(MIRROR).unwrap()["metadata"]["uid"].clone());
    node.runtime.hang("stop_container", &first[0]);
    std::fs::remove_file(node.directory.path().join("manifests/fixed.json")).unwrap();
    node.event("Killing", "Stopping container main").await;
    node.env.sleep(Duration::from_secs(120)).await;
    let mirror = node.api.pod(MIRROR).expect("it is there as long as its pod runs");
    assert_eq!((&mirror["metadata"]["uid"], &mirror["status"]["phase"]), (&uid, &json!("Running")));
    // An edit is shown once its turn has come.
    write(&node, &pod(json!({"args": ["edited"]})));
    node.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(node.api.pod(MIRROR).unwrap()["metadata"]["uid"], uid);
    let before = hash(&node);
    node.runtime.release();
    node.wait(MIRROR, "another", |pod| ready(pod) && hash(&node) != before).await;
    std::fs::remove_file(node.directory.path().join("manifests/fixed.json")).unwrap();
    node.wait(MIRROR, "gone", Value::is_null).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_with_its_own_uid_is_changed_in_place() {
    let Some(node) = start("own") else { return };
    node.runtime.add_image("minke.local/other:1", 1);
    let write = |changes: Value| {
        let metadata = json!({"name": "fixed", "uid": "its-own"});
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod(changes)});
        std::fs::write(node.directory.path().join("manifests/fixed.json"), manifest.to_string()).unwrap();
    };
    write(json!({}));
    node.wait(MIRROR, "ready", ready).await;
    assert_eq!(hash(&node), "its-own");
    let first = node.runtime.running("main");
    // Looked at again and again, and nothing changes.
    node.env.sleep(Duration::from_secs(120)).await;
    assert_eq!(node.runtime.running("main"), first);
    write(json!({"image": "minke.local/other:1"}));
    let counted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    node.wait(MIRROR, "restarted", |pod| counted(pod) && ready(pod)).await;
    assert_eq!(node.runtime.calls().iter().filter(|call| *call == "run_pod_sandbox fixed-node").count(), 1);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn mirrors_that_are_wrong_or_gone_are_replaced() {
    let Some(node) = start("mirrors") else { return };
    let foreign = || {
        let annotations = json!({"kubernetes.io/config.mirror": "foreign", "kubernetes.io/config.source": "file"});
        let metadata = json!({"name": MIRROR, "namespace": "default", "annotations": annotations});
        let mut spec = pod(json!({}));
        spec["nodeName"] = "node".into();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    };
    // One without a manifest goes.
    node.api.put(&pod_path(MIRROR), foreign());
    node.wait(MIRROR, "gone", Value::is_null).await;
    node.api.put(&pod_path(MIRROR), foreign());
    write(&node, &pod(json!({})));
    node.wait(MIRROR, "ready", ready).await;
    let (running, own) = (node.runtime.running("main"), hash(&node));
    assert_ne!(own, "foreign");
    node.api.remove(&pod_path(MIRROR));
    node.wait(MIRROR, "there again", ready).await;
    node.api.put(&pod_path(MIRROR), foreign());
    node.wait(MIRROR, "its own again", |pod| ready(pod) && hash(&node) == own).await;
    assert_eq!(node.runtime.running("main"), running, "a mirror never influences what runs");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_makes_no_static_pod() {
    let Some(node) = Node::start("pretended") else { return };
    let annotations = json!({"kubernetes.io/config.source": "file"});
    let metadata = json!({"name": "api", "namespace": "default", "annotations": annotations});
    let mut spec = pod(json!({}));
    spec["nodeName"] = "node".into();
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    node.api.put(&pod_path("api"), object);
    node.wait("api", "ready", ready).await;
    node.api.delete_pod("api", 1);
    node.wait("api", "gone", Value::is_null).await;
    node.stop().await;
}
