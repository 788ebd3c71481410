//! The plugins, one file each, and the table that lists them.
//! Driven by `framework`'s traits; read in `table`'s order.
//! Invariant: plugins are functions of the cluster, the pod and the node; none keeps state between pods.

pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod table;
pub mod taint_toleration;

#[cfg(test)]
pub mod testing;
