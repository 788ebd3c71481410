//! Whether a node's status says something new.
//! Used by `node_status`, which writes only then.
//! Times and what others write do not count.

use k8s_openapi::api::core::v1::{Node, NodeStatus};

/// Whether two statuses say different things, heartbeats aside.
pub fn differs(old: &NodeStatus, new: &NodeStatus) -> bool {
    let essence = |status: &NodeStatus| {
        let mut status = NodeStatus {
            capacity: status.capacity.clone(),
            allocatable: status.allocatable.clone(),
            addresses: status.addresses.clone(),
            daemon_endpoints: status.daemon_endpoints.clone(),
            node_info: status.node_info.clone(),
            images: status.images.clone(),
            runtime_handlers: status.runtime_handlers.clone(),
            features: status.features.clone(),
            conditions: status.conditions.clone(),
            volumes_in_use: status.volumes_in_use.clone().filter(|names| !names.is_empty()),
            ..Default::default()
        };
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status.conditions.iter_mut().flatten().for_each(|c| c.last_transition_time = None);
        if let Some(conditions) = &mut status.conditions {
            let ours = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
            conditions.retain(|c| ours.contains(&c.type_.as_str()));
            conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        }
        status.images = status.images.filter(|images| !images.is_empty());
        status
    };
    let mut old = essence(old);
    // Extended resources that others have given the node stay.
    for (said, ours) in [(&mut old.capacity, &new.capacity), (&mut old.allocatable, &new.allocatable)] {
        let is_ours = |name: &str| ours.as_ref().is_some_and(|ours| ours.contains_key(name));
        said.iter_mut().for_each(|said| said.retain(|name, _| is_ours(name) || !name.contains('/')));
    }
    old != essence(new)
}

/// Another object of the same name is always newer than one that was deleted.
pub fn is_newer(found: &Node, held: &Node) -> bool {
    let version = |node: &Node| node.metadata.resource_version.as_ref().and_then(|v| v.parse::<u64>().ok());
    found.metadata.uid != held.metadata.uid || version(found) > version(held)
}
