//! ReplicaSets: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `workload` for what workloads share.
//! The selector never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, int_at, part_mut},
            checks,
            columns::{CONTAINERS, IMAGES, SELECTOR, age, age_of, containers, integer, name, name_of, selector},
            workload,
        },
        core::pod_spec,
    },
};

#[derive(Default)]
pub struct ReplicaSet;

const COLUMNS: [Column; 8] = [
    name(),
    integer("Desired", "Replicas wanted."),
    integer("Current", "Replicas that exist."),
    integer("Ready", "Replicas that are ready."),
    age(),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

/// ReplicationControllers show the same, but for the form of their selector.
pub fn cells(object: &Value, selector: Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let (names, images) = containers(&spec["template"]["spec"]);
    vec![
        name_of(object),
        json!(int_at(spec, "replicas")),
        json!(int_at(status, "replicas")),
        json!(int_at(status, "readyReplicas")),
        age_of(object, now),
        names,
        images,
        selector,
    ]
}

impl Behavior for ReplicaSet {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "replicas", 1);
        pod_spec::defaults::template(spec);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::not_negative(errors, &path, spec, &["replicas", "minReadySeconds"]);
        workload::selector(errors, &path, spec, "deployment");
        if workload::has_readable_selector(errors, &path, spec, "invalid label selector") {
            workload::template_matches(errors, &path, spec);
            workload::running_template(errors, &path, spec, "ReplicaSet");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "selector");
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let counts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        checks::replica_counts(errors, &object["status"], "readyReplicas", &counts);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        pod_spec::warnings::pod_owner("spec.template", object, &object["spec"]["template"], old)
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({ "replicas": 0 })
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, selector(&object["spec"], "selector"), now)
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("status.replicas".into(), int_at(&object["status"], "replicas").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["status.replicas".into()]
    }
}
