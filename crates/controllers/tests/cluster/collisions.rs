//! Names that are taken: what follows from a template's hash may already belong to something else.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    core::v1::Pod,
};
use serde_json::{Value, json};

use super::{Cluster, config, deployment, template};

async fn revision(cluster: &Cluster) -> String {
    cluster.list::<ControllerRevision>().await[0].metadata.name.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_deployment_whose_set_has_its_name_taken_chooses_another() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.settle().await;
    let name = cluster.list::<ReplicaSet>().await[0].metadata.name.clone().unwrap();
    cluster.delete::<Deployment>("web", "Background").await;
    cluster.settle().await;
    let labels = json!({ "app": "other" });
    let mut theirs = template("b:1");
    theirs["metadata"]["labels"] = labels.clone();
    let other = json!({ "metadata": { "name": name }, "spec": { "replicas": 1, "selector": { "matchLabels": labels },
        "template": theirs } });
    let uid = cluster.create::<ReplicaSet>(other).await.metadata.uid;
    cluster.settle().await;
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.settle().await;
    let status = cluster.api::<Deployment>().get("web").await.unwrap().status.unwrap();
    assert_eq!((status.collision_count, status.ready_replicas), (Some(1), Some(2)));
    let taken = cluster.api::<ReplicaSet>().get(&name).await.unwrap();
    assert_eq!((taken.metadata.uid, taken.metadata.owner_references), (uid, None), "that of the other is left alone");
    assert_eq!((cluster.list::<ReplicaSet>().await.len(), cluster.list::<Pod>().await.len()), (2, 3));
}

/// Takes the name of the revision that `set` had before, and makes `set` again.
async fn take_name_of_revision<K>(cluster: &Cluster, set: Value)
where
    K: k8s_openapi::Resource + serde::Serialize + serde::de::DeserializeOwned,
{
    cluster.create::<K>(set.clone()).await;
    cluster.settle().await;
    let name = revision(cluster).await;
    cluster.delete::<K>(set["metadata"]["name"].as_str().unwrap(), "Background").await;
    cluster.settle().await;
    assert!(cluster.list::<Pod>().await.is_empty());
    let other =
        json!({ "metadata": { "name": name }, "revision": 7, "data": { "spec": { "template": template("b:1") } } });
    cluster.create::<ControllerRevision>(other).await;
    cluster.create::<K>(set).await;
    cluster.settle().await;
    let revisions = cluster.list::<ControllerRevision>().await;
    assert_eq!(revisions.len(), 2);
    let taken = revisions.iter().find(|r| r.metadata.name.as_ref() == Some(&name)).unwrap();
    assert_eq!((taken.revision, &taken.metadata.owner_references), (7, &None), "that of the other is left alone");
}

#[tokio::test(start_paused = true)]
async fn sets_whose_revision_has_its_name_taken_choose_another() {
    let selector = json!({ "matchLabels": { "app": "web" } });
    let cluster = Cluster::start(config()).await;
    let agent =
        json!({ "metadata": { "name": "agent" }, "spec": { "selector": selector, "template": template("a:1") } });
    take_name_of_revision::<DaemonSet>(&cluster, agent).await;
    let status = cluster.api::<DaemonSet>().get("agent").await.unwrap().status.unwrap();
    assert_eq!((status.collision_count, status.number_ready), (Some(1), 1));

    let cluster = Cluster::start(config()).await;
    let db = json!({ "metadata": { "name": "db" }, "spec": { "replicas": 2, "serviceName": "db", "selector": selector,
        "template": template("a:1") } });
    take_name_of_revision::<StatefulSet>(&cluster, db).await;
    let status = cluster.api::<StatefulSet>().get("db").await.unwrap().status.unwrap();
    assert_eq!((status.collision_count, status.ready_replicas), (Some(1), Some(2)));
}
