//! The API server as clients see it: requests through `ApiServer::handle` over a memory store, and stock kubectl.
//! Each module is one theme; `harness` is what they share.
//! No sockets except in `aggregation`, `issuers`, `audit*`, `authorization_chain`, `encryption`,
//! `old_extension`, `conversion`, `kubectl*`, `clients`, `proxy`, `system_roots`, `shared_etcd` and `upstream_etcd`.

mod acting_loops;
mod aggregation;
mod allocation;
mod audit;
mod audit_backends;
mod audit_secrets;
mod authorization_chain;
mod clients;
mod conformance;
mod connections;
mod conversion;
mod crd;
mod damaged_record;
mod deep_input;
mod definitions;
mod discovery;
mod encryption;
#[path = "../../../store/tests/store/etcd_server.rs"]
mod etcd_server;
mod events;
mod every_kind;
mod example_configurations;
mod feature_gates;
mod field_validation;
mod flow_control;
mod gate_switches;
mod harness;
mod identities;
mod issuers;
mod kubectl;
mod kubectl_commands;
mod kubectl_custom;
mod listening;
mod metrics;
mod minimal;
mod namespaces;
mod negotiation;
mod old_extension;
mod older_versions;
mod outside;
mod pages;
mod proxy;
mod published;
mod readiness;
mod reads;
mod request_memory;
mod restart;
mod shared_etcd;
mod subresources;
mod system_roots;
mod upstream_answers;
mod upstream_custom;
mod upstream_etcd;
mod upstream_objects;
mod upstream_refusals;
mod watches;
mod writes;
