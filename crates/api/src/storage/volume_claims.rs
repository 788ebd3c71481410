//! Which PersistentVolumeClaim a volume of a pod stands for.
//! Asked by the scheduler, the controllers, the kubelet and the API server: all must name a generated claim alike.

use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::accessor::Accessor;

/// The claim that a volume names, or that is made for this pod of the template in it.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(generated_name(pod.name(), &volume.name)),
        (None, None) => None,
    }
}

/// Of the claim of a generic ephemeral volume.
pub fn generated_name(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_are_named_or_generated() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" } })).unwrap();
        let check = |volume: Value, expected: Option<&str>| {
            assert_eq!(claim_name(&pod, &serde_json::from_value(volume).unwrap()).as_deref(), expected);
        };
        check(json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }), Some("c"));
        check(json!({ "name": "v", "ephemeral": {} }), Some("p-v"));
        check(json!({ "name": "v", "emptyDir": {} }), None);
    }
}
