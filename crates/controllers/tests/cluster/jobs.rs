//! Jobs and cron jobs as the conformance texts play with them.
//! Run by the cluster of `main`; the rules of policies are in the table tests of the job's plan.
//! As in `main`, every test ends quiet, unless a clock keeps it going.

use std::time::Duration;

use client::{ListParams, Patch};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::{CronJob, Job, JobStatus},
        core::v1::{Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use super::{Cluster, config, deployment};

fn spec(image: &str, more: Value) -> Value {
    let mut spec = json!({ "template": { "metadata": { "labels": { "app": "job" } }, "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": image }] } } });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    spec
}

fn job(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "name": name, "labels": { "of": "tests" } }, "spec": spec })
}

#[tokio::test(start_paused = true)]
async fn indexed_pods_know_their_number_and_have_names() {
    let cluster = Cluster::start(config()).await;
    let indexed = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
    cluster.create::<Job>(job("j", spec("runs:1", indexed))).await;
    cluster.settle().await;
    let mut found = Vec::new();
    for pod in cluster.list::<Pod>().await {
        let key = "batch.kubernetes.io/job-completion-index";
        let index = pod.metadata.annotations.unwrap()[key].clone();
        assert_eq!(pod.metadata.labels.unwrap()[key], index);
        let spec = pod.spec.unwrap();
        let variable = spec.containers[0].env.clone().unwrap().remove(0);
        let path = variable.value_from.unwrap().field_ref.unwrap().field_path;
        assert_eq!((variable.name.as_str(), path), ("JOB_COMPLETION_INDEX", format!("metadata.labels['{key}']")));
        assert!(pod.metadata.name.unwrap().starts_with(&format!("j-{index}-")));
        found.push(spec.hostname.unwrap());
    }
    found.sort();
    assert_eq!(found, ["j-0", "j-1", "j-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_disrupted_pod_is_no_failure_when_the_policy_says_so() {
    let cluster = Cluster::start(config()).await;
    let policy = json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] } });
    cluster.create::<Job>(job("j", spec("runs:1", policy))).await;
    cluster.settle().await;
    let first = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": first } });
    cluster.api::<Pod>().create_subresource::<_, Value>(&first, "eviction", &eviction).await.unwrap();
    cluster.settle().await;
    let pods = cluster.list::<Pod>().await;
    assert_eq!(pods.len(), 1);
    assert_ne!(pods[0].metadata.name.as_deref(), Some(first.as_str()), "another took its place");
    let status = cluster.api::<Job>().get("j").await.unwrap().status.unwrap();
    assert_eq!((status.failed.unwrap_or(0), status.conditions.unwrap_or_default().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn restarts_on_the_node_are_no_failures() {
    let cluster = Cluster::start(config()).await;
    let mut flaky = spec("runs:1", json!({ "backoffLimit": 4, "completions": 1 }));
    flaky["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    cluster.create::<Job>(job("j", flaky)).await;
    cluster.settle().await;
    let pod = cluster.list::<Pod>().await[0].metadata.name.clone().unwrap();
    let container = |count: i32, state: Value| {
        json!({ "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": count, "state": state }] })
    };
    for count in 1..=3 {
        let status = json!({ "status": container(count, json!({ "running": {} })) });
        cluster.api::<Pod>().patch_status(&pod, &Patch::Merge(status)).await.unwrap();
        cluster.settle().await;
    }
    let mut status = container(3, json!({ "terminated": { "exitCode": 0, "finishedAt": "2026-01-01T00:10:00Z" } }));
    status["phase"] = "Succeeded".into();
    cluster.api::<Pod>().patch_status(&pod, &Patch::Merge(json!({ "status": status }))).await.unwrap();
    cluster.settle().await;
    let status = cluster.api::<Job>().get("j").await.unwrap().status.unwrap();
    assert_eq!((status.succeeded, status.failed.unwrap_or(0)), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn jobs_are_suspended_resumed_and_go_with_their_pods() {
    let cluster = Cluster::start(config()).await;
    cluster
        .create::<Job>(job("j", spec("ends:0", json!({ "suspend": true, "completions": 2, "parallelism": 2 }))))
        .await;
    cluster.settle().await;
    let status = async || cluster.api::<Job>().get("j").await.unwrap().status.unwrap();
    let conditions = async || {
        let conditions = status().await.conditions.unwrap_or_default().into_iter();
        conditions.map(|c| format!("{} {}", c.type_, c.status)).collect::<Vec<_>>()
    };
    assert_eq!((conditions().await, cluster.list::<Pod>().await.len()), (vec!["Suspended True".to_string()], 0));
    cluster.patch::<Job>("j", json!({ "metadata": { "labels": { "patched": "yes" } } })).await;
    let mut found = cluster.api::<Job>().get("j").await.unwrap();
    found.spec.as_mut().unwrap().suspend = Some(false);
    cluster.api::<Job>().replace("j", &found).await.unwrap();
    cluster.settle().await;
    assert_eq!(status().await.succeeded, Some(2));
    assert!(conditions().await.contains(&"Complete True".to_string()));
    let labelled = cluster.client.api::<Job>().list(&ListParams::labels("of=tests,patched=yes")).await.unwrap();
    assert_eq!(labelled.items.len(), 1);
    let options = DeleteOptions { propagation_policy: Some("Background".into()), ..DeleteOptions::default() };
    cluster.api::<Job>().delete_collection(&ListParams::labels("of=tests"), &options).await.unwrap();
    cluster.settle().await;
    assert!(cluster.list::<Job>().await.is_empty() && cluster.list::<Pod>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_suspended_while_it_runs_has_not_failed() {
    let cluster = Cluster::start(config()).await;
    let strict = json!({ "backoffLimit": 0, "completions": 2, "parallelism": 2 });
    cluster.create::<Job>(job("j", spec("runs:1", strict))).await;
    cluster.settle().await;
    for (suspend, pods) in [(true, 0), (false, 2), (true, 0), (false, 2)] {
        cluster.patch::<Job>("j", json!({ "spec": { "suspend": suspend } })).await;
        cluster.settle().await;
        assert_eq!(cluster.list::<Pod>().await.len(), pods);
        let status = cluster.api::<Job>().get("j").await.unwrap().status.unwrap();
        let conditions: Vec<_> =
            status.conditions.iter().flatten().map(|c| (c.type_.as_str(), c.status == "True")).collect();
        assert_eq!((status.active.unwrap_or(0), status.failed), (pods as i32, None));
        assert_eq!(conditions, [("Suspended", suspend)]);
    }
    // Fewer at once is no failure either.
    cluster.patch::<Job>("j", json!({ "spec": { "parallelism": 1 } })).await;
    cluster.settle().await;
    let status = cluster.api::<Job>().get("j").await.unwrap().status.unwrap();
    assert_eq!((status.active, status.failed, status.terminating), (Some(1), None, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn jobs_of_other_managers_are_left_alone() {
    let cluster = Cluster::start(config()).await;
    let managed = |name: &str| json!({ "managedBy": name });
    cluster.create::<Job>(job("theirs", spec("ends:0", managed("example.com/queue")))).await;
    cluster.create::<Job>(job("ours", spec("ends:0", managed("kubernetes.io/job-controller")))).await;
    cluster.settle().await;
    let status = async |name: &str| cluster.api::<Job>().get(name).await.unwrap().status.unwrap_or_default();
    assert_eq!(status("theirs").await, JobStatus::default());
    assert_eq!(status("ours").await.succeeded, Some(1));
    let owners = cluster.list::<Pod>().await.into_iter().flat_map(|p| p.metadata.owner_references.unwrap_or_default());
    assert_eq!(owners.map(|o| o.name).collect::<Vec<_>>(), ["ours"]);
}

/// Names of the jobs after three and a half minutes of a cron job whose jobs never end.
async fn after_minutes(more: Value) -> Vec<String> {
    let cluster = Cluster::start(config()).await;
    let mut cron = json!({ "schedule": "* * * * *", "jobTemplate": { "spec": spec("runs:1", json!({})) } });
    for (field, value) in more.as_object().into_iter().flatten() {
        cron[field] = value.clone();
    }
    cluster.create::<CronJob>(json!({ "metadata": { "name": "tick" }, "spec": cron })).await;
    cluster.env.sleep(Duration::from_secs(210)).await;
    let status = cluster.api::<CronJob>().get("tick").await.unwrap().status.unwrap_or_default();
    let mut active: Vec<_> = status.active.into_iter().flatten().filter_map(|a| a.name).collect();
    let mut jobs: Vec<_> = cluster.list::<Job>().await.into_iter().filter_map(|j| j.metadata.name).collect();
    active.sort();
    jobs.sort();
    assert_eq!(active, jobs, "all of them are active, and said to be");
    jobs
}

#[tokio::test(start_paused = true)]
async fn cron_jobs_overlap_as_their_policy_allows() {
    let minute = |n: i64| format!("tick-{}", 29_453_760 + n);
    assert_eq!(after_minutes(json!({})).await, [minute(1), minute(2), minute(3)]);
    assert_eq!(after_minutes(json!({ "concurrencyPolicy": "Forbid" })).await, [minute(1)]);
    assert_eq!(after_minutes(json!({ "concurrencyPolicy": "Replace" })).await, [minute(3)]);
    assert_eq!(after_minutes(json!({ "suspend": true })).await, Vec::<String>::new());
}

/// By upstream's names and labels, so that its dashboards and alerts find them.
#[tokio::test(start_paused = true)]
async fn what_controllers_do_is_counted() {
    let config = config();
    let metrics = config.metrics.clone();
    let cluster = Cluster::start(config).await;
    cluster.create::<Job>(job("good", spec("ends:0", json!({ "completions": 3, "parallelism": 3 })))).await;
    let rules = json!([{ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } }]);
    let bad = json!({ "podFailurePolicy": { "rules": rules } });
    cluster.create::<Job>(job("bad", spec("ends:42", bad))).await;
    cluster.create::<Job>(job("others", spec("ends:0", json!({ "managedBy": "example.com/queue" })))).await;
    let service = json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" },
        "ports": [{ "port": 80 }], "trafficDistribution": "PreferSameZone" } });
    cluster.create::<Service>(service).await;
    cluster.create::<Deployment>(deployment(3, "a:1")).await;
    cluster.settle().await;
    let page = metrics.page();
    for line in [
        "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\",reason=\"CompletionsReached\"} 1",
        "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",result=\"failed\",reason=\"PodFailurePolicy\"} 1",
        "job_controller_jobs_by_external_controller_total{controller_name=\"example.com/queue\"} 1",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 3",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"failed\"} 1",
        "job_controller_pod_failures_handled_by_failure_policy_total{action=\"FailJob\"} 1",
        "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 4",
        "job_controller_terminated_pods_tracking_finalizer_total{event=\"delete\"} 4",
        "job_controller_job_pods_creation_total{reason=\"new\",status=\"succeeded\"} 4",
        "endpoint_slice_controller_endpoints_desired 3",
        "endpoint_slice_controller_num_endpoint_slices 1",
        "endpoint_slice_controller_desired_endpoint_slices 1",
        "endpoint_slice_controller_services_count_by_traffic_distribution{traffic_distribution=\"PreferSameZone\"} 1",
        "node_collector_zone_size{zone=\"\"} 1",
        "node_collector_zone_health{zone=\"\"} 100",
        "node_ipam_controller_cirdset_max_cidrs{clusterCIDR=\"10.42.0.0/16\"} 256",
        "node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR=\"10.42.0.0/16\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for begin in ["job_controller_job_syncs_total{", "root_ca_cert_publisher_sync_total{code=\"200\"}"] {
        assert!(page.lines().any(|found| found.starts_with(begin)), "{begin} is not in\n{page}");
    }
}
