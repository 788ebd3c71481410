//! What the workload declares: workloads, budgets, Services, quotas and a namespace that comes and goes.
//! Steps of `Workload`; each draws what it declares.
//! Declares nothing that could not come true on healthy nodes.

use client::Patch;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        core::v1::{Namespace, ResourceQuota, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use super::{BRIEF, NAMESPACES, Result, Workload};

impl Workload<'_> {
    pub(super) fn template(&self, app: &str, image: &str) -> Value {
        let cpu = self.one(&["200m", "500m", "900m"]);
        json!({ "metadata": { "labels": { "app": app } }, "spec": { "terminationGracePeriodSeconds": 5, "containers": [
            { "name": "c", "image": image, "resources": { "requests": { "cpu": cpu } } }] } })
    }

    fn good_or_bad(&self) -> String {
        let name = if self.below(8) == 0 { "bad" } else { "good" };
        format!("{name}:{}", self.below(3))
    }

    pub(super) async fn deployment(&mut self) -> Result {
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

    pub(super) async fn replica_set(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        let template = self.template("plain", "good:0");
        let body = json!({ "spec": { "replicas": self.below(5), "selector": { "matchLabels": { "app": "plain" } },
            "template": template } });
        self.apply::<ReplicaSet>(Some(namespace), "apps/v1", "ReplicaSet", "plain", body).await
    }

    pub(super) async fn stateful_set(&mut self) -> Result {
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

    pub(super) async fn daemon_set(&mut self) -> Result {
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

    pub(super) async fn job(&mut self) -> Result {
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

    pub(super) fn job_spec(&self) -> Value {
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

    pub(super) async fn cron_job(&mut self) -> Result {
        let policy = self.one(&["Allow", "Forbid", "Replace"]);
        let mut spec = self.job_spec();
        spec["completions"] = json!(1);
        let body = json!({ "spec": { "schedule": self.one(&["* * * * *", "*/2 * * * *"]), "concurrencyPolicy": policy,
            "suspend": self.below(4) == 0, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
            "jobTemplate": { "spec": spec } } });
        self.apply::<CronJob>(Some("free"), "batch/v1", "CronJob", "tick", body).await
    }

    pub(super) async fn budget(&mut self) -> Result {
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

    pub(super) async fn service(&mut self) -> Result {
        let (namespace, app) = (self.one(&NAMESPACES), self.one(&["web", "api", "db"]));
        let policy = self.one(&["SingleStack", "PreferDualStack"]);
        let body = json!({ "spec": { "selector": { "app": app }, "ports": [{ "port": 80, "protocol": "TCP" }],
            "ipFamilyPolicy": policy } });
        self.apply::<Service>(Some(namespace), "v1", "Service", app, body).await
    }

    pub(super) async fn quota(&mut self) -> Result {
        let hard = json!({ "pods": (3 + self.below(12)).to_string(), "requests.cpu": (2 + self.below(8)).to_string() });
        let body = json!({ "spec": { "hard": hard } });
        self.apply::<ResourceQuota>(Some("team"), "v1", "ResourceQuota", "limit", body).await
    }

    pub(super) async fn namespace(&mut self) -> Result {
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
}
