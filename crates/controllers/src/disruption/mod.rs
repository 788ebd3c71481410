//! Keeps the status of PodDisruptionBudgets, which the eviction API asks before it lets a pod go.
//! The core is `plan`.
//! Pods that were to be disrupted and stay are told so here too.
//! A budget that can't be worked out allows nothing.

mod plan;

use std::{collections::BTreeMap, sync::Arc};

use api::selectors::LabelSelector;
use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::{Pod, ReplicationController},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::{
    common::{
        indexes,
        meta::{self, Object, labels},
        objects,
    },
    runner::{Context, Controller, Outcome, Setup},
};

/// Pods come under this prefix, budgets under their own keys.
const POD: &str = "pod:";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (budgets, pods) = (setup.informer::<PodDisruptionBudget>(), setup.informer::<Pod>());
    indexes::by_namespace(&budgets);
    indexes::by_namespace(&pods);
    setup.on_keys(&budgets);
    let recorder = setup.context.recorder("controllermanager");
    setup.on(&pods, {
        let (budgets, recorder, env) = (budgets.clone(), recorder.clone(), setup.context.env.clone());
        move |change, queue| {
            if let Some(left) = change.new.as_ref().and_then(|pod| plan::stale_in(pod, env.now())) {
                queue.add_after(format!("{POD}{}", change.key), left);
            }
            let Some(namespace) = change.new.as_ref().or(change.old.as_ref()).map(|p| p.namespace()) else { return };
            let mut covering = Vec::new();
            for budget in budgets.by_index(indexes::NAMESPACE, namespace) {
                let Some(selector) = selector(&budget) else { continue };
                let covers = |pod: &Arc<Pod>| selector.matches(labels(pod.meta()));
                if change.old.iter().chain(&change.new).any(covers) {
                    queue.add(budget.key());
                }
                if change.new.as_ref().is_some_and(covers) {
                    covering.push(budget);
                }
            }
            if let (Some(pod), [first, _, ..]) = (&change.new, &covering[..]) {
                let (namespace, name, first) = (pod.namespace(), pod.name(), first.name());
                let message = format!(
                    "Pod {namespace:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily."
                );
                recorder.warning(&reference(&**pod), "MultiplePodDisruptionBudgets", message);
            }
        }
    });
    Arc::new(Disruption {
        recorder,
        sets: setup.informer(),
        deployments: setup.informer(),
        stateful_sets: setup.informer(),
        replication_controllers: setup.informer(),
        context: setup.context.clone(),
        budgets,
        pods,
    })
}

fn unmanaged(selector: &str) -> String {
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the \
         status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these \
         pods please set \".spec.minAvailable\" field of the PDB to an integer value."
    )
}

/// No selector selects nothing; an empty one everything.
fn selector(budget: &PodDisruptionBudget) -> Option<LabelSelector> {
    LabelSelector::from_meta(Some(budget.spec.as_ref()?.selector.as_ref()?)).ok()
}

struct Disruption {
    context: Context,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    sets: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    stateful_sets: Informer<StatefulSet>,
    replication_controllers: Informer<ReplicationController>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for Disruption {
    async fn reconcile(&self, key: &str) -> Outcome {
        if let Some(pod) = key.strip_prefix(POD) {
            return self.take_disruption_back(pod).await;
        }
        let Some(budget) = self.budgets.get(key) else { return Ok(None) };
        let selector = selector(&budget);
        let mut pods = self.pods.by_index(indexes::NAMESPACE, budget.namespace());
        pods.retain(|pod| selector.as_ref().is_some_and(|s| s.matches(labels(pod.meta()))));
        let about = reference(&*budget);
        if pods.is_empty() {
            self.recorder.normal(&about, "NoPods", "No matching pods found");
        }
        let now = self.context.env.now();
        let scale = self.expected_scale(&budget, &pods).await;
        let managed = pods.iter().all(|pod| pod.controller().is_some());
        if !managed && plan::follows_scale(&budget) {
            let selector = LabelSelector::from_meta(budget.spec.as_ref().and_then(|s| s.selector.as_ref()));
            let selector = selector.map(|s| s.to_string()).unwrap_or_default();
            self.recorder.warning(&about, "UnmanagedPods", unmanaged(&selector));
        }
        for pod in plan::not_deleted(&budget, &pods, now) {
            let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            self.recorder.warning(&reference(&**pod), "NotDeleted", message);
        }
        let (status, again) = match plan::expected(&budget, pods.len(), scale) {
            Ok(numbers) => plan::status(&budget, &pods, numbers, now),
            Err(error) => {
                let message = format!("Failed to calculate the number of expected pods: {error}");
                self.recorder.warning(&about, "CalculateExpectedPodCountFailed", message);
                (plan::failed(&budget, &error, now), None)
            }
        };
        if let Some(status) = status {
            let mut budget = (*budget).clone();
            budget.status = Some(status);
            let api = self.context.client.namespaced::<PodDisruptionBudget>(budget.namespace());
            match api.replace_status(budget.name(), &budget).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(again)
    }
}

impl Disruption {
    async fn take_disruption_back(&self, key: &str) -> Outcome {
        let now = self.context.env.now();
        let Some(pod) = self.pods.get(key) else { return Ok(None) };
        match plan::stale_in(&pod, now) {
            None => return Ok(None),
            Some(left) if !left.is_zero() => return Ok(Some(left)),
            Some(_) => {}
        }
        let api = self.context.client.namespaced::<Pod>(pod.namespace());
        match api.replace_status(pod.name(), &plan::without_disruption(&pod, now)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }

    /// The sum of what the pods' controllers want; each controller counts once, and pods without one don't.
    async fn expected_scale(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<i32, String> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let Some(owner) = pod.controller() else { continue };
            if scales.contains_key(&owner.uid) {
                continue;
            }
            let key = meta::key(budget.namespace(), &owner.name);
            let (uid, replicas) = match owner.kind.as_str() {
                "ReplicaSet" => match self.sets.get(&key) {
                    Some(set) => self.of_replica_set(&set),
                    None => continue,
                },
                "StatefulSet" => match self.stateful_sets.get(&key) {
                    Some(set) => (owner.uid.clone(), set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)),
                    None => continue,
                },
                "ReplicationController" => match self.replication_controllers.get(&key) {
                    Some(rc) => (owner.uid.clone(), rc.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)),
                    None => continue,
                },
                _ => match self.of_scale(budget, owner).await? {
                    Some(replicas) => (owner.uid.clone(), replicas),
                    None => continue,
                },
            };
            scales.insert(uid, replicas);
            scales.entry(owner.uid.clone()).or_insert(0);
        }
        Ok(scales.values().sum())
    }

    /// A set of a deployment stands for the whole deployment.
    fn of_replica_set(&self, set: &ReplicaSet) -> (String, i32) {
        let own = (set.uid().to_string(), set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1));
        let Some(owner) = set.controller().filter(|o| o.kind == "Deployment") else { return own };
        match self.deployments.get(&meta::key(set.namespace(), &owner.name)) {
            Some(d) => (format!("deployment {}", d.uid()), d.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)),
            None => own,
        }
    }

    /// Anything else must have a scale. `None` when the owner is gone.
    async fn of_scale(&self, budget: &PodDisruptionBudget, owner: &OwnerReference) -> Result<Option<i32>, String> {
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let unknown = || format!("no matches for kind {kind:?} in version {api_version:?}");
        let resource = self.context.resources.find(api_version, kind).ok_or_else(unknown)?;
        let client = &self.context.client;
        match objects::get(client, &resource, budget.namespace(), &format!("{name}/scale")).await {
            Ok(scale) => {
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0) as i32;
                Ok(Some(replicas).filter(|_| scale["metadata"]["uid"] == uid.as_str()))
            }
            // The controller's role lets it get scales, not the objects themselves.
            Err(error) if error.is_not_found() => match objects::has_subresource(client, &resource, "scale").await {
                Ok(true) => Ok(None),
                Ok(false) => Err(format!("{} does not implement the scale subresource", resource.group_resource())),
                Err(error) => Err(error.message.clone()),
            },
            Err(error) => Err(error.message.clone()),
        }
    }
}
