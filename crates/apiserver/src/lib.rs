//! The API server: every kind of the table, served to stock clients over TLS and to this process directly.
//! Reads `api` (what objects are) and `store` (where they lie); used by `minke`, `sim` and tests.
//! Every request, from a socket or from this process, takes the one path in `server::pipeline`.

pub mod admission;
pub mod authn;
pub mod authz;
pub mod cel;
pub mod registry;
pub mod request;
pub mod server;
pub mod storage;

mod aggregator;
mod audit;
mod crd;
mod discovery;
mod filters;
mod flow_control;
mod handlers;
mod json_fields;
mod metrics;
mod metrics_api;
mod openapi;
mod post_start_hooks;
mod proxy;
mod transport;

pub use discovery::served::{Served, ServedResources};
pub use handlers::{
    console::{ConsoleHandlers, Question},
    respond::{ObjectList, ObjectStream},
};
pub use request::{
    body::{self, Body},
    call::InProcess,
    query::Query,
};
pub use server::{
    component_health::{self, ComponentHealth},
    config::{self, Config},
    health,
    listener::ProofOfKey,
    pipeline::ApiServer,
};
