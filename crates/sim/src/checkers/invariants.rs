//! What must hold at every moment, checked on every change in the order the store committed it.
//! Fed by the simulation with the store's own watch, so that no fault stands between.
//! Blames a component only for what it did knowingly; chance disturbances of the last minutes excuse it.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use serde::de::DeserializeOwned;
use store::{Change, Event, Record};

use super::{Violation, commit_log::split, devices::DeviceWorld};
use crate::facts::{self, MILLI_CPU, NODE_PODS, active, controller, deleting, finished, ready, uid};

/// How long after a disturbance a decision may still rest on what was true before.
const EXCUSED_AFTER_DISTURBANCE: Duration = Duration::from_secs(120);
/// Longer than any news is on its way (`Faults::drawn`): a pod ready for less may be taken for one that is not.
const NEWS_DELAY_MAX: Duration = Duration::from_secs(6);

type Objects<K> = BTreeMap<String, K>;

/// The cluster as committed.
#[derive(Default)]
pub struct World {
    pods: Objects<Pod>,
    replica_sets: Objects<ReplicaSet>,
    deployments: Objects<Deployment>,
    stateful_sets: Objects<StatefulSet>,
    daemon_sets: Objects<DaemonSet>,
    jobs: Objects<Job>,
    cron_jobs: Objects<CronJob>,
    quotas: Objects<ResourceQuota>,
    budgets: Objects<PodDisruptionBudget>,
    devices: DeviceWorld,
    /// By uid: what has been asked for and not been looked at yet, as generation, most and fewest.
    promises: BTreeMap<String, Vec<(i64, i32, i32)>>,
    /// When a workload (by uid) or a namespace was last disturbed by somebody else.
    disturbed: BTreeMap<String, Duration>,
    /// Since when a pod (by uid) is ready.
    ready_since: BTreeMap<String, Duration>,
    /// When everybody was: by a restore, or by a network that was cut.
    all_disturbed: Option<Duration>,
    found: Vec<Violation>,
    /// Changes of objects other than heartbeats.
    pub changes: u64,
}

fn read<K: DeserializeOwned>(change: &Change) -> Option<K> {
    match change {
        Change::Put { value, .. } => serde_json::from_slice(value).ok(),
        Change::Delete { .. } => None,
    }
}

fn put<K>(objects: &mut Objects<K>, key: &str, new: Option<K>) -> Option<K> {
    match new {
        Some(new) => objects.insert(key.to_string(), new),
        None => objects.remove(key),
    }
}

impl World {
    /// A cluster that begins with these records; how they came to be is not judged.
    pub fn new(at: Duration, wall: Timestamp, records: &[Record]) -> Self {
        let mut world = Self::default();
        for record in records {
            let change = Change::Put { value: record.value.clone(), created: true };
            let event = Event { revision: record.mod_revision, key: record.key.clone(), change };
            world.apply(at, wall, &event);
        }
        world.found.clear();
        world.changes = 0;
        world
    }

    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }

    pub fn apply(&mut self, at: Duration, wall: Timestamp, event: &Event) {
        let Some((plural, key)) = split(&event.key) else { return };
        if !matches!(plural, "leases" | "masterleases" | "events") {
            self.changes += 1;
        }
        let known = self.found.len();
        match plural {
            "pods" => self.pod(at, wall, key, read(&event.change)),
            "replicasets" => self.replica_set(at, key, read(&event.change)),
            "deployments" => self.deployment(at, key, read(&event.change)),
            "statefulsets" => self.stateful_set(at, key, read(&event.change)),
            "poddisruptionbudgets" => self.budget(at, key, read(&event.change)),
            "daemonsets" => drop(put(&mut self.daemon_sets, key, read(&event.change))),
            "jobs" => self.job(key, read(&event.change)),
            "cronjobs" => drop(put(&mut self.cron_jobs, key, read(&event.change))),
            "resourcequotas" => self.quota(at, key, read(&event.change)),
            "resourceclaims" => {
                let wrong = self.devices.claim(key, read(&event.change), self.pods.values());
                wrong.into_iter().for_each(|text| self.fail(text));
            }
            _ => {}
        }
        if self.all_excused(at) {
            self.found.truncate(known);
        }
    }

    fn fail(&mut self, text: String) {
        self.found.push(Violation(text));
    }

    fn disturb(&mut self, at: Duration, who: &str) {
        self.disturbed.insert(who.to_string(), at);
    }

    /// For a while nobody is to blame for what they do of old knowledge.
    pub fn disturb_everything(&mut self, at: Duration) {
        self.all_disturbed = Some(at);
    }

    fn excused(&self, at: Duration, who: &str) -> bool {
        self.disturbed.get(who).is_some_and(|when| at.saturating_sub(*when) < EXCUSED_AFTER_DISTURBANCE)
    }

    fn all_excused(&self, at: Duration) -> bool {
        self.all_disturbed.is_some_and(|when| at.saturating_sub(when) < EXCUSED_AFTER_DISTURBANCE)
    }

    fn owned(&self, owner: &str) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(move |pod| controller(*pod).is_some_and(|o| o.uid == owner))
    }

    fn quota(&mut self, at: Duration, key: &str, new: Option<ResourceQuota>) {
        let hard = |q: &ResourceQuota| q.spec.as_ref().and_then(|s| s.hard.clone());
        let changed = self.quotas.get(key).is_none_or(|old| new.as_ref().is_none_or(|new| hard(old) != hard(new)));
        if changed {
            self.disturb(at, key.split('/').next().unwrap_or_default());
        }
        put(&mut self.quotas, key, new);
    }

    fn deployment(&mut self, at: Duration, key: &str, new: Option<Deployment>) {
        self.scaled(at, key, self.deployments.get(key).map(facts::wanted), new.as_ref().map(facts::wanted));
        let Some(deployment) = new else {
            self.deployments.remove(key);
            return;
        };
        let (most, fewest) = facts::bounds(&deployment);
        let observed = deployment.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
        let promises = self.promises.entry(uid(&deployment).to_string()).or_default();
        promises.push((facts::generation(&deployment), most, fewest));
        promises.retain(|(generation, ..)| *generation >= observed);
        promises.dedup();
        self.deployments.insert(key.to_string(), deployment);
    }

    fn stateful_set(&mut self, at: Duration, key: &str, new: Option<StatefulSet>) {
        let replicas = |set: &StatefulSet| set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        self.scaled(at, key, self.stateful_sets.get(key).map(replicas), new.as_ref().map(replicas));
        put(&mut self.stateful_sets, key, new);
    }

    /// Budgets in percent follow the sizes of what they protect, a little later.
    fn scaled(&mut self, at: Duration, key: &str, before: Option<i32>, now: Option<i32>) {
        if before != now {
            let namespace = key.split('/').next().unwrap_or_default();
            self.disturb(at, &format!("budgets of {namespace}"));
        }
    }

    fn set_sizes(&self, owner: &str) -> i32 {
        let sets = self.replica_sets.values().filter(|s| controller(*s).is_some_and(|o| o.uid == owner));
        sets.map(size).sum()
    }

    fn replica_set(&mut self, at: Duration, key: &str, new: Option<ReplicaSet>) {
        self.scaled(at, key, self.replica_sets.get(key).map(size), new.as_ref().map(size));
        let owner = new.as_ref().and_then(|s| controller(s)).map(|o| o.uid.clone());
        let Some(owner) = owner else {
            put(&mut self.replica_sets, key, new);
            return;
        };
        let before = self.set_sizes(&owner);
        let old = put(&mut self.replica_sets, key, new);
        let kept = old.as_ref().is_none_or(|old| controller(old).is_some_and(|o| o.uid == owner));
        if let Some(new) = self.replica_sets.get(key) {
            let observed = new.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
            let (size, generation) = (size(new), facts::generation(new));
            let promises = self.promises.entry(uid(new).to_string()).or_default();
            promises.push((generation, size, 0));
            promises.retain(|(generation, ..)| *generation >= observed);
            promises.dedup();
        }
        let after = self.set_sizes(&owner);
        let most = self.promises.get(&owner).into_iter().flatten().map(|p| p.1).max();
        if let Some(most) = most.filter(|most| kept && after > before && after > *most) {
            self.fail(format!("the deployment of {key} has sets for {after} pods, at most {most} are allowed"));
        }
    }

    fn job(&mut self, key: &str, new: Option<Job>) {
        let old = put(&mut self.jobs, key, new);
        let Some(new) = self.jobs.get(key) else { return };
        let mut complaints = Vec::new();
        let same = old.filter(|old| uid(old) == uid(new));
        if let Some(old) = &same {
            let counted = |job: &Job| job.status.as_ref().map(|s| (s.succeeded.unwrap_or(0), s.failed.unwrap_or(0)));
            let (before, after) = (counted(old).unwrap_or_default(), counted(new).unwrap_or_default());
            if after.0 < before.0 || after.1 < before.1 {
                complaints.push(format!("job {key} counted {before:?} and then {after:?} ended pods"));
            }
            if facts::job_finished(old) && !facts::job_finished(new) {
                complaints.push(format!("job {key} was finished and no longer is"));
            }
        } else if let Some(owner) = controller(new) {
            let cron = self.cron_jobs.values().find(|c| uid(*c) == owner.uid);
            let forbids = cron.and_then(|c| c.spec.as_ref()?.concurrency_policy.clone()).as_deref() == Some("Forbid");
            let running = self.jobs.values().filter(|j| controller(*j).is_some_and(|o| o.uid == owner.uid));
            let running: Vec<_> =
                running.filter(|j| !facts::job_finished(j) && !deleting(*j)).map(facts::name).collect();
            if forbids && running.len() > 1 {
                complaints.push(format!("cron job {} forbids that these run at once: {running:?}", owner.name));
            }
        }
        complaints.into_iter().for_each(|text| self.fail(text));
    }

    fn pod(&mut self, at: Duration, wall: Timestamp, key: &str, new: Option<Pod>) {
        let old = self.pods.get(key).cloned();
        let recreated = matches!((&old, &new), (Some(old), Some(new)) if uid(old) != uid(new));
        let before = old.filter(|_| !recreated);
        if let (Some(before), lost) = (&before, new.as_ref())
            && ready(before)
            && !deleting(before)
            && lost.is_none_or(|now| deleting(now) || !ready(now))
        {
            self.lost_ready(at, key, before, lost.is_some_and(deleting));
        }
        if let Some(before) = before.as_ref().filter(|b| ready(b) && active(b))
            && new.as_ref().is_none_or(|now| !ready(now) || !active(now))
        {
            self.lost_by_budgets(at, before);
        }
        if let Some(before) = before.as_ref().filter(|b| !deleting(*b) && new.as_ref().is_none_or(deleting))
            && let Some(owner) = controller(before).filter(|o| o.kind == "StatefulSet")
        {
            self.disturb(at, &owner.uid.clone());
        }
        match (before.as_ref().filter(|b| ready(b)), new.as_ref().filter(|now| ready(now))) {
            (None, Some(now)) => {
                self.ready_since.insert(uid(now).into(), at);
            }
            (Some(before), None) => {
                self.ready_since.remove(uid(before));
            }
            _ => {}
        }
        put(&mut self.pods, key, new);
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let node = facts::node_name(&pod).map(str::to_string);
        match before.as_ref().and_then(facts::node_name) {
            Some(was) if node.as_deref() != Some(was) => self.fail(format!("pod {key} moved from {was} to {node:?}")),
            Some(_) => {}
            None => node.iter().for_each(|node| self.bound(key, node, &pod)),
        }
        if before.is_none() {
            self.created(at, wall, key, &pod);
        }
    }

    /// Unless a budget let it go, its budgets learn of it only now.
    fn lost_by_budgets(&mut self, at: Duration, pod: &Pod) {
        let of = self.budgets.iter().filter(|(_, budget)| facts::protects(budget, pod));
        let surprised = of.filter(|(_, budget)| !facts::let_go(budget).contains(facts::name(pod)));
        let surprised: Vec<_> = surprised.map(|(key, _)| format!("budget {key}")).collect();
        surprised.iter().for_each(|budget| self.disturb(at, budget));
    }

    /// Each pod that a budget lets go must leave as many healthy ones as it demands, not counting those let go before.
    fn budget(&mut self, at: Duration, key: &str, new: Option<PodDisruptionBudget>) {
        let old = put(&mut self.budgets, key, new);
        let Some(budget) = self.budgets.get(key).cloned() else { return };
        let (who, namespace) = (format!("budget {key}"), facts::namespace(&budget));
        if old
            .as_ref()
            .is_none_or(|old| uid(old) != uid(&budget) || facts::generation(old) != facts::generation(&budget))
        {
            self.disturb(at, &who);
        }
        let gone = facts::let_go(&budget);
        let before = old.as_ref().map(facts::let_go).unwrap_or_default();
        if gone.is_subset(&before) || self.excused(at, &who) || self.excused(at, &format!("budgets of {namespace}")) {
            return;
        }
        let protected = || self.pods.values().filter(|pod| facts::protects(&budget, pod));
        let healthy = protected().filter(|p| ready(p) && active(p) && !gone.contains(facts::name(*p))).count() as i32;
        let owners: BTreeMap<&str, i32> = protected().filter_map(|pod| self.scale(pod)).collect();
        let fewest = facts::fewest_healthy(&budget, owners.values().sum());
        if healthy < fewest {
            let text = format!("{who} let {gone:?} go: {healthy} healthy pods are left, {fewest} must stay");
            self.fail(text);
        }
    }

    /// Who decides how many such pods there are, and how many.
    fn scale(&self, pod: &Pod) -> Option<(&str, i32)> {
        let owner = controller(pod)?;
        if let Some(set) = self.stateful_sets.values().find(|s| uid(*s) == owner.uid) {
            return Some((uid(set), set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)));
        }
        let set = self.replica_sets.values().find(|s| uid(*s) == owner.uid)?;
        let deployment = controller(set).and_then(|o| self.deployments.values().find(|d| uid(*d) == o.uid));
        Some(deployment.map_or((uid(set), size(set)), |d| (uid(d), facts::wanted(d))))
    }

    fn bound(&mut self, key: &str, node: &str, pod: &Pod) {
        self.devices.bound(key, pod).into_iter().for_each(|text| self.fail(text));
        let here = || self.pods.values().filter(|p| facts::node_name(p) == Some(node) && !finished(p));
        let (count, used) = (here().count(), here().map(facts::milli_cpu).sum::<i64>());
        if count > NODE_PODS || used > MILLI_CPU {
            self.fail(format!("node {node} has {count} pods with {used} milli-CPU since {key} was bound to it"));
        }
    }

    /// A ready pod is ready no more. When its set wanted fewer it was a decision, and the deployment answers for it.
    fn lost_ready(&mut self, at: Duration, key: &str, pod: &Pod, told_to_go: bool) {
        let Some(owner) = controller(pod).filter(|o| o.kind == "ReplicaSet") else { return };
        let set = self.replica_sets.values().find(|s| uid(*s) == owner.uid);
        let Some((set_size, deployment)) = set.and_then(|s| Some((size(s), controller(s)?.uid.clone()))) else {
            return;
        };
        if self.owned(&owner.uid).filter(|p| active(p)).count() as i32 <= set_size || !told_to_go {
            return self.disturb(at, &deployment);
        }
        if self.ready_since.get(uid(pod)).is_none_or(|since| at.saturating_sub(*since) < NEWS_DELAY_MAX) {
            return;
        }
        let gone = !self.deployments.values().any(|d| uid(d) == deployment && !deleting(d));
        let fewest = self.promises.get(&deployment).into_iter().flatten().map(|p| p.2).min();
        let Some(fewest) = fewest.filter(|_| !gone && !self.excused(at, &deployment)) else { return };
        let sets: Vec<_> =
            self.replica_sets.values().filter(|s| controller(*s).is_some_and(|o| o.uid == deployment)).collect();
        let pods = sets.iter().flat_map(|set| self.owned(uid(*set)));
        let left = pods.filter(|p| ready(p) && active(p)).count() as i32 - 1;
        if left + 1 >= fewest && left < fewest {
            self.fail(format!("{left} ready pods are left after {key} was deleted; {fewest} must stay"));
        }
    }

    fn created(&mut self, at: Duration, wall: Timestamp, key: &str, pod: &Pod) {
        self.check_quotas(at, wall, key, pod);
        let Some(owner) = controller(pod).cloned() else { return };
        let siblings = self.owned(&owner.uid).filter(|p| active(p)).count() as i32;
        match owner.kind.as_str() {
            "ReplicaSet" => {
                let most = self.promises.get(&owner.uid).into_iter().flatten().map(|p| p.1).max();
                if most.is_some_and(|most| siblings > most) {
                    self.fail(format!("{siblings} pods of {} with {key}; it wants {most:?}", owner.name));
                }
            }
            "DaemonSet" => {
                let node = facts::meant_for(pod);
                let here = self.owned(&owner.uid).filter(|p| active(p) && facts::meant_for(p) == node).count();
                let set = self.daemon_sets.values().find(|s| uid(*s) == owner.uid);
                let rolling = set.and_then(|s| s.spec.as_ref()?.update_strategy.as_ref()?.rolling_update.clone());
                let surges = rolling.is_some_and(|r| r.max_surge.is_some());
                if here > if surges { 2 } else { 1 } {
                    self.fail(format!("{here} pods of daemon set {} for node {node:?} with {key}", owner.name));
                }
            }
            "Job" => {
                let Some(job) = self.jobs.values().find(|j| uid(*j) == owner.uid) else { return };
                let parallelism = job.spec.as_ref().and_then(|s| s.parallelism).unwrap_or(1);
                if facts::job_finished(job) {
                    self.fail(format!("job {} was finished when {key} was made", owner.name));
                } else if siblings > parallelism {
                    self.fail(format!("job {} has {siblings} pods at once with {key}", owner.name));
                }
            }
            "StatefulSet" => self.check_order(at, key, &owner.uid),
            _ => {}
        }
    }

    fn check_order(&mut self, at: Duration, key: &str, owner: &str) {
        let Some(set) = self.stateful_sets.values().find(|s| uid(*s) == owner) else { return };
        let parallel = set.spec.as_ref().and_then(|s| s.pod_management_policy.as_deref()) == Some("Parallel");
        let Some((prefix, ordinal)) = key.rsplit_once('-').filter(|_| !parallel) else { return };
        let ordinal: u32 = ordinal.parse().unwrap_or(0);
        let missing = (0..ordinal).find(|n| !self.pods.contains_key(&format!("{prefix}-{n}")));
        if let Some(missing) = missing.filter(|_| !self.excused(at, owner)) {
            self.fail(format!("{key} was made although {prefix}-{missing} is not there"));
        }
    }

    fn check_quotas(&mut self, at: Duration, wall: Timestamp, key: &str, pod: &Pod) {
        let namespace = facts::namespace(pod);
        if self.excused(at, namespace) {
            return;
        }
        let counts = |p: &&Pod| {
            let over = p.metadata.deletion_timestamp.as_ref().is_some_and(|t| t.0 <= wall);
            facts::namespace(*p) == namespace && !finished(p) && !over
        };
        let here: Vec<_> = self.pods.values().filter(counts).collect();
        let used =
            [("pods", here.len() as i64 * 1000), ("requests.cpu", here.iter().map(|p| facts::milli_cpu(p)).sum())];
        let mut complaints = Vec::new();
        for quota in self.quotas.values().filter(|q| facts::namespace(*q) == namespace) {
            let hard = quota.status.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
            for (what, used) in used {
                let limit = hard.get(what).and_then(|q| facts::quantity(&q.0));
                if limit.is_some_and(|limit| used > limit) {
                    complaints.push(format!("{key} makes it {used} thousandths of {what}, the quota is {limit:?}"));
                }
            }
        }
        complaints.into_iter().for_each(|text| self.fail(text));
    }
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn world(objects: &[(&str, Value)]) -> World {
        let mut world = World::default();
        commit(&mut world, Duration::ZERO, objects);
        world
    }

    fn commit(world: &mut World, at: Duration, objects: &[(&str, Value)]) {
        for (plural, object) in objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            let key = format!("/registry/{plural}/team/{name}");
            let change = Change::Put { value: object.to_string().into(), created: false };
            let event = Event { key, revision: 1, change };
            world.apply(at, "2026-01-01T00:00:00Z".parse().unwrap(), &event);
        }
    }

    fn pod(name: &str, ready: bool) -> (&'static str, Value) {
        let status = if ready { "True" } else { "False" };
        let pod = json!({ "metadata": { "name": name, "namespace": "team", "uid": name, "labels": { "app": "web" } },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": status }] } });
        ("pods", pod)
    }

    fn budget(spec: Value, gone: &[&str]) -> (&'static str, Value) {
        let mut spec = spec;
        spec["selector"] = json!({ "matchLabels": { "app": "web" } });
        let gone: BTreeMap<_, _> = gone.iter().map(|name| (*name, "2026-01-01T00:00:00Z")).collect();
        let status = json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            "disruptedPods": gone });
        let metadata = json!({ "name": "b", "namespace": "team", "uid": "b", "generation": 1 });
        ("poddisruptionbudgets", json!({ "metadata": metadata, "spec": spec, "status": status }))
    }

    /// Three pods, of which one is not ready; how many complaints there are when `gone` are let go.
    fn check(spec: Value, gone: &[&str], complaints: usize) {
        let mut world = world(&[pod("a", true), pod("b", true), pod("c", false), budget(spec.clone(), &[])]);
        commit(&mut world, EXCUSED_AFTER_DISTURBANCE, &[budget(spec, gone)]);
        assert_eq!(world.take_violations().len(), complaints, "{gone:?}");
    }

    #[test]
    fn a_budget_lets_no_more_go_than_it_may() {
        check(json!({ "minAvailable": 1 }), &["a"], 0);
        check(json!({ "minAvailable": 1 }), &["c"], 0);
        check(json!({ "minAvailable": 1 }), &["a", "b"], 1);
        check(json!({ "minAvailable": 2 }), &["a"], 1);
        check(json!({ "minAvailable": 0 }), &["a", "b"], 0);
    }

    #[test]
    fn what_a_budget_could_not_know_yet_is_excused() {
        let spec = json!({ "minAvailable": 1 });
        let mut world = world(&[pod("a", true), pod("b", true), budget(spec.clone(), &[])]);
        commit(&mut world, EXCUSED_AFTER_DISTURBANCE, &[pod("b", false), budget(spec.clone(), &["a"])]);
        assert!(world.take_violations().is_empty());
        commit(&mut world, EXCUSED_AFTER_DISTURBANCE * 3, &[budget(spec, &["a", "b"])]);
        assert_eq!(world.take_violations().len(), 1);
    }
}
