//! ResourceClaims around pods: makes those that pods want of a template, takes reservations back when pods are done, and
//! with the last of them the devices, the finalizer, and the claim if it was made for the pod.
//! `plan` decides; the scheduler allocates and reserves.
//! Before a reservation is taken back because its pod is unknown, the server is asked: the cache may be behind.

mod plan;
#[cfg(test)]
mod plan_tests;

use std::{collections::HashMap, sync::Arc};

use api::{
    ApiError,
    resource_claims::{claim_name, consumer, pod_claims, reserved_for},
};
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use metrics::Family;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::plan::{Known, PodClaimPlan, is_done};
use crate::{
    common::{
        indexes::{self, CONTROLLER},
        meta::{self, Object},
        pod_control::namespace_terminating,
    },
    runner::{Context, Controller, Outcome, Queue, Setup},
};

const FIELD_MANAGER: &str = "ResourceClaimController";
const POD: &str = "pod:";
const CLAIM: &str = "claim:";
/// Pods by the claims that they use.
const BY_CLAIM: &str = "resource claim";

static CREATES: Family = Family::counter(
    "resourceclaim_controller_creates_total",
    &["status", "admin_access"],
    "ResourceClaims to be made for pods, by what came of it and whether they ask for admin access.",
);
static CLAIMS: Family = Family::gauge(
    "resourceclaim_controller_resource_claims",
    &["allocated", "admin_access", "source"],
    "ResourceClaims there are, by whether they have devices, ask for admin access, and what they were made of.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let pods = setup.informer::<Pod>();
    let claims = setup.informer::<ResourceClaim>();
    let templates = setup.informer::<ResourceClaimTemplate>();
    pods.add_index(BY_CLAIM, |object| {
        let Ok(pod) = object.typed::<Pod>() else { return Vec::new() };
        claims_of(&pod)
    });
    indexes::by_controller(&claims);
    setup.on(&pods, |change, queue| {
        if let Some(pod) = change.new.as_ref().or(change.old.as_ref()) {
            enqueue_pod(pod, change.new.is_none(), queue);
        }
    });
    let (users, metrics) = (pods.clone(), setup.context.config.metrics.clone());
    let mut counts: HashMap<[String; 3], i64> = HashMap::new();
    setup.on(&claims, move |change, queue| {
        for (claim, by) in [(&change.old, -1), (&change.new, 1)] {
            let Some(labels) = claim.as_deref().map(labels) else { continue };
            let count = counts.entry(labels.clone()).or_default();
            *count += by;
            metrics.set(&CLAIMS, &labels.each_ref().map(String::as_str), *count as f64);
        }
        if change.new.is_some() {
            queue.add(format!("{CLAIM}{}", change.key));
        }
        for pod in users.by_index(BY_CLAIM, &change.key) {
            enqueue_pod(&pod, false, queue);
        }
    });
    // A template may come after the pods that name it.
    setup.on(&templates, {
        let pods = pods.clone();
        indexes::by_namespace(&pods);
        move |change, queue| {
            let Some(template) = change.new.as_ref().filter(|_| change.old.is_none()) else { return };
            let names = |pod: &Pod| {
                pod_claims(pod).iter().any(|c| c.resource_claim_template_name.as_deref() == Some(template.name()))
            };
            for pod in pods.by_index(indexes::NAMESPACE, template.namespace()).into_iter().filter(|pod| names(pod)) {
                queue.add(format!("{POD}{}", pod.key()));
            }
        }
    });
    let recorder = setup.context.recorder("resource_claim");
    Arc::new(ResourceClaims {
        context: setup.context.clone(),
        pods,
        claims,
        templates,
        recorder,
        made: Mutex::default(),
    })
}

/// The keys of the claims that a pod uses.
fn claims_of(pod: &Pod) -> Vec<String> {
    let named = pod_claims(pod).iter().filter_map(|listed| claim_name(pod, listed).ok().flatten());
    named.map(|claim| meta::key(pod.namespace(), claim.name)).collect()
}

fn enqueue_pod(pod: &Pod, is_gone: bool, queue: &Queue) {
    if pod_claims(pod).is_empty() {
        return;
    }
    if is_gone || is_done(pod) {
        claims_of(pod).iter().for_each(|claim| queue.add(format!("{CLAIM}{claim}")));
    }
    if is_gone || !pod.deleting() {
        queue.add(format!("{POD}{}", pod.key()));
    }
}

fn admin_access(claim: &ResourceClaim) -> &'static str {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let asks = |exactly: &k8s_openapi::api::resource::v1::ExactDeviceRequest| exactly.admin_access == Some(true);
    match requests.filter_map(|request| request.exactly.as_ref()).any(asks) {
        true => "true",
        false => "false",
    }
}

/// What a claim is counted under.
fn labels(claim: &ResourceClaim) -> [String; 3] {
    let source = match claim.annotation(api::resource_claims::POD_CLAIM_NAME) {
        Some(_) => "resource_claim_template",
        None => "",
    };
    [plan::has_allocation(claim).to_string(), admin_access(claim).into(), source.into()]
}

struct ResourceClaims {
    context: Context,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    recorder: EventRecorder,
    /// Claims that were made and may not be in the cache yet: by pod and name in the pod, their names. Kept until the
    /// pod's status tells them or the pod is gone.
    made: Mutex<HashMap<(String, String), String>>,
}

#[async_trait]
impl Controller for ResourceClaims {
    async fn reconcile(&self, key: &str) -> Outcome {
        if let Some(pod) = key.strip_prefix(POD) {
            self.reconcile_pod(pod).await
        } else if let Some(claim) = key.strip_prefix(CLAIM) {
            self.reconcile_claim(claim).await
        } else {
            Ok(None)
        }
    }
}

/// What is to be done about a pod.
struct PodPlan {
    /// By the name in the pod.
    claims: Vec<(String, Result<PodClaimPlan, String>)>,
    to_reserve: Result<Vec<Arc<ResourceClaim>>, String>,
}

impl ResourceClaims {
    fn plan_pod(&self, pod: &Pod) -> PodPlan {
        let owned = self.claims.by_index(CONTROLLER, pod.uid());
        let known = Known {
            claim: &|name| self.claims.get(&meta::key(pod.namespace(), name)),
            template: &|name| self.templates.get(&meta::key(pod.namespace(), name)),
            owned: &owned,
        };
        let plan = |listed: &PodResourceClaim| (listed.name.clone(), plan::pod_claim(pod, listed, &known));
        PodPlan { claims: pod_claims(pod).iter().map(plan).collect(), to_reserve: plan::to_reserve(pod, &known) }
    }

    async fn reconcile_pod(&self, key: &str) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.deleting()) else {
            self.made.lock().retain(|(pod, _), _| pod != key);
            return Ok(None);
        };
        let PodPlan { claims, to_reserve } = self.plan_pod(&pod);
        let mut statuses = Vec::new();
        for (listed, plan) in claims {
            let failed = |why: &str| {
                let message = format!("PodResourceClaim {listed}: {why}");
                self.recorder.warning(&reference(&*pod), "FailedResourceClaimCreation", message);
            };
            let name = match plan {
                Ok(PodClaimPlan::Nothing) => {
                    self.made.lock().remove(&(key.to_string(), listed));
                    continue;
                }
                Ok(PodClaimPlan::Found(name)) => name,
                Ok(PodClaimPlan::Create(claim)) => match self.create(key, &listed, &claim).await {
                    Ok(name) => name,
                    Err(error) if namespace_terminating(&error) => return Ok(None),
                    Err(error) => {
                        failed(&format!("create ResourceClaim : {}", error.message));
                        return Err(error);
                    }
                },
                Err(why) => {
                    failed(&why);
                    return Err(ApiError::internal(format!("pod {key}, PodResourceClaim {listed}: {why}")));
                }
            };
            statuses.push(json!({ "name": listed, "resourceClaimName": name }));
        }
        if !statuses.is_empty() {
            self.tell(&pod, statuses).await?;
        }
        for claim in to_reserve.map_err(ApiError::internal)? {
            let mut claim = (*claim).clone();
            let reserved = claim.status.get_or_insert_default().reserved_for.get_or_insert_default();
            reserved.push(consumer(pod.name(), pod.uid()));
            let api = self.context.client.namespaced::<ResourceClaim>(pod.namespace());
            api.replace_status(claim.name(), &claim).await?;
        }
        Ok(None)
    }

    /// Once: what was made is remembered until the cache shows it.
    async fn create(&self, pod: &str, listed: &str, claim: &ResourceClaim) -> Result<String, ApiError> {
        let of = (pod.to_string(), listed.to_string());
        let known = self.made.lock().get(&of).cloned();
        let api = self.context.client.namespaced::<ResourceClaim>(claim.namespace());
        if let Some(name) = known {
            // Somebody may have deleted it since.
            let owner = claim.controller().map(|owner| owner.uid.as_str()).unwrap_or_default();
            if api.find(&name).await?.is_some_and(|found| found.controlled_by(owner)) {
                return Ok(name);
            }
        }
        let made = api.create(claim).await;
        let outcome = if made.is_ok() { "success" } else { "failure" };
        self.context.config.metrics.count(&CREATES, &[outcome, admin_access(claim)]);
        let name = made?.name().to_string();
        self.made.lock().insert(of, name.clone());
        Ok(name)
    }

    /// Under a field manager, so that what others say of the status stays.
    async fn tell(&self, pod: &Pod, new: Vec<Value>) -> Result<(), ApiError> {
        let config = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid() },
            "status": { "resourceClaimStatuses": self.all_generated(pod, new) },
        });
        let patch = Patch::Apply { manager: FIELD_MANAGER.into(), force: true, config };
        let api = self.context.client.namespaced::<Pod>(pod.namespace());
        match api.patch_status(pod.name(), &patch).await {
            // The pod has gone meanwhile, or another has its name.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            other => other.map(drop),
        }
    }

    /// What is left out of an apply is taken away, so those told before are told again.
    fn all_generated(&self, pod: &Pod, new: Vec<Value>) -> Vec<Value> {
        let told = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
        let is_new = |name: &str| new.iter().any(|status| status["name"] == name);
        let before = told.filter(|status| !is_new(&status.name));
        let before: Vec<_> = before.filter_map(|status| serde_json::to_value(status).ok()).collect();
        before.into_iter().chain(new).collect()
    }

    async fn reconcile_claim(&self, key: &str) -> Outcome {
        let Some(claim) = self.claims.get(key) else { return Ok(None) };
        let mut is_user = Vec::new();
        for user in reserved_for(&claim) {
            if user.api_group.as_deref().is_some_and(|group| !group.is_empty()) || user.resource != "pods" {
                return Err(ApiError::internal(format!("unsupported ReservedFor entry: {user:?}")));
            }
            let known = self.pods.get(&meta::key(claim.namespace(), &user.name));
            is_user.push(match known {
                Some(pod) => pod.uid() == user.uid && !is_done(&pod),
                None => {
                    let found = self.context.client.namespaced::<Pod>(claim.namespace()).find(&user.name).await?;
                    found.is_some_and(|pod| pod.uid() == user.uid)
                }
            });
        }
        let owner = |name: &str| self.pods.get(&meta::key(claim.namespace(), name));
        let plan = plan::claim(&claim, &is_user, owner);
        let api = self.context.client.namespaced::<ResourceClaim>(claim.namespace());
        let mut current = (*claim).clone();
        if plan.status.is_some() || plan.deallocate {
            let status = current.status.get_or_insert_default();
            if let Some(users) = plan.status {
                status.reserved_for = Some(users);
            }
            if plan.deallocate {
                status.allocation = None;
            }
            current = api.replace_status(claim.name(), &current).await?;
        }
        if plan.remove_finalizer {
            if let Some(finalizers) = &mut current.metadata.finalizers {
                finalizers.retain(|finalizer| finalizer != api::resource_claims::FINALIZER);
            }
            match api.replace(claim.name(), &current).await {
                // The last finalizer of what was being deleted.
                Err(error) if error.is_not_found() => return Ok(None),
                other => drop(other?),
            }
        }
        if plan.delete && !claim.deleting() {
            match api.delete(claim.name(), &meta::delete_options(claim.uid())).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }
}
