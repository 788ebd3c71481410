//! The control plane in this process: what it starts, with which flags and identities.
//! Started by `commands`.

pub mod cluster_settings;
pub mod component_port;
pub mod console_answers;
pub mod join_server;
pub mod join_token;
pub mod registry;
pub mod server;
pub mod server_balancer;

#[cfg(test)]
mod serving_certificate_tests;
