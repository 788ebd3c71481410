//! PodTemplates: defaults, columns, validation.
//! Neighbours: `pod_spec`.
//! Holds a template and nothing else.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::columns::{containers, labels, name, name_of, string},
        core::pod_spec,
    },
};

#[derive(Default)]
pub struct PodTemplate;

impl Behavior for PodTemplate {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        match old {
            // Nothing keeps its generation.
            Some(_) => Vec::new(),
            None => pod_spec::warnings::template("template", &object["template"]),
        }
    }

    fn default(&self, object: &mut Value) {
        pod_spec::defaults::template(object);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        pod_spec::validation::template(errors, &Path::new("template"), &object["template"]);
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Containers", "Containers of the template."),
            string("Images", "Images of the template's containers."),
            string("Pod Labels", "Labels that its pods get."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let (names, images) = containers(&object["template"]["spec"]);
        vec![name_of(object), names, images, labels(&object["template"]["metadata"], "labels")]
    }
}
