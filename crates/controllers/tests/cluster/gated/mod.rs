//! Controllers behind feature gates: the API server's trust bundle, old requests for certificates of pods, what API servers
//! say of their storage versions, and migrations.

use std::time::Duration;

use api::feature_gates::FeatureGates;
use client::Patch;
use controllers::Config;
use k8s_openapi::api::{
    apiserverinternal::v1alpha1::StorageVersion,
    certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest},
    coordination::v1::Lease,
    core::v1::{Namespace, Secret},
    storagemigration::v1beta1::StorageVersionMigration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use rcgen::{PublicKeyData, SigningKey};
use serde_json::{Value, json};

use super::{Cluster, config};

pub const GATES: [&str; 4] =
    ["ClusterTrustBundle=true", "PodCertificateRequest=true", "StorageVersionAPI=true", "StorageVersionMigrator=true"];

fn gated() -> Config {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    Config { feature_gates: FeatureGates::parse(GATES).unwrap(), root_ca_pem: Some(root), ..config() }
}

#[tokio::test(start_paused = true)]
async fn the_servers_trust_bundle_is_published() {
    let config = gated();
    let root = config.root_ca_pem.clone().unwrap();
    let cluster = Cluster::start(config).await;
    let published = async || {
        let bundles = cluster.list::<ClusterTrustBundle>().await;
        bundles.into_iter().map(|b| (b.metadata.name.unwrap(), b.spec.trust_bundle)).collect::<Vec<_>>()
    };
    let first = published().await;
    assert_eq!(first.len(), 1);
    assert!(first[0].0.starts_with("kubernetes.io:kube-apiserver-serving:"), "{first:?}");
    assert_eq!(first[0].1, root);
    // Others of the same signer go, those of nobody stay, and what is deleted comes back.
    for (name, signer) in
        [("kubernetes.io:kube-apiserver-serving:old", "kubernetes.io/kube-apiserver-serving"), ("mine", "")]
    {
        let spec = json!({ "signerName": signer, "trustBundle": root });
        cluster.create::<ClusterTrustBundle>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    cluster.delete::<ClusterTrustBundle>(&first[0].0, "Background").await;
    cluster.settle().await;
    let names: Vec<_> = published().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [first[0].0.clone(), "mine".to_string()]);
}

#[tokio::test(start_paused = true)]
async fn requests_of_pods_are_cleared_away() {
    let cluster = Cluster::start(gated()).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let spec = json!({
        "signerName": "example.com/x", "podName": "p", "podUID": "u", "serviceAccountName": "default",
        "serviceAccountUID": "v", "nodeName": "n", "nodeUID": "w",
        "pkixPublicKey": k8s_openapi::ByteString(key.subject_public_key_info()),
        "proofOfPossession": k8s_openapi::ByteString(key.sign(b"u").unwrap()),
    });
    let request = |name: &str| json!({ "metadata": { "name": name }, "spec": spec });
    cluster.create::<PodCertificateRequest>(request("r")).await;
    cluster.env.sleep(Duration::from_secs(14 * 60)).await;
    assert_eq!(cluster.list::<PodCertificateRequest>().await.len(), 1);
    cluster.env.sleep(Duration::from_secs(2 * 60)).await;
    assert_eq!(cluster.list::<PodCertificateRequest>().await.len(), 0);
    // A namespace takes its requests with it.
    cluster.create::<PodCertificateRequest>(request("s")).await;
    cluster.client.api::<Namespace>().delete("d", &DeleteOptions::default()).await.unwrap();
    cluster.settle().await;
    assert!(cluster.client.api::<Namespace>().find("d").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_dead_servers_said_is_taken_back() {
    let cluster = Cluster::start(gated()).await;
    let versions = cluster.client.api::<StorageVersion>();
    cluster.env.sleep(Duration::from_secs(10)).await;
    let servers = async |name: &str| -> Option<Vec<String>> {
        let found = versions.find(name).await.unwrap()?;
        let list = found.status.storage_versions.unwrap_or_default().into_iter();
        Some(list.filter_map(|server| server.api_server_id).collect())
    };
    let own = servers("core.pods").await.unwrap();
    assert_eq!(own.len(), 1);
    let says = |id: &str| json!({ "apiServerID": id, "encodingVersion": "v1", "decodableVersions": ["v1"], "servedVersions": ["v1"] });
    // One that lives has a Lease with the label of such; a Lease without it is nobody's.
    let leases = cluster.client.namespaced::<Lease>("kube-system");
    for (name, labels) in
        [("other", json!({ "apiserver.kubernetes.io/identity": "kube-apiserver" })), ("fake", json!({}))]
    {
        let lease = json!({ "metadata": { "name": name, "labels": labels }, "spec": {
            "leaseDurationSeconds": 36000, "renewTime": "2026-01-01T00:00:00.000000Z" } });
        leases.create(&serde_json::from_value(lease).unwrap()).await.unwrap();
    }
    let create = async |name: &str, ids: &[&str]| {
        let object = json!({ "metadata": { "name": name }, "spec": {}, "status": {} });
        versions.create(&serde_json::from_value(object).unwrap()).await.unwrap();
        let all: Vec<Value> = ids.iter().map(|id| says(id)).collect();
        let status = json!({ "status": { "storageVersions": all, "commonEncodingVersion": "v1" } });
        versions.patch_status(name, &Patch::Merge(status)).await.unwrap();
    };
    create("example.com.whales", &["other", "dead", "fake"]).await;
    create("example.com.seals", &["dead"]).await;
    cluster.env.sleep(Duration::from_secs(10)).await;
    assert_eq!(servers("example.com.whales").await.unwrap(), ["other"]);
    assert_eq!(servers("example.com.seals").await, None);
    leases.delete("other", &DeleteOptions::default()).await.unwrap();
    cluster.settle().await;
    assert_eq!(servers("example.com.whales").await, None);
    assert_eq!(servers("core.pods").await.unwrap(), own);
}

fn definition(storage: &str) -> Value {
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let version = |name: &str| json!({ "name": name, "served": true, "storage": name == storage, "schema": schema });
    json!({ "metadata": { "name": "whales.sea.example" }, "spec": {
        "group": "sea.example", "scope": "Namespaced", "names": { "kind": "Whale", "plural": "whales", "singular": "whale", "listKind": "WhaleList" },
        "versions": [version("v1"), version("v2")] } })
}

#[tokio::test(start_paused = true)]
async fn objects_are_written_again_in_the_version_of_today() {
    let cluster = Cluster::start(gated()).await;
    cluster.create::<CustomResourceDefinition>(definition("v1")).await;
    cluster.env.sleep(Duration::from_secs(5)).await;
    let call = async |method: http::Method, path: &str, body: Value| -> Value {
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let answer = cluster.client.request(request.body(body.to_string().into_bytes().into()).unwrap()).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    };
    let whales = "/apis/sea.example/v1/namespaces/d/whales";
    let whale = |name: &str| json!({ "apiVersion": "sea.example/v1", "kind": "Whale", "metadata": { "name": name }, "songs": 3 });
    call(http::Method::POST, whales, whale("a")).await;
    let v2 = json!({ "spec": definition("v2")["spec"] });
    cluster.client.api::<CustomResourceDefinition>().patch("whales.sea.example", &Patch::Merge(v2)).await.unwrap();
    cluster.env.sleep(Duration::from_secs(5)).await;
    call(http::Method::POST, whales, whale("b")).await;
    let revision = async |name: &str| {
        let object = call(http::Method::GET, &format!("{whales}/{name}"), Value::Null).await;
        assert_eq!(object["songs"], 3);
        object["metadata"]["resourceVersion"].as_str().unwrap().to_string()
    };
    let before = (revision("a").await, revision("b").await);
    let migration = |name: &str, group: &str, resource: &str| json!({ "metadata": { "name": name }, "spec": { "resource": { "group": group, "resource": resource } } });
    cluster.create::<StorageVersionMigration>(migration("whales", "sea.example", "whales")).await;
    cluster.create::<Secret>(json!({ "metadata": { "name": "s" } })).await;
    cluster.create::<StorageVersionMigration>(migration("secrets", "", "secrets")).await;
    cluster.create::<StorageVersionMigration>(migration("none", "sea.example", "seals")).await;
    let state = async |name: &str| -> Vec<String> {
        let found = cluster.client.api::<StorageVersionMigration>().get(name).await.unwrap();
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.into_iter().map(|c| format!("{}={} {}", c.type_, c.status, c.message)).collect()
    };
    cluster.env.sleep(Duration::from_secs(20)).await;
    for name in ["whales", "secrets"] {
        assert_eq!(state(name).await, ["Running=False ", "Succeeded=True "], "{name}");
    }
    assert_eq!(state("none").await, Vec::<String>::new());
    let after = (revision("a").await, revision("b").await);
    assert_ne!(before.0, after.0, "was stored in the old version");
    assert_eq!(before.1, after.1, "was stored in the new one already");
    cluster.settle().await;
    assert_eq!(state("none").await, ["Failed=True resource does not exist in discovery"]);
}
