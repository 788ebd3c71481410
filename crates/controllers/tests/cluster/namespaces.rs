//! How namespaces are emptied when they go: of everything, and of pods before what those use.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use serde_json::json;

use super::{Cluster, config, template};

async fn is_there(cluster: &Cluster) -> bool {
    cluster.api::<Namespace>().find("d").await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn nothing_outlives_its_namespace() {
    let cluster = Cluster::start(config()).await;
    let mut pod = template("a:1");
    pod["metadata"]["name"] = "p".into();
    cluster.create::<Pod>(pod).await;
    let service = json!({ "metadata": { "name": "s" }, "spec": { "selector": { "app": "web" },
        "ports": [{ "port": 80 }] } });
    cluster.create::<Service>(service).await;
    cluster.create::<Secret>(json!({ "metadata": { "name": "s" } })).await;
    cluster.settle().await;
    let running = cluster.api::<Pod>().get("p").await.unwrap();
    assert_eq!(running.status.unwrap().phase.as_deref(), Some("Running"));

    cluster.delete::<Namespace>("d", "Background").await;
    cluster.settle().await;
    assert!(!is_there(&cluster).await);
    // Made again, it holds only what every namespace gets.
    cluster.create::<Namespace>(json!({ "metadata": { "name": "d" } })).await;
    cluster.settle().await;
    assert!(cluster.api::<Pod>().find("p").await.unwrap().is_none());
    assert!(cluster.api::<Service>().find("s").await.unwrap().is_none());
    assert!(cluster.api::<Secret>().find("s").await.unwrap().is_none());
    assert_eq!(cluster.list::<ServiceAccount>().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_go_before_what_they_use() {
    let cluster = Cluster::start(config()).await;
    let mut pod = template("a:1");
    pod["metadata"]["name"] = "p".into();
    pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.create::<Pod>(pod).await;
    cluster.create::<ConfigMap>(json!({ "metadata": { "name": "used" }, "data": { "k": "v" } })).await;
    cluster.settle().await;
    cluster.delete::<Namespace>("d", "Background").await;
    cluster.env.sleep(Duration::from_secs(120)).await;
    let status = cluster.api::<Namespace>().get("d").await.unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    let conditions = status.conditions.unwrap();
    let said = |kind: &str| conditions.iter().find(|c| c.type_ == kind).and_then(|c| c.message.clone());
    assert!(said("NamespaceDeletionContentFailure").is_some(), "{conditions:?}");
    let remaining = said("NamespaceContentRemaining").unwrap_or_default();
    assert!(remaining.contains("pods. has 1 resource instances"), "{remaining}");
    assert!(said("NamespaceFinalizersRemaining").unwrap_or_default().contains("example.com/hold"), "{conditions:?}");
    assert!(cluster.api::<Pod>().get("p").await.unwrap().metadata.deletion_timestamp.is_some());
    assert!(cluster.api::<ConfigMap>().find("used").await.unwrap().is_some());

    cluster.patch::<Pod>("p", json!({ "metadata": { "finalizers": null } })).await;
    cluster.settle().await;
    assert!(!is_there(&cluster).await);
    assert!(cluster.list::<Pod>().await.is_empty() && cluster.list::<ConfigMap>().await.is_empty());
}

/// Nobody can say what an extension server that is down keeps there.
#[tokio::test(start_paused = true)]
async fn a_namespace_waits_for_extension_servers() {
    let cluster = Cluster::start(config()).await;
    let spec = json!({ "group": "sea.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 15,
        "insecureSkipTLSVerify": true, "service": { "name": "sea", "namespace": "elsewhere" } });
    cluster.create::<APIService>(json!({ "metadata": { "name": "v1.sea.example" }, "spec": spec })).await;
    cluster.delete::<Namespace>("d", "Background").await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    let conditions = cluster.api::<Namespace>().get("d").await.unwrap().status.unwrap().conditions.unwrap();
    let condition = conditions.iter().find(|c| c.type_ == "NamespaceDeletionDiscoveryFailure").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("True", Some("DiscoveryFailed")));
    let said = condition.message.as_deref().unwrap_or_default();
    assert!(
        said.starts_with("Discovery failed for some groups, 1 failing: ") && said.contains("sea.example/v1"),
        "{said}"
    );

    cluster.delete::<APIService>("v1.sea.example", "Background").await;
    cluster.env.sleep(Duration::from_secs(1200)).await;
    assert!(!is_there(&cluster).await);
}
