//! Requests passed on to kubelets, pods, Services and extension API servers.
//! Called by `registry::connect` and `aggregator`; whom it believes is for `transport`.

mod log_refusal;
mod log_websocket;
pub mod rewrite;
pub mod streaming;
