//! Rolls deployments out: one replica set per template, scaled against each other.
//! The core is `plan`; this part looks, claims and carries out. Pods are the replica sets' business.
//! Names of replica sets follow from their template, so nothing is created twice.

mod plan;
mod sets;
mod status;

use std::{sync::Arc, time::Duration};

use api::{ApiError, selectors::LabelSelector};
use async_trait::async_trait;
use client::{EventRecorder, Informer, ObjectRef, Patch, may_have_happened, reference};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use plan::{Action, Input, plan};
use serde_json::json;

use crate::{
    common::{
        dependents::{self, owner_key},
        expectations::Expectations,
        indexes,
        meta::{self, Object, delete_in_background, labels},
        ownership,
        pod_control::namespace_terminating,
    },
    runner::{Context, Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (deployments, sets, pods) =
        (setup.informer::<Deployment>(), setup.informer::<ReplicaSet>(), setup.informer::<Pod>());
    indexes::by_namespace(&deployments);
    indexes::by_controller(&sets);
    indexes::by_controller(&pods);
    let expectations = Expectations::new(setup.context.env.clone());
    setup.on_keys(&deployments);
    setup.on(&sets, {
        let (deployments, expectations) = (deployments.clone(), expectations.clone());
        move |change, queue| {
            dependents::owners::<Deployment>(change).iter().for_each(|owner| expectations.changed(owner, change));
            let selects = |deployment: &Deployment, set: &ReplicaSet| {
                selector_of(deployment).is_some_and(|selector| selector.matches(labels(set.meta())))
            };
            dependents::wake_owners(change, queue, &deployments, selects);
        }
    });
    // Recreate waits for the last old pod to be gone; only the pods tell that.
    setup.on(&pods, {
        let (deployments, sets) = (deployments.clone(), sets.clone());
        move |change, queue| {
            let Some(pod) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
            let set = owner_key::<ReplicaSet>(&**pod).and_then(|key| sets.get(&key));
            let deployment = set.and_then(|set| owner_key::<Deployment>(&*set)).and_then(|key| deployments.get(&key));
            if let Some(deployment) = deployment.filter(|d| !sets::rolling(d)) {
                queue.add(deployment.key());
            }
        }
    });
    let recorder = setup.context.recorder("deployment-controller");
    Arc::new(Deployments { context: setup.context.clone(), deployments, sets, pods, recorder, expectations })
}

fn selector_of(deployment: &Deployment) -> Option<LabelSelector> {
    deployment.spec.as_ref().and_then(|s| LabelSelector::from_meta(Some(&s.selector)).ok()).filter(|s| !s.is_empty())
}

struct Deployments {
    context: Context,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    recorder: EventRecorder,
    /// Sets of our own making that the cache does not show: counted without them, the next would be too large.
    expectations: Expectations,
}

#[async_trait]
impl Controller for Deployments {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(deployment) = self.deployments.get(key) else {
            self.expectations.forget(key);
            return Ok(None);
        };
        if let Some(again) = self.waiting(key).await? {
            return Ok(Some(again));
        }
        let about = reference(&*deployment);
        let Some(selector) = selector_of(&deployment) else {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(&about, "SelectingAll", message);
            return self.observe(&deployment).await.map(|()| None);
        };
        let sets = self.claim(&deployment, &selector).await?;
        let pods: Vec<_> = if sets::rolling(&deployment) {
            Vec::new()
        } else {
            sets.iter().flat_map(|set| self.pods.by_index(indexes::CONTROLLER, set.uid())).collect()
        };
        let plan = plan(&Input { deployment: &deployment, sets: &sets, pods: &pods, now: self.context.env.now() });
        for action in plan.actions {
            self.carry_out(&deployment, &about, action).await?;
        }
        Ok(plan.again)
    }
}

impl Deployments {
    /// How long own sets are still to be waited for; their arrival brings us back.
    async fn waiting(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        for set in self.expectations.overdue(key).0 {
            let (namespace, name) = meta::split(&set);
            let found = self.context.client.namespaced::<ReplicaSet>(namespace).find(name).await?;
            if found.is_none_or(|set| owner_key::<Deployment>(&set).as_deref() != Some(key)) {
                self.expectations.created(key, &set);
            }
        }
        Ok(self.expectations.waiting(key))
    }

    async fn claim(&self, deployment: &Deployment, selector: &LabelSelector) -> Result<Vec<Arc<ReplicaSet>>, ApiError> {
        let mut sets = self.sets.by_index(indexes::CONTROLLER, deployment.uid());
        sets.extend(self.sets.by_index(indexes::ORPHAN, deployment.namespace()));
        let claims = ownership::claims(sets, deployment.meta(), |set| selector.matches(labels(set.meta())));
        let (client, namespace) = (&self.context.client, deployment.namespace());
        ownership::claim(claims, &client.namespaced(namespace), &client.namespaced(namespace), deployment).await
    }

    async fn observe(&self, deployment: &Deployment) -> Result<(), ApiError> {
        let mut deployment = deployment.clone();
        let generation = deployment.metadata.generation;
        let status = deployment.status.get_or_insert_default();
        if status.observed_generation >= generation {
            return Ok(());
        }
        status.observed_generation = generation;
        self.write_status(&deployment).await
    }

    async fn write_status(&self, deployment: &Deployment) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<Deployment>(deployment.namespace());
        // The revision may just have been written, so no version is insisted on: the generation says what was observed.
        let status = serde_json::to_value(&deployment.status).unwrap_or_default();
        let mut patch = json!({ "status": status });
        blank_missing(&mut patch["status"], deployment.status.is_some());
        api.patch_status(deployment.name(), &Patch::Merge(patch)).await.map(drop)
    }

    async fn carry_out(&self, deployment: &Deployment, about: &ObjectRef, action: Action) -> Result<(), ApiError> {
        let sets = self.context.client.namespaced::<ReplicaSet>(deployment.namespace());
        match action {
            Action::Create(set) => self.create(deployment, about, &set).await,
            Action::Update(set) => sets.replace(set.name(), &set).await.map(drop),
            Action::Scale { set, from, to } => {
                sets.replace(set.name(), &set).await?;
                self.scaled(about, &set, from, to);
                Ok(())
            }
            Action::Delete(set) => match sets.delete(set.name(), &delete_in_background(set.uid())).await {
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(()),
            },
            Action::SetRevision(revision) => {
                let api = self.context.client.namespaced::<Deployment>(deployment.namespace());
                let patch =
                    json!({ "metadata": { "uid": deployment.uid(), "annotations": { sets::REVISION: revision } } });
                // Through the status: annotations that change otherwise raise the generation.
                api.patch_status(deployment.name(), &Patch::Merge(patch)).await.map(drop)
            }
            Action::UpdateStatus(status) => {
                let mut deployment = deployment.clone();
                deployment.status = Some(status);
                self.write_status(&deployment).await
            }
        }
    }

    fn scaled(&self, about: &ObjectRef, set: &ReplicaSet, from: i32, to: i32) {
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {} from {from} to {to}", set.name());
        self.recorder.normal(about, "ScalingReplicaSet", message);
    }

    async fn create(&self, deployment: &Deployment, about: &ObjectRef, set: &ReplicaSet) -> Result<(), ApiError> {
        let sets = self.context.client.namespaced::<ReplicaSet>(deployment.namespace());
        let (owner, key) = (deployment.key(), set.key());
        self.expectations.expect_created(&owner, &key);
        let created = sets.create(set).await;
        // One that may be there is waited for, unless it was shown while this was on its way.
        let surely_not = created.as_ref().is_err_and(|e| !may_have_happened(e) && !e.is_already_exists());
        if surely_not || self.sets.get(&key).is_some() {
            self.expectations.created(&owner, &key);
        }
        let error = match created {
            Ok(_) => {
                if sets::replicas(set) > 0 {
                    self.scaled(about, set, 0, sets::replicas(set));
                }
                return Ok(());
            }
            Err(error) if namespace_terminating(&error) => return Ok(()),
            Err(error) => error,
        };
        let mut changed = deployment.clone();
        if error.is_already_exists() {
            let other = sets.get(set.name()).await?;
            let template = deployment.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
            if other.controlled_by(deployment.uid()) && sets::same_template(&other, &template) {
                // Ours, and the cache has not shown it yet: its arrival brings us back.
                return Ok(());
            }
            self.expectations.created(&owner, &key);
            let status = changed.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
            self.write_status(&changed).await?;
            return Err(error);
        }
        let message = format!("Failed to create new replica set \"{}\": {}", set.name(), error.message);
        self.recorder.warning(about, "ReplicaSetCreateError", message.clone());
        let mut conditions = status::Conditions::new(deployment, self.context.env.now());
        conditions.failed_to_create(message);
        conditions.write(changed.status.get_or_insert_default());
        if changed.status != deployment.status {
            self.write_status(&changed).await?;
        }
        Err(error)
    }
}

/// A merge patch keeps what it does not name, so counters that became zero are named as null.
fn blank_missing(status: &mut serde_json::Value, any: bool) {
    if !any {
        return;
    }
    for field in [
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "conditions",
    ] {
        if status.get(field).is_none() {
            status[field] = serde_json::Value::Null;
        }
    }
}
