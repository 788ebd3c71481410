//! Namespaces: defaults, strategy, columns, validation.
//! Neighbours: the namespace controller, which empties a namespace and then removes the finalizer.
//! A new namespace is Active and carries the `kubernetes` finalizer.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::{keep_field, status_without_generation},
        common::{
            access::{default_to, items, part_mut, set, text_at, texts},
            checks::complaints,
            columns::{age, age_of, deleting, name, name_of, string},
        },
    },
    names,
};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const FINALIZER: &str = "kubernetes";

#[derive(Default)]
pub struct Namespace;

fn label_with_name(object: &mut Value) {
    let name = text_at(object, "metadata.name").to_string();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = part_mut(object, "metadata").and_then(|metadata| part_mut(metadata, "labels")) {
        labels[NAME_LABEL] = json!(name);
    }
}

fn validate_finalizers(errors: &mut ErrorList, object: &Value) {
    let path = Path::new("spec").child("finalizers");
    for finalizer in texts(&object["spec"], "finalizers") {
        complaints(errors, &path, finalizer, names::qualified_name(finalizer));
        if !finalizer.contains('/') && !matches!(finalizer, FINALIZER | "orphan" | "foregroundDeletion") {
            errors.invalid(&path, finalizer, "name is neither a standard finalizer name nor is it fully qualified");
        }
    }
}

/// Only the finalizers change.
fn prepare_finalize(object: &mut Value, old: &Value) {
    let finalizers = object["spec"].get("finalizers").cloned().unwrap_or_default();
    let version = object["metadata"]["resourceVersion"].clone();
    *object = old.clone();
    if let Some(metadata) = part_mut(object, "metadata") {
        set(metadata, "resourceVersion", version);
    }
    if let Some(spec) = part_mut(object, "spec") {
        set(spec, "finalizers", finalizers);
    }
}

impl Behavior for Namespace {
    fn has_spec_finalizers(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        label_with_name(object);
        if let Some(status) = part_mut(object, "status") {
            default_to(status, "phase", "Active");
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        label_with_name(object);
        object["status"] = json!({ "phase": "Active" });
        let Some(spec) = part_mut(object, "spec") else { return };
        let mut finalizers = items(spec, "finalizers").to_vec();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(json!(FINALIZER));
        }
        spec["finalizers"] = Value::Array(finalizers);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "status");
        keep_field(object, old, "spec");
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_finalizers(errors, object);
    }

    fn validate_update(&self, _object: &Value, _old: &Value, _errors: &mut ErrorList) {}

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let phase = text_at(object, "status.phase");
        let (expected, words) = if deleting(object) {
            ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
        } else {
            ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
        };
        if phase != expected {
            errors.invalid(&Path::new("status").child("Phase"), phase, words);
        }
    }

    fn prepare_subresource_update(&self, subresource: &str, object: &mut Value, old: &Value) {
        if subresource == "finalize" {
            prepare_finalize(object, old);
        }
    }

    fn validate_subresource_update(&self, subresource: &str, object: &Value, _old: &Value, errors: &mut ErrorList) {
        if subresource == "finalize" {
            validate_finalizers(errors, object);
        }
    }

    status_without_generation!();

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns_label(name, prefix)
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Status", "Active, or Terminating."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text_at(object, "status.phase")), age_of(object, now)]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![
            ("status.phase".into(), text_at(object, "status.phase").to_string()),
            ("name".into(), text_at(object, "metadata.name").to_string()),
        ]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["status.phase".into(), "name".into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_active() {
        let mut namespace = json!({ "metadata": { "name": "a" } });
        Namespace.default(&mut namespace);
        Namespace.prepare_create(&mut namespace);
        assert_eq!(
            namespace,
            json!({
                "metadata": { "name": "a", "labels": { "kubernetes.io/metadata.name": "a" } },
                "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
            })
        );
    }
}
