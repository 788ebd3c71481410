//! What must hold of a cluster that was left alone long enough, whatever happened before.
//! Called by `runner` when the faults have ended; knows nothing of what was done.
//! Looks through the API only.

use std::collections::{BTreeMap, BTreeSet};

use api::ApiError;
use client::{Client, ListParams};
use k8s_openapi::{
    ListableResource,
    api::{
        apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
        autoscaling::v2::HorizontalPodAutoscaler,
        batch::v1::{CronJob, Job},
        core::v1::{Namespace, Node, Pod, ResourceQuota, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
        policy::v1::PodDisruptionBudget,
        resource::v1::ResourceClaim,
    },
};
use serde::{Serialize, de::DeserializeOwned};

use super::Violation;
use crate::facts::{self, active, controller, deleting, finished, generation, name, namespace, ready, uid};

/// Everything there is.
struct Everything {
    nodes: Vec<Node>,
    namespaces: Vec<Namespace>,
    accounts: Vec<ServiceAccount>,
    pods: Vec<Pod>,
    deployments: Vec<Deployment>,
    replica_sets: Vec<ReplicaSet>,
    stateful_sets: Vec<StatefulSet>,
    daemon_sets: Vec<DaemonSet>,
    revisions: Vec<ControllerRevision>,
    jobs: Vec<Job>,
    cron_jobs: Vec<CronJob>,
    budgets: Vec<PodDisruptionBudget>,
    quotas: Vec<ResourceQuota>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    claims: Vec<ResourceClaim>,
    autoscalers: Vec<HorizontalPodAutoscaler>,
}

async fn all<K: ListableResource + Serialize + DeserializeOwned>(client: &Client) -> Result<Vec<K>, ApiError> {
    Ok(client.api::<K>().list(&ListParams::default()).await?.items)
}

pub async fn violations(client: &Client) -> Result<Vec<Violation>, ApiError> {
    let everything = Everything {
        nodes: all(client).await?,
        namespaces: all(client).await?,
        accounts: all(client).await?,
        pods: all(client).await?,
        deployments: all(client).await?,
        replica_sets: all(client).await?,
        stateful_sets: all(client).await?,
        daemon_sets: all(client).await?,
        revisions: all(client).await?,
        jobs: all(client).await?,
        cron_jobs: all(client).await?,
        budgets: all(client).await?,
        quotas: all(client).await?,
        services: all(client).await?,
        slices: all(client).await?,
        claims: all(client).await?,
        autoscalers: all(client).await?,
    };
    let mut found = Vec::new();
    let mut fail = |text: String| found.push(Violation(text));
    everything.nodes_and_namespaces(&mut fail);
    everything.pods(&mut fail);
    everything.owners(&mut fail);
    everything.deployments(&mut fail);
    everything.replica_sets(&mut fail);
    everything.stateful_sets(&mut fail);
    everything.daemon_sets(&mut fail);
    everything.jobs(&mut fail);
    everything.guards(&mut fail);
    everything.endpoints(&mut fail);
    everything.claims(&mut fail);
    everything.autoscalers(&mut fail);
    Ok(found)
}

type Fail<'a> = &'a mut dyn FnMut(String);

impl Everything {
    fn owned<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |p| controller(*p).is_some_and(|o| o.uid == owner))
    }

    fn matching<'a>(&'a self, within: &'a str, labels: &'a BTreeMap<String, String>) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |p| {
            let have = p.metadata.labels.as_ref();
            namespace(*p) == within && labels.iter().all(|(k, v)| have.and_then(|h| h.get(k)) == Some(v))
        })
    }

    fn nodes_and_namespaces(&self, fail: Fail) {
        for node in &self.nodes {
            let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
            if !facts::node_ready(node) || !taints.is_empty() {
                fail(format!("node {} is not ready, or tainted: {taints:?}", name(node)));
            }
        }
        for one in &self.namespaces {
            if deleting(one) {
                fail(format!("namespace {} is still terminating: {:?}", name(one), one.status));
            } else if !self.accounts.iter().any(|a| namespace(a) == name(one) && name(a) == "default") {
                fail(format!("namespace {} has no default service account", name(one)));
            }
        }
    }

    fn pods(&self, fail: Fail) {
        for pod in &self.pods {
            let who = format!("pod {}/{}", namespace(pod), name(pod));
            if facts::node_name(pod).is_none() && !finished(pod) {
                fail(format!("{who} was never bound: {:?}", pod.status.as_ref().and_then(|s| s.conditions.as_ref())));
            }
            if deleting(pod) {
                fail(format!("{who} is still terminating, finalizers {:?}", pod.metadata.finalizers));
            }
            if finished(pod) && pod.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty()) {
                fail(format!("{who} ended and still has {:?}", pod.metadata.finalizers));
            }
        }
    }

    /// Whoever names an owner must have one.
    fn owners(&self, fail: Fail) {
        let mut uids = BTreeSet::new();
        let mut references = Vec::new();
        macro_rules! collect {
            ($($objects:ident)*) => {$(for object in &self.$objects {
                uids.insert(uid(object));
                for owner in object.metadata.owner_references.iter().flatten() {
                    references.push((format!("{} {}/{}", stringify!($objects), namespace(object), name(object)), owner));
                }
            })*};
        }
        collect!(nodes pods deployments replica_sets stateful_sets daemon_sets revisions jobs cron_jobs services slices claims);
        for (who, owner) in references {
            if !uids.contains(owner.uid.as_str()) {
                fail(format!("{who} belongs to {} {}, which is gone", owner.kind, owner.name));
            }
        }
    }

    fn deployments(&self, fail: Fail) {
        for deployment in &self.deployments {
            let wanted = facts::wanted(deployment);
            let status = deployment.status.clone().unwrap_or_default();
            let counts = [status.replicas, status.ready_replicas, status.updated_replicas, status.available_replicas];
            let counts = counts.map(|c| c.unwrap_or(0));
            if counts != [wanted; 4] {
                fail(format!(
                    "deployment {} wants {wanted} replicas; has, ready, updated, available {counts:?}",
                    name(deployment)
                ));
            }
            if status.observed_generation != deployment.metadata.generation {
                fail(format!("deployment {} was not looked at since its last change", name(deployment)));
            }
            let limit = deployment.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(10);
            let sets = self.replica_sets.iter().filter(|s| controller(*s).is_some_and(|o| o.uid == uid(deployment)));
            let old = sets.filter(|s| s.spec.as_ref().and_then(|s| s.replicas) == Some(0)).count() as i32;
            if old > limit + i32::from(wanted == 0) {
                fail(format!("deployment {} keeps {old} old sets of at most {limit}", name(deployment)));
            }
        }
    }

    fn replica_sets(&self, fail: Fail) {
        for set in &self.replica_sets {
            let wanted = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            let there = self.owned(uid(set)).filter(|p| active(p)).count() as i32;
            let told = set.status.as_ref().map(|s| s.replicas).unwrap_or(0);
            if (there, told) != (wanted, wanted) {
                fail(format!("replica set {} wants {wanted} pods, has {there} and says {told}", name(set)));
            }
        }
    }

    fn stateful_sets(&self, fail: Fail) {
        for set in &self.stateful_sets {
            let spec = set.spec.clone().unwrap_or_default();
            let wanted = spec.replicas.unwrap_or(1);
            let mut there: Vec<_> = self.owned(uid(set)).filter(|p| ready(p)).map(|p| name(p).to_string()).collect();
            there.sort();
            let expected: Vec<_> = (0..wanted).map(|n| format!("{}-{n}", name(set))).collect();
            if there != expected {
                fail(format!("stateful set {} wants {wanted} pods and has {there:?}", name(set)));
            }
            let status = set.status.clone().unwrap_or_default();
            if status.ready_replicas.unwrap_or(0) != wanted || status.observed_generation != set.metadata.generation {
                fail(format!("stateful set {} says {status:?}", name(set)));
            }
            let strategy = spec.update_strategy.unwrap_or_default();
            let partition = strategy.rolling_update.and_then(|r| r.partition).unwrap_or(0);
            if strategy.type_.as_deref() == Some("RollingUpdate") {
                let update = status.update_revision.as_deref();
                let revision =
                    |p: &Pod| p.metadata.labels.as_ref().and_then(|l| l.get("controller-revision-hash").cloned());
                for pod in self.owned(uid(set)).filter(|p| revision(p).as_deref() != update) {
                    let ordinal = name(pod).rsplit_once('-').and_then(|(_, n)| n.parse::<i32>().ok()).unwrap_or(0);
                    if ordinal >= partition {
                        fail(format!("{} of stateful set {} was not updated", name(pod), name(set)));
                    }
                }
            }
        }
    }

    fn daemon_sets(&self, fail: Fail) {
        for set in &self.daemon_sets {
            let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
            let selector = template.spec.and_then(|s| s.node_selector).unwrap_or_default();
            let labels = |node: &Node| node.metadata.labels.clone().unwrap_or_default();
            let eligible = self.nodes.iter().filter(|n| selector.iter().all(|(k, v)| labels(n).get(k) == Some(v)));
            let expected: BTreeSet<_> = eligible.map(name).collect();
            let pods: Vec<_> = self.owned(uid(set)).filter(|p| active(p)).collect();
            let there: BTreeSet<_> = pods.iter().filter(|p| ready(p)).filter_map(|p| facts::node_name(p)).collect();
            if there != expected || pods.len() != expected.len() {
                fail(format!(
                    "daemon set {} has {} pods, ready on {there:?}, not on {expected:?}",
                    name(set),
                    pods.len()
                ));
            }
            let status = set.status.clone().unwrap_or_default();
            let count = expected.len() as i32;
            let told =
                (status.desired_number_scheduled, status.number_ready, status.updated_number_scheduled.unwrap_or(0));
            if told != (count, count, count) || status.observed_generation != set.metadata.generation {
                fail(format!("daemon set {} says {status:?}", name(set)));
            }
        }
    }

    fn jobs(&self, fail: Fail) {
        for job in &self.jobs {
            if !facts::job_finished(job) {
                fail(format!("job {}/{} is not finished: {:?}", namespace(job), name(job), job.status));
                continue;
            }
            if job.spec.as_ref().is_some_and(|s| s.ttl_seconds_after_finished.is_some()) {
                fail(format!("job {} has outlived its time", name(job)));
            }
            let status = job.status.clone().unwrap_or_default();
            let completions = job.spec.as_ref().and_then(|s| s.completions).unwrap_or(1);
            let condition =
                |kind| status.conditions.iter().flatten().find(move |c| c.type_ == kind && c.status == "True");
            let complete = condition("Complete").is_some();
            // Pods that are taken away fail too, and who took them can't be seen here; but no job ends as failed before
            // it has had more failures than it may.
            let limit = job.spec.as_ref().and_then(|s| s.backoff_limit).unwrap_or(6);
            if let Some(failed) = condition("Failed")
                && (failed.reason.as_deref() != Some("BackoffLimitExceeded") || status.failed.unwrap_or(0) <= limit)
            {
                fail(format!("job {} failed for no reason, of at most {limit}: {status:?}", name(job)));
            }
            if complete && !facts::ends_well(job) {
                fail(format!("job {} is complete although its pods fail", name(job)));
            }
            if complete && status.succeeded != Some(completions) {
                fail(format!("job {} is complete with {:?} of {completions}", name(job), status.succeeded));
            }
            if status.active.unwrap_or(0) != 0 || self.owned(uid(job)).any(active) {
                fail(format!("job {} is finished and still has pods at work", name(job)));
            }
        }
        for cron in &self.cron_jobs {
            let jobs = self.jobs.iter().filter(|j| controller(*j).is_some_and(|o| o.uid == uid(cron)));
            // One that succeeded and one that failed may stay.
            if jobs.count() > 2 {
                fail(format!("cron job {} keeps too many jobs", name(cron)));
            }
            if cron.status.as_ref().and_then(|s| s.active.as_ref()).is_some_and(|a| !a.is_empty()) {
                fail(format!("cron job {} says that jobs are active", name(cron)));
            }
        }
    }

    fn guards(&self, fail: Fail) {
        for quota in &self.quotas {
            let here: Vec<_> = self.pods.iter().filter(|p| namespace(*p) == namespace(quota) && !finished(p)).collect();
            let used = quota.status.as_ref().and_then(|s| s.used.clone()).unwrap_or_default();
            let told = |what: &str| used.get(what).and_then(|q| facts::quantity(&q.0)).unwrap_or(0);
            let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
            let limited = |what: &str, real: i64| if hard.contains_key(what) { real } else { 0 };
            let real = (
                limited("pods", here.len() as i64 * 1000),
                limited("requests.cpu", here.iter().map(|p| facts::milli_cpu(p)).sum::<i64>()),
            );
            if (told("pods"), told("requests.cpu")) != real {
                fail(format!("quota {} says {used:?}, real are {real:?}", name(quota)));
            }
        }
        for budget in &self.budgets {
            let selector =
                budget.spec.as_ref().and_then(|s| s.selector.as_ref()?.match_labels.clone()).unwrap_or_default();
            let healthy = self.matching(namespace(budget), &selector).filter(|p| ready(p)).count() as i32;
            let status = budget.status.clone().unwrap_or_default();
            if status.current_healthy != healthy || status.observed_generation != Some(generation(budget)) {
                fail(format!("budget {} says {status:?}, {healthy} are healthy", name(budget)));
            }
        }
    }

    /// One that has a Deployment for itself holds it within its bounds; several for one Deployment leave it alone.
    fn autoscalers(&self, fail: Fail) {
        let target = |autoscaler: &HorizontalPodAutoscaler| {
            let spec = autoscaler.spec.as_ref()?;
            Some((namespace(autoscaler).to_string(), spec.scale_target_ref.name.clone()))
        };
        for autoscaler in &self.autoscalers {
            let Some(spec) = &autoscaler.spec else { continue };
            if self.autoscalers.iter().filter(|other| target(other) == target(autoscaler)).count() > 1 {
                continue;
            }
            let is_target = |d: &&Deployment| {
                Some((namespace(*d).to_string(), name(*d).to_string())) == target(autoscaler) && !deleting(*d)
            };
            let replicas = self.deployments.iter().find(is_target).and_then(|d| d.spec.as_ref()?.replicas);
            let bounds = spec.min_replicas.unwrap_or(1)..=spec.max_replicas;
            if let Some(replicas) = replicas.filter(|replicas| *replicas != 0 && !bounds.contains(replicas)) {
                let who = format!("{}/{}", namespace(autoscaler), name(autoscaler));
                fail(format!("autoscaler {who} leaves {replicas} replicas outside of {bounds:?}"));
            }
        }
    }

    fn endpoints(&self, fail: Fail) {
        for service in self.services.iter().filter(|s| s.spec.as_ref().is_some_and(|s| s.selector.is_some())) {
            let selector = service.spec.as_ref().and_then(|s| s.selector.clone()).unwrap_or_default();
            let address = |p: &Pod| p.status.as_ref().and_then(|s| s.pod_ip.clone());
            let pods = self.matching(namespace(service), &selector).filter(|p| ready(p) && !finished(p));
            let expected: BTreeSet<_> = pods.filter_map(address).collect();
            let of = |slice: &&EndpointSlice| {
                let label = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
                namespace(*slice) == namespace(service) && label.is_some_and(|l| l == name(service))
            };
            let endpoints = self.slices.iter().filter(of).flat_map(|s| &s.endpoints);
            let ready = endpoints.filter(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true)));
            let told: BTreeSet<_> = ready.flat_map(|e| e.addresses.clone()).collect();
            if told != expected {
                fail(format!("service {} has endpoints {told:?}, ready are {expected:?}", name(service)));
            }
        }
    }
    /// Kept for pods that are there, and for nobody else; free when nobody wants them.
    fn claims(&self, fail: Fail) {
        for claim in &self.claims {
            let who = format!("claim {}/{}", namespace(claim), name(claim));
            let status = claim.status.clone().unwrap_or_default();
            let users = status.reserved_for.unwrap_or_default();
            let is_there = |uid: &str| self.pods.iter().any(|pod| facts::uid(pod) == uid && !finished(pod));
            if let Some(gone) = users.iter().find(|user| !is_there(&user.uid)) {
                fail(format!("{who} is kept for {}, which is gone", gone.name));
            }
            if status.allocation.is_some() == users.is_empty() {
                fail(format!("{who} has {} users, allocated: {}", users.len(), status.allocation.is_some()));
            }
            if deleting(claim) && users.is_empty() {
                fail(format!("{who} is still terminating, finalizers {:?}", claim.metadata.finalizers));
            }
        }
    }
}
