//! ControllerRevisions: columns and validation.
//! The StatefulSet and DaemonSet controllers keep their history in revisions.
//! The data of a revision never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{flag, int_at, items, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
};

#[derive(Default)]
pub struct ControllerRevision;

impl Behavior for ControllerRevision {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        checks::not_negative(errors, &Path::default(), object, &["revision"]);
        match object.get("data") {
            None | Some(Value::Null) => errors.required(&Path::new("data"), "data is mandatory"),
            Some(Value::Object(_)) => {}
            Some(_) => errors.required(&Path::new("data"), "data must be a valid JSON object"),
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::not_negative(errors, &Path::default(), object, &["revision"]);
        checks::immutable(errors, &Path::default(), object, old, "data");
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] =
            [name(), string("Controller", "Whose revision it is."), string("Revision", "Its number."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let owner = items(&object["metadata"], "ownerReferences").iter().find(|owner| flag(owner, "controller"));
        let owner = owner.map(|owner| {
            let kind = text(owner, "kind").to_lowercase();
            match text(owner, "apiVersion").split_once('/') {
                Some((group, _)) => format!("{kind}.{group}/{}", text(owner, "name")),
                None => format!("{kind}/{}", text(owner, "name")),
            }
        });
        vec![
            name_of(object),
            json!(owner.as_deref().unwrap_or("<none>")),
            json!(int_at(object, "revision")),
            age_of(object, now),
        ]
    }
}
