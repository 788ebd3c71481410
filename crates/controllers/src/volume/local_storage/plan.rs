//! The core of local storage: what can be provisioned, the PersistentVolume for a claim, and how much a node has left.
//! Called by the controller in `local_storage`.
//! Pure; never promises more than a node says it has.

use api::local_storage::{FINALIZER, NODE_LABEL, NodeStorage, PROVISIONER, SIZE_ENFORCED};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use serde_json::{Value, json};

use crate::{common::meta::Object, volume::matching};

const HOSTNAME: &str = "kubernetes.io/hostname";
/// Of a label's value, which the node's name has to be.
const NODE_NAME_BYTES_MAX: usize = 63;

pub fn is_ours(volume: &PersistentVolume) -> bool {
    volume.annotation("pv.kubernetes.io/provisioned-by") == Some(PROVISIONER) && volume.label(NODE_LABEL).is_some()
}

pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid())
}

/// Why no node can have a volume for the claim.
pub fn refusal(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let unsupported = modes.iter().find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"));
    let parameter = class.parameters.as_ref().and_then(|parameters| parameters.keys().next());
    if let Some(mode) = unsupported {
        return Some(format!(
            "access mode {mode} is not supported by local storage: only pods of one node can share it"
        ));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("volumeMode Block is not supported by local storage".into());
    }
    if spec.selector.is_some() {
        return Some("claim Selector is not supported".into());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("data sources are not supported by local storage".into());
    }
    if let Some(parameter) = parameter {
        return Some(format!("invalid option {parameter:?} for local storage"));
    }
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Some("mount options are not supported by local storage".into());
    }
    (class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer"))
        .then(|| "local storage needs a StorageClass with volumeBindingMode WaitForFirstConsumer".into())
}

/// What the node offers, unless volumes can't be tied to it.
pub fn storage_of(node: &Node) -> Result<NodeStorage, String> {
    let offered = node.annotation(api::local_storage::NODE_ANNOTATION).and_then(NodeStorage::parse);
    let storage = offered.ok_or_else(|| format!("node {:?} offers no local storage", node.name()))?;
    match (node.label(HOSTNAME), node.name().len()) {
        (Some(_), ..=NODE_NAME_BYTES_MAX) => Ok(storage),
        (None, _) => Err(format!("node {:?} has no label {HOSTNAME}", node.name())),
        (Some(_), _) => Err(format!("the name of node {:?} is longer than a label's value can be", node.name())),
    }
}

/// What is left of a node's storage after the volumes that it has.
pub fn available_bytes<'a>(
    storage: &NodeStorage,
    node: &str,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
) -> i64 {
    let own = volumes.filter(|volume| is_ours(volume) && volume.label(NODE_LABEL) == Some(node));
    own.map(matching::capacity).fold(storage.capacity_bytes, i64::saturating_sub)
}

/// The PersistentVolume for a claim on a node.
pub fn persistent_volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    storage: &NodeStorage,
) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    let name = volume_name(claim);
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let here = json!({ "key": HOSTNAME, "operator": "In", "values": [node.label(HOSTNAME)] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "labels": { NODE_LABEL: node.name() },
            "annotations": {
                "pv.kubernetes.io/provisioned-by": PROVISIONER,
                SIZE_ENFORCED: storage.size_enforced.to_string(),
            },
            "finalizers": ["kubernetes.io/pv-protection", FINALIZER],
        },
        "spec": {
            "capacity": { "storage": requests.get("storage") },
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name(),
            "volumeMode": "Filesystem",
            "local": { "path": storage.volume_path(&name) },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [here] }] } },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name(), "uid": claim.uid(), "resourceVersion": claim.metadata.resource_version,
            },
        },
    })
}

/// The CSIStorageCapacity by which the scheduler knows what a node has left for a class.
pub fn capacity_object(class: &str, node: &Node, bytes: i64) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {
            "name": capacity_name(class, node.name()),
            "namespace": "kube-system",
            "labels": { "csi.storage.k8s.io/drivername": PROVISIONER, "csi.storage.k8s.io/managed-by": "minke" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node.name(), "uid": node.uid() }],
        },
        "storageClassName": class,
        "nodeTopology": { "matchLabels": { HOSTNAME: node.label(HOSTNAME) } },
        "capacity": bytes.max(0).to_string(),
    })
}

pub fn capacity_name(class: &str, node: &str) -> String {
    format!("{class}.{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let meta = json!({ "name": "c", "namespace": "d", "uid": "u" });
        serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    fn class(fields: Value) -> StorageClass {
        let mut class = json!({ "metadata": { "name": "k" }, "provisioner": PROVISIONER,
            "volumeBindingMode": "WaitForFirstConsumer" });
        fields.as_object().unwrap().iter().for_each(|(field, value)| class[field] = value.clone());
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn what_a_directory_cannot_be_is_refused() {
        let check = |spec: Value, fields: Value, expected: Option<&str>| {
            let found = refusal(&claim(spec), &class(fields));
            match expected {
                Some(part) => assert!(found.as_ref().is_some_and(|why| why.contains(part)), "{found:?}"),
                None => assert_eq!(found, None),
            }
        };
        let once = || json!({ "accessModes": ["ReadWriteOnce"] });
        check(once(), json!({}), None);
        check(json!({ "accessModes": ["ReadWriteOncePod"] }), json!({}), None);
        check(json!({ "accessModes": ["ReadWriteOnce", "ReadWriteMany"] }), json!({}), Some("ReadWriteMany"));
        check(json!({ "volumeMode": "Block" }), json!({}), Some("Block"));
        check(json!({ "selector": {} }), json!({}), Some("Selector"));
        check(json!({ "dataSource": { "kind": "x", "name": "y" } }), json!({}), Some("data sources"));
        check(once(), json!({ "parameters": { "type": "ssd" } }), Some("invalid option \"type\""));
        check(once(), json!({ "mountOptions": ["ro"] }), Some("mount options"));
        check(once(), json!({ "volumeBindingMode": "Immediate" }), Some("WaitForFirstConsumer"));
    }

    #[test]
    fn a_node_promises_no_more_than_it_has() {
        let storage = NodeStorage { path: "/v".into(), capacity_bytes: 10 << 30, size_enforced: false };
        let volume = |node: &str, size: &str, by: &str| -> PersistentVolume {
            let meta = json!({ "name": "x", "labels": { NODE_LABEL: node },
                "annotations": { "pv.kubernetes.io/provisioned-by": by } });
            serde_json::from_value(json!({ "metadata": meta, "spec": { "capacity": { "storage": size } } })).unwrap()
        };
        let volumes =
            [volume("n", "2Gi", PROVISIONER), volume("m", "3Gi", PROVISIONER), volume("n", "4Gi", "example.com/other")];
        assert_eq!(available_bytes(&storage, "n", volumes.iter()), 8 << 30);
    }

    #[test]
    fn the_volume_is_the_claims_on_its_node() {
        let node = json!({ "metadata": { "name": "n", "labels": { HOSTNAME: "host" }, "annotations": {
            api::local_storage::NODE_ANNOTATION: "{\"path\":\"/v\",\"capacityBytes\":1,\"sizeEnforced\":true}" } } });
        let node: Node = serde_json::from_value(node).unwrap();
        let claim = claim(json!({ "resources": { "requests": { "storage": "1Gi" } } }));
        let storage = storage_of(&node).unwrap();
        let found = persistent_volume(&claim, &class(json!({ "reclaimPolicy": "Retain" })), &node, &storage);
        assert_eq!(found["metadata"]["name"], "pvc-u");
        assert_eq!(found["metadata"]["annotations"][SIZE_ENFORCED], "true");
        assert_eq!(found["spec"]["local"]["path"], "/v/pvc-u");
        assert_eq!(found["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(found["spec"]["claimRef"]["uid"], "u");
        let values = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values";
        assert_eq!(found.pointer(values), Some(&json!(["host"])));
        let bare: Node = serde_json::from_value(json!({ "metadata": { "name": "n" } })).unwrap();
        assert!(storage_of(&bare).unwrap_err().contains("offers no local storage"));
    }
}
