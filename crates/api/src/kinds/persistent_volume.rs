//! PersistentVolumes: defaults, strategy, columns, validation.
//! Neighbours: `persistent_volume_claim`; the volume binder sets `claimRef`.
//! Invariant: the source of a volume never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, part, part_mut, text, text_at, texts},
    amount,
    columns::{age, age_of, deleting, name, name_of, plain, string, wide},
    persistent_volume_claim, pod_spec,
};

#[derive(Default)]
pub struct PersistentVolume;

/// `RWO,ROX`, in upstream's order.
pub fn access_modes(owner: &Value) -> String {
    let modes: Vec<&str> = texts(owner, "accessModes").collect();
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    short.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

impl Behavior for PersistentVolume {
    fn default(&self, object: &mut Value) {
        if let Some(status) = part_mut(object, "status") {
            default_to(status, "phase", "Pending");
        }
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "persistentVolumeReclaimPolicy", "Retain");
        default_to(spec, "volumeMode", "Filesystem");
        amount::round_list(spec, "capacity");
        pod_spec::defaults::volume_source(spec);
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
        const COLUMNS: [Column; 11] = [
            name(),
            string("Capacity", "Its size."),
            string("Access Modes", "How it may be mounted."),
            string("Reclaim Policy", "What happens when its claim goes."),
            string("Status", "Whether it is claimed."),
            string("Claim", "Who has it."),
            string("StorageClass", "Its storage class."),
            string("VolumeAttributesClass", "Its volume attributes class."),
            string("Reason", "Why it failed."),
            age(),
            wide("VolumeMode", "Filesystem, or Block."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let phase = if deleting(object) { "Terminating" } else { text(status, "phase") };
        let claim = part(spec, "claimRef").map(|c| format!("{}/{}", text(c, "namespace"), text(c, "name")));
        let capacity = plain(&spec["capacity"]["storage"]);
        vec![
            name_of(object),
            json!(if capacity.is_empty() { "0".to_string() } else { capacity }),
            json!(access_modes(spec)),
            json!(text(spec, "persistentVolumeReclaimPolicy")),
            json!(phase),
            json!(claim.unwrap_or_default()),
            json!(persistent_volume_claim::class(object)),
            json!(spec["volumeAttributesClassName"].as_str().unwrap_or("<unset>")),
            json!(text(status, "reason")),
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
