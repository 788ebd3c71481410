//! Pods that want one volume with different SELinux labels are told, where that is asked for.

use controllers::Config;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::CSIDriver,
};
use serde_json::{Value, json};

use super::super::{Cluster, config};

async fn pod(cluster: &Cluster, name: &str, level: &str, context: Value) {
    let mut context = context;
    context["seLinuxOptions"] = json!({ "level": level });
    let mount = json!([{ "name": "data", "mountPath": "/data" }]);
    let spec = json!({ "nodeName": "n", "securityContext": context,
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
        "containers": [{ "name": "c", "image": "i", "volumeMounts": mount }] });
    cluster.create::<Pod>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_want_one_volume_with_different_labels_are_told() {
    let words = ["*", "selinux-warning-controller"].map(String::from).to_vec();
    let cluster = Cluster::start(Config { controllers: words, ..config() }).await;
    let driver = json!({ "metadata": { "name": "d.example.com" }, "spec": { "attachRequired": false } });
    cluster.create::<CSIDriver>(driver).await;
    let csi = json!({ "driver": "d.example.com", "volumeHandle": "h" });
    let spec = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "manual",
        "csi": csi });
    cluster.create::<PersistentVolume>(json!({ "metadata": { "name": "pv" }, "spec": spec })).await;
    let spec = json!({ "accessModes": ["ReadWriteMany"], "storageClassName": "manual",
        "resources": { "requests": { "storage": "1Gi" } } });
    cluster.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": "data" }, "spec": spec })).await;
    cluster.settle().await;
    pod(&cluster, "one", "s0:c1", json!({})).await;
    pod(&cluster, "two", "s0:c2", json!({})).await;
    assert!(!cluster.said("SELinuxLabelConflict", "").await, "its driver can't mount with labels");
    cluster.patch::<CSIDriver>("d.example.com", json!({ "spec": { "seLinuxMount": true } })).await;
    cluster.settle().await;
    let part = "SELinuxLabel \":::s0:c1\" conflicts with pod two that uses the same volume as this pod";
    assert!(cluster.said("SELinuxLabelConflict", part).await);
    let part = "SELinuxLabel \":::s0:c2\" conflicts with pod one that uses the same volume as this pod";
    assert!(cluster.said("SELinuxLabelConflict", part).await);
    assert!(!cluster.said("SELinuxChangePolicyConflict", "").await);
    pod(&cluster, "three", "s0:c1", json!({ "seLinuxChangePolicy": "Recursive" })).await;
    let part = "SELinuxChangePolicy \"Recursive\" conflicts with pod one";
    assert!(cluster.said("SELinuxChangePolicyConflict", part).await);
}
