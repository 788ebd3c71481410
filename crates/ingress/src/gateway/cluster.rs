//! What Gateways and routes point at beside each other.
//! Implemented by the controller over informers and listeners, and by tests over maps.
//! Everything that the pure parts of `gateway` learn of the world they learn here.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Service};

use crate::{
    model::Lookup,
    upstream_tls::{UpstreamTls, UpstreamTlsSettings},
};

pub trait Cluster: Lookup {
    /// By `namespace/name`, as all of these.
    fn service(&self, key: &str) -> Option<Arc<Service>>;
    fn config_map(&self, key: &str) -> Option<Arc<ConfigMap>>;
    fn namespace_labels(&self, name: &str) -> BTreeMap<String, String>;
    /// The same for the same settings.
    fn upstream_tls(&mut self, settings: &UpstreamTlsSettings) -> Result<Arc<UpstreamTls>, String>;
    /// Listens on a port, if nobody does yet, and says which port of the route table that is.
    fn listen(&mut self, port: u16, tls: bool) -> Result<u16, String>;
}
