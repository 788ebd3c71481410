//! ResourceClaimTemplates: defaults, columns, validation.
//! The resourceclaim controller makes claims of them.
//! The spec of a template never changes.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::part_mut,
            checks,
            columns::{age, age_of, name, name_of},
            metadata,
        },
        resource::{disabled_fields, resource_claim::default_claim_spec, validation::claim_spec},
    },
};

#[derive(Default)]
pub struct ResourceClaimTemplate;

impl Behavior for ResourceClaimTemplate {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec").and_then(|spec| part_mut(spec, "spec")) {
            default_claim_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(part) = object.pointer_mut("/spec/spec") {
            disabled_fields::claim_spec(part, &Value::Null);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if let Some(part) = object.pointer_mut("/spec/spec") {
            disabled_fields::claim_spec(part, &old["spec"]["spec"]);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, metadata) = (Path::new("spec"), &object["spec"]["metadata"]);
        metadata::validate_template(&path.child("metadata"), metadata, errors);
        claim_spec(errors, &path.child("spec"), &object["spec"]["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}
