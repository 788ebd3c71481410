//! The core of the binder: which volume fits a claim best.
//! Called by `binder`.
//! A volume that is reserved for another claim never fits.

use std::sync::Arc;

use api::{quantity::Quantity, selectors::LabelSelector};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};

use crate::common::meta::{Object, labels};

pub fn class_of_claim(claim: &PersistentVolumeClaim) -> String {
    let named = claim.annotation("volume.beta.kubernetes.io/storage-class").map(String::from);
    named.or_else(|| claim.spec.as_ref()?.storage_class_name.clone()).unwrap_or_default()
}

pub fn class_of_volume(volume: &PersistentVolume) -> String {
    let named = volume.annotation("volume.beta.kubernetes.io/storage-class").map(String::from);
    named.or_else(|| volume.spec.as_ref()?.storage_class_name.clone()).unwrap_or_default()
}

pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether the volume's reservation names this very claim.
pub fn reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|r| {
        r.name.as_deref() == Some(claim.name())
            && r.namespace.as_deref() == Some(claim.namespace())
            && r.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
    })
}

fn bytes(quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>) -> i64 {
    quantity.and_then(|q| Quantity::parse(&q.0).ok()).map_or(0, |q| q.value())
}

pub fn capacity(volume: &PersistentVolume) -> i64 {
    bytes(volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage")))
}

pub fn request(claim: &PersistentVolumeClaim) -> i64 {
    bytes(claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage")))
}

/// Whether both are file systems, or both devices.
pub fn has_same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = |mode: Option<&String>| mode.cloned().unwrap_or_else(|| "Filesystem".into());
    mode(volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()))
        == mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()))
}

/// What even a volume that is reserved for the claim must have.
fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(have), Some(want)) = (&volume.spec, &claim.spec) else { return false };
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    capacity(volume) >= request(claim)
        && has_same_mode(volume, claim)
        && attributes(&have.volume_attributes_class_name) == attributes(&want.volume_attributes_class_name)
        && !volume.deleting()
}

/// Size, class, mode and access fit; reservations aside.
pub fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(have), Some(want)) = (&volume.spec, &claim.spec) else { return false };
    let offered = have.access_modes.as_deref().unwrap_or_default();
    let selected = want.selector.as_ref().is_none_or(|s| {
        LabelSelector::from_meta(Some(s)).is_ok_and(|selector| selector.matches(labels(volume.meta())))
    });
    suits(volume, claim)
        && class_of_volume(volume) == class_of_claim(claim)
        && want.access_modes.iter().flatten().all(|m| offered.contains(m))
        && selected
}

/// Why a volume that a claim names itself does not do.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let (have, want) = (volume.spec.clone().unwrap_or_default(), claim.spec.clone().unwrap_or_default());
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    let offered = have.access_modes.unwrap_or_default();
    let why = match () {
        () if volume.deleting() => return Some(format!("the volume is marked for deletion {:?}", volume.name())),
        () if capacity(volume) < request(claim) => "requested PV is too small",
        () if class_of_volume(volume) != class_of_claim(claim) => "storageClassName does not match",
        () if class(&have.volume_attributes_class_name) != class(&want.volume_attributes_class_name) => {
            "volumeAttributesClassName does not match"
        }
        () if !has_same_mode(volume, claim) => "incompatible volumeMode",
        () if !want.access_modes.iter().flatten().all(|m| offered.contains(m)) => "incompatible accessMode",
        () => return None,
    };
    Some(why.into())
}

/// The volume reserved for the claim, or else the smallest free one that fits. For a claim that `waits` for its first
/// consumer only the reserved one: whether a free one can be reached from the pod's node is for the scheduler to say.
pub fn best(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    waits: bool,
) -> Option<Arc<PersistentVolume>> {
    let reserved = volumes.iter().find(|v| reserved_for(v, claim) && suits(v, claim));
    if reserved.is_some() || waits {
        return reserved.cloned();
    }
    let free = |v: &PersistentVolume| {
        let phase = v.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
        claim_ref(v).is_none() && matches!(phase, "Available" | "Pending")
    };
    volumes.iter().filter(|v| free(v) && fits(v, claim)).min_by_key(|v| (capacity(v), v.name().to_string())).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_smallest_that_fits() {
        let volume = |name: &str, size: &str, class: &str, reserved: Option<&str>| {
            let mode = if name == "block" { "Block" } else { "Filesystem" };
            let reference = reserved.map(|claim| json!({ "namespace": "d", "name": claim }));
            Arc::new(
                serde_json::from_value::<PersistentVolume>(json!({
                    "metadata": { "name": name }, "status": { "phase": "Available" },
                    "spec": { "capacity": { "storage": size }, "storageClassName": class, "claimRef": reference,
                        "accessModes": ["ReadWriteOnce"], "volumeMode": mode },
                }))
                .unwrap(),
            )
        };
        let volumes = [
            volume("small", "1Gi", "", None),
            volume("large", "100Gi", "", None),
            volume("medium", "10Gi", "", None),
            volume("fast", "5Gi", "ssd", None),
            volume("kept", "5Gi", "", Some("special")),
            volume("block", "5Gi", "", Some("raw")),
        ];
        let check = |name: &str, size: &str, class: &str, mode: &str, expected: Option<&str>, waiting: Option<&str>| {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": "d", "uid": "u" },
                "spec": { "accessModes": [mode], "storageClassName": class, "resources": { "requests": { "storage": size } } },
            }))
            .unwrap();
            let found = |waits| best(&claim, &volumes, waits).map(|v| v.name().to_string());
            assert_eq!((found(false).as_deref(), found(true).as_deref()), (expected, waiting));
            let why = mismatch(&volumes[0], &claim);
            assert_eq!(why.is_none(), fits(&volumes[0], &claim), "{why:?}");
        };
        check("a", "2Gi", "", "ReadWriteOnce", Some("medium"), None);
        check("a", "1Gi", "", "ReadWriteOnce", Some("small"), None);
        check("a", "1Gi", "ssd", "ReadWriteOnce", Some("fast"), None);
        check("a", "1Gi", "", "ReadWriteMany", None, None);
        check("a", "200Gi", "", "ReadWriteOnce", None, None);
        check("special", "1Gi", "", "ReadWriteOnce", Some("kept"), Some("kept"));
        // A reservation that does not do is as good as none.
        check("special", "8Gi", "", "ReadWriteOnce", Some("medium"), None);
        check("raw", "1Gi", "", "ReadWriteOnce", Some("small"), None);
    }
}
