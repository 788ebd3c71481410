//! The controllers: one file or folder each with a pure core, one runner for all, one table (`descriptors`) that lists them.
//! Talks to the API server only through `client`; started by the `minke` crate and by the simulator.
//! A core never awaits, and nothing here keeps state that a restart would miss.

mod common;
mod config;
mod descriptors;
mod runner;

mod bootstrap;
mod certificates;
mod cluster_dns;
mod cluster_role_aggregation;
mod cron_job;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoints;
mod garbage_collector;
mod horizontal_pod_autoscaler;
mod job;
mod load_balancer;
mod namespace;
mod node;
mod replica_set;
mod resource_claim;
mod resource_quota;
mod service_account;
mod service_cidr;
mod stateful_set;
mod storage_version;
mod validating_admission_policy;
mod vertical_pod_autoscaler;
mod volume;

#[cfg(test)]
mod toy_controller;

pub use certificates::ReservedNames;
pub use cluster_dns::ClusterDns;
pub use config::{Caches, CertificateAuthority, Config, HorizontalPodAutoscalerSettings, ServiceAccountClients};
pub use descriptors::{VERTICAL_POD_AUTOSCALER, names, service_accounts};
pub use load_balancer::{LoadBalancer, address_pool::AddressRange};
pub use runner::run;
pub use volume::LocalStorage;
