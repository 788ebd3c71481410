//! A node's part of the cluster's network: pod network, cluster DNS, and what keeps them right.
//! Started by `node`.

pub mod cni_directories;
pub mod dns_service;
pub mod endpoint_drain;
pub mod ingress;
pub mod ipam_gc;
pub mod nft_repair;
pub mod pod_network;
pub mod retry_with_events;
