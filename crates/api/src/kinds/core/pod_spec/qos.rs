//! The quality-of-service class of a pod.
//! Used by `pod` on create.
//! Invariant: looks at cpu and memory only, as upstream does.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    kinds::common::{
        access::{entries, items, part},
        quantities,
    },
    quantity::Quantity,
};

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(spec: &Value) -> &'static str {
    let mut requests = BTreeMap::new();
    let mut limits = BTreeMap::new();
    let mut guaranteed = true;
    let mut count = |resources: &Value| {
        sum(resources, "requests", &mut requests);
        if sum(resources, "limits", &mut limits) < COMPUTE.len() {
            guaranteed = false;
        }
    };
    match part(spec, "resources") {
        Some(resources) => count(resources),
        None => {
            for container in items(spec, "containers").iter().chain(items(spec, "initContainers")) {
                count(container.get("resources").unwrap_or(&Value::Null));
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds the positive amounts of one kind and says how many resources had one.
fn sum(resources: &Value, key: &str, into: &mut BTreeMap<&'static str, Quantity>) -> usize {
    let mut found = 0;
    for (name, quantity) in entries(resources, key) {
        let Some(name) = COMPUTE.iter().find(|compute| **compute == name) else { continue };
        let Some(quantity) = quantities::of(quantity).filter(|quantity| quantity.sign() > 0) else { continue };
        into.entry(name).and_modify(|sum| sum.add(&quantity)).or_insert(quantity);
        found += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn classes() {
        let check = |resources: serde_json::Value, class: &str| {
            assert_eq!(super::class(&json!({ "containers": [{ "resources": resources }] })), class, "{resources}");
        };
        check(json!({}), "BestEffort");
        check(json!({ "requests": { "cpu": "0" } }), "BestEffort");
        check(json!({ "requests": { "cpu": "1" } }), "Burstable");
        check(json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "1" } }), "Burstable");
        let full = json!({ "cpu": "1", "memory": "1Gi" });
        check(json!({ "limits": full, "requests": full }), "Guaranteed");
        check(json!({ "limits": full, "requests": { "cpu": "1000m", "memory": "1Gi" } }), "Guaranteed");
        check(json!({ "limits": full, "requests": { "cpu": "1" } }), "Burstable");
    }
}
