//! Volumes whose claim is gone or has another: kept, emptied for the next one, or given back.

use std::time::Duration;

use client::Patch;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use serde_json::{Value, json};

use super::super::{Cluster, config};

const RECYCLER: &str = "recycler-for-pv";

async fn volume(cluster: &Cluster, policy: &str, source: (&str, Value)) {
    let mut spec = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "manual", "persistentVolumeReclaimPolicy": policy });
    spec[source.0] = source.1;
    let here = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n"] });
    spec["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } });
    cluster.create::<PersistentVolume>(json!({ "metadata": { "name": "pv" }, "spec": spec })).await;
}

async fn phase(cluster: &Cluster, volume: &str) -> (String, Value) {
    let found = json!(cluster.api::<PersistentVolume>().get(volume).await.unwrap());
    assert_ne!(found["status"]["lastPhaseTransitionTime"], Value::Null);
    (found["status"]["phase"].as_str().unwrap_or_default().into(), found["spec"]["claimRef"]["name"].clone())
}

async fn recycler(cluster: &Cluster) -> Option<Pod> {
    cluster.client.namespaced::<Pod>("default").find(RECYCLER).await.unwrap()
}

/// The recycler pod ends like this.
async fn end(cluster: &Cluster, phase: &str) {
    let status = Patch::Merge(json!({ "status": { "phase": phase } }));
    cluster.client.namespaced::<Pod>("default").patch_status(RECYCLER, &status).await.unwrap();
}

async fn bound_and_released(cluster: &Cluster) {
    cluster.claim("data", "1Gi", Some("manual")).await;
    cluster.settle().await;
    assert_eq!(phase(cluster, "pv").await, ("Bound".to_string(), json!("data")));
    cluster.delete::<PersistentVolumeClaim>("data", "Background").await;
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_recycled_volume_is_emptied_by_a_pod_and_free_again() {
    let cluster = Cluster::start(config()).await;
    volume(&cluster, "Recycle", ("hostPath", json!({ "path": "/tmp/x" }))).await;
    bound_and_released(&cluster).await;
    assert_eq!(phase(&cluster, "pv").await.0, "Released");
    let pod = json!(recycler(&cluster).await.expect("a recycler pod"));
    assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/tmp/x");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");

    end(&cluster, "Failed").await;
    cluster.env.sleep(Duration::from_secs(10)).await;
    assert!(recycler(&cluster).await.is_none(), "not at once");
    cluster.settle().await;
    assert!(cluster.said("VolumeFailedRecycle", "Recycle failed: failed to recycle volume: pod failed").await);
    assert!(recycler(&cluster).await.is_some(), "it is tried again");
    assert_eq!(phase(&cluster, "pv").await, ("Failed".to_string(), json!("data")));

    end(&cluster, "Succeeded").await;
    cluster.settle().await;
    assert!(cluster.said("VolumeRecycled", "Volume recycled").await);
    assert!(recycler(&cluster).await.is_none());
    assert_eq!(phase(&cluster, "pv").await, ("Available".to_string(), Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_forged_recycler_is_not_believed() {
    let cluster = Cluster::start(config()).await;
    cluster.settle().await;
    let forged = json!({ "metadata": { "name": RECYCLER }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let pods = cluster.client.namespaced::<Pod>("default");
    pods.create(&serde_json::from_value(forged).unwrap()).await.unwrap();
    end(&cluster, "Succeeded").await;
    volume(&cluster, "Recycle", ("hostPath", json!({ "path": "/tmp/x" }))).await;
    bound_and_released(&cluster).await;
    assert_eq!(phase(&cluster, "pv").await, ("Failed".to_string(), json!("data")));
    assert!(cluster.said("VolumeFailedRecycle", "old recycler pod found, will retry later").await);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_pod_may_still_use_is_not_emptied() {
    let cluster = Cluster::start(config()).await;
    volume(&cluster, "Recycle", ("nfs", json!({ "server": "s", "path": "/" }))).await;
    cluster.claim("data", "1Gi", Some("manual")).await;
    cluster.settle().await;
    super::pod_on(&cluster, "user", "n", "data").await;
    cluster.settle().await;
    // By force: the claim is gone while its pod is there.
    cluster.delete::<PersistentVolumeClaim>("data", "Background").await;
    cluster.settle().await;
    cluster.patch::<PersistentVolumeClaim>("data", json!({ "metadata": { "finalizers": null } })).await;
    cluster.settle().await;
    assert!(cluster.said("VolumeFailedRecycle", "Volume is used by pods: d/user").await);
    assert!(recycler(&cluster).await.is_none());
    let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    cluster.api::<Pod>().delete("user", &now).await.unwrap();
    cluster.settle().await;
    assert!(recycler(&cluster).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_emptied_or_deleted_say_so_and_kept_ones_stay() {
    let driver = || ("csi", json!({ "driver": "d.example.com", "volumeHandle": "h" }));
    for (policy, expected, reason) in [
        ("Recycle", "Failed", Some("VolumeFailedRecycle")),
        ("Delete", "Failed", Some("VolumeFailedDelete")),
        ("Retain", "Released", None),
    ] {
        let cluster = Cluster::start(config()).await;
        let source = if policy == "Recycle" { ("local", json!({ "path": "/x" })) } else { driver() };
        volume(&cluster, policy, source).await;
        bound_and_released(&cluster).await;
        assert_eq!(phase(&cluster, "pv").await, (expected.to_string(), json!("data")), "{policy}");
        if let Some(reason) = reason {
            assert!(cluster.said(reason, "").await, "{policy}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_claim_has_another_is_given_back() {
    let cluster = Cluster::start(config()).await;
    volume(&cluster, "Retain", ("hostPath", json!({ "path": "/a" }))).await;
    cluster.claim("data", "1Gi", Some("manual")).await;
    cluster.settle().await;
    let uid = cluster.claim_json("data").await["metadata"]["uid"].clone();
    let taken = |annotations: Value, name: &str| {
        let reference = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "d", "name": "data",
            "uid": uid });
        json!({ "metadata": { "name": name, "annotations": annotations }, "spec": { "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "hostPath": { "path": "/b" },
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": reference } })
    };
    cluster.create::<PersistentVolume>(taken(json!({ "pv.kubernetes.io/bound-by-controller": "yes" }), "ours")).await;
    cluster.create::<PersistentVolume>(taken(json!({}), "reserved")).await;
    cluster.settle().await;
    assert_eq!(phase(&cluster, "ours").await, ("Available".to_string(), Value::Null));
    assert_eq!(phase(&cluster, "reserved").await, ("Available".to_string(), json!("data")));
    let reserved = json!(cluster.api::<PersistentVolume>().get("reserved").await.unwrap());
    assert_eq!(reserved["spec"]["claimRef"]["uid"], Value::Null);
    assert_eq!(phase(&cluster, "pv").await, ("Bound".to_string(), json!("data")));
}
