//! ReplicationControllers: defaults, strategy, columns, validation.
//! Neighbours: `replica_set`, which replaced them: status, columns and fields to select by are the same.
//! Labels and selector default to the template's labels.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column, Propagation,
        apps::replica_set::{self, ReplicaSet},
        common::{
            access::{default_to, entries, is_set, part_mut},
            checks,
            columns::labels,
            workload,
        },
        core::pod_spec,
    },
};

#[derive(Default)]
pub struct ReplicationController;

impl Behavior for ReplicationController {
    /// As before there was a garbage collector.
    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn default(&self, object: &mut Value) {
        let template_labels = object["spec"]["template"]["metadata"].get("labels").cloned();
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "replicas", 1);
        if spec.get("template").is_some_and(Value::is_object) {
            pod_spec::defaults::template(spec);
        }
        let Some(template_labels) = template_labels.filter(|labels| labels.is_object()) else { return };
        if !is_set(spec, "selector") {
            spec["selector"] = template_labels.clone();
        }
        if let Some(metadata) = part_mut(object, "metadata")
            && !is_set(metadata, "labels")
        {
            metadata["labels"] = template_labels;
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::not_negative(errors, &path, spec, &["minReadySeconds", "replicas"]);
        checks::required(errors, &path, spec, "selector");
        if !spec["template"].is_object() {
            return errors.required(&path.child("template"), "");
        }
        let labels = &spec["template"]["metadata"]["labels"];
        if entries(spec, "selector").any(|(key, value)| labels.get(key) != Some(value)) {
            errors.invalid(
                &path.child("template").child("metadata").child("labels"),
                labels.clone(),
                "`selector` does not match template `labels`",
            );
        }
        workload::running_template(errors, &path, spec, "ReplicationController");
    }

    fn validates_generate_name(&self) -> bool {
        false
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        ReplicaSet.validate_status_update(object, old, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        ReplicaSet.warnings(object, old)
    }

    fn has_status(&self) -> bool {
        ReplicaSet.has_status()
    }

    fn initial_status(&self) -> Value {
        ReplicaSet.initial_status()
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        ReplicaSet.status_update_resets()
    }

    fn columns(&self) -> &'static [Column] {
        ReplicaSet.columns()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        replica_set::cells(object, labels(&object["spec"], "selector"), now)
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        ReplicaSet.selectable_fields(object)
    }

    fn selectable_field_names(&self) -> Vec<String> {
        ReplicaSet.selectable_field_names()
    }
}
