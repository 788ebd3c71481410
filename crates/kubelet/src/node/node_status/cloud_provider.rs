//! A node of a cluster with a cloud controller manager (`--cloud-provider=external`): it takes no pods before that has seen
//! it, tells which addresses it was given, and leaves to that what its addresses are.
//! Used by `mod`.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::{NodeStatus, Taint};

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const PROVIDED_ADDRESSES: &str = "alpha.kubernetes.io/provided-node-ip";

/// The provider takes it away.
pub fn taint() -> Taint {
    Taint { key: UNINITIALIZED.into(), value: Some("true".into()), effect: "NoSchedule".into(), ..Default::default() }
}

/// By which the provider knows what the node's pods, certificates and routes count on.
pub fn announcement(addresses: &[IpAddr]) -> BTreeMap<String, String> {
    let listed = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if listed.is_empty() { BTreeMap::new() } else { BTreeMap::from([(PROVIDED_ADDRESSES.into(), listed)]) }
}

/// What the provider said of the node's addresses stays.
pub fn keep_addresses(status: &mut NodeStatus, previous: &NodeStatus) {
    if let Some(told) = previous.addresses.as_ref().filter(|addresses| !addresses.is_empty()) {
        status.addresses = Some(told.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_the_providers_once_it_has_told_them() {
        let status = |addresses: serde_json::Value| -> NodeStatus {
            serde_json::from_value(json!({ "addresses": addresses })).unwrap()
        };
        let own = json!([{ "type": "InternalIP", "address": "192.0.2.1" }]);
        let told = json!([{ "type": "ExternalIP", "address": "198.51.100.1" }]);
        for (previous, expected) in [(json!([]), &own), (told.clone(), &told)] {
            let mut new = status(own.clone());
            keep_addresses(&mut new, &status(previous));
            assert_eq!(new, status(expected.clone()));
        }
        let addresses = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(announcement(&addresses)[PROVIDED_ADDRESSES], "192.0.2.1,2001:db8::1");
        assert!(announcement(&[]).is_empty());
    }
}
