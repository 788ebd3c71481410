//! Claims that fill themselves: local storage from the chosen node to the directory that nobody needs any more.

mod reclaim;
mod selinux;

use client::{ListParams, Patch};
use controllers::{Config, LocalStorage};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use serde_json::{Value, json};

use super::{Cluster, config};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

fn local(setting: LocalStorage) -> Config {
    Config { local_storage: setting, ..config() }
}

/// Node n offers 10Gi.
async fn start() -> Cluster {
    let cluster = Cluster::start(local(LocalStorage::Nodes)).await;
    let offer = json!({ "path": "/volumes", "capacityBytes": 10_i64 << 30, "sizeEnforced": false }).to_string();
    let meta =
        json!({ "annotations": { "minke.io/local-storage": offer }, "labels": { "kubernetes.io/hostname": "n" } });
    cluster.patch::<Node>("n", json!({ "metadata": meta })).await;
    cluster.settle().await;
    cluster
}

impl Cluster {
    async fn claim(&self, name: &str, size: &str, class: Option<&str>) {
        let claim = json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "resources": { "requests": { "storage": size } } } });
        self.create::<PersistentVolumeClaim>(claim).await;
    }

    async fn select_node(&self, claim: &str, node: &str) {
        let meta = json!({ "annotations": { SELECTED_NODE: node } });
        self.patch::<PersistentVolumeClaim>(claim, json!({ "metadata": meta })).await;
        self.settle().await;
    }

    async fn claim_json(&self, name: &str) -> Value {
        json!(self.api::<PersistentVolumeClaim>().get(name).await.unwrap())
    }

    /// In Gi.
    async fn capacity_left(&self) -> i64 {
        let api = self.client.namespaced::<CSIStorageCapacity>("kube-system");
        api.get("minke-local.n").await.unwrap().capacity.unwrap().0.parse::<i64>().unwrap() >> 30
    }

    async fn said(&self, reason: &str, part: &str) -> bool {
        // Those about volumes, which are in no namespace, are in `default`.
        let events = self.client.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|e| e.reason.as_deref() == Some(reason) && e.message.as_deref().unwrap_or("").contains(part))
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_default_class_gets_a_directory_of_its_node_and_gives_it_back() {
    let cluster = start().await;
    assert_eq!(cluster.capacity_left().await, 10);
    cluster.claim("data", "2Gi", None).await;
    cluster.settle().await;
    let waiting = cluster.claim_json("data").await;
    assert_eq!(
        (&waiting["spec"]["storageClassName"], &waiting["status"]["phase"]),
        (&json!("minke-local"), &json!("Pending"))
    );
    cluster.select_node("data", "n").await;
    let bound = cluster.claim_json("data").await;
    assert_eq!(bound["status"]["phase"], "Bound", "{bound}");
    assert!(cluster.said("ProvisioningSucceeded", "Successfully provisioned volume pvc-").await);
    assert!(cluster.said("SizeNotEnforced", "node n has no project quotas").await);
    assert_eq!(cluster.capacity_left().await, 8);
    let name = bound["spec"]["volumeName"].as_str().unwrap().to_string();
    let volume = json!(cluster.api::<PersistentVolume>().get(&name).await.unwrap());
    assert_eq!(volume["spec"]["local"]["path"], format!("/volumes/{name}"));

    let grow = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    cluster.patch::<PersistentVolumeClaim>("data", grow("3Gi")).await;
    cluster.settle().await;
    assert_eq!(cluster.claim_json("data").await["status"]["capacity"]["storage"], "3Gi");
    assert_eq!(cluster.capacity_left().await, 7);
    cluster.patch::<PersistentVolumeClaim>("data", grow("30Gi")).await;
    cluster.settle().await;
    assert_eq!(cluster.claim_json("data").await["status"]["capacity"]["storage"], "3Gi");
    assert!(cluster.said("VolumeResizeFailed", "not enough local storage").await);

    cluster.delete::<PersistentVolumeClaim>("data", "Background").await;
    cluster.settle().await;
    let going = json!(cluster.api::<PersistentVolume>().get(&name).await.unwrap());
    assert_eq!(going["metadata"]["finalizers"], json!(["minke.io/local-storage"]), "the node has to let go: {going}");
    cluster.patch::<PersistentVolume>(&name, json!({ "metadata": { "finalizers": null } })).await;
    cluster.settle().await;
    assert!(cluster.api::<PersistentVolume>().find(&name).await.unwrap().is_none());
    assert_eq!(cluster.capacity_left().await, 10);
}

#[tokio::test(start_paused = true)]
async fn what_a_node_cannot_hold_is_told_and_the_node_given_back() {
    let cluster = start().await;
    cluster.claim("large", "20Gi", None).await;
    cluster.select_node("large", "n").await;
    cluster.claim("stray", "1Gi", None).await;
    cluster.select_node("stray", "nowhere").await;
    for name in ["large", "stray"] {
        let claim = cluster.claim_json(name).await;
        assert_eq!(claim["status"]["phase"], "Pending");
        assert_eq!(claim["metadata"]["annotations"][SELECTED_NODE], Value::Null, "{claim}");
    }
    assert!(cluster.said("ProvisioningFailed", "not enough local storage on node n").await);
    assert!(cluster.said("ProvisioningFailed", "node \"nowhere\" not found").await);
    assert!(cluster.list::<PersistentVolume>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn kept_volumes_stay_and_those_of_a_lost_node_are_let_go() {
    let cluster = start().await;
    let kept = json!({ "metadata": { "name": "kept" }, "provisioner": "local.minke.io", "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer" });
    cluster.create::<StorageClass>(kept).await;
    for (name, class) in [("keep", Some("kept")), ("lose", None)] {
        cluster.claim(name, "1Gi", class).await;
        cluster.select_node(name, "n").await;
        assert_eq!(cluster.claim_json(name).await["status"]["phase"], "Bound");
    }
    for name in ["keep", "lose"] {
        cluster.delete::<PersistentVolumeClaim>(name, "Background").await;
    }
    cluster.settle().await;
    let left = async || {
        let found = cluster.list::<PersistentVolume>().await.into_iter();
        found.map(|v| (v.spec.unwrap().storage_class_name.unwrap(), v.metadata.deletion_timestamp.is_some())).collect()
    };
    let mut found: Vec<(String, bool)> = left().await;
    found.sort();
    assert_eq!(found, [("kept".to_string(), false), ("minke-local".into(), true)]);
    cluster.delete::<Node>("n", "Background").await;
    cluster.settle().await;
    let found: Vec<(String, bool)> = left().await;
    assert_eq!(found, [("kept".to_string(), false)]);
}

#[tokio::test(start_paused = true)]
async fn turned_off_it_takes_its_class_away_and_provisions_nothing() {
    let cluster = Cluster::start(local(LocalStorage::None)).await;
    let class = json!({ "metadata": { "name": "own" }, "provisioner": "local.minke.io",
        "volumeBindingMode": "WaitForFirstConsumer" });
    cluster.create::<StorageClass>(class).await;
    cluster.claim("data", "1Gi", Some("own")).await;
    cluster.select_node("data", "n").await;
    assert_eq!(cluster.claim_json("data").await["status"]["phase"], "Pending");
    assert!(cluster.api::<StorageClass>().find("minke-local").await.unwrap().is_none());
    // An annotation that is no offer is none.
    let patch =
        Patch::Merge(json!({ "metadata": { "annotations": { "minke.io/local-storage": "{\"path\":\"..\"}" } } }));
    cluster.api::<Node>().patch("n", &patch).await.unwrap();
    cluster.settle().await;
}

/// A claim of this name bound to a volume of a driver.
async fn driver_claim(cluster: &Cluster, name: &str, mode: &str) {
    let reference = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "d", "name": name });
    let volume = json!({ "metadata": { "name": format!("pv-{name}"),
            "annotations": { "pv.kubernetes.io/provisioned-by": "d.example.com" } },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": [mode], "storageClassName": "driver",
            "claimRef": reference, "csi": { "driver": "d.example.com", "volumeHandle": format!("handle-{name}") } } });
    cluster.create::<PersistentVolume>(volume).await;
    let claim = json!({ "metadata": { "name": name }, "spec": { "accessModes": [mode], "storageClassName": "driver",
        "volumeName": format!("pv-{name}"), "resources": { "requests": { "storage": "1Gi" } } } });
    cluster.create::<PersistentVolumeClaim>(claim).await;
}

async fn pod_on(cluster: &Cluster, name: &str, node: &str, claim: &str) {
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
    let spec = json!({ "nodeName": node, "volumes": volumes, "containers": [{ "name": "c", "image": "i" }] });
    cluster.create::<Pod>(json!({ "metadata": { "name": name }, "spec": spec })).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_follow_their_pods_from_node_to_node_and_never_leave_one_that_uses_them() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Node>(json!({ "metadata": { "name": "m" } })).await;
    driver_claim(&cluster, "data", "ReadWriteOnce").await;
    pod_on(&cluster, "first", "n", "data").await;
    cluster.settle().await;
    let nodes = async || -> Vec<String> {
        let mut all = cluster.list::<VolumeAttachment>().await;
        all.retain(|attachment| attachment.metadata.deletion_timestamp.is_none());
        all.into_iter().map(|attachment| attachment.spec.node_name).collect()
    };
    assert_eq!(nodes().await, ["n"]);
    let attachment = cluster.list::<VolumeAttachment>().await.remove(0).metadata.name.unwrap();
    assert_eq!(attachment, api::csi::attachment_name("handle-data", "d.example.com", "n"));
    let status = |status: Value| Patch::Merge(json!({ "status": status }));
    let failed = status(json!({ "attached": false, "attachError": { "message": "no room" } }));
    cluster.api::<VolumeAttachment>().patch_status(&attachment, &failed).await.unwrap();
    cluster.settle().await;
    assert!(cluster.said("FailedAttachVolume", "AttachVolume.Attach failed for volume \"pv-data\" : no room").await);
    let attached = status(json!({ "attached": true, "attachError": null }));
    cluster.api::<VolumeAttachment>().patch_status(&attachment, &attached).await.unwrap();
    let unique = "kubernetes.io/csi/d.example.com^handle-data";
    let in_use = status(json!({ "volumesInUse": [unique] }));
    cluster.api::<Node>().patch_status("n", &in_use).await.unwrap();
    cluster.settle().await;
    let node = json!(cluster.api::<Node>().get("n").await.unwrap());
    assert_eq!(node["status"]["volumesAttached"][0]["name"], unique);
    assert!(cluster.said("SuccessfulAttachVolume", "pv-data").await);

    pod_on(&cluster, "second", "m", "data").await;
    cluster.settle().await;
    assert_eq!(nodes().await, ["n"]);
    assert!(
        cluster
            .said(
                "FailedAttachVolume",
                "Multi-Attach error for volume \"pv-data\" Volume is already used by pod(s) first"
            )
            .await
    );
    let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    cluster.api::<Pod>().delete("first", &now).await.unwrap();
    cluster.settle().await;
    assert_eq!(nodes().await, ["n"], "the node still uses it");
    cluster.api::<Node>().patch_status("n", &status(json!({ "volumesInUse": null }))).await.unwrap();
    cluster.settle().await;
    assert_eq!(nodes().await, ["m"]);
    let node = json!(cluster.api::<Node>().get("n").await.unwrap());
    assert_eq!(node["status"]["volumesAttached"], Value::Null);

    // One that somebody else made is not ours to delete.
    let spec = json!({ "attacher": "d.example.com", "nodeName": "n", "source": { "persistentVolumeName": "nowhere" } });
    cluster.create::<VolumeAttachment>(json!({ "metadata": { "name": "by-hand" }, "spec": spec })).await;
    cluster.settle().await;
    assert_eq!(nodes().await, ["n", "m"]);
    cluster.api::<VolumeAttachment>().delete("by-hand", &now).await.unwrap();

    // A node that is out of service is not waited for.
    cluster.api::<Node>().patch_status("m", &in_use).await.unwrap();
    cluster.api::<Pod>().delete("second", &now).await.unwrap();
    cluster.settle().await;
    assert_eq!(nodes().await, ["m"]);
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" });
    cluster.patch::<Node>("m", json!({ "spec": { "taints": [taint] } })).await;
    cluster.settle().await;
    assert!(nodes().await.is_empty());
}
