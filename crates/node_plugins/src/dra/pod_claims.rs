//! Which claims a pod has, and whether it may use them.
//! Used by `manager`.
//! Invariant: pure (tidy: `pure_files`).

use api::resource_claims::{self, ClaimName, ClaimNameError, claim_name};
use k8s_openapi::api::{
    core::v1::{Container, Pod},
    resource::v1::ResourceClaim,
};

use super::claim_info::ClaimInfo;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodClaimError {
    #[error("{0}")]
    Name(#[from] ClaimNameError),
    #[error("ResourceClaim {namespace}/{claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { namespace: String, claim: String, pod: String },
    #[error("pod {name} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { name: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn display(pod: &Pod) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", of(&pod.metadata.namespace), of(&pod.metadata.name))
}

/// All claims of a pod, each with the name that containers use.
pub fn pod_claims(pod: &Pod) -> Result<Vec<(&str, ClaimName<'_>)>, PodClaimError> {
    let named = resource_claims::pod_claims(pod).iter().filter_map(|claim| match claim_name(pod, claim) {
        Ok(found) => found.map(|name| Ok((claim.name.as_str(), name))),
        Err(error) => Some(Err(error.into())),
    });
    named.collect()
}

/// What has to be prepared for a pod that may use the claim.
pub fn check(pod: &Pod, claim: &ResourceClaim, is_generated: bool) -> Result<ClaimInfo, PodClaimError> {
    let metadata = &claim.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let claim_uid = metadata.uid.clone().unwrap_or_default();
    let is_owner = || {
        let mut owners = metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.controller == Some(true) && owner.uid == uid(pod))
    };
    if is_generated && !is_owner() {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        return Err(PodClaimError::NotOwner { namespace, claim: name, pod: display(pod) });
    }
    let status = claim.status.as_ref();
    let mut reserved = status.into_iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !reserved.any(|consumer| consumer.uid == uid(pod)) {
        let pod_name = pod.metadata.name.clone().unwrap_or_default();
        let uid = uid(pod).into();
        return Err(PodClaimError::NotReserved { name: pod_name, uid, claim: name, claim_uid });
    }
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| PodClaimError::NotAllocated(name.clone()))?;
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Ok(ClaimInfo::new(&claim_uid, &name, &namespace, results.map(|result| result.driver.as_str())))
}

/// The claims a container uses, by the pod's names for them, each with the request it is narrowed to.
pub fn container_claims(container: &Container) -> impl Iterator<Item = (&str, Option<&str>)> {
    let claims = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    claims.map(|claim| (claim.name.as_str(), claim.request.as_deref().filter(|request| !request.is_empty())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(claims: Value, statuses: Value) -> Pod {
        let metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
        let spec = json!({"containers": [], "resourceClaims": claims});
        let status = json!({"resourceClaimStatuses": statuses});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn claims_of_templates_are_named_by_the_status() {
        let check = |claim: Value, statuses: Value, expected: Result<Option<(&str, bool)>, &str>| {
            let pod = pod(json!([claim]), statuses);
            let found = pod_claims(&pod).map_err(|error| error.to_string());
            let found = found.map(|all| all.first().map(|(_, name)| (name.name.to_string(), name.is_generated)));
            let expected = expected.map(|e| e.map(|(n, g)| (n.to_string(), g))).map_err(String::from);
            assert_eq!(found, expected);
        };
        let template = json!({"name": "a", "resourceClaimTemplateName": "t"});
        check(json!({"name": "a", "resourceClaimName": "c"}), json!([]), Ok(Some(("c", false))));
        check(template.clone(), json!([{"name": "a", "resourceClaimName": "p-a-x"}]), Ok(Some(("p-a-x", true))));
        check(template.clone(), json!([{"name": "a"}]), Ok(None));
        check(template, json!([{"name": "b"}]), Err("pod \"n/p\": ResourceClaim not created yet"));
        let unsupported = "pod \"n/p\", spec.resourceClaim \"a\": none of the supported fields are set";
        check(json!({"name": "a"}), json!([]), Err(unsupported));
    }

    #[test]
    fn only_pods_that_a_claim_is_reserved_for_use_it() {
        let test = |owners: Value, status: Value, is_generated: bool, expected: Result<&[&str], &str>| {
            let metadata = json!({"name": "c", "namespace": "n", "uid": "cu", "ownerReferences": owners});
            let claim = json!({"metadata": metadata, "spec": {}, "status": status});
            let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
            let found = check(&pod(json!([]), json!([])), &claim, is_generated);
            let found = found.map(|info| info.drivers.keys().cloned().collect::<Vec<_>>());
            let expected = expected.map(|e| e.iter().map(|d| d.to_string()).collect());
            assert_eq!(found.map_err(|e| e.to_string()), expected.map_err(String::from));
        };
        let reserved = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        let result = |driver: &str| json!({"driver": driver, "pool": "p", "device": "d", "request": "r"});
        let allocation = json!({"devices": {"results": [result("a"), result("b"), result("a")]}});
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        let good = json!({"allocation": allocation, "reservedFor": reserved});
        test(json!([]), good.clone(), false, Ok(&["a", "b"]));
        test(owner, good.clone(), true, Ok(&["a", "b"]));
        test(json!([]), good, true, Err("ResourceClaim n/c was not created for pod n/p (pod is not owner)"));
        let refused = "pod p (u) is not allowed to use ResourceClaim c (cu)";
        test(json!([]), json!({"allocation": allocation}), false, Err(refused));
        test(json!([]), json!({"reservedFor": reserved}), false, Err("ResourceClaim c: not allocated"));
    }
}
