//! PersistentVolumeClaims: defaults, strategy, columns, validation.
//! Neighbours: `persistent_volume`; `stateful_set`, which has claims as templates.
//! Invariant: a new claim is Pending; of its spec only little may change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, part_mut, text, text_at},
    columns::{age, age_of, deleting, name, name_of, plain, string, wide},
    persistent_volume::access_modes,
    pod_spec,
};

#[derive(Default)]
pub struct PersistentVolumeClaim;

/// The annotation older than the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The class by annotation or field.
pub fn class(object: &Value) -> &str {
    match object["metadata"]["annotations"].get(CLASS_ANNOTATION).and_then(Value::as_str) {
        Some(class) => class,
        None => text(&object["spec"], "storageClassName"),
    }
}

impl Behavior for PersistentVolumeClaim {
    fn default(&self, object: &mut Value) {
        if let Some(status) = part_mut(object, "status") {
            default_to(status, "phase", "Pending");
        }
        if let Some(spec) = part_mut(object, "spec") {
            pod_spec::defaults::claim_spec(spec);
            mirror_data_source(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "phase": "Pending" });
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 9] = [
            name(),
            string("Status", "Whether it has a volume."),
            string("Volume", "The volume it has."),
            string("Capacity", "Size of that volume."),
            string("Access Modes", "How it may be mounted."),
            string("StorageClass", "Its storage class."),
            string("VolumeAttributesClass", "Its volume attributes class."),
            age(),
            wide("VolumeMode", "Filesystem, or Block."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let phase = if deleting(object) { "Terminating" } else { text(status, "phase") };
        let volume = text(spec, "volumeName");
        let (capacity, modes) = if volume.is_empty() {
            (String::new(), String::new())
        } else {
            let capacity = plain(&status["capacity"]["storage"]);
            (if capacity.is_empty() { "0".to_string() } else { capacity }, access_modes(status))
        };
        vec![
            name_of(object),
            json!(phase),
            json!(volume),
            json!(capacity),
            json!(modes),
            json!(class(object)),
            json!(spec["volumeAttributesClassName"].as_str().unwrap_or("<unset>")),
            age_of(object, now),
            json!(spec["volumeMode"].as_str().unwrap_or("<unset>")),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("name".into(), text_at(object, "metadata.name").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["name".into()]
    }
}

/// `dataSource` and `dataSourceRef` say the same unless the latter names another namespace.
fn mirror_data_source(spec: &mut Value) {
    let (source, reference) = (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned());
    match (source.filter(Value::is_object), reference.filter(Value::is_object)) {
        (Some(source), None) => spec["dataSourceRef"] = source,
        (None, Some(reference)) if text(&reference, "namespace").is_empty() => {
            let group = text(&reference, "apiGroup");
            let known = (group.is_empty() && text(&reference, "kind") == "PersistentVolumeClaim")
                || (group == "snapshot.storage.k8s.io" && text(&reference, "kind") == "VolumeSnapshot");
            if known {
                spec["dataSource"] = reference;
            }
        }
        _ => {}
    }
}
