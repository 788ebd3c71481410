//! The plugins, one file (or folder) each, and the registry that lists them.
//! Each implements `framework`'s traits for the extension points that it takes part in.

pub mod default_binder;
pub mod default_preemption;
pub mod default_selector;
pub mod dynamic_resources;
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
pub mod priority_sort;
pub mod registry;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

#[cfg(test)]
mod queueing_hint_tests;
#[cfg(test)]
mod signature_tests;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod toy_plugin_tests;
