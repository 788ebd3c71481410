//! Budgets, quotas, roles, volumes and certificates against the real API server.
//! Run by the cluster of `main`.
//! As in `main`, every test ends quiet.

use std::time::Duration;

use controllers::{Config, LoadBalancer};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::TokenReview,
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Endpoints, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret,
        Service, ServiceAccount,
    },
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    storage::v1::VolumeAttributesClass,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::{Cluster, config, deployment};

#[tokio::test(start_paused = true)]
async fn budgets_and_quotas_follow_the_pods() {
    let cluster = Cluster::start(config()).await;
    let budget = json!({ "metadata": { "name": "b" }, "spec": { "maxUnavailable": 1,
        "selector": { "matchLabels": { "app": "web" } } } });
    cluster.create::<PodDisruptionBudget>(budget).await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "pods": "10", "configmaps": "5",
        "count/deployments.apps": "3", "requests.cpu": "4" } } });
    cluster.create::<ResourceQuota>(quota).await;
    let mut web = deployment(3, "a:1");
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "500m" } });
    cluster.create::<Deployment>(web).await;
    cluster.settle().await;
    let status = cluster.api::<PodDisruptionBudget>().get("b").await.unwrap().status.unwrap();
    assert_eq!((status.expected_pods, status.desired_healthy, status.disruptions_allowed), (3, 2, 1));
    let used = async |name: &str| {
        let status = cluster.api::<ResourceQuota>().get("q").await.unwrap().status.unwrap();
        status.used.unwrap()[name].0.clone()
    };
    assert_eq!((used("pods").await.as_str(), used("requests.cpu").await.as_str()), ("3", "1500m"));
    assert_eq!((used("configmaps").await.as_str(), used("count/deployments.apps").await.as_str()), ("1", "1"));
    cluster.create::<ConfigMap>(json!({ "metadata": { "name": "more" } })).await;
    cluster.patch::<Deployment>("web", json!({ "spec": { "replicas": 1 } })).await;
    cluster.settle().await;
    assert_eq!((used("pods").await.as_str(), used("configmaps").await.as_str()), ("1", "2"));
}

#[tokio::test(start_paused = true)]
async fn budgets_say_when_pods_have_no_controller() {
    let cluster = Cluster::start(config()).await;
    let mut pod = super::template("a:1");
    pod["metadata"]["name"] = "alone".into();
    cluster.create::<Pod>(pod).await;
    for (name, spec) in [("percent", json!({ "maxUnavailable": 1 })), ("number", json!({ "minAvailable": 1 }))] {
        let mut spec = spec;
        spec["selector"] = json!({ "matchLabels": { "app": "web" } });
        cluster.create::<PodDisruptionBudget>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    cluster.settle().await;
    let status = async |name: &str| {
        let status = cluster.api::<PodDisruptionBudget>().get(name).await.unwrap().status.unwrap();
        (status.current_healthy, status.expected_pods, status.disruptions_allowed)
    };
    assert_eq!((status("percent").await, status("number").await), ((1, 0, 0), (1, 1, 0)));
    let told: Vec<_> =
        cluster.list::<Event>().await.into_iter().filter(|e| e.reason.as_deref() == Some("UnmanagedPods")).collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].involved_object.name.as_deref(), Some("percent"));
    assert!(told[0].message.as_deref().unwrap_or_default().contains("(selector: app=web)"), "{told:?}");
}

/// Admission charges first and stores then: a count between the two must not take the charge back.
#[tokio::test(start_paused = true)]
async fn a_charge_for_an_object_that_is_not_yet_stored_stays() {
    let cluster = Cluster::start(config()).await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "services.nodeports": "1" } } });
    cluster.create::<ResourceQuota>(quota).await;
    cluster.settle().await;
    let quotas = cluster.api::<ResourceQuota>();
    let used = async || quotas.get("q").await.unwrap().status.unwrap().used.unwrap()["services.nodeports"].0.clone();
    let charge = client::Patch::Merge(json!({ "status": { "used": { "services.nodeports": "1" } } }));
    quotas.patch_status("q", &charge).await.unwrap();
    cluster.create::<ConfigMap>(json!({ "metadata": { "name": "something" } })).await;
    cluster.env.sleep(Duration::from_secs(3)).await;
    assert_eq!(used().await, "1");
    cluster.delete::<ConfigMap>("something", "Background").await;
    cluster.env.sleep(Duration::from_secs(3)).await;
    assert_eq!(used().await, "0", "what goes away wakes the count");
}

#[tokio::test(start_paused = true)]
async fn attribute_classes_stay_while_a_volume_names_them() {
    let cluster = Cluster::start(config()).await;
    let class = json!({ "metadata": { "name": "fast" }, "driverName": "d.example.com", "parameters": { "a": "b" } });
    cluster.create::<VolumeAttributesClass>(class).await;
    let volume = json!({ "metadata": { "name": "pv" }, "spec": { "capacity": { "storage": "5Gi" },
        "accessModes": ["ReadWriteOnce"], "csi": { "driver": "d.example.com", "volumeHandle": "v" },
        "volumeAttributesClassName": "fast" } });
    cluster.create::<PersistentVolume>(volume).await;
    cluster.settle().await;
    let found = async || cluster.api::<VolumeAttributesClass>().find("fast").await.unwrap();
    assert_eq!(found().await.unwrap().metadata.finalizers.unwrap(), ["kubernetes.io/vac-protection"]);
    cluster.delete::<VolumeAttributesClass>("fast", "Background").await;
    cluster.settle().await;
    assert!(found().await.is_some());
    cluster.delete::<PersistentVolume>("pv", "Background").await;
    cluster.settle().await;
    assert!(found().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn claims_are_bound_and_protected() {
    let cluster = Cluster::start(config()).await;
    let volume = json!({ "metadata": { "name": "pv" }, "spec": { "capacity": { "storage": "5Gi" },
        "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/data" }, "storageClassName": "manual" } });
    cluster.create::<PersistentVolume>(volume).await;
    let claim = json!({ "metadata": { "name": "c" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "storageClassName": "manual", "resources": { "requests": { "storage": "1Gi" } } } });
    cluster.create::<PersistentVolumeClaim>(claim).await;
    cluster.settle().await;
    let claim = cluster.api::<PersistentVolumeClaim>().get("c").await.unwrap();
    assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Bound"));
    assert_eq!(claim.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
    let phase = async || cluster.api::<PersistentVolume>().get("pv").await.unwrap().status.unwrap().phase.unwrap();
    assert_eq!(phase().await, "Bound");
    cluster.delete::<PersistentVolumeClaim>("c", "Background").await;
    cluster.settle().await;
    assert!(cluster.api::<PersistentVolumeClaim>().find("c").await.unwrap().is_none());
    assert_eq!(phase().await, "Released");
}

#[tokio::test(start_paused = true)]
async fn claims_wait_for_pods_that_have_them_and_not_for_others() {
    let cluster = Cluster::start(config()).await;
    let claim = json!({ "metadata": { "name": "c" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let mut pod = super::template("ends:0");
    pod["metadata"]["name"] = "done".into();
    pod["spec"]["restartPolicy"] = "Never".into();
    pod["spec"]["volumes"] = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
    let found = async || cluster.api::<PersistentVolumeClaim>().find("c").await.unwrap().is_some();
    for (gated, held) in [(true, false), (false, true)] {
        cluster.create::<PersistentVolumeClaim>(claim.clone()).await;
        pod["spec"]["schedulingGates"] = if gated { json!([{ "name": "example.com/wait" }]) } else { json!(null) };
        cluster.create::<Pod>(pod.clone()).await;
        cluster.settle().await;
        cluster.delete::<PersistentVolumeClaim>("c", "Background").await;
        cluster.settle().await;
        assert_eq!(found().await, held, "gated: {gated}");
        cluster.delete::<Pod>("done", "Background").await;
        cluster.settle().await;
        assert!(!found().await);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_end_on_a_node_out_of_service_are_failed() {
    let cluster = Cluster::start(config()).await;
    for (taint, phase) in [("example.com/other", "Running"), ("node.kubernetes.io/out-of-service", "Failed")] {
        let mut pod = super::template("a:1");
        pod["metadata"]["name"] = "p".into();
        pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
        cluster.create::<Pod>(pod).await;
        cluster.env.sleep(Duration::from_secs(5)).await;
        let taints = json!([{ "key": taint, "effect": "NoExecute", "value": "nodeshutdown" }]);
        cluster.patch::<Node>("n", json!({ "spec": { "taints": taints } })).await;
        let silent = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
        cluster.api::<Node>().patch_status("n", &client::Patch::Merge(silent)).await.unwrap();
        cluster.settle().await;
        let found = cluster.api::<Pod>().get("p").await.unwrap();
        assert!(found.metadata.deletion_timestamp.is_some());
        assert_eq!(found.status.unwrap().phase.as_deref(), Some(phase), "{taint}");
        cluster.patch::<Pod>("p", json!({ "metadata": { "finalizers": null } })).await;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        cluster.api::<Node>().patch_status("n", &client::Patch::Merge(ready)).await.unwrap();
        cluster.patch::<Node>("n", json!({ "spec": { "taints": null } })).await;
        cluster.settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn roles_are_aggregated_and_endpoints_mirrored() {
    let cluster = Cluster::start(config()).await;
    let sum = json!({ "metadata": { "name": "sum" }, "rules": [], "aggregationRule": { "clusterRoleSelectors": [
        { "matchLabels": { "to": "sum" } }] } });
    cluster.create::<ClusterRole>(sum).await;
    let part = json!({ "metadata": { "name": "part", "labels": { "to": "sum" } },
        "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }] });
    cluster.create::<ClusterRole>(part).await;
    cluster.create::<Service>(json!({ "metadata": { "name": "ext" }, "spec": { "ports": [{ "port": 80 }] } })).await;
    let endpoints = json!({ "metadata": { "name": "ext" }, "subsets": [
        { "addresses": [{ "ip": "192.0.2.1" }], "ports": [{ "name": "web", "port": 80 }, { "name": "admin", "port": 90 }] }] });
    cluster.create::<Endpoints>(endpoints).await;
    cluster.settle().await;
    assert_eq!(cluster.api::<ClusterRole>().get("sum").await.unwrap().rules.unwrap().len(), 1);
    let slices = cluster.list::<EndpointSlice>().await;
    assert_eq!(slices.iter().map(|s| s.endpoints[0].addresses[0].as_str()).collect::<Vec<_>>(), ["192.0.2.1"]);
    cluster.delete::<Endpoints>("ext", "Background").await;
    cluster.settle().await;
    assert!(cluster.list::<EndpointSlice>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn node_certificates_are_approved_and_signed() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let mut config = config();
    config.certificate_authority =
        Some(controllers::CertificateAuthority { certificate_pem: ca.pem(), key_pem: key.serialize_pem() });
    let cluster = Cluster::start(config).await;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:fresh");
    let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = k8s_openapi::ByteString(request.into_bytes());
    let csr = json!({ "metadata": { "name": "csr" }, "spec": { "request": request,
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"],
        "username": "admin", "groups": ["system:masters"] } });
    cluster.create::<CertificateSigningRequest>(csr).await;
    cluster.settle().await;
    let status = cluster.api::<CertificateSigningRequest>().get("csr").await.unwrap().status.unwrap();
    assert_eq!(status.conditions.unwrap()[0].reason.as_deref(), Some("AutoApproved"));
    assert!(status.certificate.unwrap().0.starts_with(b"-----BEGIN CERTIFICATE-----"));
    cluster.env.sleep(Duration::from_secs(3600)).await;
    assert!(cluster.api::<CertificateSigningRequest>().find("csr").await.unwrap().is_none());
}

/// Anybody who may make Services would have what comes in for the Ingresses of all others, or for the nodes themselves.
#[tokio::test(start_paused = true)]
async fn a_load_balancer_does_not_take_a_port_that_the_nodes_need() {
    let (load_balancer, node_ports_reserved) = (LoadBalancer::Nodes, vec![(80, "the ingress")]);
    let cluster = Cluster::start(Config { load_balancer, node_ports_reserved, ..config() }).await;
    let addresses = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }] } });
    cluster.api::<Node>().patch_status("n", &client::Patch::Merge(addresses)).await.unwrap();
    for (name, port) in [("thief", 80), ("web", 8080)] {
        let spec = json!({ "type": "LoadBalancer", "ports": [{ "port": port }] });
        cluster.create::<Service>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    cluster.settle().await;
    let ingress = async |name: &str| {
        let status = cluster.api::<Service>().get(name).await.unwrap().status.unwrap_or_default();
        let ingress = status.load_balancer.and_then(|balancer| balancer.ingress).unwrap_or_default();
        ingress.into_iter().filter_map(|ingress| ingress.ip).collect::<Vec<_>>()
    };
    assert_eq!((ingress("thief").await, ingress("web").await), (vec![], vec!["192.0.2.7".to_string()]));
    let told: Vec<_> = cluster.list::<Event>().await.into_iter().filter_map(|event| event.message).collect();
    assert!(told.contains(&"TCP port 80 of the nodes is already used by the ingress".to_string()), "{told:?}");
}

/// Its Node is Ready for half a minute more; its addresses are not to be without an answer for so long.
#[tokio::test(start_paused = true)]
async fn an_address_moves_when_its_node_falls_silent() {
    let load_balancer = LoadBalancer::Layer2(vec!["192.0.2.77".parse().unwrap()]);
    let cluster = Cluster::start(Config { load_balancer, ..config() }).await;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    cluster.create::<Node>(json!({ "metadata": { "name": "m" } })).await;
    cluster.api::<Node>().patch_status("m", &client::Patch::Merge(ready)).await.unwrap();
    let spec = json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }] });
    cluster.create::<Service>(json!({ "metadata": { "name": "web" }, "spec": spec })).await;
    cluster.settle().await;
    let announcer = async || {
        let status = cluster.api::<Service>().get("web").await.unwrap().status.unwrap_or_default();
        status.conditions.unwrap_or_default().first().map(|held| held.message.clone()).unwrap_or_default()
    };
    let first = announcer().await;
    let other = if first == "m" { "n" } else { "m" };
    let leases = cluster.client.namespaced::<Lease>("kube-node-lease");
    let beat = async |node: &str| {
        let spec = json!({ "renewTime": MicroTime(cluster.env.now()) });
        let body = json!({ "metadata": { "annotations": { "minke.io/layer2-heartbeat": "500ms" } }, "spec": spec });
        leases.patch(node, &client::Patch::Merge(body)).await.unwrap();
    };
    for node in ["m", "n"] {
        let lease = json!({ "metadata": { "name": node }, "spec": {} });
        leases.create(&serde_json::from_value(lease).unwrap()).await.unwrap();
    }
    for _ in 0..20 {
        beat(&first).await;
        cluster.env.sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(announcer().await, first, "who is heard of keeps it");
    cluster.env.sleep(Duration::from_secs(2)).await;
    assert_eq!(announcer().await, other, "four beats were missed");
    beat(&first).await;
    beat(other).await;
    cluster.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(announcer().await, other, "who is back takes nothing away");
}

/// Whoever has a token to join with may ask for any name; that of a node that is there would be its pods' Secrets.
#[tokio::test(start_paused = true)]
async fn a_token_holder_does_not_become_a_node_that_is_alive() {
    let cluster = Cluster::start(config()).await;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n");
    let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let spec = json!({ "request": k8s_openapi::ByteString(request.into_bytes()),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"] });
    cluster.create::<CertificateSigningRequest>(json!({ "metadata": { "name": "csr" }, "spec": spec })).await;
    cluster.settle().await;
    let conditions = async || {
        let status = cluster.api::<CertificateSigningRequest>().get("csr").await.unwrap().status.unwrap_or_default();
        status.conditions.unwrap_or_default().iter().map(|c| c.type_.clone()).collect::<Vec<_>>()
    };
    assert!(conditions().await.is_empty());
    // A machine that comes back without its certificate has been silent.
    let silent = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    cluster.api::<Node>().patch_status("n", &client::Patch::Merge(silent)).await.unwrap();
    cluster.settle().await;
    assert_eq!(conditions().await, ["Approved"]);
}

#[tokio::test(start_paused = true)]
async fn secrets_hold_tokens_while_their_account_lives() {
    let mut config = config();
    config.service_account_key_pem = Some(rcgen::KeyPair::generate().unwrap().serialize_pem());
    let cluster = Cluster::start(config).await;
    cluster.create::<ServiceAccount>(json!({ "metadata": { "name": "robot" } })).await;
    let secret = json!({ "metadata": { "name": "robot-token", "annotations": {
        "kubernetes.io/service-account.name": "robot",
    } }, "type": "kubernetes.io/service-account-token" });
    cluster.create::<Secret>(secret.clone()).await;
    cluster.settle().await;
    let filled = cluster.api::<Secret>().get("robot-token").await.unwrap().data.unwrap();
    let text = |key: &str| String::from_utf8(filled[key].0.clone()).unwrap();
    assert_eq!((text("namespace").as_str(), text("ca.crt").as_str()), ("d", "pem"));
    let review = async || {
        let review = json!({ "metadata": {}, "spec": { "token": text("token") } });
        let review: TokenReview = serde_json::from_value(review).unwrap();
        let status = cluster.client.api::<TokenReview>().create(&review).await.unwrap().status.unwrap_or_default();
        status.user.and_then(|u| u.username)
    };
    assert_eq!(review().await.as_deref(), Some("system:serviceaccount:d:robot"));
    cluster.delete::<ServiceAccount>("robot", "Background").await;
    cluster.settle().await;
    assert!(cluster.api::<Secret>().find("robot-token").await.unwrap().is_none());
    assert_eq!(review().await, None);
}

#[tokio::test(start_paused = true)]
async fn tokens_in_secrets_are_withdrawn_and_deleted_when_nobody_uses_them() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let mut config = config();
    config.service_account_key_pem = Some(rcgen::KeyPair::generate().unwrap().serialize_pem());
    config.legacy_token_clean_up_period = 2 * DAY;
    let cluster = Cluster::start(config).await;
    for name in ["idle", "busy"] {
        let account = json!({ "metadata": { "name": name }, "secrets": [{ "name": name }] });
        cluster.create::<ServiceAccount>(account).await;
        let metadata = json!({ "name": name, "annotations": { "kubernetes.io/service-account.name": name } });
        let secret = json!({ "metadata": metadata, "type": "kubernetes.io/service-account-token" });
        cluster.create::<Secret>(secret).await;
    }
    cluster.settle().await;
    let mut tokens = std::collections::BTreeMap::new();
    for secret in cluster.list::<Secret>().await {
        tokens
            .insert(secret.metadata.name.unwrap(), String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap());
    }
    let is_believed = async |name: &str| {
        let review = json!({ "metadata": {}, "spec": { "token": tokens[name] } });
        let review: TokenReview = serde_json::from_value(review).unwrap();
        let status = cluster.client.api::<TokenReview>().create(&review).await.unwrap().status.unwrap_or_default();
        status.authenticated == Some(true)
    };
    let label = async |name: &str, label: &str| {
        let labels = cluster.api::<Secret>().get(name).await.unwrap().metadata.labels.unwrap_or_default();
        labels.get(&format!("kubernetes.io/legacy-token-{label}")).cloned()
    };
    for _ in 0..5 {
        assert!(is_believed("busy").await);
        cluster.env.sleep(DAY).await;
    }
    assert!(label("idle", "invalid-since").await.is_some());
    assert_eq!(label("idle", "last-used").await, None);
    assert!(!is_believed("idle").await);
    assert_eq!(label("busy", "invalid-since").await, None);
    let yesterday = (cluster.env.now() - DAY).strftime("%Y-%m-%d").to_string();
    assert_eq!(label("busy", "last-used").await, Some(yesterday));
    // Taking the label off brings it back, and showing it in vain was a use, too.
    cluster
        .patch::<Secret>(
            "idle",
            json!({ "metadata": { "labels": { "kubernetes.io/legacy-token-invalid-since": null } } }),
        )
        .await;
    cluster.env.sleep(Duration::from_secs(1)).await;
    assert!(is_believed("idle").await);
    for _ in 0..9 {
        assert!(is_believed("busy").await);
        cluster.env.sleep(DAY).await;
    }
    assert!(cluster.api::<Secret>().find("idle").await.unwrap().is_none());
    assert!(cluster.api::<Secret>().find("busy").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_ca_is_in_every_namespace_whatever_people_do() {
    let cluster = Cluster::start(config()).await;
    cluster.settle().await;
    let held = async || {
        let map = cluster.api::<ConfigMap>().find("kube-root-ca.crt").await.unwrap();
        map.and_then(|m| m.data).and_then(|d| d.get("ca.crt").cloned())
    };
    assert_eq!(held().await.as_deref(), Some("pem"));
    cluster.delete::<ConfigMap>("kube-root-ca.crt", "Background").await;
    cluster.settle().await;
    assert_eq!(held().await.as_deref(), Some("pem"));
    cluster.patch::<ConfigMap>("kube-root-ca.crt", json!({ "data": { "ca.crt": "another" } })).await;
    cluster.settle().await;
    assert_eq!(held().await.as_deref(), Some("pem"));
}

#[tokio::test(start_paused = true)]
async fn service_ranges_stay_while_their_addresses_are_in_use() {
    let cluster = Cluster::start(config()).await;
    let range = |name: &str| json!({ "metadata": { "name": name }, "spec": { "cidrs": ["172.30.0.0/24"] } });
    let ready = |range: &ServiceCIDR| {
        let conditions = range.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        conditions.iter().find(|c| c.type_ == "Ready").map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
    };
    cluster.create::<ServiceCIDR>(range("more")).await;
    cluster.settle().await;
    let made = cluster.api::<ServiceCIDR>().get("more").await.unwrap();
    assert_eq!(
        made.metadata.finalizers.as_deref(),
        Some(&["networking.k8s.io/service-cidr-finalizer".to_string()][..])
    );
    assert_eq!(ready(&made), Some(("True".into(), "".into(), "Kubernetes Service CIDR is ready".into())));
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "clusterIP": "172.30.0.7", "ports": [{ "port": 80 }] } });
    cluster.create::<Service>(service).await;
    cluster.delete::<ServiceCIDR>("more", "Background").await;
    cluster.settle().await;
    let kept = cluster.api::<ServiceCIDR>().get("more").await.unwrap();
    let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
    assert_eq!(ready(&kept), Some(("False".into(), "Terminating".into(), why.into())));
    // Another one that has the address frees it.
    cluster.create::<ServiceCIDR>(range("instead")).await;
    cluster.settle().await;
    assert!(cluster.api::<ServiceCIDR>().find("more").await.unwrap().is_none());
    cluster.delete::<ServiceCIDR>("instead", "Background").await;
    cluster.settle().await;
    assert!(cluster.api::<ServiceCIDR>().find("instead").await.unwrap().is_some());
    cluster.delete::<Service>("s", "Background").await;
    cluster.settle().await;
    assert!(cluster.api::<ServiceCIDR>().find("instead").await.unwrap().is_none());
}
