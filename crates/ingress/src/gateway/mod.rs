//! The Gateway API: Gateways and their routes become the same route table that Ingresses become.
//! `model` is the pure core (with `listeners`, `attachment`, `rules` and what they use), `objects` follows the custom
//! resources, `port_listeners` opens ports, `load_balancers` asks for addresses, `status_writer` says what came of them, `crds` defines the kinds.
//! Invariant: what a condition says is what the route table does; both come from one build (type: `model::Built`).

mod attachment;
mod backend_references;
mod backend_tls;
mod cluster;
mod conditions;
mod crds;
mod gateway_class;
mod hostnames;
mod listeners;
mod load_balancers;
mod model;
mod objects;
mod port_listeners;
mod reference_grants;
mod route_filters;
mod rules;
mod status_writer;
mod types;

pub use crds::install;
pub use gateway_class::CONTROLLER;
pub(crate) use {
    cluster::{Cluster, GatewayAddresses},
    load_balancers::GatewayLoadBalancers,
    model::{Built, build},
    objects::GatewayObjects,
    port_listeners::PortListeners,
    status_writer::GatewayStatusWriter,
};
