//! Deployments, replica sets, replication controllers and budgets as the conformance texts play with them.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{Event, Pod, ReplicationController, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Cluster, config, deployment, template};

fn images(pods: &[Pod]) -> Vec<&str> {
    let mut images: Vec<_> = pods.iter().filter_map(|p| p.spec.as_ref()?.containers[0].image.as_deref()).collect();
    images.sort();
    images.dedup();
    images
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_overtaken_by_the_next() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(4, "a:1")).await;
    cluster.settle().await;
    cluster.patch::<Deployment>("web", json!({ "spec": { "template": template("stuck:2") } })).await;
    cluster.env.sleep(Duration::from_secs(30)).await;
    assert_eq!(images(&cluster.list::<Pod>().await), ["a:1", "stuck:2"]);
    cluster.patch::<Deployment>("web", json!({ "spec": { "template": template("a:3") } })).await;
    cluster.settle().await;
    let pods = cluster.list::<Pod>().await;
    assert_eq!((pods.len(), images(&pods)), (4, vec!["a:3"]));
    let sets = cluster.list::<ReplicaSet>().await;
    let sizes: i32 = sets.iter().map(|s| s.spec.as_ref().unwrap().replicas.unwrap_or(0)).sum();
    assert_eq!((sets.len(), sizes), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_made_is_told_of() {
    let cluster = Cluster::start(config()).await;
    cluster.counts.refuse("/replicasets");
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    let told = cluster.list::<Event>().await.into_iter().filter(|e| e.involved_object.name.as_deref() == Some("web"));
    let told: Vec<_> = told.map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect();
    let [(reason, message)] = told.as_slice() else { panic!("one Event, not {told:?}") };
    assert_eq!(reason, "ReplicaSetCreateError");
    assert!(message.starts_with("Failed to create new replica set \"web-"), "{message}");
    let conditions = cluster.api::<Deployment>().get("web").await.unwrap().status.unwrap().conditions.unwrap();
    let progressing = conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    assert_eq!((progressing.status.as_str(), progressing.reason.as_deref()), ("False", Some("ReplicaSetCreateError")));
}

#[tokio::test(start_paused = true)]
async fn recreation_never_mixes_versions() {
    let cluster = Cluster::start(config()).await;
    let mut web = deployment(3, "a:1");
    web["spec"]["strategy"] = json!({ "type": "Recreate" });
    cluster.create::<Deployment>(web).await;
    cluster.settle().await;
    cluster.patch::<Deployment>("web", json!({ "spec": { "template": template("a:2") } })).await;
    for _ in 0..200 {
        cluster.env.sleep(Duration::from_millis(20)).await;
        let pods = cluster.list::<Pod>().await;
        assert!(images(&pods).len() <= 1, "{:?}", images(&pods));
    }
    cluster.settle().await;
    assert_eq!(images(&cluster.list::<Pod>().await), ["a:2"]);
}

#[tokio::test(start_paused = true)]
async fn old_sets_go_and_rollouts_can_be_undone() {
    let cluster = Cluster::start(config()).await;
    let mut web = deployment(2, "a:1");
    web["spec"]["revisionHistoryLimit"] = json!(1);
    cluster.create::<Deployment>(web).await;
    for image in ["a:2", "a:3"] {
        cluster.settle().await;
        cluster.patch::<Deployment>("web", json!({ "spec": { "template": template(image) } })).await;
    }
    cluster.settle().await;
    assert_eq!(cluster.list::<ReplicaSet>().await.len(), 2, "the current one and one of history");
    cluster.patch::<Deployment>("web", json!({ "spec": { "template": template("a:2") } })).await;
    cluster.settle().await;
    let web = cluster.api::<Deployment>().get("web").await.unwrap();
    assert_eq!(web.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "4");
    assert_eq!(images(&cluster.list::<Pod>().await), ["a:2"]);
    assert_eq!(cluster.list::<ReplicaSet>().await.len(), 2, "the old set is used again");
}

/// A pod that matches is adopted; one that no longer does is let go, and another takes its place.
async fn adopts_and_releases<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(owner: Value) {
    let cluster = Cluster::start(config()).await;
    let mut orphan = template("a:1");
    orphan["metadata"]["name"] = "orphan".into();
    cluster.create::<Pod>(orphan).await;
    cluster.settle().await;
    cluster.create::<K>(owner).await;
    cluster.settle().await;
    let owners =
        async || cluster.api::<Pod>().get("orphan").await.unwrap().metadata.owner_references.unwrap_or_default();
    let adopted = owners().await;
    assert_eq!(adopted.iter().map(|o| (o.kind.as_str(), o.controller)).collect::<Vec<_>>(), [(K::KIND, Some(true))]);
    assert_eq!(cluster.list::<Pod>().await.len(), 1, "nothing more was needed");
    cluster.patch::<Pod>("orphan", json!({ "metadata": { "labels": { "app": "other" } } })).await;
    cluster.settle().await;
    assert!(owners().await.is_empty(), "{}", K::KIND);
    assert_eq!(cluster.list::<Pod>().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn matching_pods_are_adopted_and_others_released() {
    let set = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 1,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } });
    adopts_and_releases::<ReplicaSet>(set).await;
    let controller = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 1, "selector": { "app": "web" },
        "template": template("a:1") } });
    adopts_and_releases::<ReplicationController>(controller).await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_shows_in_the_conditions_and_goes() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<ResourceQuota>(json!({ "metadata": { "name": "q" }, "spec": { "hard": { "pods": "2" } } })).await;
    cluster.settle().await;
    let controller = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 3, "selector": { "app": "web" },
        "template": template("a:1") } });
    cluster.create::<ReplicationController>(controller).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    let conditions = async || {
        let status = cluster.api::<ReplicationController>().get("web").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        conditions.map(|c| (c.type_, c.reason.unwrap_or_default())).collect::<Vec<_>>()
    };
    assert_eq!(conditions().await, [("ReplicaFailure".to_string(), "FailedCreate".to_string())]);
    assert_eq!(cluster.list::<Pod>().await.len(), 2);
    cluster.patch::<ReplicationController>("web", json!({ "spec": { "replicas": 2 } })).await;
    cluster.settle().await;
    assert_eq!(conditions().await, []);
}

#[tokio::test(start_paused = true)]
async fn replication_controllers_and_replica_sets_are_changed_and_go() {
    let cluster = Cluster::start(config()).await;
    let controller = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 1, "selector": { "app": "web" },
        "template": template("a:1") } });
    cluster.create::<ReplicationController>(controller).await;
    cluster.settle().await;
    let api = cluster.api::<ReplicationController>();
    let mut found = api.get("web").await.unwrap();
    found.spec.as_mut().unwrap().replicas = Some(3);
    api.replace("web", &found).await.unwrap();
    cluster.settle().await;
    let status = api.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (3, Some(3), Some(2)));
    cluster.delete::<ReplicationController>("web", "Background").await;
    cluster.settle().await;
    assert!(cluster.list::<Pod>().await.is_empty());

    let set = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 1,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } });
    cluster.create::<ReplicaSet>(set).await;
    cluster.settle().await;
    cluster
        .patch::<ReplicaSet>(
            "web",
            json!({ "metadata": { "labels": { "patched": "yes" } },
        "spec": { "replicas": 2, "template": template("a:2") } }),
        )
        .await;
    cluster.settle().await;
    let set = cluster.api::<ReplicaSet>().get("web").await.unwrap();
    assert_eq!(set.status.unwrap().ready_replicas, Some(2));
    assert_eq!(set.metadata.labels.unwrap()["patched"], "yes");
    // The old pod stays as it is; only new ones follow the new template.
    assert_eq!(images(&cluster.list::<Pod>().await), ["a:1", "a:2"]);
}

#[tokio::test(start_paused = true)]
async fn evictions_wait_for_their_budget() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(3, "a:1")).await;
    let budget = json!({ "metadata": { "name": "b" }, "spec": { "minAvailable": 3,
        "selector": { "matchLabels": { "app": "web" } } } });
    cluster.create::<PodDisruptionBudget>(budget).await;
    cluster.settle().await;
    let pod = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    let evict = async || {
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } });
        cluster.api::<Pod>().create_subresource::<_, Value>(&pod, "eviction", &eviction).await
    };
    let refused = evict().await.unwrap_err();
    assert_eq!(refused.code, 429);
    assert_eq!(refused.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    cluster.patch::<PodDisruptionBudget>("b", json!({ "spec": { "minAvailable": 2 } })).await;
    cluster.settle().await;
    evict().await.unwrap();
    cluster.settle().await;
    assert!(cluster.api::<Pod>().find(&pod).await.unwrap().is_none());
    let status = cluster.api::<PodDisruptionBudget>().get("b").await.unwrap().status.unwrap();
    assert_eq!((status.current_healthy, status.disruptions_allowed, status.expected_pods), (3, 1, 3));
}
