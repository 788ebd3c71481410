//! The garbage collector as the conformance texts play with it.
//! Run by the cluster of `main`; the verdicts themselves are in the table tests of the owner graph.
//! As in `main`, every test ends quiet.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, ReplicationController},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use super::{Cluster, config, template};

fn controller(name: &str, replicas: i32) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "replicas": replicas, "selector": { "app": "web" },
        "template": template("a:1") } })
}

#[tokio::test(start_paused = true)]
async fn pods_go_with_their_controller_or_stay_as_asked() {
    for (policy, left) in [("Background", 0), ("Foreground", 0), ("Orphan", 3)] {
        let cluster = Cluster::start(config()).await;
        cluster.create::<ReplicationController>(controller("web", 3)).await;
        cluster.settle().await;
        cluster.delete::<ReplicationController>("web", policy).await;
        cluster.settle().await;
        let pods = cluster.list::<Pod>().await;
        assert_eq!(pods.len(), left, "{policy}");
        assert!(pods.iter().all(|p| p.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)), "{policy}");
        assert!(cluster.api::<ReplicationController>().find("web").await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_waits_for_those_that_go_before_it() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<ReplicationController>(controller("web", 2)).await;
    cluster.settle().await;
    for pod in cluster.list::<Pod>().await {
        let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
        cluster.patch::<Pod>(&pod.metadata.name.unwrap(), hold).await;
    }
    cluster.delete::<ReplicationController>("web", "Foreground").await;
    cluster.settle().await;
    let owner = cluster.api::<ReplicationController>().get("web").await.unwrap();
    assert_eq!(owner.metadata.finalizers.unwrap(), ["foregroundDeletion"]);
    assert!(owner.metadata.deletion_timestamp.is_some());
    let pods = cluster.list::<Pod>().await;
    assert!(pods.len() == 2 && pods.iter().all(|p| p.metadata.deletion_timestamp.is_some()));
    for pod in pods {
        cluster.patch::<Pod>(&pod.metadata.name.unwrap(), json!({ "metadata": { "finalizers": null } })).await;
    }
    cluster.settle().await;
    assert!(cluster.list::<Pod>().await.is_empty());
    assert!(cluster.api::<ReplicationController>().find("web").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_second_owner_that_stays_keeps_what_both_own() {
    let cluster = Cluster::start(config()).await;
    let map = |name: &str, owners: Value| json!({ "metadata": { "name": name, "ownerReferences": owners } });
    let leaves = cluster.create::<ConfigMap>(map("leaves", json!([]))).await.metadata.uid;
    let stays = cluster.create::<ConfigMap>(map("stays", json!([]))).await.metadata.uid;
    let owner = |name: &str, uid: &Option<String>, blocks: bool| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": blocks });
    let one = owner("leaves", &leaves, true);
    cluster.create::<ConfigMap>(map("of-both", json!([one, owner("stays", &stays, false)]))).await;
    cluster.create::<ConfigMap>(map("of-one", json!([one]))).await;
    cluster.settle().await;
    let foreground = DeleteOptions { propagation_policy: Some("Foreground".into()), ..DeleteOptions::default() };
    cluster.api::<ConfigMap>().delete("leaves", &foreground).await.unwrap();
    cluster.settle().await;
    let left: Vec<_> = cluster.list::<ConfigMap>().await.into_iter().filter_map(|m| m.metadata.name).collect();
    assert_eq!(left, ["kube-root-ca.crt", "of-both", "stays"]);
    let kept = cluster.api::<ConfigMap>().get("of-both").await.unwrap().metadata.owner_references.unwrap();
    assert_eq!(kept.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["stays"]);
}
