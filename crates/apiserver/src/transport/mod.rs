//! Connections that this server opens: where they go, whom they believe, and JSON over them.
//! Used by `proxy`, `aggregator`, `authn`, `authz`, `admission` and conversion.

pub mod kubelet_trust;
pub mod service_resolver;
pub mod trust;
pub mod webhook_client;
