//! All controllers together against the real API server over the memory store, under simulated time.
//! One pretend node runs every pod; `counting` watches what the controllers write.
//! Every test ends quiet: once converged, the controllers write nothing any more.

mod admission;
mod autoscaling;
mod bad_input;
mod bootstrap;
mod collecting;
mod collisions;
mod conformance;
mod counting;
mod devices;
mod endpoints;
mod events;
mod gated;
mod guards;
mod identities;
mod jobs;
mod namespaces;
mod node;
mod quotas;
mod rollouts;
mod sets;
mod storage;
mod workloads;

use std::{sync::Arc, time::Duration};

use api::feature_gates::FeatureGates;
use apiserver::{ApiServer, config::RuntimeConfig};
use client::{Client, InformerFactory, ListParams};
use controllers::Config;
use counting::Counts;
use env::Env;
use k8s_openapi::{
    ListableResource, Metadata,
    api::{
        apps::v1::{Deployment, ReplicaSet},
        core::v1::{ConfigMap, Endpoints, Event, Namespace, Node, Pod, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub struct Cluster {
    server: Arc<ApiServer>,
    counts: Counts,
    client: Client,
    env: Env,
    _shutdown: tokio_util::sync::DropGuard,
}

impl Cluster {
    pub async fn start(config: Config) -> Self {
        Self::start_in(config, Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1)).await
    }

    pub async fn start_in(mut config: Config, env: Env) -> Self {
        let key = config.service_account_key_pem.clone();
        let key = key.unwrap_or_else(|| rcgen::KeyPair::generate().unwrap().serialize_pem());
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let mut settings = apiserver::Config::in_process(key);
        settings.enable_admission_plugins.push("VerticalPodAutoscaler".into());
        settings.feature_gates = config.feature_gates.clone();
        if config.feature_gates != FeatureGates::default() {
            settings.runtime_config = RuntimeConfig::parse(["api/all=true"]).unwrap();
        }
        let server = ApiServer::new(settings, store, env.clone()).await.unwrap();
        let (counts, shutdown) = (Counts::default(), CancellationToken::new());
        let admin = in_process::client(&server, "admin", &["system:masters"]);
        // Under their own accounts and with the real authorizer: a rule that a role lacks fails the test.
        let ours = counts.between(in_process::client(&server, "system:kube-controller-manager", &[]));
        let (accounts, counted) = (server.clone(), counts.clone());
        config.service_account_clients =
            Some(Arc::new(move |name| counted.between(in_process::service_account_client(&accounts, name))));
        let informers = |client: &Client| InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
        env::spawn(node::run(admin.clone(), informers(&admin), env.clone()));
        env::spawn(controllers::run(config, ours.clone(), informers(&ours), env.clone(), shutdown.clone()));
        let cluster = Self { server, counts, client: admin, env, _shutdown: shutdown.drop_guard() };
        cluster.create::<Namespace>(json!({ "metadata": { "name": "d" } })).await;
        cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        cluster.api::<Node>().patch_status("n", &client::Patch::Merge(status)).await.unwrap();
        cluster.env.sleep(Duration::from_secs(2)).await;
        cluster
    }

    pub fn api<K: k8s_openapi::Resource>(&self) -> client::Api<K> {
        match api::kinds::resource_of::<K>().namespaced() {
            true => self.client.namespaced("d"),
            false => self.client.api(),
        }
    }

    pub async fn create<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(&self, object: Value) -> K {
        self.api::<K>().create(&serde_json::from_value(object).unwrap()).await.unwrap()
    }

    pub async fn list<K: ListableResource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned>(&self) -> Vec<K> {
        self.api::<K>().list(&ListParams::default()).await.unwrap().items
    }

    pub async fn patch<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(&self, name: &str, patch: Value) {
        self.api::<K>().patch(name, &client::Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(&self, name: &str, policy: &str) {
        let options = DeleteOptions { propagation_policy: Some(policy.into()), ..DeleteOptions::default() };
        self.api::<K>().delete(name, &options).await.unwrap();
    }

    /// Lets everything happen; checks that it comes to rest.
    pub async fn settle(&self) {
        self.env.sleep(Duration::from_secs(60)).await;
        let before = self.counts.writes();
        self.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(self.counts.writes(), before, "still writing after convergence: {:#?}", self.counts.latest());
        assert!(self.counts.unauthorized().is_empty(), "a role lacks rules: {:#?}", self.counts.unauthorized());
    }
}

pub fn template(image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": image }] },
    })
}

pub fn deployment(replicas: i32, image: &str) -> Value {
    json!({
        "metadata": { "name": "web" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template(image) },
    })
}

pub fn config() -> Config {
    Config {
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        root_ca_pem: Some("pem".into()),
        // The pretend node does not renew its lease.
        node_monitor_grace_period: Duration::from_secs(36_000),
        node_startup_grace_period: Duration::from_secs(36_000),
        ..Config::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_rolls_out_is_served_and_goes() {
    let cluster = Cluster::start(config()).await;
    let service = json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" },
        "ports": [{ "port": 80, "targetPort": 8080 }] } });
    cluster.create::<Service>(service).await;
    cluster.create::<Deployment>(deployment(5, "a:1")).await;
    cluster.settle().await;

    let web = cluster.api::<Deployment>().get("web").await.unwrap();
    let status = web.status.unwrap();
    assert_eq!(
        (status.ready_replicas, status.updated_replicas, status.observed_generation),
        (Some(5), Some(5), Some(1))
    );
    assert_eq!(cluster.list::<Pod>().await.len(), 5);
    let slices = cluster.list::<EndpointSlice>().await;
    assert_eq!(slices.iter().map(|s| s.endpoints.len()).collect::<Vec<_>>(), [5]);
    let endpoints = cluster.api::<Endpoints>().get("web").await.unwrap();
    assert_eq!(endpoints.subsets.unwrap()[0].addresses.as_ref().unwrap().len(), 5);
    assert_eq!(cluster.api::<Node>().get("n").await.unwrap().spec.unwrap().pod_cidr.as_deref(), Some("10.42.0.0/24"));

    cluster.patch::<Deployment>("web", json!({ "spec": { "template": template("a:2") } })).await;
    cluster.settle().await;
    let mut sets = cluster.list::<ReplicaSet>().await;
    sets.sort_by_key(|s| s.metadata.creation_timestamp.clone());
    assert_eq!(sets.iter().map(|s| s.spec.as_ref().unwrap().replicas).collect::<Vec<_>>(), [Some(0), Some(5)]);
    let pods = cluster.list::<Pod>().await;
    assert_eq!(pods.len(), 5);
    assert!(pods.iter().all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("a:2")));
    let events: Vec<_> = cluster.list::<Event>().await.into_iter().filter_map(|e| e.message).collect();
    assert!(
        events.iter().any(|m| m.starts_with("Scaled up replica set web-") && m.ends_with("from 0 to 5")),
        "{events:?}"
    );

    cluster.delete::<Deployment>("web", "Background").await;
    cluster.settle().await;
    assert_eq!((cluster.list::<ReplicaSet>().await.len(), cluster.list::<Pod>().await.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn foreground_and_orphan_deletions() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.settle().await;
    cluster.delete::<Deployment>("web", "Foreground").await;
    cluster.settle().await;
    assert!(cluster.list::<Deployment>().await.is_empty() && cluster.list::<Pod>().await.is_empty());

    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.settle().await;
    cluster.delete::<Deployment>("web", "Orphan").await;
    cluster.settle().await;
    let sets = cluster.list::<ReplicaSet>().await;
    assert!(sets.len() == 1 && sets[0].metadata.owner_references.as_ref().is_none_or(Vec::is_empty));
    assert_eq!(cluster.list::<Pod>().await.len(), 2);

    // The same template again adopts what was left.
    cluster.create::<Deployment>(deployment(2, "a:1")).await;
    cluster.settle().await;
    let adopted = cluster.list::<ReplicaSet>().await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(adopted[0].metadata.uid, sets[0].metadata.uid);
    assert_eq!(adopted[0].metadata.owner_references.as_ref().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_furnished_and_emptied() {
    let cluster = Cluster::start(config()).await;
    cluster.create::<Deployment>(deployment(3, "a:1")).await;
    cluster.settle().await;
    assert_eq!(cluster.list::<ServiceAccount>().await[0].metadata.name.as_deref(), Some("default"));
    assert_eq!(cluster.list::<ConfigMap>().await[0].metadata.name.as_deref(), Some("kube-root-ca.crt"));
    cluster.delete::<Namespace>("d", "Background").await;
    cluster.env.sleep(Duration::from_secs(120)).await;
    let left = cluster.list::<Namespace>().await;
    assert!(left.iter().all(|n| n.metadata.name.as_deref() != Some("d")), "{left:#?}");
    assert!(cluster.list::<Pod>().await.is_empty() && cluster.list::<ReplicaSet>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_loses_its_pods() {
    let mut config = config();
    config.node_monitor_grace_period = Duration::from_secs(50);
    config.node_startup_grace_period = Duration::from_secs(50);
    let cluster = Cluster::start(config).await;
    // With no other node alive the fault would be taken for ours.
    cluster.create::<Node>(json!({ "metadata": { "name": "other" } })).await;
    let (nodes, env) = (cluster.api::<Node>(), cluster.env.clone());
    env::spawn(async move {
        loop {
            let now = env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": now }] } });
            nodes.patch_status("other", &client::Patch::Merge(ready)).await.ok();
            env.sleep(Duration::from_secs(20)).await;
        }
    });
    let mut pod = template("a:1");
    pod["metadata"]["name"] = "p".into();
    pod["spec"]["tolerations"] = json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists",
        "effect": "NoExecute", "tolerationSeconds": 300 }]);
    cluster.create::<Pod>(pod).await;
    cluster.env.sleep(Duration::from_secs(40)).await;
    let taints = async || cluster.api::<Node>().get("n").await.unwrap().spec.and_then(|s| s.taints).unwrap_or_default();
    assert!(taints().await.is_empty());
    cluster.env.sleep(Duration::from_secs(20)).await;
    assert_eq!(taints().await.iter().map(|t| t.effect.as_str()).collect::<Vec<_>>(), ["NoSchedule", "NoExecute"]);
    cluster.env.sleep(Duration::from_secs(280)).await;
    assert_eq!(cluster.list::<Pod>().await.len(), 1);
    cluster.env.sleep(Duration::from_secs(60)).await;
    assert!(cluster.list::<Pod>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_refused_is_not_hammered() {
    let cluster = Cluster::start(config()).await;
    cluster.counts.refuse("/pods");
    cluster.create::<Deployment>(deployment(50, "a:1")).await;
    cluster.env.sleep(Duration::from_secs(60)).await;
    assert!(cluster.counts.refused() < 60, "{} requests in a minute", cluster.counts.refused());
    let set = &cluster.list::<ReplicaSet>().await[0];
    let condition = &set.status.as_ref().unwrap().conditions.as_ref().unwrap()[0];
    assert_eq!((condition.type_.as_str(), condition.reason.as_deref()), ("ReplicaFailure", Some("FailedCreate")));
}

#[tokio::test(start_paused = true)]
async fn controllers_say_when_they_know_the_cluster() {
    let config = config();
    let caches = config.caches.clone();
    assert_eq!(caches.are_filled(), None, "before they began");
    let cluster = Cluster::start(config).await;
    cluster.settle().await;
    assert_eq!(caches.are_filled(), Some(true));
}

/// By upstream's names, so that its dashboards and alerts find them.
#[tokio::test(start_paused = true)]
async fn every_controllers_queue_is_counted() {
    let config = config();
    let metrics = config.metrics.clone();
    let cluster = Cluster::start(config).await;
    cluster.settle().await;
    let mut out = metrics::Text::default();
    metrics.render(&mut out);
    let text = out.finish();
    for name in [
        "ClusterRoleAggregator",
        "bootstrap_signer_queue",
        "certificate",
        "cidrallocator_node",
        "claims",
        "cronjob",
        "daemonset",
        "deployment",
        "disruption",
        "endpoint",
        "endpoint_slice",
        "endpoint_slice_mirroring",
        "ephemeral_volume",
        "garbage_collector_attempt_to_delete",
        "ipaddresses",
        "job",
        "namespace",
        "node_lifecycle_controller",
        "noexec_taint_pod",
        "orphaned_pods_nodes",
        "pvcprotection",
        "pvprotection",
        "replicaset",
        "replicationmanager",
        "resourcequota_primary",
        "root_ca_cert_publisher",
        "serviceaccount",
        "serviceaccount_tokens_service",
        "statefulset",
        "token_cleaner",
        "ttl_jobs_to_delete",
        "ttlcontroller",
        "vacprotection",
    ] {
        let line = format!("workqueue_depth{{name=\"{name}\"}} 0");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
