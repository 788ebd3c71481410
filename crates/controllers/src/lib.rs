//! The controllers: one file or folder each with a pure core, one shell that runs them all, one table that lists them.
//! Talks to the API server only through `client`; started by the `minke` crate and by the simulator.
//! Invariant: a core never awaits, and nothing here keeps state that a restart would miss.

mod config;
mod expectations;
mod indexes;
mod meta;
mod ownership;
mod pod_control;
mod pods;
mod resources;
mod selector;
mod shell;
mod table;

mod deployment;
mod replica_set;

pub use config::{CertificateAuthority, Config};
pub use shell::run;
pub use table::names;
