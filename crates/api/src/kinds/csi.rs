//! The kinds through which CSI drivers and volume attachments are described.
//! Neighbours: `storage_class`, `persistent_volume`.
//! Invariant: what a driver declared when it was registered mostly stays.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, flag, is_set, items, part_mut, text, texts},
    columns::{age, age_of, boolean, integer, name, name_of, plain, string},
};

#[derive(Default)]
pub struct CsiDriver;

impl Behavior for CsiDriver {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "attachRequired", true);
        default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            default_to(spec, field, false);
        }
        if !is_set(spec, "volumeLifecycleModes") {
            spec["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 8] = [
            name(),
            boolean("AttachRequired", "Whether volumes are attached before use."),
            boolean("PodInfoOnMount", "Whether it is told about the pod."),
            boolean("StorageCapacity", "Whether it reports capacity."),
            string("TokenRequests", "Audiences of the tokens it gets."),
            boolean("RequiresRepublish", "Whether it is called again and again."),
            string("Modes", "Kinds of volumes it makes."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let tokens = match spec.get("tokenRequests") {
            Some(Value::Array(all)) => all.iter().map(|t| text(t, "audience")).collect::<Vec<_>>().join(","),
            _ => "<unset>".to_string(),
        };
        let modes = texts(spec, "volumeLifecycleModes").collect::<Vec<_>>().join(",");
        vec![
            name_of(object),
            json!(spec["attachRequired"].as_bool().unwrap_or(true)),
            json!(flag(spec, "podInfoOnMount")),
            json!(flag(spec, "storageCapacity")),
            json!(tokens),
            json!(flag(spec, "requiresRepublish")),
            json!(if modes.is_empty() { "<none>" } else { &modes }),
            age_of(object, now),
        ]
    }
}

#[derive(Default)]
pub struct CsiNode;

impl Behavior for CsiNode {
    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), integer("Drivers", "Drivers on the node."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(items(&object["spec"], "drivers").len()), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct CsiStorageCapacity;

impl Behavior for CsiStorageCapacity {
    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] =
            [name(), string("StorageClassName", "The class it is about."), string("Capacity", "What is left.")];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let capacity = plain(&object["capacity"]);
        let capacity = if capacity.is_empty() { "<unset>" } else { &capacity };
        vec![name_of(object), json!(text(object, "storageClassName")), json!(capacity)]
    }
}

#[derive(Default)]
pub struct VolumeAttachment;

impl Behavior for VolumeAttachment {
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "attached": false });
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            Column { format: "name", ..string("Attacher", "The driver.") },
            string("PV", "The volume."),
            string("Node", "The node."),
            boolean("Attached", "Whether it is attached."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(spec, "attacher")),
            json!(text(&spec["source"], "persistentVolumeName")),
            json!(text(spec, "nodeName")),
            json!(flag(&object["status"], "attached")),
            age_of(object, now),
        ]
    }
}

#[derive(Default)]
pub struct VolumeAttributesClass;

impl Behavior for VolumeAttributesClass {
    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("DriverName", "The driver."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "driverName")), age_of(object, now)]
    }
}
