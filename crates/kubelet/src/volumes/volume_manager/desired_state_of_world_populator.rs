//! What is behind a claim of a pod: its PersistentVolume, if the pod may have it on this node.
//! Called by `VolumeManager` before a claim is mounted.
//! Only reads the API.

use api::{placement, volume_claims};
use client::Client;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    pod::pod_spec,
    volumes::{error::VolumeError, plugin::is_block},
};

/// How the containers of a pod use one of its volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Uses {
    pub mounted: bool,
    pub device: bool,
}

impl Uses {
    pub fn find(pod: &Pod, volume: &str) -> Self {
        let ephemeral = pod_spec::ephemeral_containers(pod);
        let all = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral);
        all.fold(Self::default(), |uses, container| Self {
            mounted: uses.mounted || container.volume_mounts.iter().flatten().any(|m| m.name == volume),
            device: uses.device || container.volume_devices.iter().flatten().any(|d| d.name == volume),
        })
    }
}

/// The PersistentVolume that a claim of the pod is bound to.
pub async fn persistent_volume(client: &Client, pod: &Pod, volume: &Volume) -> Result<PersistentVolume, VolumeError> {
    let namespace = pod_spec::namespace(pod);
    let name = claim_name(pod, volume)?;
    let claim_key = format!("{namespace}/{name}");
    let claim = client.namespaced::<PersistentVolumeClaim>(namespace).get(&name).await;
    let claim = claim.map_err(|source| VolumeError::GetClaim { claim: claim_key.clone(), source })?;
    if volume.ephemeral.is_some() {
        check_owner(&claim, pod)?;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(VolumeError::ClaimDeleted(claim_key));
    }
    let is_bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
    if !is_bound || name.is_empty() {
        return Err(VolumeError::ClaimNotBound(claim_key));
    }
    let found = client.api::<PersistentVolume>().get(&name).await;
    let found = found.map_err(|source| VolumeError::GetPersistentVolume { name: name.clone(), source })?;
    let owner = found.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).and_then(|r| r.uid.clone());
    if owner != claim.metadata.uid {
        return Err(VolumeError::NotBoundToClaim { name, claim: claim_key });
    }
    check_volume_mode(&found, &volume.name, Uses::find(pod, &volume.name))?;
    Ok(found)
}

fn claim_name(pod: &Pod, volume: &Volume) -> Result<String, VolumeError> {
    let is_named = volume.persistent_volume_claim.is_some();
    if !is_named && volume.ephemeral.as_ref().is_some_and(|source| source.volume_claim_template.is_none()) {
        return Err(VolumeError::NoClaimTemplate);
    }
    Ok(volume_claims::claim_name(pod, volume).unwrap_or_default())
}

/// A claim that only has the name which a template gives is somebody else's.
fn check_owner(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), VolumeError> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if owners.any(|owner| owner.controller == Some(true) && owner.uid == pod_spec::uid(pod)) {
        return Ok(());
    }
    let namespace = pod_spec::namespace(pod);
    Err(VolumeError::NotOwner {
        claim: format!("{namespace}/{}", claim.metadata.name.as_deref().unwrap_or_default()),
        pod: format!("{namespace}/{}", pod_spec::name(pod)),
    })
}

/// Whether a volume may be used on our node, whose metadata is given.
pub fn check_node_affinity(volume: &PersistentVolume, node: &ObjectMeta) -> Result<(), VolumeError> {
    let labels = node.labels.clone().unwrap_or_default();
    let name = node.name.as_deref().unwrap_or_default();
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return Ok(()) };
    match required.node_selector_terms.iter().any(|term| placement::term_selects(term, name, &labels)) {
        true => Ok(()),
        false => Err(VolumeError::NodeAffinity),
    }
}

fn check_volume_mode(volume: &PersistentVolume, volume_name: &str, uses: Uses) -> Result<(), VolumeError> {
    match is_block(volume) {
        true if uses.mounted => Err(VolumeError::BlockMounted(volume_name.into())),
        false if uses.device => Err(VolumeError::FilesystemAsDevice(volume_name.into())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_is_used_as_what_it_is() {
        let (mounted, device) = (Uses { mounted: true, device: false }, Uses { mounted: false, device: true });
        let check = |mode: &str, uses, expected: Option<&str>| {
            let volume = serde_json::from_value(json!({"spec": {"volumeMode": mode}})).unwrap();
            let found = check_volume_mode(&volume, "data", uses).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{mode}");
        };
        check("Block", device, None);
        check("Block", mounted, Some("volume data has volumeMode Block, but is specified in volumeMounts"));
        let as_device = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
        check("Filesystem", device, Some(as_device));
        check("Filesystem", mounted, None);
    }

    #[test]
    fn volumes_stay_on_their_nodes() {
        let check = |affinity: Value, expected: Option<&str>| {
            let volume = serde_json::from_value(json!({"spec": {"nodeAffinity": affinity}})).unwrap();
            let labels = BTreeMap::from([("kubernetes.io/hostname".to_string(), "here".to_string())]);
            let node = ObjectMeta { name: Some("here".into()), labels: Some(labels), ..ObjectMeta::default() };
            let found = check_node_affinity(&volume, &node).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{affinity}");
        };
        let on = |host: &str| json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]});
        check(json!(null), None);
        check(json!({"required": {"nodeSelectorTerms": [on("here")]}}), None);
        check(json!({"required": {"nodeSelectorTerms": [on("there"), on("here")]}}), None);
        check(json!({"required": {"nodeSelectorTerms": [on("there")]}}), Some("no matching NodeSelectorTerms"));
    }

    #[test]
    fn a_claim_of_a_template_is_its_pods_own() {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).unwrap();
        let check = |owners: Value, expected: bool| {
            let metadata = json!({"name": "p-v", "namespace": "n", "ownerReferences": owners});
            let found = check_owner(&serde_json::from_value(json!({"metadata": metadata})).unwrap(), &pod);
            assert_eq!(found.is_ok(), expected, "{owners}: {found:?}");
        };
        let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]);
        check(owner("u", true), true);
        check(owner("u", false), false);
        check(owner("earlier", true), false);
        check(json!([]), false);
    }
}
