//! The API server: every kind of the table, served to stock clients over TLS and to this process directly.
//! Reads `api` (what objects are) and `store` (where they lie); used by `minke`, `sim` and tests.
//! Invariant: every request, from a socket or from this process, takes the one path in `pipeline`.

pub mod admission;
pub mod authn;
pub mod authz;
pub mod body;
pub mod cel;
pub mod cluster;
pub mod config;
pub mod health;
pub mod registry;
pub mod request_info;
pub mod watch_cache;
pub mod webhook;

mod aggregation;
mod bootstrap;
mod call;
mod codec;
mod crd;
mod debug;
mod discovery;
mod expiring;
mod flow_control;
mod gzip;
mod in_flight;
mod index;
mod kubelet_trust;
mod kubernetes_service;
mod local_services;
mod loopback;
mod metrics;
mod negotiate;
mod not_found;
mod openapi;
mod openapi_merge;
mod pipeline;
mod proxy_rewrite;
mod query;
mod respond;
mod served;
mod server;
mod storage;
mod streaming;
mod table;
mod trust;
mod usage;
mod webhook_client;
mod write_health;

pub use body::Body;
pub use call::InProcess;
pub use config::Config;
pub use pipeline::ApiServer;
pub use query::Query;
pub use respond::{ObjectList, ObjectStream};
pub use served::{Served, ServedResources};
pub use server::ProofOfKey;
