//! Capacities of the node that somebody else has written into its status: they become allocatable.
//! Used by `node_status`.
//! Invariant: pure; the node's own resources are never taken from what the API says (tidy: `pure_files`).

use api::kinds::is_extended_resource;
use k8s_openapi::api::core::v1::NodeStatus;

/// Adds what `previous` has beyond `status`. Returns what is allocatable there without any capacity behind it, to be
/// taken away.
pub fn carry_over(status: &mut NodeStatus, previous: &NodeStatus) -> Vec<String> {
    let known = previous.capacity.iter().flatten().filter(|(name, _)| is_extended_resource(name));
    for (name, quantity) in known {
        let capacity = status.capacity.get_or_insert_default();
        if !capacity.contains_key(name) {
            capacity.insert(name.clone(), quantity.clone());
            status.allocatable.get_or_insert_default().insert(name.clone(), quantity.clone());
        }
    }
    let has = |name: &str| status.allocatable.as_ref().is_some_and(|all| all.contains_key(name));
    let stale = previous.allocatable.iter().flatten().map(|(name, _)| name);
    stale.filter(|name| is_extended_resource(name) && !has(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn foreign_capacities_become_allocatable() {
        let check = |own: Value, previous: Value, expected: Value, stale: &[&str]| {
            let status = |value: Value| -> NodeStatus { serde_json::from_value(value).unwrap() };
            let mut found = status(json!({"capacity": own, "allocatable": own}));
            let gone = carry_over(&mut found, &status(previous));
            assert_eq!(serde_json::to_value(&found.allocatable).unwrap(), expected);
            assert_eq!(gone, stale);
        };
        let own = json!({"cpu": "2", "example.com/device": "1"});
        check(own.clone(), json!({}), own.clone(), &[]);
        check(
            own.clone(),
            json!({"capacity": {"cpu": "9", "example.com/dongle": "4", "example.com/device": "7", "kubernetes.io/x": "1"}}),
            json!({"cpu": "2", "example.com/device": "1", "example.com/dongle": "4"}),
            &[],
        );
        check(
            own.clone(),
            json!({"allocatable": {"example.com/dongle": "4", "memory": "1"}}),
            own,
            &["example.com/dongle"],
        );
    }
}
