//! The control plane in this process: what it starts, with which flags and identities.
//! Started by `commands`.

pub mod component_port;
pub mod dns_endpoints;
pub mod join_token;
pub mod server;
pub mod serving_approver;
