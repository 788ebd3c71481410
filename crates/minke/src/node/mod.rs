//! A node in this process: how it joins the cluster, and what runs on it.
//! Started by `commands`; its pod network is in `network`.

pub mod access;
pub mod agent;
pub mod api_servers;
pub mod container_runtime;
pub mod join;
pub mod network_policy_enforcer;
pub mod own_node;
pub mod registry_hosts;
pub mod service_proxy;
mod shared_mount;
