//! Devices from template to pod and back: the scheduler and the ResourceClaim controller together, under their own roles.
//! Run by the cluster of `main`; the pretend node leaves pods with claims to the scheduler.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use client::{InformerFactory, Patch};
use k8s_openapi::api::{
    core::v1::{Node, Pod, ResourceQuota},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Cluster, config};

const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// With a scheduler, and devices on node `n`.
async fn with_devices(devices: &[&str]) -> Cluster {
    let cluster = Cluster::start(config()).await;
    let allocatable = json!({ "cpu": "4", "memory": "8Gi", "pods": "110" });
    let status = Patch::Merge(json!({ "status": { "allocatable": allocatable, "capacity": allocatable } }));
    cluster.api::<Node>().patch_status("n", &status).await.unwrap();
    let client = in_process::client(&cluster.server, "system:kube-scheduler", &[]);
    let (env, shutdown) = (cluster.env.clone(), CancellationToken::new());
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    env::spawn(async move { scheduler::run(scheduler::Config::default(), client, informers, env, shutdown).await });
    cluster.create::<DeviceClass>(json!({ "metadata": { "name": "gpu" }, "spec": {} })).await;
    let devices: Vec<_> = devices.iter().map(|name| json!({ "name": name })).collect();
    let pool = json!({ "name": "n", "generation": 1, "resourceSliceCount": 1 });
    let spec = json!({ "driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": devices });
    cluster.create::<ResourceSlice>(json!({ "metadata": { "name": "n" }, "spec": spec })).await;
    cluster
}

fn one_device(more: Value) -> Value {
    let mut exactly = json!({ "deviceClassName": "gpu" });
    more.as_object().unwrap().iter().for_each(|(k, v)| exactly[k] = v.clone());
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } })
}

fn pod(name: &str, image: &str, claim: Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": image, "resources": { "claims": [{ "name": "gpu" }] } }],
        "resourceClaims": [claim] } })
}

fn of_template() -> Value {
    json!({ "name": "gpu", "resourceClaimTemplateName": "t" })
}

async fn node_of(cluster: &Cluster, pod: &str) -> Option<String> {
    cluster.api::<Pod>().get(pod).await.unwrap().spec.unwrap().node_name
}

/// `claim: device for users`, sorted.
async fn claims(cluster: &Cluster) -> Vec<String> {
    let shown = |claim: ResourceClaim| {
        let value = serde_json::to_value(&claim).unwrap();
        let texts = |list: &Value, field: &str| {
            let items = list.as_array().into_iter().flatten().filter_map(|item| item[field].as_str());
            items.collect::<Vec<_>>().join("+")
        };
        let name = claim.metadata.name.as_deref().unwrap();
        let prefix = name.rsplit_once('-').map_or(name, |(prefix, _)| prefix);
        let devices = texts(&value["status"]["allocation"]["devices"]["results"], "device");
        let held = if claim.metadata.finalizers.is_some_and(|f| f == [FINALIZER]) { "!" } else { "" };
        format!("{prefix}: {devices}{held} for {}", texts(&value["status"]["reservedFor"], "name"))
    };
    let mut all: Vec<_> = cluster.list::<ResourceClaim>().await.into_iter().map(shown).collect();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn a_template_becomes_a_device_of_a_pod_and_goes_back() {
    let cluster = with_devices(&["gpu-0"]).await;
    let early: Pod = cluster.create(pod("a", "web", of_template())).await;
    cluster.env.sleep(Duration::from_secs(5)).await;
    assert_eq!(node_of(&cluster, "a").await, None, "there is no template yet");
    let template = json!({ "metadata": { "name": "t" }, "spec": { "spec": one_device(json!({})) } });
    cluster.create::<ResourceClaimTemplate>(template).await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, ["a-gpu: gpu-0! for a"]);
    assert_eq!(node_of(&cluster, "a").await.as_deref(), Some("n"));
    let found = cluster.api::<Pod>().get("a").await.unwrap();
    assert_eq!(found.metadata.uid, early.metadata.uid);
    let told = found.status.unwrap().resource_claim_statuses.unwrap();
    let claim = &cluster.list::<ResourceClaim>().await[0];
    assert_eq!((told[0].name.as_str(), &told[0].resource_claim_name), ("gpu", &claim.metadata.name));
    assert_eq!(claim.metadata.annotations.as_ref().unwrap()["resource.kubernetes.io/pod-claim-name"], "gpu");

    // The only device is taken; the next pod gets it when the first is gone.
    cluster.create::<Pod>(pod("b", "ends:0", of_template())).await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, ["a-gpu: gpu-0! for a", "b-gpu:  for "]);
    assert_eq!(node_of(&cluster, "b").await, None);
    cluster.delete::<Pod>("a", "Background").await;
    cluster.settle().await;
    assert_eq!(node_of(&cluster, "b").await.as_deref(), Some("n"));
    // It has ended since: its claim is not kept for it.
    assert_eq!(claims(&cluster).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_shared_and_freed_by_its_last_user() {
    let cluster = with_devices(&["gpu-0"]).await;
    cluster.create::<ResourceClaim>(json!({ "metadata": { "name": "shared" }, "spec": one_device(json!({})) })).await;
    let by_name = || json!({ "name": "gpu", "resourceClaimName": "shared" });
    cluster.create::<Pod>(pod("a", "web", by_name())).await;
    cluster.settle().await;
    cluster.create::<Pod>(pod("b", "web", by_name())).await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, ["shared: gpu-0! for a+b"]);
    cluster.delete::<Pod>("a", "Background").await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, ["shared: gpu-0! for b"]);
    // Deleting it while it is in use waits for its users.
    cluster.delete::<ResourceClaim>("shared", "Background").await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, ["shared: gpu-0! for b"]);
    cluster.delete::<Pod>("b", "Background").await;
    cluster.settle().await;
    assert_eq!(claims(&cluster).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn quotas_bound_claims_and_devices_by_class() {
    let cluster = with_devices(&[]).await;
    let hard = json!({ "count/resourceclaims.resource.k8s.io": "3", "gpu.deviceclass.resource.k8s.io/devices": "4" });
    cluster.create::<ResourceQuota>(json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } })).await;
    cluster.settle().await;
    let claim = |name: &str, count: i64| -> ResourceClaim {
        let claim = json!({ "metadata": { "name": name }, "spec": one_device(json!({ "count": count })) });
        serde_json::from_value(claim).unwrap()
    };
    let api = cluster.api::<ResourceClaim>();
    api.create(&claim("a", 3)).await.unwrap();
    let refused = api.create(&claim("b", 2)).await.unwrap_err();
    let why = "exceeded quota: q, requested: gpu.deviceclass.resource.k8s.io/devices=2, used: \
        gpu.deviceclass.resource.k8s.io/devices=3, limited: gpu.deviceclass.resource.k8s.io/devices=4";
    assert!(refused.message.contains(why), "{}", refused.message);
    let used = async || {
        let used = cluster.api::<ResourceQuota>().get("q").await.unwrap().status.unwrap().used.unwrap();
        used.into_values().map(|amount| amount.0).collect::<Vec<_>>().join(" ")
    };
    cluster.settle().await;
    assert_eq!(used().await, "1 3");
    cluster.delete::<ResourceClaim>("a", "Background").await;
    cluster.settle().await;
    assert_eq!(used().await, "0 0");
}

#[tokio::test(start_paused = true)]
async fn admin_access_needs_a_labelled_namespace() {
    let cluster = with_devices(&["gpu-0"]).await;
    let claim = |name: &str, more: Value| -> ResourceClaim {
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": one_device(more) })).unwrap()
    };
    let api = cluster.api::<ResourceClaim>();
    let refused = api.create(&claim("watch", json!({ "adminAccess": true }))).await.unwrap_err();
    let why = "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the \
        `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    assert!(refused.message.contains(why), "{}", refused.message);
    let label = json!({ "metadata": { "labels": { "resource.kubernetes.io/admin-access": "true" } } });
    cluster.patch::<k8s_openapi::api::core::v1::Namespace>("d", label).await;
    api.create(&claim("watch", json!({ "adminAccess": true }))).await.unwrap();
    api.create(&claim("work", json!({}))).await.unwrap();
    for name in ["work", "watch"] {
        cluster.create::<Pod>(pod(name, "web", json!({ "name": "gpu", "resourceClaimName": name }))).await;
        cluster.settle().await;
    }
    assert_eq!(claims(&cluster).await, ["watch: gpu-0! for watch", "work: gpu-0! for work"]);
}
