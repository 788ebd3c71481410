//! The names by which the nodes' part of cluster DNS and the control plane's find each other.
//! Written by a node on its own Node object; read by the cluster DNS controller, which writes Service and EndpointSlices.

pub const NAMESPACE: &str = "kube-system";
pub const SERVICE: &str = "kube-dns";
/// On a Node: where it answers DNS, with commas between.
pub const NODE_ANNOTATION: &str = "minke.io/dns";
pub const PORT: u16 = 53;
