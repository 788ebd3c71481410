//! Everything about nodes: whether they are alive, what that means for their pods, and their address ranges.
//! Kubelets report through Lease and Node status; the scheduler reads the taints written here.
//! Deadlines wake the controllers; nobody polls.

pub mod conditions;
mod ipam;
mod ipam_metrics;
mod lifecycle;
mod node_metrics;
mod pod_gc;
mod ranges;
mod taint_eviction;
mod ttl;
mod zones;

pub use ipam::make as make_ipam;
pub use lifecycle::make as make_lifecycle;
pub use pod_gc::make as make_pod_gc;
pub use taint_eviction::make as make_taint_eviction;
pub use ttl::make as make_ttl;
