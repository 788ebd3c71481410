//! The control plane in this process: what it starts, with which flags and identities.
//! Started by `commands`.

pub mod component_port;
pub mod join_token;
pub mod registry;
pub mod server;

#[cfg(test)]
mod serving_certificate_tests;
