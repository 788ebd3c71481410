//! The way in from outside: Ingresses become routes, and requests follow them to endpoints.
//! `routes` is the pure core, `model` makes it from objects, `controller` keeps it true, `proxy` is the data path; reads the
//! API through `client` and is started with [`start`].
//! A request waits for nothing but its backend: routes and endpoints are read from memory that is never locked for long.

mod access_log;
mod backends;
mod certificates;
mod controller;
mod ingress_class;
mod model;
mod proxy;
mod routes;
mod run;
mod status;

pub use access_log::AccessLog;
pub use backends::{Backend, BackendKey, BackendState, Protocol, ServicePort};
pub use certificates::{Certificates, TableResolver, default_certificate};
pub use ingress_class::CONTROLLER;
pub use proxy::{Entry, Proxy, ProxyConfig};
pub use routes::{HostTable, PathMatch, PortTable, Route, RouteSettings, RouteTable, SharedTable};
pub use run::{IngressConfig, IngressError, Listeners, Serving, server_config, start};
