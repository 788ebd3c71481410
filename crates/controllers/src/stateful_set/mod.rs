//! Runs stateful sets: pods with names, claims and an order.
//! `plan` is the core, `pod` makes pods and claims, `revisions` keeps the history.
//! A pod's claims exist before the pod; names make double creation impossible.

mod plan;
mod pod;

use std::{collections::BTreeMap, sync::Arc};

use api::{ApiError, selectors::LabelSelector};
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec},
};
use metrics::{Family, Metrics};
use plan::{Action, DeletionReason, Input};
use serde_json::json;

use crate::{
    common::{
        dependents, indexes,
        meta::{self, Object, delete_options, labels},
        ownership,
        pod_control::namespace_terminating,
        revisions,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const SET: &[&str] = &["statefulset_namespace", "statefulset_name", "pod_management_policy"];
static MAX_UNAVAILABLE: Family = Family::gauge(
    "statefulset_controller_statefulset_max_unavailable",
    SET,
    "Pods of a StatefulSet that an update may leave unavailable.",
);
static UNAVAILABLE: Family = Family::gauge(
    "statefulset_controller_statefulset_unavailable_replicas",
    SET,
    "Pods of a StatefulSet that are not available.",
);

fn show(metrics: &Metrics, set: &StatefulSet, plan: &plan::Plan) {
    let policy = if plan::ordered(set) { "OrderedReady" } else { "Parallel" };
    let labels = [set.namespace(), set.name(), policy];
    metrics.set(&MAX_UNAVAILABLE, &labels, plan.max_unavailable as f64);
    metrics.set(&UNAVAILABLE, &labels, plan.unavailable as f64);
}

fn forget(metrics: &Metrics, key: &str) {
    let (namespace, name) = meta::split(key);
    for family in [&MAX_UNAVAILABLE, &UNAVAILABLE] {
        metrics.retain(family, |labels| *labels[0] != *namespace || *labels[1] != *name);
    }
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (sets, pods) = (setup.informer::<StatefulSet>(), setup.informer::<Pod>());
    let (claims, history) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<ControllerRevision>());
    indexes::by_namespace(&sets);
    indexes::by_controller(&pods);
    indexes::by_controller(&history);
    setup.on_keys(&sets);
    setup.on(&pods, {
        let sets = sets.clone();
        move |change, queue| {
            dependents::wake_owners(change, queue, &sets, |set, pod| plan::ordinal(set, pod).is_some());
        }
    });
    let recorder = setup.context.recorder("statefulset-controller");
    Arc::new(StatefulSets { context: setup.context.clone(), sets, pods, claims, history, recorder })
}

struct StatefulSets {
    context: Context,
    sets: Informer<StatefulSet>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    history: Informer<ControllerRevision>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for StatefulSets {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(set) = self.sets.get(key) else {
            forget(&self.context.config.metrics, key);
            return Ok(None);
        };
        let Some(selector) = set.spec.as_ref().and_then(|s| LabelSelector::from_meta(Some(&s.selector)).ok()) else {
            return Ok(None);
        };
        if selector.is_empty() || set.deleting() {
            return Ok(None);
        }
        let (client, now) = (&self.context.client, self.context.env.now());
        let matches = |r: &ControllerRevision| selector.matches(labels(r.meta()));
        let known = revisions::claim(&self.history, client, &*set, matches).await?;
        let status = set.status.clone().unwrap_or_default();
        let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let template_labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        let mut history = revisions::history(&*set, &template, &template_labels, status.collision_count, known);
        let api = client.namespaced::<StatefulSet>(set.namespace());
        if !history.carry_out(client).await? {
            let patch = json!({ "status": { "collisionCount": status.collision_count.unwrap_or(0) + 1 } });
            api.patch_status(set.name(), &Patch::Merge(patch)).await?;
            return Ok(None);
        }
        let pods = self.claim(&set, &selector).await?;
        let update = history.update.name().to_string();
        let current_name = status.current_revision.clone().unwrap_or_else(|| update.clone());
        let current = history.old.iter().find(|r| r.name() == current_name).map(|r| (**r).clone());
        let current = current.unwrap_or_else(|| history.update.clone());
        let plan = plan::plan(&Input { set: &set, pods: &pods, current: current.name(), update: &update, now });
        show(&self.context.config.metrics, &set, &plan);
        let mut result = Ok(());
        for action in plan.actions {
            result = match action {
                Action::Create { ordinal, revision } => {
                    let from = if revision == update { &history.update } else { &current };
                    let template = revisions::template(from).unwrap_or_else(|| template.clone());
                    self.create(&set, &template, ordinal, &revision).await
                }
                Action::MakeClaims { ordinal } => self.make_claims(&set, ordinal).await,
                Action::Delete { pod, reason } => self.delete(&set, &pod, reason).await,
            };
            if result.is_err() {
                break;
            }
        }
        if set.status.as_ref() != Some(&plan.status) {
            let mut set = (*set).clone();
            set.status = Some(plan.status);
            api.replace_status(set.name(), &set).await?;
        }
        result?;
        let limit = set.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(10);
        let live = |r: &ControllerRevision| {
            r.name() == current.name() || pods.iter().any(|p| p.label(revisions::HASH_LABEL) == Some(r.name()))
        };
        revisions::delete(client, &history.surplus(limit, live)).await?;
        self.keep_identities(&set, &pods).await?;
        self.keep_claims(&set).await?;
        Ok(plan.again)
    }
}

impl StatefulSets {
    async fn claim(&self, set: &StatefulSet, selector: &LabelSelector) -> Result<Vec<Arc<Pod>>, ApiError> {
        let mut pods = self.pods.by_index(indexes::CONTROLLER, set.uid());
        pods.extend(self.pods.by_index(indexes::ORPHAN, set.namespace()));
        let ours = |pod: &Pod| selector.matches(labels(pod.meta())) && plan::ordinal(set, pod).is_some();
        let claims = ownership::claims(pods, set.meta(), ours);
        let client = &self.context.client;
        ownership::claim(claims, &client.namespaced(set.namespace()), &client.namespaced(set.namespace()), set).await
    }

    async fn create(
        &self,
        set: &StatefulSet,
        template: &PodTemplateSpec,
        ordinal: i32,
        revision: &str,
    ) -> Result<(), ApiError> {
        self.make_claims(set, ordinal).await?;
        let (about, client) = (reference(set), &self.context.client);
        let pod = pod::pod(set, template, ordinal, revision);
        let what = format!("create Pod {} in StatefulSet {}", pod.name(), set.name());
        match client.namespaced::<Pod>(set.namespace()).create(&pod).await {
            Ok(_) => {
                self.recorder.normal(&about, "SuccessfulCreate", format!("{what} successful"));
                Ok(())
            }
            // Ours and not seen yet, or someone else's: the watch tells which.
            Err(error) if error.is_already_exists() || namespace_terminating(&error) => Ok(()),
            Err(error) => {
                self.recorder.warning(&about, "FailedCreate", format!("{what} failed error: {}", error.message));
                Err(error)
            }
        }
    }

    /// Makes the claims of an ordinal that are not there.
    async fn make_claims(&self, set: &StatefulSet, ordinal: i32) -> Result<(), ApiError> {
        let (about, client) = (reference(set), &self.context.client);
        for claim in pod::claims(set, ordinal) {
            match self.claims.get(&claim.key()) {
                Some(known) if known.deleting() => {
                    let message = format!("persistentvolumeclaim \"{}\" is being deleted", claim.name());
                    return Err(ApiError::internal(message));
                }
                Some(_) => continue,
                None => {}
            }
            let (name, set_name) = (claim.name(), set.name());
            let what = format!("create Claim {name} Pod {set_name}-{ordinal} in StatefulSet {set_name}");
            match client.namespaced::<PersistentVolumeClaim>(set.namespace()).create(&claim).await {
                Ok(_) => self.recorder.normal(&about, "SuccessfulCreate", format!("{what} success")),
                Err(error) if error.is_already_exists() => {}
                Err(error) => {
                    let message = format!("{what} failed error: {}", error.message);
                    self.recorder.warning(&about, "FailedCreate", message);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod, reason: DeletionReason) -> Result<(), ApiError> {
        let about = reference(set);
        if reason == DeletionReason::Scaled
            && let Some(ordinal) = plan::ordinal(set, pod)
        {
            self.own_claims(set, ordinal, Some(pod)).await?;
        }
        let what = format!("delete Pod {} in StatefulSet {}", pod.name(), set.name());
        let api = self.context.client.namespaced::<Pod>(set.namespace());
        match api.delete(pod.name(), &delete_options(pod.uid())).await {
            Ok(()) => {
                self.recorder.normal(&about, "SuccessfulDelete", format!("{what} successful"));
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                self.recorder.warning(&about, "FailedDelete", format!("{what} failed error: {}", error.message));
                Err(error)
            }
        }
    }

    /// The labels that say which pod of the set it is come back when somebody takes them away.
    async fn keep_identities(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<(), ApiError> {
        for pod in pods.iter().filter(|p| !p.deleting()) {
            let Some(ordinal) = plan::ordinal(set, pod) else { continue };
            let wanted = pod::identity(pod.name(), ordinal);
            if wanted.iter().all(|(key, value)| pod.label(key) == Some(value)) {
                continue;
            }
            let what = format!("update Pod {} in StatefulSet {}", pod.name(), set.name());
            let patch = json!({ "metadata": { "uid": pod.uid(), "labels": BTreeMap::from(wanted) } });
            let api = self.context.client.namespaced::<Pod>(set.namespace());
            match api.patch(pod.name(), &Patch::Merge(patch)).await {
                Ok(_) => self.recorder.normal(&reference(set), "SuccessfulUpdate", format!("{what} successful")),
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => {
                    let message = format!("{what} failed error: {}", error.message);
                    self.recorder.warning(&reference(set), "FailedUpdate", message);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Claims of pods that stay follow the set's retention policy.
    async fn keep_claims(&self, set: &StatefulSet) -> Result<(), ApiError> {
        let first = plan::start(set);
        for ordinal in first..first + plan::replicas(set) {
            self.own_claims(set, ordinal, None).await?;
        }
        Ok(())
    }

    async fn own_claims(&self, set: &StatefulSet, ordinal: i32, condemned: Option<&Pod>) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<PersistentVolumeClaim>(set.namespace());
        for claim in pod::claims(set, ordinal) {
            let Some(known) = self.claims.get(&claim.key()) else { continue };
            let have = known.metadata.owner_references.clone().unwrap_or_default();
            if pod::conflicting_controller(set, &format!("{}-{ordinal}", set.name()), &have) {
                let message = format!(
                    "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, the \
                     retention policy is ignored for this claim",
                    known.name()
                );
                self.recorder.warning(&reference(set), "ConflictingController", message);
                continue;
            }
            let wanted = pod::claim_owners(set, condemned, have.clone());
            if wanted != have {
                let meta = json!({ "resourceVersion": known.metadata.resource_version, "ownerReferences": wanted });
                api.patch(known.name(), &Patch::Merge(json!({ "metadata": meta }))).await?;
            }
        }
        Ok(())
    }
}
