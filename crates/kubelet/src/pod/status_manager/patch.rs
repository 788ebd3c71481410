//! The difference between two pod statuses as a strategic merge patch.
//! Used by `status_manager`.
//! Invariant: pure; conditions that the node does not own are never in a patch (tidy: `pure_files`).

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// Conditions that the node writes.
const OWNED_CONDITIONS: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
];
/// Those that are there only while there is something to tell.
const PASSING_CONDITIONS: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// Fields of the status that are someone else's.
const FOREIGN_FIELDS: [&str; 4] =
    ["nominatedNodeName", "qosClass", "resourceClaimStatuses", "extendedResourceClaimStatus"];

/// `None` when nothing changed.
pub fn status_patch(old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let (Ok(Value::Object(old)), Ok(Value::Object(new))) = (serde_json::to_value(old), serde_json::to_value(new))
    else {
        return None;
    };
    let mut patch = Map::new();
    for (key, value) in &new {
        let before = old.get(key);
        if before == Some(value) || FOREIGN_FIELDS.contains(&key.as_str()) {
            continue;
        }
        match key.as_str() {
            "conditions" => {
                let changed = changed_conditions(before, value);
                if !changed.is_empty() {
                    patch.insert(key.clone(), Value::Array(changed));
                }
            }
            // Merged by address: an old one would stay.
            "podIPs" | "hostIPs" => {
                let mut list = vec![json!({"$patch": "replace"})];
                list.extend(value.as_array().into_iter().flatten().cloned());
                patch.insert(key.clone(), Value::Array(list));
            }
            _ => {
                patch.insert(key.clone(), with_removals(before, value));
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        if !FOREIGN_FIELDS.contains(&key.as_str()) && key != "conditions" {
            patch.insert(key.clone(), Value::Null);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Objects are merged field by field, so what went away is said to be null.
fn with_removals(before: Option<&Value>, after: &Value) -> Value {
    let (Some(Value::Object(before)), Value::Object(after_map)) = (before, after) else {
        return after.clone();
    };
    let mut result = after_map.clone();
    for (key, old) in before {
        match after_map.get(key) {
            None => {
                result.insert(key.clone(), Value::Null);
            }
            Some(new) => {
                result.insert(key.clone(), with_removals(Some(old), new));
            }
        }
    }
    Value::Object(result)
}

fn changed_conditions(before: Option<&Value>, after: &Value) -> Vec<Value> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let (before, after) = (list(before), list(Some(after)));
    let mut changed = Vec::new();
    for gone in before.iter().filter(|old| !after.iter().any(|c| c["type"] == old["type"])) {
        if PASSING_CONDITIONS.iter().any(|kind| gone["type"] == *kind) {
            changed.push(json!({"type": gone["type"], "$patch": "delete"}));
        }
    }
    for condition in after {
        let kind = condition["type"].as_str().unwrap_or_default();
        let old = before.iter().find(|c| c["type"] == condition["type"]);
        if OWNED_CONDITIONS.contains(&kind) && old != Some(&condition) {
            let mut entry = with_removals(old, &condition);
            // Merge needs the key even where nothing else changed.
            entry["type"] = condition["type"].clone();
            changed.push(entry);
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_and_is_ours() {
        let check = |old: Value, new: Value, expected: Option<Value>| {
            let parse = |value: &Value| serde_json::from_value::<PodStatus>(value.clone()).unwrap();
            assert_eq!(status_patch(&parse(&old), &parse(&new)), expected, "{old} -> {new}");
        };
        check(json!({}), json!({}), None);
        check(json!({"phase": "Pending"}), json!({"phase": "Running"}), Some(json!({"phase": "Running"})));
        check(json!({"phase": "Running", "reason": "x"}), json!({"phase": "Running"}), Some(json!({"reason": null})));
        check(json!({"qosClass": "BestEffort"}), json!({}), None);
        check(
            json!({"podIPs": [{"ip": "1.1.1.1"}]}),
            json!({"podIPs": [{"ip": "2.2.2.2"}]}),
            Some(json!({"podIPs": [{"$patch": "replace"}, {"ip": "2.2.2.2"}]})),
        );
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        check(
            json!({"conditions": [condition("Ready", "False"), condition("PodScheduled", "True"), condition("mine", "A")]}),
            json!({"conditions": [condition("Ready", "True"), condition("PodScheduled", "True"), condition("mine", "B")]}),
            Some(json!({"conditions": [condition("Ready", "True")]})),
        );
        check(
            json!({"conditions": [condition("PodResizePending", "True"), condition("mine", "A")]}),
            json!({"conditions": []}),
            Some(json!({"conditions": [{"type": "PodResizePending", "$patch": "delete"}]})),
        );
        check(
            json!({"conditions": [{"type": "Ready", "status": "False", "reason": "r", "message": "m"}]}),
            json!({"conditions": [condition("Ready", "True")]}),
            Some(json!({"conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}]})),
        );
    }
}
