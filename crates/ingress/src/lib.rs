//! The way in from outside: Ingresses become routes, and requests follow them to endpoints.
//! `routes` is the pure core, `model` makes it from objects, `controller` keeps it true, `proxy` is the data path; reads the
//! API through `client` and is started with [`start`].
//! A request waits for nothing but its backend: routes and endpoints are read from memory that is never locked for long.

mod access_log;
mod backends;
mod certificates;
mod controller;
mod destinations;
mod filters;
pub mod gateway;
mod host_map;
mod ingress_class;
mod model;
mod pattern;
mod proxy;
mod request_match;
mod routes;
mod run;
mod status;
mod upstream_tls;

pub use access_log::AccessLog;
pub use backends::{Backend, BackendKey, BackendState, Protocol, ServicePort};
pub use certificates::{Certificates, TableResolver, default_certificate};
pub use destinations::{Destination, Destinations};
pub use filters::{Cors, Filters, HeaderChanges, Mirror, PathChange, Redirect, Rewrite};
pub use host_map::HostMap;
pub use ingress_class::CONTROLLER;
pub use pattern::{Pattern, PatternBudget};
pub use proxy::{Entry, Proxy, ProxyConfig};
pub use request_match::{RequestHead, RequestMatch, ValueMatch};
pub use routes::{
    GatewayPort, HostTable, PathMatch, PortTable, Route, RouteSettings, RouteTable, SharedTable, TlsPassthrough,
};
pub use run::{IngressConfig, IngressError, Listeners, Serving, server_config, start};
pub use upstream_tls::{SubjectAltName, TrustedRoots, UpstreamTls, UpstreamTlsSettings};
