//! RuntimeClasses: defaults, columns, validation.
//! Read by the RuntimeClass admission plugin, which copies overhead and scheduling into pods.
//! The handler of a class never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{existing_mut, text},
            checks,
            columns::{age, age_of, name, name_of, string},
            quantities,
        },
        core::pod_spec::{placement, resources},
    },
    names,
};

#[derive(Default)]
pub struct RuntimeClass;

impl Behavior for RuntimeClass {
    fn default(&self, object: &mut Value) {
        if let Some(overhead) = existing_mut(object, "overhead") {
            quantities::round_list(overhead, "podFixed");
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let handler = text(object, "handler");
        checks::complaints(errors, &Path::new("handler"), handler, names::dns_label(handler, false));
        resources::list(
            errors,
            &Path::new("overhead").child("limits"),
            object["overhead"].get("podFixed").unwrap_or(&Value::Null),
            true,
        );
        let path = Path::new("scheduling");
        checks::labels(errors, &path, &object["scheduling"], "nodeSelector");
        placement::tolerations(errors, &path.child("tolerations"), &object["scheduling"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::default(), object, old, "handler");
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("Handler", "What the container runtime calls it."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "handler")), age_of(object, now)]
    }
}
