//! What is to be done about a pod's ResourceClaims, and about a claim and those it is reserved for.
//! Carried out by `resource_claim`; messages are upstream's.
//! Invariant: decides from what it is given (tidy: `pure_files`).

use std::sync::Arc;

use api::resource_claims::{
    ClaimNameError, FINALIZER, POD_CLAIM_NAME, claim_name, is_for_pod, is_reserved_for, reserved_for,
};
use k8s_openapi::{
    api::{
        core::v1::{Pod, PodResourceClaim},
        resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use crate::common::{meta::Object, pods};

/// What a name is generated from leaves room for a hyphen and five characters in 63.
const GENERATE_NAME_BYTES_MAX: usize = 57;

/// What is known when a pod is looked at.
pub struct Known<'a> {
    pub claim: &'a dyn Fn(&str) -> Option<Arc<ResourceClaim>>,
    pub template: &'a dyn Fn(&str) -> Option<Arc<ResourceClaimTemplate>>,
    /// Claims that the pod owns.
    pub owned: &'a [Arc<ResourceClaim>],
}

/// Of one entry of `spec.resourceClaims`.
#[derive(Debug, PartialEq)]
pub enum PodClaimPlan {
    Nothing,
    /// There is a claim, which the pod's status does not tell.
    Found(String),
    Create(Box<ResourceClaim>),
}

pub fn pod_claim(pod: &Pod, listed: &PodResourceClaim, known: &Known<'_>) -> Result<PodClaimPlan, String> {
    match claim_name(pod, listed) {
        Err(ClaimNameError::NotCreated(_)) => {}
        Err(why) => return Err(format!("checking for claim before creating it: {why}")),
        Ok(None) => return Ok(PodClaimPlan::Nothing),
        Ok(Some(named)) => {
            let found = (known.claim)(named.name);
            if found.is_some_and(|claim| !named.is_generated || is_for_pod(&claim, pod).is_ok()) {
                return Ok(PodClaimPlan::Nothing);
            }
        }
    }
    let Some(template_name) = &listed.resource_claim_template_name else { return Ok(PodClaimPlan::Nothing) };
    let is_this = |claim: &&Arc<ResourceClaim>| claim.annotation(POD_CLAIM_NAME) == Some(&listed.name);
    if let Some(claim) = known.owned.iter().find(is_this) {
        return Ok(PodClaimPlan::Found(claim.name().to_string()));
    }
    let Some(template) = (known.template)(template_name) else {
        let missing = format!("resourceclaimtemplate.resource.k8s.io {template_name:?} not found");
        return Err(format!("resource claim template {template_name:?}: {missing}"));
    };
    Ok(PodClaimPlan::Create(Box::new(generated(pod, listed, &template))))
}

fn generated(pod: &Pod, listed: &PodResourceClaim, template: &ResourceClaimTemplate) -> ResourceClaim {
    let metadata = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.into(), listed.name.clone());
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.name().into(),
        uid: pod.uid().into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(pod.name(), &listed.name)),
            namespace: pod.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// The pod's name and the claim's; both shortened alike where they are too long together. Names are ASCII.
fn generate_name(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= GENERATE_NAME_BYTES_MAX {
        return whole;
    }
    let part = |name: &str| name[..name.len() * GENERATE_NAME_BYTES_MAX / whole.len()].to_string();
    format!("{}-{}", part(pod), part(claim))
}

/// The claims that a pod with a node has without being among their users: it was not the scheduler that placed it.
pub fn to_reserve(pod: &Pod, known: &Known<'_>) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut all = Vec::new();
    if pods::node_name(pod).is_empty() {
        return Ok(all);
    }
    for listed in api::resource_claims::pod_claims(pod) {
        let Some(named) = claim_name(pod, listed).map_err(|why| why.to_string())? else { continue };
        let Some(claim) = (known.claim)(named.name) else { break };
        if named.is_generated {
            is_for_pod(&claim, pod)?;
        }
        if has_allocation(&claim) && !is_reserved_for(&claim, pod.uid()) {
            all.push(claim);
        }
    }
    Ok(all)
}

pub fn has_allocation(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// A pod that will not run any more, or never.
pub fn is_done(pod: &Pod) -> bool {
    pods::finished(pod) || (pod.deleting() && pods::node_name(pod).is_empty())
}

/// What a claim needs, in this order.
#[derive(Debug, Default, PartialEq)]
pub struct ClaimPlan {
    /// Those that it stays reserved for, if some went; without any it gives its devices back.
    pub status: Option<Vec<ResourceClaimConsumerReference>>,
    pub deallocate: bool,
    pub remove_finalizer: bool,
    /// Made for a pod that is done with it.
    pub delete: bool,
}

/// `is_user` says of everybody whom the claim is reserved for, whether it still uses it.
pub fn claim(claim: &ResourceClaim, is_user: &[bool], owner: impl Fn(&str) -> Option<Arc<Pod>>) -> ClaimPlan {
    let reserved = reserved_for(claim);
    let users: Vec<_> = reserved.iter().zip(is_user).filter(|(_, is_user)| **is_user).map(|(user, _)| user).collect();
    let is_ours = claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let mut plan = ClaimPlan::default();
    if users.len() < reserved.len() {
        plan.status = Some(users.iter().map(|user| (*user).clone()).collect());
        plan.deallocate = users.is_empty() && is_ours;
        plan.remove_finalizer = is_ours && (plan.deallocate || !has_allocation(claim));
    } else if is_ours && claim.deleting() && users.is_empty() {
        plan.deallocate = has_allocation(claim);
        plan.remove_finalizer = true;
    }
    if users.is_empty() {
        let of_pod = claim.controller().filter(|owner| owner.api_version == "v1" && owner.kind == "Pod");
        plan.delete = of_pod.is_some_and(|reference| {
            owner(&reference.name).is_some_and(|pod| pod.uid() != reference.uid || is_done(&pod))
        });
    }
    plan
}
