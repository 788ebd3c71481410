//! StorageClasses: defaults, columns, validation.
//! Neighbours: the default-class admission plugin.
//! Provisioner, parameters, reclaim policy and binding mode never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, entries, flag, items, text, text_at},
            checks,
            columns::{age, age_of, name, string},
            warnings::old_label,
        },
    },
    names,
};

const BINDING_MODES: [&str; 2] = ["Immediate", "WaitForFirstConsumer"];
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

#[derive(Default)]
pub struct StorageClass;

const DEFAULT_ANNOTATIONS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

impl Behavior for StorageClass {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        for (index, term) in items(object, "allowedTopologies").iter().enumerate() {
            for (place, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
                if let Some(message) = old_label(text(expression, "key")) {
                    let path = format!("allowedTopologies[{index}].matchLabelExpressions[{place}].key");
                    warnings.push(format!("{path}: {message}"));
                }
            }
        }
        warnings
    }

    fn default(&self, object: &mut Value) {
        default_absent(object, "reclaimPolicy", "Delete");
        default_absent(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::default();
        match text(object, "provisioner").to_lowercase() {
            name if name.is_empty() => errors.required(&path.child("provisioner"), ""),
            // Shown as it is checked.
            name => checks::complaints(errors, &path.child("provisioner"), &name, names::qualified_name(&name)),
        }
        let parameters: usize =
            entries(object, "parameters").map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
        if entries(object, "parameters").count() > PARAMETERS_MAX {
            errors.too_long(&path.child("parameters"), PARAMETERS_MAX);
        }
        if parameters > PARAMETERS_BYTES_MAX {
            errors.too_long(&path.child("parameters"), PARAMETERS_BYTES_MAX);
        }
        if !text(object, "reclaimPolicy").is_empty() {
            checks::one_of(errors, &path, object, "reclaimPolicy", &["Delete", "Retain"]);
        }
        checks::optional_one_of(errors, &path, object, "volumeBindingMode", &BINDING_MODES);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        for field in ["parameters", "provisioner", "reclaimPolicy"] {
            if !checks::same(&object[field], &old[field]) {
                errors.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
            }
        }
        checks::immutable(errors, &Path::default(), object, old, "volumeBindingMode");
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
