//! VolumeAttachments: strategy, columns, validation.
//! Written by the attach-detach controller and by CSI attachers.
//! The spec of an attachment never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{flag, is_set, text},
            checks,
            columns::{age, age_of, boolean, name, name_of, string},
        },
    },
    names,
};

#[derive(Default)]
pub struct VolumeAttachment;

impl Behavior for VolumeAttachment {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "attached": false });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        self.validate_spec(object, errors);
        let source = &object["spec"]["source"];
        let path = Path::new("spec").child("source");
        checks::optional_name(errors, &path, source, "persistentVolumeName", |name| names::dns_subdomain(name, false));
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_spec(object, errors);
        checks::immutable(errors, &Path::default(), object, old, "spec");
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

impl VolumeAttachment {
    fn validate_spec(&self, object: &Value, errors: &mut ErrorList) {
        const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::required(errors, &path, spec, "attacher");
        let source = &spec["source"];
        match (is_set(source, "inlineVolumeSpec"), is_set(source, "persistentVolumeName")) {
            (false, false) => errors.required(&path.child("source"), ONE),
            (true, true) => errors.forbidden(&path.child("source"), ONE),
            _ => {}
        }
        let node = text(spec, "nodeName");
        checks::complaints(errors, &path.child("nodeName"), node, names::dns_subdomain(node, false));
    }
}
