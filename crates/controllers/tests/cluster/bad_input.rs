//! What users get wrong: nothing loops hot, and one clear Event says what is the matter.
//! Run by the cluster of `main`; the counted writes include those that the server refuses.
//! Every test bounds the requests of ten minutes.

use std::time::Duration;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{Deployment, ReplicaSet},
    batch::v1::Job,
    core::v1::{ConfigMap, Event, Node, Pod, ResourceQuota},
};
use serde_json::{Value, json};

use super::{Cluster, config, deployment, template};

/// Writes of the controllers in ten minutes.
async fn busy(cluster: &Cluster) -> usize {
    let before = cluster.counts.writes();
    cluster.env.sleep(Duration::from_secs(600)).await;
    cluster.counts.writes() - before
}

/// How many Events of this reason there are, and the text of one.
async fn events(cluster: &Cluster, reason: &str) -> (usize, String) {
    let found: Vec<_> =
        cluster.list::<Event>().await.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).collect();
    (found.len(), found.first().and_then(|e| e.message.clone()).unwrap_or_default())
}

fn replica_set(name: &str, replicas: i32) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } })
}

#[tokio::test(start_paused = true)]
async fn selectors_that_overlap() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<ReplicaSet>(replica_set("one", 2)).await;
    cluster.create::<ReplicaSet>(replica_set("two", 3)).await;
    cluster.settle().await;
    // Each keeps to its own pods.
    let pods = cluster.list::<Pod>().await;
    let of = |owner: &str| {
        let owned = |p: &&Pod| p.metadata.owner_references.iter().flatten().any(|o| o.name == owner);
        pods.iter().filter(owned).count()
    };
    assert_eq!((of("one"), of("two")), (2, 3));
    assert_eq!(busy(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn owners_that_loop() {
    let cluster = Cluster::start(config()).await;
    let map = |name: &str| json!({ "metadata": { "name": name } });
    let a = cluster.create::<ConfigMap>(map("a")).await.metadata.uid;
    let b = cluster.create::<ConfigMap>(map("b")).await.metadata.uid;
    let owned_by = |name: &str, uid: &Option<String>| {
        json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
            "blockOwnerDeletion": true }] } })
    };
    cluster.patch::<ConfigMap>("a", owned_by("b", &b)).await;
    cluster.patch::<ConfigMap>("b", owned_by("a", &a)).await;
    cluster.settle().await;
    cluster.delete::<ConfigMap>("a", "Foreground").await;
    cluster.settle().await;
    let left: Vec<_> = cluster.list::<ConfigMap>().await.into_iter().filter_map(|m| m.metadata.name).collect();
    assert_eq!(left, ["kube-root-ca.crt"]);
}

/// A template, a quota and a policy that refuse every pod.
#[tokio::test(start_paused = true)]
async fn pods_that_are_never_accepted() {
    let check = async |cluster: Cluster, mut web: Value, change: Value, said: &str| {
        if !change.is_null() {
            web["spec"]["template"]["spec"] = change;
        }
        cluster.create::<Deployment>(web).await;
        let writes = busy(&cluster).await;
        assert!(writes < 120, "{writes} requests for {said}: {:#?}", cluster.counts.latest());
        let (count, message) = events(&cluster, "FailedCreate").await;
        assert!(count <= 2 && message.contains(said), "{count} events such as {message}");
        let set = &cluster.list::<ReplicaSet>().await[0];
        let conditions = set.status.as_ref().unwrap().conditions.clone().unwrap();
        assert_eq!(
            (conditions[0].type_.as_str(), conditions[0].reason.as_deref()),
            ("ReplicaFailure", Some("FailedCreate"))
        );
    };
    let unknown_class = json!({ "priorityClassName": "none", "containers": [{ "name": "c", "image": "a:1" }] });
    check(Cluster::start(config()).await, deployment(50, "a:1"), unknown_class, "no PriorityClass with name none")
        .await;

    let cluster = Cluster::start(config()).await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "pods": "2" } } });
    cluster.create::<ResourceQuota>(quota).await;
    cluster.settle().await;
    check(cluster, deployment(50, "a:1"), Value::Null, "exceeded quota: q").await;

    let cluster = Cluster::start(config()).await;
    let policy = json!({ "metadata": { "name": "never" }, "spec": {
        "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods"] }] },
        "validations": [{ "expression": "false", "message": "not today" }] } });
    cluster.create::<ValidatingAdmissionPolicy>(policy).await;
    let binding = json!({ "metadata": { "name": "never" },
        "spec": { "policyName": "never", "validationActions": ["Deny"] } });
    cluster.create::<ValidatingAdmissionPolicyBinding>(binding).await;
    cluster.env.sleep(Duration::from_secs(5)).await;
    check(cluster, deployment(50, "a:1"), Value::Null, "not today").await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_raised_lets_the_rest_in() {
    let cluster = Cluster::start(config()).await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "pods": "2" } } });
    cluster.create::<ResourceQuota>(quota).await;
    cluster.settle().await;
    cluster.create::<Deployment>(deployment(5, "a:1")).await;
    cluster.env.sleep(Duration::from_secs(120)).await;
    assert_eq!(cluster.list::<Pod>().await.len(), 2);
    cluster.patch::<ResourceQuota>("q", json!({ "spec": { "hard": { "pods": "5" } } })).await;
    cluster.env.sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.list::<Pod>().await.len(), 5);
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_always_fails() {
    let cluster = Cluster::start(config()).await;
    let job = json!({ "metadata": { "name": "j" }, "spec": { "backoffLimit": 6, "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "ends:1" }] } } } });
    cluster.create::<Job>(job).await;
    // 10 s, 20 s, 40 s …: the first minute sees few of them.
    cluster.env.sleep(Duration::from_secs(60)).await;
    let early = cluster.list::<Pod>().await.len();
    assert!((2..=4).contains(&early), "{early} pods in a minute");
    let writes = busy(&cluster).await + busy(&cluster).await;
    assert!(writes < 80, "{writes} requests: {:#?}", cluster.counts.latest());
    assert_eq!(cluster.list::<Pod>().await.len(), 7);
    assert_eq!(
        events(&cluster, "BackoffLimitExceeded").await,
        (1, "Job has reached the specified backoff limit".into())
    );
    assert_eq!(busy(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_flaps() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(3, "a:1")).await;
    cluster.settle().await;
    let before = cluster.counts.writes();
    let names = async || {
        let mut names: Vec<_> = cluster.list::<Pod>().await.into_iter().filter_map(|p| p.metadata.name).collect();
        names.sort();
        names
    };
    let pods = names().await;
    const FLAPS: usize = 60;
    for flap in 0..FLAPS {
        let status = if flap % 2 == 0 { "False" } else { "True" };
        let now = cluster.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let ready =
            json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "lastHeartbeatTime": now }] } });
        cluster.api::<Node>().patch_status("n", &client::Patch::Merge(ready)).await.unwrap();
        cluster.env.sleep(Duration::from_secs(5)).await;
    }
    let writes = cluster.counts.writes() - before;
    assert!(writes < FLAPS * 16, "{writes} requests for {FLAPS} flaps: {:#?}", cluster.counts.latest());
    assert_eq!(names().await, pods, "short flaps cost no pod");
}
