//! What a cluster tells nodes: those that come, to find it; those that are there, how often to ask.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret};
use serde_json::json;

use super::{Cluster, config};

#[tokio::test(start_paused = true)]
async fn cluster_info_is_signed_as_long_as_tokens_live() {
    let cluster = Cluster::start(config()).await;
    for name in ["kube-public", "kube-system"] {
        if cluster.api::<Namespace>().find(name).await.unwrap().is_none() {
            cluster.create::<Namespace>(json!({ "metadata": { "name": name } })).await;
        }
    }
    let maps = cluster.client.namespaced::<ConfigMap>("kube-public");
    let info = json!({ "metadata": { "name": "cluster-info" }, "data": { "kubeconfig": "text" } });
    maps.create(&serde_json::from_value(info).unwrap()).await.unwrap();
    let expiration = (cluster.env.now() + Duration::from_secs(600)).to_string();
    let data = json!({ "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": expiration,
        "usage-bootstrap-signing": "true" });
    let token = json!({ "metadata": { "name": "bootstrap-token-abcdef" }, "type": "bootstrap.kubernetes.io/token",
        "stringData": data });
    let secrets = cluster.client.namespaced::<Secret>("kube-system");
    secrets.create(&serde_json::from_value(token).unwrap()).await.unwrap();
    let keys = async || -> Vec<String> {
        let data: BTreeMap<_, _> = maps.get("cluster-info").await.unwrap().data.unwrap();
        data.into_keys().collect()
    };
    cluster.settle().await;
    assert_eq!(keys().await, ["jws-kubeconfig-abcdef", "kubeconfig"]);
    cluster.env.sleep(Duration::from_secs(600)).await;
    cluster.settle().await;
    assert_eq!(keys().await, ["kubeconfig"]);
    assert!(secrets.find("bootstrap-token-abcdef").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn nodes_are_told_how_long_they_may_use_what_they_know() {
    let cluster = Cluster::start(config()).await;
    let ttl = async |name: &str| {
        let annotations = cluster.api::<Node>().get(name).await.unwrap().metadata.annotations.unwrap_or_default();
        annotations.get("node.alpha.kubernetes.io/ttl").cloned()
    };
    cluster.settle().await;
    assert_eq!(ttl("n").await.as_deref(), Some("0"));
    for number in 0..100 {
        cluster.create::<Node>(json!({ "metadata": { "name": format!("n{number}") } })).await;
    }
    cluster.settle().await;
    assert_eq!(ttl("n99").await.as_deref(), Some("15"));
    // The others follow when they change.
    cluster.patch::<Node>("n", json!({ "metadata": { "labels": { "alive": "yes" } } })).await;
    cluster.settle().await;
    assert_eq!(ttl("n").await.as_deref(), Some("15"));
}
