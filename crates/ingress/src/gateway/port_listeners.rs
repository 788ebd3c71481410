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

pub struct PortListeners {
    /// What is listened on anyhow; Gateways have it as 80 and 443, wherever it is.
    pub shared: IngressPorts,
    pub table: SharedTable,
    pub proxy: Arc<Proxy>,
    pub default_certificate: Arc<CertifiedKey>,
    pub limits: Limits,
    pub env: Env,
    pub shutdown: CancellationToken,
    pub open: HashMap<u16, OpenPort>,
    /// Asked for since `serve` was last called.
    pub wanted: HashSet<u16>,
}

pub struct OpenPort {
    is_tls: bool,
    /// Bound, and not served yet.
    bound: Option<StdListener>,
    stop: CancellationToken,
}

impl PortListeners {
    /// Which port of the table serves `port`.
    pub fn open(&mut self, port: u16, is_tls: bool) -> Result<u16, String> {
        match (port, is_tls, self.shared.http, self.shared.https) {
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
        self.wanted.insert(port);
        match self.open.get(&port) {
            Some(open) if open.is_tls == is_tls => return Ok(port),
            Some(_) => self.close(port),
            None => {}
        }
        let failed = |error: std::io::Error| format!("port {port} can't be listened on: {error}");
        let bound = StdListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?;
        bound.set_nonblocking(true).map_err(failed)?;
        let stop = self.shutdown.child_token();
        self.open.insert(port, OpenPort { is_tls, bound: Some(bound), stop });
        Ok(port)
    }

    /// Called when the table is in place.
    pub fn serve(&mut self) {
        let unwanted: Vec<u16> = self.open.keys().filter(|port| !self.wanted.contains(port)).copied().collect();
        for port in unwanted {
            self.close(port);
        }
        self.wanted.clear();
        let ports: Vec<u16> = self.open.keys().copied().collect();
        for port in ports {
            let Some(open) = self.open.get_mut(&port) else { continue };
            let Some(bound) = open.bound.take() else { continue };
            let (is_tls, stop) = (open.is_tls, open.stop.clone());
            if let Err(error) = self.accept(port, bound, is_tls, stop) {
                tracing::error!(error, port, "failed to serve a port of a Gateway");
            }
        }
    }

    fn accept(&self, port: u16, bound: StdListener, is_tls: bool, stop: CancellationToken) -> Result<(), String> {
        let listener = TcpListener::from_std(bound).map_err(|error| error.to_string())?;
        let entry = Entry::new(self.proxy.clone(), port, is_tls, self.shared.https);
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

    fn close(&mut self, port: u16) {
        if let Some(open) = self.open.remove(&port) {
            open.stop.cancel();
        }
    }
}
