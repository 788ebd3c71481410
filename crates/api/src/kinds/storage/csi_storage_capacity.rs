//! CSIStorageCapacities: columns and validation.
//! Read by the scheduler when a claim waits for its first consumer.
//! The class and the topology of a capacity never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{part, text},
            checks,
            columns::{name, name_of, plain, string},
        },
    },
    names,
    quantity::Quantity,
};

#[derive(Default)]
pub struct CsiStorageCapacity;

impl Behavior for CsiStorageCapacity {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        if let Some(topology) = part(object, "nodeTopology") {
            checks::label_selector(errors, &Path::new("nodeTopology"), topology);
        }
        let class = text(object, "storageClassName");
        checks::complaints(errors, &Path::new("storageClassName"), class, names::dns_subdomain(class, false));
        if Quantity::from_value(&object["capacity"]).is_some_and(|q| q.sign() < 0) {
            errors.invalid(&Path::new("capacity"), plain(&object["capacity"]), checks::NOT_NEGATIVE);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        for field in ["nodeTopology", "storageClassName"] {
            checks::immutable(errors, &Path::default(), object, old, field);
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] =
            [name(), string("StorageClassName", "The class it is about."), string("Capacity", "What is left.")];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let capacity = plain(&object["capacity"]);
        let capacity = if capacity.is_empty() { "<unset>" } else { &capacity };
        vec![name_of(object), json!(text(object, "storageClassName")), json!(capacity)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities() {
        let check = |object: Value, old: Option<Value>, expected: &[&str]| {
            let mut errors = ErrorList::new();
            match old {
                None => CsiStorageCapacity.validate_create(&object, &mut errors),
                Some(old) => CsiStorageCapacity.validate_update(&object, &old, &mut errors),
            }
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{object}");
        };
        let good =
            json!({ "storageClassName": "c", "capacity": "1Gi", "nodeTopology": { "matchLabels": { "a": "b" } } });
        check(good.clone(), None, &[]);
        check(
            json!({ "storageClassName": "c", "capacity": "-1", "nodeTopology": { "matchExpressions": [{ "key": "k", "operator": "In" }] } }),
            None,
            &[
                "nodeTopology.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
            ],
        );
        let mut other = good.clone();
        other["storageClassName"] = "d".into();
        check(other, Some(good), &["storageClassName: Invalid value: \"d\": field is immutable"]);
    }
}
