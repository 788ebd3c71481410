//! Connections that this server opens: where they go, whom they believe, and JSON over them.
//! Used by `proxy`, `aggregator`, `authn`, `authz`, `admission` and conversion.

pub mod kubelet_tls;
pub mod service_resolver;
pub mod tls_config;
pub mod webhook_client;
pub mod webhook_config;

mod server_verifier;
