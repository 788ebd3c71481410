//! How this node reaches the pods of other nodes: plain routes or VXLAN, by what Node objects say.
//! `plan` decides, `run` brings the kernel to it; `node_networks` says what of a Node object counts.

mod node_networks;
mod plan;
mod run;

pub use api::cluster_ranges::{ClusterRanges, NodeNetwork, pod_cidrs};
pub use node_networks::accepted_networks;
pub use plan::{Plan, PodRoutesConfig, PodRoutesMode, plan, stable_hash};
pub use run::{PodRoutesError, apply_pod_routes, run_command, run_pod_routes};
