//! What is said where something is not as it should be, in upstream's words.
//! Run by the cluster of `main`.
//! Invariant: as in `main`, every test ends quiet.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::{CronJob, Job},
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use serde_json::{Value, json};

use super::{Cluster, config, template};

/// Everything said about one object for this reason.
async fn said(cluster: &Cluster, name: &str, reason: &str) -> Vec<String> {
    let about = |e: &Event| e.involved_object.name.as_deref() == Some(name) && e.reason.as_deref() == Some(reason);
    cluster.list::<Event>().await.into_iter().filter(about).filter_map(|e| e.message).collect()
}

fn pod(name: &str) -> Value {
    let mut pod = template("a:1");
    pod["metadata"]["name"] = name.into();
    pod
}

#[tokio::test(start_paused = true)]
async fn of_jobs_that_a_cron_job_did_not_start() {
    let cluster = Cluster::start(config()).await;
    let spec = json!({ "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "runs:1" }] } } });
    let cron = json!({ "metadata": { "name": "tick" },
        "spec": { "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": { "spec": spec } } });
    let cron: CronJob = cluster.create(cron).await;
    let owner = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "controller": true,
        "uid": cron.metadata.uid });
    cluster.create::<Job>(json!({ "metadata": { "name": "mine", "ownerReferences": [owner] }, "spec": spec })).await;
    cluster.settle().await;
    let expected = "Saw a job that the controller did not create or forgot: mine";
    assert_eq!(said(&cluster, "tick", "UnexpectedJob").await, [expected]);
    cluster.delete::<Job>("mine", "Background").await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "tick", "MissingJob").await, ["Active job went missing: mine"]);
}

/// Jobs that it starts itself surprise nobody, however the caches lag behind.
#[tokio::test(start_paused = true)]
async fn of_nothing_when_a_cron_job_works() {
    let cluster = Cluster::start(config()).await;
    let spec = json!({ "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "ends:0" }] } } });
    let cron = json!({ "metadata": { "name": "tick" },
        "spec": { "schedule": "*/1 * * * *", "jobTemplate": { "spec": spec } } });
    cluster.create::<CronJob>(cron).await;
    cluster.env.sleep(std::time::Duration::from_secs(200)).await;
    cluster.patch::<CronJob>("tick", json!({ "spec": { "suspend": true } })).await;
    cluster.settle().await;
    assert!(!said(&cluster, "tick", "SuccessfulCreate").await.is_empty());
    for reason in ["UnexpectedJob", "MissingJob"] {
        assert_eq!(said(&cluster, "tick", reason).await, [""; 0], "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_claims_that_cannot_have_their_volume() {
    let cluster = Cluster::start(config()).await;
    let claim = |name: &str, size: &str, class: &str, volume: &str| {
        let mut claim = json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "resources": { "requests": { "storage": size } } } });
        if !volume.is_empty() {
            claim["spec"]["volumeName"] = volume.into();
        }
        claim
    };
    let volume = json!({ "metadata": { "name": "pv" }, "spec": { "capacity": { "storage": "5Gi" },
        "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/data" }, "storageClassName": "manual" } });
    cluster.create::<PersistentVolume>(volume).await;
    cluster.create::<PersistentVolumeClaim>(claim("large", "9Gi", "manual", "pv")).await;
    cluster.create::<PersistentVolumeClaim>(claim("other", "1Gi", "else", "pv")).await;
    cluster.settle().await;
    for (name, why) in [("large", "requested PV is too small"), ("other", "storageClassName does not match")] {
        let expected = format!("Cannot bind to requested volume \"pv\": {why}");
        assert_eq!(said(&cluster, name, "VolumeMismatch").await, [expected]);
        let phase = cluster.api::<PersistentVolumeClaim>().get(name).await.unwrap().status.unwrap().phase;
        assert_eq!(phase.as_deref(), Some("Pending"));
    }
    cluster.create::<PersistentVolumeClaim>(claim("first", "1Gi", "manual", "pv")).await;
    cluster.settle().await;
    cluster.create::<PersistentVolumeClaim>(claim("second", "1Gi", "manual", "pv")).await;
    cluster.settle().await;
    let expected = "volume \"pv\" already bound to a different claim.";
    assert_eq!(said(&cluster, "second", "FailedBinding").await, [expected]);

    let class = json!({ "metadata": { "name": "late" }, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer" });
    cluster.create::<StorageClass>(class).await;
    cluster.create::<PersistentVolumeClaim>(claim("waits", "1Gi", "late", "")).await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "waits", "WaitForPodScheduled").await, [""; 0]);
    let mut user = pod("user");
    user["spec"]["schedulingGates"] = json!([{ "name": "example.com/later" }]);
    user["spec"]["volumes"] = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "waits" } }]);
    cluster.create::<Pod>(user).await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "waits", "WaitForPodScheduled").await, ["waiting for pod user to be scheduled"]);
}

#[tokio::test(start_paused = true)]
async fn of_stateful_pods_that_lost_their_identity() {
    let cluster = Cluster::start(config()).await;
    let set = json!({ "metadata": { "name": "s" }, "spec": { "replicas": 1, "serviceName": "s",
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } });
    cluster.create::<StatefulSet>(set).await;
    cluster.settle().await;
    let label = "statefulset.kubernetes.io/pod-name";
    cluster.patch::<Pod>("s-0", json!({ "metadata": { "labels": { label: null } } })).await;
    cluster.settle().await;
    let labels = cluster.api::<Pod>().get("s-0").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get(label).map(String::as_str), Some("s-0"));
    assert_eq!(said(&cluster, "s", "SuccessfulUpdate").await, ["update Pod s-0 in StatefulSet s successful"]);
}

#[tokio::test(start_paused = true)]
async fn of_pods_that_need_not_go_after_all() {
    let cluster = Cluster::start(config()).await;
    let mut tolerant = pod("tolerant");
    tolerant["spec"]["tolerations"] =
        json!([{ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600 }]);
    cluster.create::<Pod>(tolerant).await;
    cluster.settle().await;
    cluster.patch::<Node>("n", json!({ "spec": { "taints": [{ "key": "k", "effect": "NoExecute" }] } })).await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "tolerant", "TaintManagerEviction").await, [""; 0]);
    cluster.patch::<Node>("n", json!({ "spec": { "taints": null } })).await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "tolerant", "TaintManagerEviction").await, ["Cancelling deletion of Pod d/tolerant"]);
}

#[tokio::test(start_paused = true)]
async fn of_pods_under_two_budgets_and_of_evictions_that_nobody_carried_out() {
    let cluster = Cluster::start(config()).await;
    for name in ["a", "b"] {
        let spec = json!({ "minAvailable": 0, "selector": { "matchLabels": { "app": "web" } } });
        cluster.create::<PodDisruptionBudget>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    cluster.create::<Pod>(pod("p")).await;
    cluster.settle().await;
    let told = said(&cluster, "p", "MultiplePodDisruptionBudgets").await;
    assert_eq!(told, ["Pod \"d\"/\"p\" matches multiple PodDisruptionBudgets.  Chose \"a\" arbitrarily."]);
    let granted = json!({ "status": { "disruptedPods": { "p": cluster.env.now().to_string() } } });
    cluster.api::<PodDisruptionBudget>().patch_status("a", &client::Patch::Merge(granted)).await.unwrap();
    cluster.env.sleep(std::time::Duration::from_secs(180)).await;
    cluster.settle().await;
    let expected = "Pod was expected by PDB d/a to be deleted but it wasn't";
    assert_eq!(said(&cluster, "p", "NotDeleted").await, [expected]);
}
