//! The node itself: `node_status` registers and reports it, `pod_cleanup` removes what pods left behind,
//! `node_metrics` names what is counted.
//! Run by the crate's root; statistics are in `stats`.

pub(crate) mod node_metrics;
pub mod node_shutdown;
pub(crate) mod node_startup;
pub mod node_status;
pub(crate) mod pod_cleanup;
pub(crate) mod pod_metrics;
