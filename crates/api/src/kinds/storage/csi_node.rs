//! CSINodes: columns and validation.
//! Written by kubelets that have CSI drivers.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{items, text, texts},
            checks,
            columns::{age, age_of, integer, name, name_of},
        },
    },
    names,
};

const DRIVER_BYTES_MAX: usize = 63;

#[derive(Default)]
pub struct CsiNode;

impl Behavior for CsiNode {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("drivers");
        let drivers = items(&object["spec"], "drivers");
        for (index, driver) in drivers.iter().enumerate() {
            let at = path.index(index);
            if text(driver, "name").len() > DRIVER_BYTES_MAX {
                errors.too_long(&at.child("name"), DRIVER_BYTES_MAX);
            }
            checks::required_name(errors, &at, driver, "name", |name| {
                names::dns_subdomain(&name.to_lowercase(), false)
            });
            checks::required(errors, &at, driver, "nodeID");
            if drivers[..index].iter().any(|other| text(other, "name") == text(driver, "name")) {
                errors.duplicate(&at.child("name"), text(driver, "name"));
            }
            let keys: Vec<&str> = texts(driver, "topologyKeys").collect();
            for (index, key) in keys.iter().enumerate() {
                if keys[..index].contains(key) {
                    errors.duplicate(&at.child("topologyKeys"), *key);
                }
                checks::label_key(errors, &at.child("topologyKeys"), key);
            }
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), integer("Drivers", "Drivers on the node."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(items(&object["spec"], "drivers").len()), age_of(object, now)]
    }
}
