//! The ResourceClaims of a pod, if it may have all of them now.
//! Used by `DynamicResources` wherever it looks at a pod; which they are, `api::resource_claims` says.
//! Messages are upstream's.

use std::sync::Arc;

use api::resource_claims::{self, claim_name, is_for_pod};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::devices::Devices;
use crate::pod_info::PendingPod;

/// Every claim of the pod, or why it has to wait for one.
pub fn pod_claims(devices: &Devices, pod: &PendingPod) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut claims = Vec::new();
    for listed in resource_claims::pod_claims(&pod.pod) {
        let Some(named) = claim_name(&pod.pod, listed).map_err(|why| why.to_string())? else { continue };
        let key = format!("{}/{}", pod.namespace(), named.name);
        let claim = devices.claim(&key).ok_or_else(|| format!("could not find ResourceClaim {key:?}"))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim {:?} is being deleted", named.name));
        }
        if named.is_generated {
            is_for_pod(claim, &pod.pod)?;
        }
        claims.push(claim.clone());
    }
    Ok(claims)
}
