//! ResourceClaims and the pods that use them: which claim a pod means, whose it is, and who has it reserved.
//! Asked by the scheduler, the ResourceClaim controller and the kubelet.
//! Messages are upstream's. Invariant: pure readings of one version of each (tidy: `pure_files`).

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
};
use thiserror::Error;

use crate::accessor::Accessor;

/// Keeps a claim until its devices were given back.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On a claim made of a template: which of its pod's claims it is.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClaimNameError {
    #[error("pod {0:?}: ResourceClaim not created yet")]
    NotCreated(String),
    #[error("pod {0:?}, spec.resourceClaim {1:?}: none of the supported fields are set")]
    Unsupported(String, String),
}

/// A claim that a pod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimName<'a> {
    pub name: &'a str,
    /// Made of a template for this very pod, which must own it.
    pub is_generated: bool,
}

/// `None` where no claim was needed.
pub fn claim_name<'a>(pod: &'a Pod, claim: &'a PodResourceClaim) -> Result<Option<ClaimName<'a>>, ClaimNameError> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(ClaimName { name, is_generated: false }));
    }
    if claim.resource_claim_template_name.is_none() {
        return Err(ClaimNameError::Unsupported(pod.key(), claim.name.clone()));
    }
    let mut statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|status| status.name == claim.name) {
        Some(status) => Ok(status.resource_claim_name.as_deref().map(|name| ClaimName { name, is_generated: true })),
        None => Err(ClaimNameError::NotCreated(pod.key())),
    }
}

pub fn pod_claims(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default()
}

/// Whether a generated claim is this pod's.
pub fn is_for_pod(claim: &ResourceClaim, pod: &Pod) -> Result<(), String> {
    match claim.namespace() == pod.namespace() && claim.controlled_by(pod.uid()) {
        true => Ok(()),
        false => Err(format!("ResourceClaim {} was not created for pod {} (pod is not owner)", claim.key(), pod.key())),
    }
}

pub fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

pub fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    reserved_for(claim).iter().any(|consumer| consumer.uid == pod_uid)
}

pub fn consumer(pod_name: &str, pod_uid: &str) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".into(),
        name: pod_name.into(),
        uid: pod_uid.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_name_their_claims() {
        let pod = |statuses: serde_json::Value| -> Pod {
            let value = json!({ "metadata": { "name": "p", "namespace": "d" },
                "spec": { "containers": [] }, "status": { "resourceClaimStatuses": statuses } });
            serde_json::from_value(value).unwrap()
        };
        let check =
            |claim: serde_json::Value, statuses: serde_json::Value, expected: Result<Option<(&str, bool)>, &str>| {
                let (pod, claim): (Pod, PodResourceClaim) = (pod(statuses), serde_json::from_value(claim).unwrap());
                let found = claim_name(&pod, &claim);
                let found = found.map(|found| found.map(|found| (found.name, found.is_generated)));
                assert_eq!(found.map_err(|why| why.to_string()), expected.map_err(String::from));
            };
        let templated = || json!({ "name": "gpu", "resourceClaimTemplateName": "t" });
        check(json!({ "name": "gpu", "resourceClaimName": "c" }), json!([]), Ok(Some(("c", false))));
        check(templated(), json!([]), Err("pod \"d/p\": ResourceClaim not created yet"));
        check(templated(), json!([{ "name": "gpu" }]), Ok(None));
        check(templated(), json!([{ "name": "gpu", "resourceClaimName": "c" }]), Ok(Some(("c", true))));
        let unset = "pod \"d/p\", spec.resourceClaim \"gpu\": none of the supported fields are set";
        check(json!({ "name": "gpu" }), json!([]), Err(unset));
    }
}
