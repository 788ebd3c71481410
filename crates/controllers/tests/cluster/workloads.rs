//! Jobs, cron jobs, daemon sets and stateful sets against the real API server.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{PersistentVolumeClaim, Pod},
};
use serde_json::{Value, json};

use super::{Cluster, config, template};

fn job_template(image: &str) -> Value {
    let mut template = json!({ "spec": { "containers": [{ "name": "c", "image": image }], "restartPolicy": "Never" } });
    template["metadata"] = json!({ "labels": { "app": "job" } });
    template
}

#[tokio::test(start_paused = true)]
async fn jobs_complete_fail_and_expire() {
    let cluster = Cluster::start(config()).await;
    let job = |name: &str, image: &str, spec: Value| {
        let mut spec = spec;
        spec["template"] = job_template(image);
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    cluster.create::<Job>(job("good", "ends:0", json!({ "completions": 5, "parallelism": 2 }))).await;
    let indexed = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
    cluster.create::<Job>(job("indexed", "ends:0", indexed)).await;
    cluster.create::<Job>(job("bad", "ends:1", json!({ "backoffLimit": 1 }))).await;
    cluster.create::<Job>(job("brief", "ends:0", json!({ "ttlSecondsAfterFinished": 30 }))).await;
    cluster.settle().await;
    let end = async |name: &str| {
        let status = cluster.api::<Job>().get(name).await.unwrap().status.unwrap();
        let last = status.conditions.clone().unwrap().last().unwrap().clone();
        (last.type_, last.reason.unwrap(), status.succeeded.unwrap_or(0), status.failed.unwrap_or(0))
    };
    assert_eq!(end("good").await, ("Complete".into(), "CompletionsReached".into(), 5, 0));
    assert_eq!(end("indexed").await, ("Complete".into(), "CompletionsReached".into(), 3, 0));
    assert_eq!(end("bad").await, ("Failed".into(), "BackoffLimitExceeded".into(), 0, 2));
    assert!(cluster.api::<Job>().find("brief").await.unwrap().is_none());
    let pods = cluster.list::<Pod>().await;
    assert!(pods.iter().all(|p| p.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)));
    assert_eq!(pods.len(), 10);
    for name in ["good", "indexed", "bad"] {
        cluster.delete::<Job>(name, "Background").await;
    }
    cluster.settle().await;
    assert!(cluster.list::<Pod>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn jobs_adopt_their_orphans_and_release_strangers() {
    let cluster = Cluster::start(config()).await;
    let spec = json!({ "parallelism": 2, "completions": 2, "template": job_template("runs:1") });
    let job: Job = cluster.create(json!({ "metadata": { "name": "j" }, "spec": spec })).await;
    cluster.settle().await;
    let pod = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    cluster.patch::<Pod>(&pod, json!({ "metadata": { "ownerReferences": null } })).await;
    cluster.settle().await;
    let meta = async || cluster.api::<Pod>().get(&pod).await.unwrap().metadata;
    let adopted = meta().await;
    assert_eq!(adopted.owner_references.unwrap()[0].uid, job.metadata.uid.unwrap());
    assert_eq!(adopted.finalizers.unwrap(), ["batch.kubernetes.io/job-tracking"]);
    cluster.patch::<Pod>(&pod, json!({ "metadata": { "labels": null } })).await;
    cluster.settle().await;
    let released = meta().await;
    assert!(released.owner_references.is_none_or(|o| o.is_empty()));
    assert!(released.finalizers.is_none_or(|f| f.is_empty()));
    assert_eq!(cluster.list::<Pod>().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn cron_jobs_start_by_the_clock() {
    let cluster = Cluster::start(config()).await;
    let cron = json!({ "metadata": { "name": "tick" }, "spec": { "schedule": "*/2 * * * *",
        "successfulJobsHistoryLimit": 2, "jobTemplate": { "spec": { "template": job_template("ends:0") } } } });
    cluster.create::<CronJob>(cron).await;
    cluster.env.sleep(Duration::from_secs(605)).await;
    let jobs = cluster.list::<Job>().await;
    let names: Vec<_> = jobs.iter().filter_map(|j| j.metadata.name.clone()).collect();
    assert_eq!(names, ["tick-29453768", "tick-29453770"]);
    let status = cluster.api::<CronJob>().get("tick").await.unwrap().status.unwrap();
    assert_eq!(status.last_schedule_time.unwrap().0.to_string(), "2026-01-01T00:10:00Z");
    assert!(status.active.is_none_or(|a| a.is_empty()) && status.last_successful_time.is_some());
}

#[tokio::test(start_paused = true)]
async fn daemon_sets_cover_nodes_and_update() {
    let cluster = Cluster::start(config()).await;
    let set = json!({ "metadata": { "name": "web" }, "spec": {
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } });
    cluster.create::<DaemonSet>(set).await;
    cluster.settle().await;
    let status = async || cluster.api::<DaemonSet>().get("web").await.unwrap().status.unwrap();
    assert_eq!((status().await.desired_number_scheduled, status().await.number_ready), (1, 1));
    cluster.patch::<DaemonSet>("web", json!({ "spec": { "template": template("a:2") } })).await;
    cluster.settle().await;
    assert_eq!(status().await.updated_number_scheduled, Some(1));
    let pods = cluster.list::<Pod>().await;
    assert_eq!(pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("a:2"));
    let mut revisions: Vec<_> = cluster.list::<ControllerRevision>().await.iter().map(|r| r.revision).collect();
    revisions.sort();
    assert_eq!(revisions, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_keep_order_and_claims() {
    let cluster = Cluster::start(config()).await;
    let claim = json!({ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let set = json!({ "metadata": { "name": "db" }, "spec": { "replicas": 3, "serviceName": "db",
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1"), "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Delete" } } });
    cluster.create::<StatefulSet>(set).await;
    cluster.settle().await;
    let names = async || {
        let mut names: Vec<_> = cluster.list::<Pod>().await.iter().filter_map(|p| p.metadata.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names().await, ["db-0", "db-1", "db-2"]);
    assert_eq!(cluster.list::<PersistentVolumeClaim>().await.len(), 3);
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "template": template("a:2") } })).await;
    cluster.settle().await;
    let status = cluster.api::<StatefulSet>().get("db").await.unwrap().status.unwrap();
    assert_eq!((status.updated_replicas, status.ready_replicas), (Some(3), Some(3)));
    assert_eq!(status.current_revision, status.update_revision);
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } })).await;
    cluster.settle().await;
    assert_eq!(names().await, ["db-0"]);
    let claims = cluster.list::<PersistentVolumeClaim>().await;
    assert_eq!(claims.iter().filter_map(|c| c.metadata.name.clone()).collect::<Vec<_>>(), ["data-db-0"]);
}
