//! The controllers: one file or folder each with a pure core, one shell that runs them all, one table that lists them.
//! Talks to the API server only through `client`; started by the `minke` crate and by the simulator.
//! Invariant: a core never awaits, and nothing here keeps state that a restart would miss.

mod config;
mod expectations;
mod indexes;
mod meta;
mod objects;
mod ownership;
mod pod_control;
mod pods;
mod resources;
mod revisions;
mod selector;
mod shell;
mod table;

mod bootstrap_signer;
mod bootstrap_token;
mod certificates;
mod cluster_role;
mod cron_job;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoints;
mod garbage_collector;
mod job;
mod legacy_token;
mod namespace;
mod node;
mod replica_set;
mod resource_quota;
mod root_ca;
mod service_account;
mod service_account_token;
mod service_cidr;
mod stateful_set;
mod volume;

pub use config::{Caches, CertificateAuthority, Config};
pub use shell::run;
pub use table::names;
