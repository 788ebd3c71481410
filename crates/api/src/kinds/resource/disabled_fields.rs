//! Fields of features that are off: left out of what is written, unless the object has had one of the same feature.
//! Called by the kinds of this group before validation, as upstream's strategies do.
//! Off are device taints, partitionable devices, binding conditions, consumable capacity and extended resources.

use serde_json::Value;

use crate::kinds::behavior::drop_field;

/// Calls `part` with every value below `object` that the path leads to; `*` stands for all items or entries.
fn visit(object: &mut Value, path: &[&str], part: &mut dyn FnMut(&mut Value)) {
    match path {
        [] => part(object),
        ["*", rest @ ..] => match object {
            Value::Array(items) => items.iter_mut().for_each(|item| visit(item, rest, part)),
            Value::Object(entries) => entries.values_mut().for_each(|entry| visit(entry, rest, part)),
            _ => {}
        },
        [field, rest @ ..] => {
            if let Some(inner) = object.get_mut(*field) {
                visit(inner, rest, part);
            }
        }
    }
}

/// Whether the object has the field anywhere that the path leads to.
fn has(object: &Value, path: &[&str]) -> bool {
    match path {
        [] => !object.is_null() && object.as_array().is_none_or(|list| !list.is_empty()),
        ["*", rest @ ..] => match object {
            Value::Array(items) => items.iter().any(|item| has(item, rest)),
            Value::Object(entries) => entries.values().any(|entry| has(entry, rest)),
            _ => false,
        },
        [field, rest @ ..] => object.get(*field).is_some_and(|inner| has(inner, rest)),
    }
}

/// The fields of each feature.
type Features = &'static [&'static [&'static [&'static str]]];

fn drop_disabled(object: &mut Value, old: &Value, features: Features) {
    for feature in features {
        if feature.iter().any(|path| has(old, path)) {
            continue;
        }
        for path in *feature {
            if let [owners @ .., field] = path {
                visit(object, owners, &mut |owner| drop_field(owner, field));
            }
        }
    }
}

const SLICE: Features = &[
    &[&["devices", "*", "taints"]],
    &[
        &["sharedCounters"],
        &["perDeviceNodeSelection"],
        &["devices", "*", "consumesCounters"],
        &["devices", "*", "nodeName"],
        &["devices", "*", "nodeSelector"],
        &["devices", "*", "allNodes"],
    ],
    &[
        &["devices", "*", "bindingConditions"],
        &["devices", "*", "bindingFailureConditions"],
        &["devices", "*", "bindsToNode"],
    ],
    &[&["devices", "*", "allowMultipleAllocations"], &["devices", "*", "capacity", "*", "requestPolicy"]],
];

const CLAIM: Features = &[
    &[
        &["devices", "requests", "*", "exactly", "tolerations"],
        &["devices", "requests", "*", "firstAvailable", "*", "tolerations"],
    ],
    &[
        &["devices", "constraints", "*", "distinctAttribute"],
        &["devices", "requests", "*", "exactly", "capacity"],
        &["devices", "requests", "*", "firstAvailable", "*", "capacity"],
    ],
];

const CLAIM_STATUS: Features = &[
    &[
        &["allocation", "devices", "results", "*", "bindingConditions"],
        &["allocation", "devices", "results", "*", "bindingFailureConditions"],
        &["allocation", "allocationTimestamp"],
    ],
    &[
        &["allocation", "devices", "results", "*", "shareID"],
        &["allocation", "devices", "results", "*", "consumedCapacity"],
        &["devices", "*", "shareID"],
    ],
];

const CLASS: Features = &[&[&["extendedResourceName"]]];

/// Of the `spec` of a slice; `old` is null for a new one.
pub fn slice_spec(spec: &mut Value, old: &Value) {
    drop_disabled(spec, old, SLICE);
}

pub fn claim_spec(spec: &mut Value, old: &Value) {
    drop_disabled(spec, old, CLAIM);
}

pub fn class_spec(spec: &mut Value, old: &Value) {
    drop_disabled(spec, old, CLASS);
}

/// Of a claim's status; what it says of devices that it no longer has goes too.
pub fn claim_status(status: &mut Value, old: &Value) {
    drop_disabled(status, old, CLAIM_STATUS);
    let ids = |status: &Value, of: fn(&Value) -> &Value| {
        let list = of(status).as_array().into_iter().flatten();
        list.map(|d| ["driver", "pool", "device", "shareID"].map(|f| d[f].clone())).collect::<Vec<_>>()
    };
    let results = |status: &Value| ids(status, |s| &s["allocation"]["devices"]["results"]);
    let (before, now) = (results(old), results(status));
    if let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) {
        devices.retain(|device| {
            let id = ["driver", "pool", "device", "shareID"].map(|f| device[f].clone());
            !before.contains(&id) || now.contains(&id)
        });
        if devices.is_empty() {
            drop_field(status, "devices");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_features_that_are_off_are_left_out() {
        let check = |drop: fn(&mut Value, &Value), given: Value, old: Value, expected: Value| {
            let mut found = given.clone();
            drop(&mut found, &old);
            assert_eq!(found, expected, "{given}");
        };
        let device = || {
            json!({ "name": "a", "taints": [{}], "nodeName": "n", "bindsToNode": true,
            "allowMultipleAllocations": true, "capacity": { "c": { "value": "1", "requestPolicy": {} } } })
        };
        let slice = || json!({ "nodeName": "n", "sharedCounters": [], "devices": [device()] });
        let plain = json!({ "name": "a", "capacity": { "c": { "value": "1" } } });
        check(slice_spec, slice(), Value::Null, json!({ "nodeName": "n", "devices": [plain] }));
        let tainted = json!({ "devices": [{ "taints": [{}] }] });
        let mut kept = plain.clone();
        kept["taints"] = json!([{}]);
        check(slice_spec, slice(), tainted, json!({ "nodeName": "n", "devices": [kept] }));
        let request = json!({ "name": "r", "exactly": { "tolerations": [], "capacity": {}, "count": 1 } });
        let constraint = json!({ "distinctAttribute": "d/a" });
        check(
            claim_spec,
            json!({ "devices": { "requests": [request], "constraints": [constraint] } }),
            Value::Null,
            json!({ "devices": { "requests": [{ "name": "r", "exactly": { "count": 1 } }], "constraints": [{}] } }),
        );
        check(class_spec, json!({ "extendedResourceName": "e/x" }), Value::Null, json!({}));
    }

    #[test]
    fn devices_that_were_given_back_are_no_longer_told_of() {
        let id = |name: &str| json!({ "driver": "d", "pool": "p", "device": name });
        let with = |results: &[&str], devices: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| id(name)).collect::<Vec<_>>();
            json!({ "allocation": { "devices": { "results": list(results) } }, "devices": list(devices) })
        };
        let mut status = json!({ "devices": [id("a")] });
        claim_status(&mut status, &with(&["a"], &["a"]));
        assert_eq!(status, json!({}));
        let mut status = with(&["a"], &["a", "b"]);
        claim_status(&mut status, &with(&["a", "b"], &["a", "b"]));
        assert_eq!(status, with(&["a"], &["a"]));
    }
}
