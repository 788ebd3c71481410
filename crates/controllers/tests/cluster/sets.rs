//! Stateful sets and daemon sets as the conformance texts play with them.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::{collections::BTreeMap, time::Duration};

use client::Patch;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, StatefulSet},
        core::v1::{Node, PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use super::{Cluster, config, template};

/// Image and uid by pod name.
async fn pods(cluster: &Cluster) -> BTreeMap<String, (String, String)> {
    let all = cluster.list::<Pod>().await.into_iter();
    all.map(|p| {
        let image = p.spec.and_then(|s| s.containers[0].image.clone()).unwrap_or_default();
        (p.metadata.name.unwrap_or_default(), (image, p.metadata.uid.unwrap_or_default()))
    })
    .collect()
}

async fn images(cluster: &Cluster) -> Vec<String> {
    pods(cluster).await.into_iter().map(|(name, (image, _))| format!("{name} {image}")).collect()
}

fn stateful(replicas: i32, image: &str, more: Value) -> Value {
    let mut spec = json!({ "replicas": replicas, "serviceName": "db", "template": template(image),
        "selector": { "matchLabels": { "app": "web" } } });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({ "metadata": { "name": "db" }, "spec": spec })
}

async fn set_ready(cluster: &Cluster, pod: &str, status: &str) {
    let patch = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
    cluster.api::<Pod>().patch_status(pod, &Patch::Strategic(patch)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_scale_in_order_and_halt_at_a_sick_pod() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<StatefulSet>(stateful(1, "a:1", json!({}))).await;
    cluster.settle().await;
    set_ready(&cluster, "db-0", "False").await;
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 3 } })).await;
    cluster.settle().await;
    assert_eq!(images(&cluster).await, ["db-0 a:1"]);
    set_ready(&cluster, "db-0", "True").await;
    cluster.settle().await;
    assert_eq!(images(&cluster).await, ["db-0 a:1", "db-1 a:1", "db-2 a:1"]);
    for pod in ["db-0", "db-1", "db-2"] {
        set_ready(&cluster, pod, "False").await;
    }
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 0 } })).await;
    cluster.settle().await;
    assert_eq!(pods(&cluster).await.len(), 3, "nothing goes while all are sick");
    // The first sick one goes last, and need not get well.
    for pod in ["db-2", "db-1"] {
        set_ready(&cluster, pod, "True").await;
        cluster.settle().await;
    }
    assert!(pods(&cluster).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn parallel_stateful_sets_scale_whoever_is_sick() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<StatefulSet>(stateful(3, "stuck:1", json!({ "podManagementPolicy": "Parallel" }))).await;
    cluster.settle().await;
    assert_eq!(pods(&cluster).await.len(), 3);
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 0 } })).await;
    cluster.settle().await;
    assert!(pods(&cluster).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_update_in_phases_and_go_back() {
    let cluster = Cluster::start(config()).await;
    let partition =
        |n: i32| json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": n } } });
    cluster.create::<StatefulSet>(stateful(3, "a:1", partition(3))).await;
    cluster.settle().await;
    let revisions = async || {
        let status = cluster.api::<StatefulSet>().get("db").await.unwrap().status.unwrap();
        (status.current_revision.unwrap(), status.update_revision.unwrap())
    };
    let (first, _) = revisions().await;
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "template": template("a:2") } })).await;
    cluster.settle().await;
    assert_eq!(images(&cluster).await, ["db-0 a:1", "db-1 a:1", "db-2 a:1"], "beyond the partition is nobody");
    assert_ne!(revisions().await.1, first);
    for (n, expected) in [
        (2, ["db-0 a:1", "db-1 a:1", "db-2 a:2"]),
        (1, ["db-0 a:1", "db-1 a:2", "db-2 a:2"]),
        (0, ["db-0 a:2", "db-1 a:2", "db-2 a:2"]),
    ] {
        cluster.patch::<StatefulSet>("db", json!({ "spec": partition(n) })).await;
        cluster.settle().await;
        assert_eq!(images(&cluster).await, expected);
    }
    // A canary that dies comes back in its own version.
    cluster.api::<Pod>().delete("db-2", &DeleteOptions::default()).await.unwrap();
    cluster.settle().await;
    assert_eq!(images(&cluster).await[2], "db-2 a:2");
    let (current, update) = revisions().await;
    assert_eq!(current, update);
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "template": template("a:1") } })).await;
    cluster.settle().await;
    assert_eq!(images(&cluster).await, ["db-0 a:1", "db-1 a:1", "db-2 a:1"]);
    assert_eq!(revisions().await, (first.clone(), first), "the first revision is used again");
}

#[tokio::test(start_paused = true)]
async fn a_stateful_pod_that_failed_is_made_again() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<StatefulSet>(stateful(1, "a:1", json!({}))).await;
    cluster.settle().await;
    let before = pods(&cluster).await["db-0"].1.clone();
    let evicted = json!({ "status": { "phase": "Failed", "reason": "Evicted" } });
    cluster.api::<Pod>().patch_status("db-0", &Patch::Merge(evicted)).await.unwrap();
    cluster.settle().await;
    let after = pods(&cluster).await;
    assert_eq!(after.len(), 1);
    assert_ne!(after["db-0"].1, before);
}

fn claim_template() -> Value {
    json!([{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } }])
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pod_gets_its_claim_back() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<StatefulSet>(stateful(1, "a:1", json!({ "volumeClaimTemplates": claim_template() }))).await;
    cluster.settle().await;
    let uid = async || cluster.api::<PersistentVolumeClaim>().find("data-db-0").await.unwrap().unwrap().metadata.uid;
    let before = uid().await;
    let pending = Patch::Merge(json!({ "status": { "phase": "Pending", "conditions": [] } }));
    cluster.api::<Pod>().patch_status("db-0", &pending).await.unwrap();
    cluster.api::<PersistentVolumeClaim>().delete("data-db-0", &DeleteOptions::default()).await.unwrap();
    cluster.patch::<PersistentVolumeClaim>("data-db-0", json!({ "metadata": { "finalizers": null } })).await;
    cluster.settle().await;
    assert_ne!(uid().await, before, "another was made");
}

#[tokio::test(start_paused = true)]
async fn claims_go_with_their_set_or_stay() {
    for (policy, left) in [("Delete", 0), ("Retain", 2)] {
        let cluster = Cluster::start(config()).await;
        let claims = json!({ "volumeClaimTemplates": claim_template(),
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": policy, "whenScaled": "Retain" } });
        cluster.create::<StatefulSet>(stateful(2, "a:1", claims)).await;
        cluster.settle().await;
        let claims = cluster.list::<PersistentVolumeClaim>().await;
        let owned = claims.iter().filter(|c| c.metadata.owner_references.iter().flatten().any(|o| o.name == "db"));
        assert_eq!((claims.len(), owned.count()), (2, 2 - left));
        cluster.delete::<StatefulSet>("db", "Background").await;
        cluster.settle().await;
        assert!(pods(&cluster).await.is_empty());
        assert_eq!(cluster.list::<PersistentVolumeClaim>().await.len(), left, "{policy}");
    }
}

fn daemons(image: &str, more: Value) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template(image) });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({ "metadata": { "name": "agent" }, "spec": spec })
}

async fn second_node(cluster: &Cluster) {
    cluster.create::<Node>(json!({ "metadata": { "name": "m" } })).await;
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    cluster.api::<Node>().patch_status("m", &Patch::Merge(status)).await.unwrap();
    cluster.env.sleep(Duration::from_secs(2)).await;
}

/// Node, image and uid of each pod.
async fn placed(cluster: &Cluster) -> BTreeMap<String, (String, String)> {
    let all = cluster.list::<Pod>().await.into_iter();
    all.map(|p| {
        let spec = p.spec.unwrap_or_default();
        let image = spec.containers[0].image.clone().unwrap_or_default();
        (spec.node_name.unwrap_or_default(), (image, p.metadata.uid.unwrap_or_default()))
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn daemons_that_go_or_fail_come_back() {
    let cluster = Cluster::start(config()).await;
    second_node(&cluster).await;
    cluster.create::<DaemonSet>(daemons("a:1", json!({}))).await;
    cluster.settle().await;
    let before = placed(&cluster).await;
    assert_eq!(before.keys().collect::<Vec<_>>(), ["m", "n"]);
    let name = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    cluster.api::<Pod>().delete(&name, &DeleteOptions::default()).await.unwrap();
    cluster.settle().await;
    assert_eq!(placed(&cluster).await.keys().collect::<Vec<_>>(), ["m", "n"]);
    let name = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    cluster.api::<Pod>().patch_status(&name, &failed).await.unwrap();
    cluster.settle().await;
    assert!(cluster.api::<Pod>().find(&name).await.unwrap().is_none(), "the failed one is gone");
    assert_eq!(placed(&cluster).await.len(), 2);
    cluster.delete::<DaemonSet>("agent", "Background").await;
    cluster.settle().await;
    assert!(placed(&cluster).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn daemons_follow_the_labels_of_nodes() {
    let cluster = Cluster::start(config()).await;
    second_node(&cluster).await;
    let mut set = daemons("a:1", json!({}));
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({ "colour": "blue" });
    cluster.create::<DaemonSet>(set).await;
    cluster.settle().await;
    assert!(placed(&cluster).await.is_empty());
    let paint = async |colour: &str| {
        cluster.patch::<Node>("m", json!({ "metadata": { "labels": { "colour": colour } } })).await;
        cluster.settle().await;
        placed(&cluster).await.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(paint("blue").await, ["m"]);
    assert!(paint("green").await.is_empty());
    let selector = json!({ "spec": { "template": { "spec": { "nodeSelector": { "colour": "green" } } } } });
    cluster.patch::<DaemonSet>("agent", selector).await;
    cluster.settle().await;
    assert_eq!(placed(&cluster).await.into_keys().collect::<Vec<_>>(), ["m"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_restarts_no_daemon_without_need() {
    let cluster = Cluster::start(config()).await;
    second_node(&cluster).await;
    cluster.create::<DaemonSet>(daemons("a:1", json!({}))).await;
    cluster.settle().await;
    let before = placed(&cluster).await;
    cluster.patch::<DaemonSet>("agent", json!({ "spec": { "template": template("stuck:2") } })).await;
    cluster.settle().await;
    let halfway = placed(&cluster).await;
    let untouched: Vec<_> = before.iter().filter(|(node, pod)| halfway.get(*node) == Some(pod)).collect();
    assert_eq!(untouched.len(), 1, "{halfway:?}");
    cluster.patch::<DaemonSet>("agent", json!({ "spec": { "template": template("a:1") } })).await;
    cluster.settle().await;
    let after = placed(&cluster).await;
    assert!(after.values().all(|(image, _)| image == "a:1"), "{after:?}");
    let (node, pod) = untouched[0];
    assert_eq!(after.get(node), Some(pod));
}
