//! The API server as clients see it: requests through `ApiServer::handle` over a memory store, and stock kubectl.
//! Each module is one theme; `harness` is what they share.
//! Invariant: no sockets except in `aggregation`, `kubectl`, `clients`, `proxy` and `shared_etcd`.

mod aggregation;
mod allocation;
mod clients;
mod conformance;
mod crd;
#[path = "../../../store/tests/store/etcd_server.rs"]
mod etcd_server;
mod every_kind;
mod flow_control;
mod harness;
mod identities;
mod kubectl;
mod listening;
mod metrics;
mod minimal;
mod negotiation;
mod proxy;
mod reads;
mod restart;
mod shared_etcd;
mod subresources;
mod watches;
mod writes;
