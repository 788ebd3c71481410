//! What is said where something is not as it should be, in upstream's words.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use client::ListParams;
use http::Method;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use serde_json::{Value, json};

use super::{Cluster, Config, config, template};

/// Everything said about one object for this reason.
async fn said(cluster: &Cluster, name: &str, reason: &str) -> Vec<String> {
    let about = |e: &Event| e.involved_object.name.as_deref() == Some(name) && e.reason.as_deref() == Some(reason);
    cluster.list::<Event>().await.into_iter().filter(about).filter_map(|e| e.message).collect()
}

/// The same for objects that are in no namespace.
async fn said_of_all(cluster: &Cluster, name: &str, reason: &str) -> Vec<String> {
    let about = |e: &Event| e.involved_object.name.as_deref() == Some(name) && e.reason.as_deref() == Some(reason);
    let all = cluster.client.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    all.into_iter().filter(about).filter_map(|e| e.message).collect()
}

fn stateful_set() -> Value {
    json!({ "metadata": { "name": "s" }, "spec": { "replicas": 1, "serviceName": "s",
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } })
}

async fn set_phase(cluster: &Cluster, pod: &str, phase: &str) {
    let status = json!({ "status": { "phase": phase } });
    cluster.api::<Pod>().patch_status(pod, &client::Patch::Merge(status)).await.unwrap();
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
    cluster.env.sleep(Duration::from_secs(200)).await;
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
    cluster.create::<StatefulSet>(stateful_set()).await;
    cluster.settle().await;
    let label = "statefulset.kubernetes.io/pod-name";
    cluster.patch::<Pod>("s-0", json!({ "metadata": { "labels": { label: null } } })).await;
    cluster.settle().await;
    let labels = cluster.api::<Pod>().get("s-0").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get(label).map(String::as_str), Some("s-0"));
    assert_eq!(said(&cluster, "s", "SuccessfulUpdate").await, ["update Pod s-0 in StatefulSet s successful"]);
    cluster.counts.refuse_all(Method::PATCH, "/pods/s-0");
    cluster.patch::<Pod>("s-0", json!({ "metadata": { "labels": { label: null } } })).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    let told = said(&cluster, "s", "FailedUpdate").await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("update Pod s-0 in StatefulSet s failed error: "), "{told:?}");
    assert!(cluster.counts.refused() < 30, "tried {} times in a minute", cluster.counts.refused());
    cluster.counts.refuse_nothing();
    cluster.env.sleep(Duration::from_secs(600)).await;
    cluster.settle().await;
    let labels = cluster.api::<Pod>().get("s-0").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get(label).map(String::as_str), Some("s-0"));
}

#[tokio::test(start_paused = true)]
async fn of_claims_that_lost_their_volume() {
    let cluster = Cluster::start(config()).await;
    let claim = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"], "volumeName": "pv",
            "storageClassName": "manual", "resources": { "requests": { "storage": "1Gi" } } } })
    };
    let volume = json!({ "metadata": { "name": "pv" }, "spec": { "capacity": { "storage": "5Gi" },
        "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/data" }, "storageClassName": "manual" } });
    cluster.create::<PersistentVolume>(volume).await;
    cluster.create::<PersistentVolumeClaim>(claim("owner")).await;
    cluster.settle().await;
    let mut liar = claim("liar");
    liar["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    cluster.create::<PersistentVolumeClaim>(liar).await;
    cluster.settle().await;
    let expected = "Two claims are bound to the same volume, this one is bound incorrectly";
    assert_eq!(said(&cluster, "liar", "ClaimMisbound").await, [expected]);
    assert_eq!(said(&cluster, "owner", "ClaimMisbound").await, [""; 0]);
    cluster.delete::<PersistentVolume>("pv", "Background").await;
    cluster.patch::<PersistentVolume>("pv", json!({ "metadata": { "finalizers": null } })).await;
    cluster.settle().await;
    let expected = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    assert_eq!(said(&cluster, "owner", "ClaimLost").await, [expected]);
    for name in ["liar", "owner"] {
        let phase = cluster.api::<PersistentVolumeClaim>().get(name).await.unwrap().status.unwrap().phase;
        assert_eq!(phase.as_deref(), Some("Lost"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_claims_that_wait_for_a_volume() {
    let cluster = Cluster::start(config()).await;
    for (name, provisioner) in [("static", "kubernetes.io/no-provisioner"), ("disks", "example.com/disk")] {
        let class = json!({ "metadata": { "name": name }, "provisioner": provisioner });
        cluster.create::<StorageClass>(class).await;
    }
    for class in ["static", "disks", "nowhere", ""] {
        let name = if class.is_empty() { "none" } else { class };
        let claim = json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } } });
        cluster.create::<PersistentVolumeClaim>(claim).await;
    }
    cluster.settle().await;
    for (claim, reason, message) in [
        ("static", "ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner"),
        ("nowhere", "ProvisioningFailed", "storageclass.storage.k8s.io \"nowhere\" not found"),
        ("none", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
        (
            "disks",
            "ExternalProvisioning",
            "Waiting for a volume to be created either by the external provisioner 'example.com/disk' or manually by \
             the system administrator. If volume creation is delayed, please verify that the provisioner is running \
             and correctly registered.",
        ),
    ] {
        assert_eq!(said(&cluster, claim, reason).await, [message], "{claim}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_pods_that_ended_though_they_should_run() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<StatefulSet>(stateful_set()).await;
    let daemon = json!({ "metadata": { "name": "d" }, "spec": { "selector": { "matchLabels": { "app": "d" } },
        "template": { "metadata": { "labels": { "app": "d" } }, "spec": template("a:1")["spec"] } } });
    cluster.create::<DaemonSet>(daemon).await;
    cluster.settle().await;
    let on_node = cluster.list::<Pod>().await.into_iter().filter_map(|p| p.metadata.name).find(|n| n.starts_with("d-"));
    let on_node = on_node.unwrap();
    set_phase(&cluster, "s-0", "Failed").await;
    set_phase(&cluster, &on_node, "Failed").await;
    cluster.settle().await;
    // It says only that the pod goes, as upstream does.
    let expected = "delete Pod s-0 in StatefulSet s successful";
    assert_eq!(said(&cluster, "s", "SuccessfulDelete").await, [expected]);
    let expected = format!("Found failed daemon pod d/{on_node} on node n, will try to kill it");
    assert_eq!(said(&cluster, "d", "FailedDaemonPod").await, [expected]);
    assert!(said(&cluster, "s", "RecreatingFailedPod").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_nodes_that_come_go_and_find_no_addresses() {
    let cluster = Cluster::start(Config { cluster_cidrs: vec!["10.42.0.0/24".parse().unwrap()], ..config() }).await;
    cluster.create::<Node>(json!({ "metadata": { "name": "m" } })).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(said_of_all(&cluster, "m", "RegisteredNode").await, ["Registered Node m in Controller"]);
    let told = said_of_all(&cluster, "m", "CIDRNotAvailable").await;
    assert_eq!(told, ["Node m status is now: CIDRNotAvailable"]);
    cluster.delete::<Node>("m", "Background").await;
    cluster.settle().await;
    assert_eq!(said_of_all(&cluster, "m", "RemovingNode").await, ["Removing Node m from Controller"]);
}

#[tokio::test(start_paused = true)]
async fn of_owners_in_another_namespace() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Namespace>(json!({ "metadata": { "name": "e" } })).await;
    let owner = serde_json::from_value(json!({ "metadata": { "name": "owner" } })).unwrap();
    let owner: ConfigMap = cluster.client.namespaced::<ConfigMap>("e").create(&owner).await.unwrap();
    cluster.settle().await;
    let uid = owner.metadata.uid.unwrap();
    let reference = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid });
    let mut lost = pod("lost");
    lost["metadata"]["ownerReferences"] = json!([reference]);
    cluster.create::<Pod>(lost).await;
    cluster.settle().await;
    let expected =
        format!("ownerRef [v1/ConfigMap, namespace: d, name: owner, uid: {uid}] does not exist in namespace \"d\"");
    assert_eq!(said(&cluster, "lost", "OwnerRefInvalidNamespace").await, [expected]);
    assert!(cluster.api::<Pod>().find("lost").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn of_budgets_that_cannot_be_worked_out() {
    let cluster = Cluster::start(config()).await;
    let budget = |name: &str, app: &str| {
        json!({ "metadata": { "name": name },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": app } } } })
    };
    cluster.create::<PodDisruptionBudget>(budget("idle", "nobody")).await;
    let owner: ConfigMap = cluster.create(json!({ "metadata": { "name": "owner" } })).await;
    let mut owned = pod("p");
    owned["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner.metadata.uid, "controller": true }]);
    cluster.create::<Pod>(owned).await;
    cluster.create::<PodDisruptionBudget>(budget("odd", "web")).await;
    cluster.settle().await;
    assert_eq!(said(&cluster, "idle", "NoPods").await, ["No matching pods found"]);
    let told = said(&cluster, "odd", "CalculateExpectedPodCountFailed").await;
    let expected =
        "Failed to calculate the number of expected pods: configmaps does not implement the scale subresource";
    assert_eq!(told, [expected]);
    let status = cluster.api::<PodDisruptionBudget>().get("odd").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, 0);
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
    cluster.env.sleep(Duration::from_secs(180)).await;
    cluster.settle().await;
    let expected = "Pod was expected by PDB d/a to be deleted but it wasn't";
    assert_eq!(said(&cluster, "p", "NotDeleted").await, [expected]);
}

#[tokio::test(start_paused = true)]
async fn of_claims_that_belong_to_somebody_else() {
    let cluster = Cluster::start(config()).await;
    let owner: ConfigMap = cluster.create(json!({ "metadata": { "name": "owner" } })).await;
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
        "controller": true });
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let claim = json!({ "metadata": { "name": "data-s-0", "ownerReferences": [owner] }, "spec": spec });
    cluster.create::<PersistentVolumeClaim>(claim).await;
    let mut set = stateful_set();
    set["spec"]["volumeClaimTemplates"] = json!([{ "metadata": { "name": "data" }, "spec": spec }]);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({ "whenDeleted": "Delete", "whenScaled": "Retain" });
    cluster.create::<StatefulSet>(set).await;
    cluster.settle().await;
    let expected = "PersistentVolumeClaim data-s-0 has a conflicting OwnerReference that acts as a manging controller, \
                    the retention policy is ignored for this claim";
    assert_eq!(said(&cluster, "s", "ConflictingController").await, [expected]);
    let claim = cluster.api::<PersistentVolumeClaim>().get("data-s-0").await.unwrap();
    let owners: Vec<String> = claim.metadata.owner_references.unwrap().into_iter().map(|o| o.kind).collect();
    assert_eq!(owners, ["ConfigMap"]);
}

/// Each says once what it can't do, and does it when it can.
#[tokio::test(start_paused = true)]
async fn of_endpoints_that_cannot_be_written() {
    let cluster = Cluster::start(config()).await;
    for (name, is_new, method, path, reason, message) in [
        (
            "a",
            true,
            Method::POST,
            "/d/endpoints",
            "FailedToCreateEndpoint",
            "Failed to create endpoint for service d/a",
        ),
        ("a", false, Method::PUT, "/endpoints/a", "FailedToUpdateEndpoint", "Failed to update endpoint d/a"),
        (
            "b",
            true,
            Method::POST,
            "/d/endpointslices",
            "FailedToUpdateEndpointSlices",
            "Error updating Endpoint Slices for Service d/b",
        ),
    ] {
        cluster.counts.refuse_all(method, path);
        let spec = json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }] });
        match is_new {
            true => drop(cluster.create::<Service>(json!({ "metadata": { "name": name }, "spec": spec })).await),
            false => cluster.patch::<Service>(name, json!({ "metadata": { "labels": { "changed": "yes" } } })).await,
        }
        cluster.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(said(&cluster, name, reason).await, [format!("{message}: pods is forbidden: exceeded quota")]);
        assert!(cluster.counts.refused() > 1, "{reason}: was not tried again");
        cluster.counts.refuse_nothing();
        cluster.env.sleep(Duration::from_secs(600)).await;
        cluster.settle().await;
    }
    let endpoints = cluster.api::<Endpoints>().get("a").await.unwrap();
    assert_eq!(endpoints.metadata.labels.unwrap()["changed"], "yes");
    let slices = cluster.list::<EndpointSlice>().await;
    let of_b = |slice: &EndpointSlice| slice.metadata.labels.as_ref().unwrap()["kubernetes.io/service-name"] == "b";
    assert_eq!(slices.iter().filter(|slice| of_b(slice)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_addresses_that_are_too_many_to_mirror() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Service>(json!({ "metadata": { "name": "far" }, "spec": { "ports": [{ "port": 80 }] } })).await;
    let addresses: Vec<Value> = (0..1003).map(|i| json!({ "ip": format!("192.0.{}.{}", i / 250, i % 250) })).collect();
    let subset = json!({ "addresses": addresses, "ports": [{ "port": 80 }] });
    cluster.create::<Endpoints>(json!({ "metadata": { "name": "far" }, "subsets": [subset] })).await;
    cluster.settle().await;
    let expected =
        "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped";
    assert_eq!(said(&cluster, "far", "TooManyAddressesToMirror").await, [expected]);
    let mirrored: usize = cluster.list::<EndpointSlice>().await.iter().map(|slice| slice.endpoints.len()).sum();
    assert_eq!(mirrored, 1000);
}
