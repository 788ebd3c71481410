//! The plugins, one file each, and the table that lists them.
//! Driven by `framework`'s traits; read in `table`'s order.
//! Invariant: plugins are functions of the cluster, the pod and the node; none keeps state between pods.

pub mod arguments;
pub mod default_selector;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod table;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

#[cfg(test)]
mod helps_tests;
#[cfg(test)]
pub mod testing;
