//! Random declarations, changes, deletions and accidents.
//! Played by `runner` on a `Simulation`; `checks` says afterwards whether everything came true.
//! Invariant: all choices come from the run's seed; nothing asked for here is impossible once the faults have ended.

use std::time::Duration;

use api::ApiError;
use client::{Api, ListParams, Patch};
use jiff::SignedDuration;
use k8s_openapi::{
    ListableResource,
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        core::v1::{Namespace, Node, Pod, ResourceQuota, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{Simulation, facts};

/// One with a quota, one without.
pub const NAMESPACES: [&str; 2] = ["free", "team"];
const BRIEF: &str = "brief";

type Result = std::result::Result<(), ApiError>;

pub struct Workload<'a> {
    simulation: &'a mut Simulation,
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
];

impl<'a> Workload<'a> {
    pub fn new(simulation: &'a mut Simulation) -> Self {
        Self { simulation, log: Vec::new() }
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

    fn template(&self, app: &str, image: &str) -> Value {
        let cpu = self.one(&["200m", "500m", "900m"]);
        json!({ "metadata": { "labels": { "app": app } }, "spec": { "terminationGracePeriodSeconds": 5, "containers": [
            { "name": "c", "image": image, "resources": { "requests": { "cpu": cpu } } }] } })
    }

    fn good_or_bad(&self) -> String {
        let name = if self.below(8) == 0 { "bad" } else { "good" };
        format!("{name}:{}", self.below(3))
    }

    async fn deployment(&mut self) -> Result {
        let (namespace, name) = (self.one(&NAMESPACES), self.one(&["web", "api"]));
        if self.below(4) == 0 {
            let paused = self.below(4) == 0;
            let change = json!({ "spec": { "replicas": self.below(7), "paused": paused } });
            self.note(format!("scale deployment {namespace}/{name} {change}"));
            return self.api::<Deployment>(Some(namespace)).patch(name, &Patch::Merge(change)).await.map(drop);
        }
        let strategy = match self.below(5) {
            0 => json!({ "type": "Recreate" }),
            _ => {
                let surge = self.one(&["0", "1", "2", "25%", "50%"]);
                let unavailable = self.one(&["0", "1", "25%", "60%"]);
                let unavailable = if surge == "0" && unavailable == "0" { "1" } else { unavailable };
                let number = |text: &str| text.parse::<i64>().map_or(json!(text), |n| json!(n));
                json!({ "type": "RollingUpdate",
                    "rollingUpdate": { "maxSurge": number(surge), "maxUnavailable": number(unavailable) } })
            }
        };
        let template = self.template(name, &self.good_or_bad());
        let body = json!({ "spec": { "replicas": self.below(6), "selector": { "matchLabels": { "app": name } },
            "strategy": strategy, "template": template, "minReadySeconds": self.one(&[0, 0, 5]),
            "revisionHistoryLimit": self.one(&[0, 2, 10]), "paused": false } });
        self.apply::<Deployment>(Some(namespace), "apps/v1", "Deployment", name, body).await
    }

    async fn replica_set(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        let template = self.template("plain", "good:0");
        let body = json!({ "spec": { "replicas": self.below(5), "selector": { "matchLabels": { "app": "plain" } },
            "template": template } });
        self.apply::<ReplicaSet>(Some(namespace), "apps/v1", "ReplicaSet", "plain", body).await
    }

    async fn stateful_set(&mut self) -> Result {
        let (namespace, parallel) = (self.one(&NAMESPACES), self.below(2) == 1);
        let (name, policy) = if parallel { ("fast", "Parallel") } else { ("db", "OrderedReady") };
        let strategy = match self.below(4) {
            0 => json!({ "type": "OnDelete" }),
            _ => json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": self.one(&[0, 0, 0, 1]) } }),
        };
        let template = self.template(name, &format!("good:{}", self.below(3)));
        let body = json!({ "spec": { "replicas": self.below(5), "serviceName": name, "podManagementPolicy": policy,
            "selector": { "matchLabels": { "app": name } }, "updateStrategy": strategy, "template": template } });
        self.apply::<StatefulSet>(Some(namespace), "apps/v1", "StatefulSet", name, body).await
    }

    async fn daemon_set(&mut self) -> Result {
        let mut template = self.template("agent", &format!("good:{}", self.below(3)));
        if self.below(3) == 0 {
            template["spec"]["nodeSelector"] = json!({ "topology.kubernetes.io/zone": "a" });
        }
        let rolling = match self.below(2) {
            0 => json!({ "maxUnavailable": 1, "maxSurge": 0 }),
            _ => json!({ "maxUnavailable": 0, "maxSurge": 1 }),
        };
        let body = json!({ "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": template,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling } } });
        self.apply::<DaemonSet>(Some("free"), "apps/v1", "DaemonSet", "agent", body).await
    }

    async fn job(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        if self.below(4) == 0 {
            let Some((name, _)) = self.any::<Job>(namespace).await? else { return Ok(()) };
            let suspend = json!({ "spec": { "suspend": self.below(2) == 0 } });
            self.note(format!("job {namespace}/{name} {suspend}"));
            return self.api::<Job>(Some(namespace)).patch(&name, &Patch::Merge(suspend)).await.map(drop);
        }
        let name = format!("job-{}", self.simulation.env.name_suffix(4));
        let spec = self.job_spec();
        self.apply::<Job>(Some(namespace), "batch/v1", "Job", &name, json!({ "spec": spec })).await
    }

    fn job_spec(&self) -> Value {
        let code = if self.below(4) == 0 { 1 } else { 0 };
        let mut template = self.template("job", &format!("ends:{code}"));
        template["spec"]["restartPolicy"] = "Never".into();
        let mut spec = json!({ "completions": 1 + self.below(4), "parallelism": 1 + self.below(3),
            "backoffLimit": self.below(3), "template": template });
        if self.below(3) == 0 {
            spec["completionMode"] = "Indexed".into();
        }
        if self.below(4) == 0 {
            spec["ttlSecondsAfterFinished"] = json!(self.below(60));
        }
        spec
    }

    async fn cron_job(&mut self) -> Result {
        let policy = self.one(&["Allow", "Forbid", "Replace"]);
        let mut spec = self.job_spec();
        spec["completions"] = json!(1);
        let body = json!({ "spec": { "schedule": self.one(&["* * * * *", "*/2 * * * *"]), "concurrencyPolicy": policy,
            "suspend": self.below(4) == 0, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
            "jobTemplate": { "spec": spec } } });
        self.apply::<CronJob>(Some("free"), "batch/v1", "CronJob", "tick", body).await
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

    async fn budget(&mut self) -> Result {
        let (namespace, app) = (self.one(&NAMESPACES), self.one(&["web", "plain", "db"]));
        let spec = match self.below(2) {
            0 => json!({ "minAvailable": self.below(3), "selector": { "matchLabels": { "app": app } } }),
            _ => json!({ "maxUnavailable": "50%", "selector": { "matchLabels": { "app": app } } }),
        };
        // One of the two fields at a time, whatever was there.
        self.api::<PodDisruptionBudget>(Some(namespace)).delete(app, &DeleteOptions::default()).await.ok();
        let body = json!({ "spec": spec });
        self.apply::<PodDisruptionBudget>(Some(namespace), "policy/v1", "PodDisruptionBudget", app, body).await
    }

    async fn service(&mut self) -> Result {
        let (namespace, app) = (self.one(&NAMESPACES), self.one(&["web", "api", "db"]));
        let body = json!({ "spec": { "selector": { "app": app }, "ports": [{ "port": 80, "protocol": "TCP" }] } });
        self.apply::<Service>(Some(namespace), "v1", "Service", app, body).await
    }

    async fn quota(&mut self) -> Result {
        let hard = json!({ "pods": (3 + self.below(12)).to_string(), "requests.cpu": (2 + self.below(8)).to_string() });
        let body = json!({ "spec": { "hard": hard } });
        self.apply::<ResourceQuota>(Some("team"), "v1", "ResourceQuota", "limit", body).await
    }

    async fn namespace(&mut self) -> Result {
        if self.api::<Namespace>(None).find(BRIEF).await?.is_some() {
            self.note("delete namespace".into());
            return self.api::<Namespace>(None).delete(BRIEF, &DeleteOptions::default()).await;
        }
        self.apply::<Namespace>(None, "v1", "Namespace", BRIEF, json!({})).await?;
        let template = self.template("web", "good:0");
        let body =
            json!({ "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template } });
        self.apply::<Deployment>(Some(BRIEF), "apps/v1", "Deployment", "web", body).await?;
        let spec = self.job_spec();
        self.apply::<Job>(Some(BRIEF), "batch/v1", "Job", "once", json!({ "spec": spec })).await
    }

    async fn accident(&mut self, step: &str) -> Result {
        let node = self.below(self.simulation.node_count() as u64) as usize;
        let name = Simulation::node_name(node);
        let nodes = self.api::<Node>(None);
        self.note(format!("{step} {name}"));
        match step {
            "cordon" => {
                let cordon = json!({ "spec": { "unschedulable": self.below(2) == 0 } });
                nodes.patch(&name, &Patch::Merge(cordon)).await.map(drop)
            }
            "taint" => {
                let taints = match self.below(2) {
                    0 => json!([{ "key": "sim", "effect": self.one(&["NoSchedule", "NoExecute"]) }]),
                    _ => json!([]),
                };
                // Those of the system go too, and come back: that is an accident as well.
                nodes.patch(&name, &Patch::Merge(json!({ "spec": { "taints": taints } }))).await.map(drop)
            }
            "node down" => {
                let seconds = self.one(&[5, 30, 70, 400]);
                self.note(format!("  for {seconds} s"));
                self.simulation.stop_node(node, seconds);
                Ok(())
            }
            "node deleted" => nodes.delete(&name, &DeleteOptions::default()).await,
            "clock jumps" => {
                let seconds = self.one(&[-30, -2, 2, 30, 90, 3700]);
                self.note(format!("  by {seconds} s"));
                self.simulation.env.jump(SignedDuration::from_secs(seconds));
                Ok(())
            }
            "controllers crash" => {
                self.simulation.crash_controllers(1 + self.below(20));
                Ok(())
            }
            "scheduler crashes" => {
                self.simulation.crash_scheduler(1 + self.below(20));
                Ok(())
            }
            _ => {
                self.simulation.crash_server(1 + self.below(10));
                Ok(())
            }
        }
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
