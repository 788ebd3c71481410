//! Random declarations (`declarations`), changes, deletions and accidents (`accidents`).
//! Played by `runner` on a `Simulation`; `checkers::convergence` says afterwards whether everything came true.
//! All choices come from the run's seed; nothing asked for here is impossible once the faults have ended.

use std::time::Duration;

use api::ApiError;
use client::{Api, ListParams, Patch};
use k8s_openapi::{
    ListableResource,
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        core::v1::{Namespace, Node, Pod, ResourceQuota},
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{Simulation, checkers::watches::Selection, facts};

mod accidents;
mod autoscalers;
mod declarations;
mod devices;

use autoscalers::AUTOSCALER_SEEDS_FIRST;
use devices::DEVICE_SEEDS_FIRST;

/// One with a quota, one without.
pub const NAMESPACES: [&str; 2] = ["free", "team"];
const BRIEF: &str = "brief";

type Result = std::result::Result<(), ApiError>;

/// What some seeds have beside workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// There are devices to ask for.
    Devices,
    Autoscalers,
}

impl Extra {
    pub fn of(seed: u64) -> Self {
        match seed {
            AUTOSCALER_SEEDS_FIRST.. => Self::Autoscalers,
            DEVICE_SEEDS_FIRST.. => Self::Devices,
            _ => Self::Nothing,
        }
    }
}

pub struct Workload<'a> {
    simulation: &'a mut Simulation,
    /// Without what would excuse everybody: partitions and restores.
    strict: bool,
    extra: Extra,
    /// What has been done, for whoever reads about a failure.
    pub log: Vec<String>,
}

/// The steps by weight.
const STEPS: &[(u64, &str)] = &[
    (14, "deployment"),
    (4, "replica set"),
    (8, "stateful set"),
    (6, "daemon set"),
    (9, "job"),
    (4, "cron job"),
    (8, "delete a workload"),
    (7, "delete a pod"),
    (5, "evict a pod"),
    (5, "drain"),
    (3, "budget"),
    (3, "service"),
    (3, "quota"),
    (3, "namespace"),
    (4, "cordon"),
    (3, "taint"),
    (6, "node down"),
    (2, "node deleted"),
    (3, "controllers crash"),
    (3, "scheduler crashes"),
    (3, "server crashes"),
    (2, "clock jumps"),
    (4, "change over"),
    (4, "partition"),
    (4, "backup"),
    (4, "restore"),
];

/// What some clients watch besides everything: selections that objects enter and leave.
pub fn selections() -> Vec<(&'static str, &'static str, &'static str, Selection)> {
    let within = |namespace: &str| Selection { namespace: Some(namespace.into()), ..Selection::default() };
    let field = |name, value: &str| Selection { field: Some((name, value.into())), ..Selection::default() };
    let label = |value: &str| Selection { label: Some(("app".into(), value.into())), ..Selection::default() };
    vec![
        ("", "v1", "resourcequotas", within("team")),
        ("", "v1", "resourcequotas", within("team")),
        ("", "v1", "resourcequotas", within("team")),
        ("networking.k8s.io", "v1", "ipaddresses", Selection::default()),
        ("", "v1", "pods", field("status.phase", "Running")),
        ("", "v1", "pods", field("spec.nodeName", "node-0")),
        ("", "v1", "pods", label("web")),
        ("", "v1", "pods", Selection { namespace: Some("free".into()), ..field("status.phase", "Pending") }),
        ("apps", "v1", "replicasets", label("web")),
        ("apps", "v1", "deployments", field("metadata.name", "web")),
        ("", "v1", "configmaps", within("free")),
        ("", "v1", "events", within("team")),
    ]
}

impl<'a> Workload<'a> {
    pub fn new(simulation: &'a mut Simulation, strict: bool, extra: Extra) -> Self {
        Self { simulation, strict, extra, log: Vec::new() }
    }

    fn below(&self, limit: u64) -> u64 {
        self.simulation.env.random_u64() % limit
    }

    fn one<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn note(&mut self, text: String) {
        self.log.push(format!("{:>8.1} s  {text}", self.simulation.env.monotonic().as_secs_f64()));
    }

    pub async fn prepare(&mut self) -> Result {
        for name in NAMESPACES {
            self.apply::<Namespace>(None, "v1", "Namespace", name, json!({})).await?;
        }
        if self.extra == Extra::Devices {
            self.prepare_devices().await?;
        }
        // Two quotas: a pod changes both in one transaction.
        let hard = json!({ "spec": { "hard": { "pods": "100" } } });
        self.apply::<ResourceQuota>(Some("team"), "v1", "ResourceQuota", "count", hard).await?;
        let hard = json!({ "spec": { "hard": { "pods": "8", "requests.cpu": "6" } } });
        self.apply::<ResourceQuota>(Some("team"), "v1", "ResourceQuota", "limit", hard).await
    }

    /// One random step. A server that is down or an object that is gone is part of the game.
    pub async fn step(&mut self) {
        let total = STEPS.iter().map(|s| s.0).sum();
        let mut drawn = self.below(total);
        let step = STEPS.iter().find(|(weight, _)| match drawn.checked_sub(*weight) {
            Some(left) => {
                drawn = left;
                false
            }
            None => true,
        });
        let name = step.map(|s| s.1).unwrap_or_default();
        if let Err(error) = self.take(name).await {
            self.note(format!("  {name}: {error}"));
        }
        let pause = if self.below(4) == 0 { self.below(60_000) } else { self.below(4000) };
        self.simulation.env.sleep(Duration::from_millis(pause)).await;
    }

    async fn take(&mut self, step: &str) -> Result {
        if self.extra != Extra::Nothing && self.below(3) == 0 {
            return match self.extra {
                Extra::Autoscalers => self.autoscale().await,
                _ => self.take_devices().await,
            };
        }
        match step {
            "deployment" => self.deployment().await,
            "replica set" => self.replica_set().await,
            "stateful set" => self.stateful_set().await,
            "daemon set" => self.daemon_set().await,
            "job" => self.job().await,
            "cron job" => self.cron_job().await,
            "delete a workload" => self.delete_workload().await,
            "delete a pod" => self.delete_pod().await,
            "evict a pod" => self.evict_pod().await,
            "drain" => self.drain().await,
            "budget" => self.budget().await,
            "service" => self.service().await,
            "quota" => self.quota().await,
            "namespace" => self.namespace().await,
            _ => self.accident(step).await,
        }
    }

    async fn apply<K>(&mut self, namespace: Option<&str>, version: &str, kind: &str, name: &str, body: Value) -> Result
    where
        K: k8s_openapi::Resource + Serialize + DeserializeOwned,
    {
        self.note(format!("apply {kind} {}/{name} {body}", namespace.unwrap_or_default()));
        let mut config = body;
        config["apiVersion"] = version.into();
        config["kind"] = kind.into();
        config["metadata"] = json!({ "name": name, "namespace": namespace });
        let patch = Patch::Apply { manager: "workload".into(), force: true, config };
        self.api::<K>(namespace).patch(name, &patch).await.map(drop)
    }

    fn api<K: k8s_openapi::Resource>(&self, namespace: Option<&str>) -> Api<K> {
        match namespace {
            Some(namespace) => self.simulation.admin.namespaced(namespace),
            None => self.simulation.admin.api(),
        }
    }

    async fn any<K>(&self, namespace: &str) -> std::result::Result<Option<(String, K)>, ApiError>
    where
        K: ListableResource + facts::Object + Serialize + DeserializeOwned,
    {
        let mut all = self.api::<K>(Some(namespace)).list(&ListParams::default()).await?.items;
        if all.is_empty() {
            return Ok(None);
        }
        let chosen = all.swap_remove(self.below(all.len() as u64) as usize);
        Ok(Some((facts::name(&chosen).to_string(), chosen)))
    }

    async fn delete_any<K>(&mut self, namespace: &str) -> Result
    where
        K: ListableResource + facts::Object + Serialize + DeserializeOwned,
    {
        let Some((name, _)) = self.any::<K>(namespace).await? else { return Ok(()) };
        let policy = self.one(&["Background", "Foreground", "Background", "Orphan"]);
        self.note(format!("delete {} {namespace}/{name} {policy}", K::KIND));
        let options = DeleteOptions { propagation_policy: Some(policy.into()), ..DeleteOptions::default() };
        self.api::<K>(Some(namespace)).delete(&name, &options).await
    }

    async fn delete_workload(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        match self.below(6) {
            0 => self.delete_any::<Deployment>(namespace).await,
            1 => self.delete_any::<ReplicaSet>(namespace).await,
            2 => self.delete_any::<StatefulSet>(namespace).await,
            3 => self.delete_any::<DaemonSet>(namespace).await,
            4 => self.delete_any::<Job>(namespace).await,
            _ => self.delete_any::<CronJob>(namespace).await,
        }
    }

    async fn delete_pod(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        let Some((name, _)) = self.any::<Pod>(namespace).await? else { return Ok(()) };
        self.note(format!("delete pod {namespace}/{name}"));
        self.api::<Pod>(Some(namespace)).delete(&name, &DeleteOptions::default()).await
    }

    async fn evict_pod(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        let Some((name, _)) = self.any::<Pod>(namespace).await? else { return Ok(()) };
        self.evict(namespace, &name).await
    }

    /// Everything in a namespace at once, as far as budgets let it go.
    async fn drain(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        for pod in self.api::<Pod>(Some(namespace)).list(&ListParams::default()).await?.items {
            if let Err(error) = self.evict(namespace, facts::name(&pod)).await {
                self.note(format!("  {error}"));
            }
        }
        Ok(())
    }

    async fn evict(&mut self, namespace: &str, name: &str) -> Result {
        self.note(format!("evict pod {namespace}/{name}"));
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace } });
        self.api::<Pod>(Some(namespace)).create_subresource::<_, Value>(name, "eviction", &eviction).await.map(drop)
    }

    /// Takes everything back that could stand in the way of what was asked for.
    pub async fn make_possible(&mut self) -> Result {
        for node in 0..self.simulation.node_count() {
            let free = Patch::Merge(json!({ "spec": { "unschedulable": null, "taints": null } }));
            self.api::<Node>(None).patch(&Simulation::node_name(node), &free).await?;
        }
        let hard = json!({ "spec": { "hard": { "pods": "100", "requests.cpu": "100" } } });
        self.apply::<ResourceQuota>(Some("team"), "v1", "ResourceQuota", "limit", hard).await?;
        for namespace in NAMESPACES {
            for deployment in self.api::<Deployment>(Some(namespace)).list(&ListParams::default()).await?.items {
                let name = facts::name(&deployment).to_string();
                let good = json!({ "spec": { "paused": false,
                    "template": { "spec": { "containers": [{ "name": "c", "image": "good:9" }] } } } });
                self.api::<Deployment>(Some(namespace)).patch(&name, &Patch::Strategic(good)).await?;
            }
            for set in self.api::<ReplicaSet>(Some(namespace)).list(&ListParams::default()).await?.items {
                // Left behind by a deployment: its pods may never get ready.
                if facts::controller(&set).is_none() && facts::name(&set) != "plain" {
                    let options =
                        DeleteOptions { propagation_policy: Some("Background".into()), ..DeleteOptions::default() };
                    self.api::<ReplicaSet>(Some(namespace)).delete(facts::name(&set), &options).await.ok();
                }
            }
            for job in self.api::<Job>(Some(namespace)).list(&ListParams::default()).await?.items {
                let go = Patch::Merge(json!({ "spec": { "suspend": false } }));
                self.api::<Job>(Some(namespace)).patch(facts::name(&job), &go).await.ok();
            }
            for cron in self.api::<CronJob>(Some(namespace)).list(&ListParams::default()).await?.items {
                let rest = Patch::Merge(json!({ "spec": { "suspend": true } }));
                self.api::<CronJob>(Some(namespace)).patch(facts::name(&cron), &rest).await?;
            }
        }
        Ok(())
    }
}
