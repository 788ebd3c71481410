//! StorageClasses: defaults, columns, validation.
//! Neighbours: the default-class admission plugin.
//! Invariant: provisioner, parameters, reclaim policy and binding mode never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, flag, text, text_at},
    columns::{age, age_of, name, string},
};

#[derive(Default)]
pub struct StorageClass;

const DEFAULT_ANNOTATIONS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

impl Behavior for StorageClass {
    fn default(&self, object: &mut Value) {
        default_to(object, "reclaimPolicy", "Delete");
        default_to(object, "volumeBindingMode", "Immediate");
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("Provisioner", "Who makes its volumes."),
            string("ReclaimPolicy", "What happens when a claim goes."),
            string("VolumeBindingMode", "When a volume is made."),
            string("AllowVolumeExpansion", "Whether volumes may grow."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let annotations = &object["metadata"]["annotations"];
        let is_default = DEFAULT_ANNOTATIONS.iter().any(|key| text(annotations, key) == "true");
        let name = text_at(object, "metadata.name");
        vec![
            json!(if is_default { format!("{name} (default)") } else { name.to_string() }),
            json!(text(object, "provisioner")),
            json!(object["reclaimPolicy"].as_str().unwrap_or("Delete")),
            json!(object["volumeBindingMode"].as_str().unwrap_or("Immediate")),
            json!(flag(object, "allowVolumeExpansion")),
            age_of(object, now),
        ]
    }
}
