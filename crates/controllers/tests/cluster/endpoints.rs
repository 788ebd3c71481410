//! What every workload kind offers beside itself: `scale`, `status`, collections that go together.
//! Run by the cluster of `main`; the conformance texts ask for each of these of each kind.
//! As in `main`, every test ends quiet.

use client::{ListParams, Patch};
use http::Request;
use k8s_openapi::{
    ListableResource, Metadata,
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
        autoscaling::v1::Scale,
        batch::v1::Job,
        core::v1::{Namespace, Pod, ReplicationController},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Cluster, config, template};

/// A workload of any kind, called `web`.
fn workload(replicas: Option<i32>, more: Value) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") });
    if let Some(replicas) = replicas {
        spec["replicas"] = replicas.into();
    }
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({ "metadata": { "name": "web" }, "spec": spec })
}

async fn scales<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(path: &str, object: Value) {
    let cluster = Cluster::start(config()).await;
    cluster.create::<K>(object).await;
    cluster.settle().await;
    let path = format!("{path}/namespaces/d/{}/web/scale", api::kinds::resource_of::<K>().plural);
    let get = async || {
        let body = cluster.client.request(Request::get(&path).body(Default::default()).unwrap()).await.unwrap();
        serde_json::from_slice::<Scale>(&body).unwrap()
    };
    let mut scale = get().await;
    assert_eq!(
        scale.status.as_ref().map(|s| (s.replicas, s.selector.as_deref())),
        Some((1, Some("app=web"))),
        "{path}"
    );
    scale.spec.as_mut().unwrap().replicas = Some(2);
    cluster.api::<K>().replace_subresource::<_, Scale>("web", "scale", &scale).await.unwrap();
    cluster.settle().await;
    assert_eq!((get().await.status.unwrap().replicas, cluster.list::<Pod>().await.len()), (2, 2), "{path}");
    let patch = Request::patch(&path).header("content-type", "application/merge-patch+json");
    let four = json!({ "spec": { "replicas": 4 } }).to_string();
    cluster.client.request(patch.body(four.into()).unwrap()).await.unwrap();
    cluster.settle().await;
    assert_eq!((get().await.status.unwrap().replicas, cluster.list::<Pod>().await.len()), (4, 4), "{path}");
}

#[tokio::test(start_paused = true)]
async fn scale_subresources_work() {
    scales::<Deployment>("/apis/apps/v1", workload(Some(1), json!({}))).await;
    scales::<ReplicaSet>("/apis/apps/v1", workload(Some(1), json!({}))).await;
    scales::<StatefulSet>("/apis/apps/v1", workload(Some(1), json!({ "serviceName": "web" }))).await;
    scales::<ReplicationController>("/api/v1", workload(Some(1), json!({ "selector": { "app": "web" } }))).await;
}

/// Conditions that somebody else writes to `status` are kept, and the controllers go on beside them.
async fn keeps_status<K>(object: Value, name: &str)
where
    K: k8s_openapi::Resource + Serialize + DeserializeOwned,
{
    let cluster = Cluster::start(config()).await;
    cluster.create::<K>(object).await;
    cluster.settle().await;
    let now = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Tests", "message": "by hand", "lastTransitionTime": now });
    let told = async || {
        let found = serde_json::to_value(cluster.api::<K>().get(name).await.unwrap()).unwrap();
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let kinds: Vec<String> = conditions.iter().filter_map(|c| Some(c["type"].as_str()?.to_string())).collect();
        (found, kinds)
    };
    let (mut found, _) = told().await;
    let mut conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.push(condition("Replaced"));
    found["status"]["conditions"] = conditions.clone().into();
    let replaced: K = serde_json::from_value(found).unwrap();
    cluster.api::<K>().replace_status(name, &replaced).await.unwrap();
    assert!(told().await.1.contains(&"Replaced".to_string()), "{}", K::KIND);
    conditions.push(condition("Patched"));
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "by": "patch" } },
        "status": { "conditions": conditions } }));
    cluster.api::<K>().patch_status(name, &patch).await.unwrap();
    let (found, kinds) = told().await;
    assert!(kinds.contains(&"Patched".to_string()), "{}: {kinds:?}", K::KIND);
    assert_eq!(found["spec"]["replicas"].as_i64().unwrap_or(1), 1, "{}", K::KIND);
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn statuses_are_written_by_themselves() {
    keeps_status::<Deployment>(workload(Some(1), json!({})), "web").await;
    keeps_status::<ReplicaSet>(workload(Some(1), json!({})), "web").await;
    keeps_status::<StatefulSet>(workload(Some(1), json!({ "serviceName": "web" })), "web").await;
    keeps_status::<DaemonSet>(workload(None, json!({})), "web").await;
    keeps_status::<ReplicationController>(workload(Some(1), json!({ "selector": { "app": "web" } })), "web").await;
    let budget = json!({ "metadata": { "name": "b" }, "spec": { "minAvailable": 1,
        "selector": { "matchLabels": { "app": "web" } } } });
    keeps_status::<PodDisruptionBudget>(budget, "b").await;
    let job = json!({ "metadata": { "name": "j" }, "spec": { "parallelism": 1, "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "runs:1" }] } } } });
    keeps_status::<Job>(job, "j").await;
}

async fn goes_together<K>(object: Value)
where
    K: ListableResource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned,
{
    let cluster = Cluster::start(config()).await;
    for name in ["one", "two", "three"] {
        let mut one = object.clone();
        one["metadata"] = json!({ "name": name, "labels": { "of": "three" } });
        cluster.create::<K>(one).await;
    }
    let mut other = object;
    other["metadata"] = json!({ "name": "other" });
    cluster.create::<K>(other).await;
    let three = ListParams::labels("of=three");
    let names = async |params: &ListParams| {
        let all = cluster.client.api::<K>().list(params).await.unwrap().items;
        all.iter().map(|o| o.metadata().name.clone().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(&three).await, ["one", "three", "two"], "{}", K::KIND);
    cluster.patch::<K>("two", json!({ "metadata": { "labels": { "patched": "yes" } } })).await;
    assert_eq!(names(&ListParams::labels("patched=yes")).await, ["two"], "{}", K::KIND);
    cluster.settle().await;
    cluster.api::<K>().delete_collection(&three, &DeleteOptions::default()).await.unwrap();
    cluster.settle().await;
    assert_eq!(names(&ListParams::default()).await, ["other"], "{}", K::KIND);
}

#[tokio::test(start_paused = true)]
async fn collections_go_together() {
    goes_together::<Deployment>(workload(Some(1), json!({}))).await;
    goes_together::<ReplicaSet>(workload(Some(1), json!({}))).await;
    goes_together::<StatefulSet>(workload(Some(1), json!({ "serviceName": "web" }))).await;
    goes_together::<DaemonSet>(workload(None, json!({}))).await;
    goes_together::<ReplicationController>(workload(Some(1), json!({ "selector": { "app": "web" } }))).await;
    let selector = json!({ "matchLabels": { "app": "web" } });
    goes_together::<PodDisruptionBudget>(json!({ "spec": { "maxUnavailable": 1, "selector": selector } })).await;
}

#[tokio::test(start_paused = true)]
async fn budgets_are_listed_over_all_namespaces() {
    let cluster = Cluster::start(config()).await;
    let budget = json!({ "metadata": { "name": "b" }, "spec": { "minAvailable": 1, "selector": {} } });
    cluster.create::<Namespace>(json!({ "metadata": { "name": "other" } })).await;
    cluster.create::<PodDisruptionBudget>(budget.clone()).await;
    let elsewhere = cluster.client.namespaced::<PodDisruptionBudget>("other");
    elsewhere.create(&serde_json::from_value(budget).unwrap()).await.unwrap();
    let all = cluster.client.api::<PodDisruptionBudget>().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 2);
    let everything = (&ListParams::default(), &DeleteOptions::default());
    cluster.api::<PodDisruptionBudget>().delete_collection(everything.0, everything.1).await.unwrap();
    assert!(cluster.list::<PodDisruptionBudget>().await.is_empty());
    assert!(elsewhere.find("b").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn revisions_are_objects_like_others() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<DaemonSet>(workload(None, json!({}))).await;
    cluster.settle().await;
    let revisions = cluster.api::<ControllerRevision>();
    let first = cluster.list::<ControllerRevision>().await.remove(0);
    let name = first.metadata.name.clone().unwrap();
    assert_eq!(first.metadata.labels.as_ref().and_then(|l| l.get("app")).map(String::as_str), Some("web"));
    cluster.patch::<ControllerRevision>(&name, json!({ "metadata": { "labels": { "seen": "yes" } } })).await;
    // One more, made by hand for the same set, that the controller takes for part of its history.
    let mut second = first.clone();
    second.metadata = ObjectMeta {
        name: Some("by-hand".into()),
        labels: first.metadata.labels.clone(),
        owner_references: first.metadata.owner_references.clone(),
        ..ObjectMeta::default()
    };
    second.revision = first.revision + 1;
    second.data = serde_json::from_value(json!({ "spec": { "template": { "made": "by hand" } } })).unwrap();
    revisions.create(&second).await.unwrap();
    let mut found = revisions.get("by-hand").await.unwrap();
    found.revision += 1;
    assert_eq!(revisions.replace("by-hand", &found).await.unwrap().revision, 3);
    let seen = revisions.list(&ListParams::labels("seen=yes")).await.unwrap().items;
    assert_eq!(seen.len(), 1);
    revisions.delete("by-hand", &DeleteOptions::default()).await.unwrap();
    assert!(revisions.find("by-hand").await.unwrap().is_none());
    revisions.delete_collection(&ListParams::labels("app=web"), &DeleteOptions::default()).await.unwrap();
    // The one in use is made again when the set is looked at.
    cluster.patch::<DaemonSet>("web", json!({ "metadata": { "labels": { "looked": "at" } } })).await;
    cluster.settle().await;
    let again = cluster.list::<ControllerRevision>().await;
    assert_eq!(again.iter().map(|r| r.data.clone()).collect::<Vec<_>>(), [first.data]);
}
