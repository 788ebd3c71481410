//! What a node's status says of devices: those of its plugins, none of another machine's.
//! Part of `node_status`.
//! Extended resources that others have given the node are left as they are.

use std::collections::BTreeMap;

use api::kinds::is_extended_resource;
use client::Patch;
use k8s_openapi::{
    api::core::v1::{Node, NodeStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use node_plugins::devices::state::DeviceCapacity;
use serde_json::json;

use super::NodeStatusManager;

pub fn add(status: &mut NodeStatus, devices: DeviceCapacity) {
    for (list, counts) in [(&mut status.capacity, devices.capacity), (&mut status.allocatable, devices.allocatable)] {
        let counts = counts.into_iter().map(|(name, count)| (name, Quantity(count.to_string())));
        list.get_or_insert_default().extend(counts);
    }
}

impl NodeStatusManager {
    /// Where no device plugin was ever registered, devices that the Node object has are those of another machine.
    pub(super) async fn without_lost_resources(&self, node: Node) -> Node {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let is_lost = |name: &&String| is_extended_resource(name);
        let lost: BTreeMap<&String, &str> =
            capacity.iter().flat_map(|all| all.keys()).filter(is_lost).map(|name| (name, "0")).collect();
        if lost.is_empty() || !self.devices.is_first_start() {
            return node;
        }
        let patch = Patch::Strategic(json!({"status": {"capacity": lost, "allocatable": lost}}));
        self.client.api::<Node>().patch_status(&self.config.node_name, &patch).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to take back the devices of another machine");
            node
        })
    }
}
