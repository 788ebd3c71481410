//! What Gateways and routes point at beside each other.
//! Implemented by the controller over informers and listeners, and by tests over maps.
//! Everything that the pure parts of `gateway` learn of the world they learn here.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Service};

use crate::model::Lookup;

/// Where a Gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAddresses {
    /// At those of the nodes, with all other Gateways.
    Shared,
    Own(Vec<IpAddr>),
    /// Somebody else has what it would need.
    Taken,
}

pub trait Cluster: Lookup {
    /// By `namespace/name`, as all of these.
    fn service(&self, key: &str) -> Option<Arc<Service>>;
    fn config_map(&self, key: &str) -> Option<Arc<ConfigMap>>;
    fn namespace_labels(&self, name: &str) -> BTreeMap<String, String>;
    /// Listens on a port of a Gateway, if nobody does yet, and says which port of the route table that is.
    fn listen(&mut self, gateway: &str, port: u16, tls: bool) -> Result<u16, String>;
    /// The addresses that a Gateway has for itself so far.
    fn addresses(&self, gateway: &str) -> GatewayAddresses;
}
