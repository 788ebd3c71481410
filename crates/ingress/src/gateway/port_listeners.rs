//! Ports that Gateways ask for: opened when one does, closed when none does any more.
//! Asked by the controller while tables are built; what has come in goes to `proxy`.
//! Invariant: a port serves only once its table is there (type: `open` binds, `serve` accepts).

use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, TcpListener as StdListener},
    sync::Arc,
};

use env::Env;
use rustls::sign::CertifiedKey;
use serve::{Limits, serve_http, serve_https};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::TableResolver,
    model::IngressPorts,
    proxy::{Entry, Proxy},
    routes::SharedTable,
    run::server_config,
};

/// Whoever may make Gateways opens ports of the node.
const PORTS_MAX: usize = 64;

pub struct PortListeners {
    /// What is listened on anyhow; Gateways have it as 80 and 443, wherever it is.
    pub shared: IngressPorts,
    pub table: SharedTable,
    pub proxy: Arc<Proxy>,
    pub default_certificate: Arc<CertifiedKey>,
    pub limits: Limits,
    pub env: Env,
    pub shutdown: CancellationToken,
    /// Whether each Gateway has ports of its own, behind an address of its own.
    pub are_own: bool,
    pub open: HashMap<GatewayPort, OpenPort>,
    /// Asked for since `serve` was last called.
    pub wanted: HashSet<GatewayPort>,
}

/// Of one Gateway, or of all of them under an empty name; as clients know it.
pub type GatewayPort = (String, u16);

pub struct OpenPort {
    is_tls: bool,
    /// What is listened on.
    served: u16,
    /// Bound, and not served yet.
    bound: Option<StdListener>,
    stop: CancellationToken,
}

impl PortListeners {
    /// Which port of the table serves `port` of a Gateway.
    pub fn open(&mut self, gateway: &str, port: u16, is_tls: bool) -> Result<u16, String> {
        match (port, is_tls, self.shared.http, self.shared.https) {
            _ if self.are_own => {}
            (80, false, Some(shared), _) | (443, true, _, Some(shared)) => return Ok(shared),
            (_, _, http, https) if http == Some(port) || https == Some(port) => {
                let is_fit = if is_tls { https } else { http } == Some(port);
                return if is_fit {
                    Ok(port)
                } else {
                    Err(format!("port {port} serves Ingresses in another protocol"))
                };
            }
            _ => {}
        }
        let name = (if self.are_own { gateway.to_string() } else { String::new() }, port);
        if self.wanted.len() >= PORTS_MAX && !self.wanted.contains(&name) {
            return Err(format!("port {port} is one too many: Gateways have {PORTS_MAX} ports of a node at most"));
        }
        self.wanted.insert(name.clone());
        match self.open.get(&name) {
            Some(open) if open.is_tls == is_tls => return Ok(open.served),
            Some(_) => self.close(&name),
            None => {}
        }
        let failed = |error: std::io::Error| format!("port {port} can't be listened on: {error}");
        let asked = if self.are_own { 0 } else { port };
        let bound = StdListener::bind((Ipv4Addr::UNSPECIFIED, asked)).map_err(failed)?;
        bound.set_nonblocking(true).map_err(failed)?;
        let served = bound.local_addr().map_err(failed)?.port();
        let stop = self.shutdown.child_token();
        self.open.insert(name, OpenPort { is_tls, served, bound: Some(bound), stop });
        Ok(served)
    }

    /// Called when the table is in place.
    pub fn serve(&mut self) {
        let unwanted: Vec<GatewayPort> =
            self.open.keys().filter(|port| !self.wanted.contains(*port)).cloned().collect();
        for port in unwanted {
            self.close(&port);
        }
        self.wanted.clear();
        let ports: Vec<GatewayPort> = self.open.keys().cloned().collect();
        for name in ports {
            let Some(open) = self.open.get_mut(&name) else { continue };
            let Some(bound) = open.bound.take() else { continue };
            let (served, is_tls, stop) = (open.served, open.is_tls, open.stop.clone());
            if let Err(error) = self.accept((served, name.1), bound, is_tls, stop) {
                tracing::error!(error, port = name.1, "failed to serve a port of a Gateway");
            }
        }
    }

    fn accept(
        &self,
        (port, shown): (u16, u16),
        bound: StdListener,
        is_tls: bool,
        stop: CancellationToken,
    ) -> Result<(), String> {
        let listener = TcpListener::from_std(bound).map_err(|error| error.to_string())?;
        let entry = Entry::behind(self.proxy.clone(), port, shown, is_tls, self.shared.https);
        let (limits, env) = (self.limits.clone(), self.env.clone());
        if is_tls {
            let resolver = TableResolver { table: self.table.clone(), port, default: self.default_certificate.clone() };
            let tls = server_config(resolver).map_err(|error| error.to_string())?;
            self.env.spawn(serve_https(listener, tls, entry, limits, env, stop));
        } else {
            self.env.spawn(serve_http(listener, entry, limits, env, stop));
        }
        Ok(())
    }

    fn close(&mut self, port: &GatewayPort) {
        if let Some(open) = self.open.remove(port) {
            open.stop.cancel();
        }
    }
}
