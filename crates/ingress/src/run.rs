//! The shell: what an ingress is told, its listeners, and the tasks behind them.
//! Puts `controller` and `proxy` to work; started by `minke`.
//! Requests are answered only after the first lists, so that a restart does not say 404 to a route that exists.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use client::InformerFactory;
use env::Env;
use futures::future::BoxFuture;
use metrics::Metrics;
use rustls::ServerConfig;
use serve::{Limits, serve_http, serve_https};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    access_log::AccessLog,
    certificates::{TableResolver, default_certificate},
    controller::{Controller, Gateways},
    gateway::{Built, GatewayLoadBalancers, GatewayObjects, GatewayStatusWriter, PortListeners},
    ingress_class,
    model::IngressPorts,
    proxy::{Entry, Proxy, ProxyConfig},
    routes::SharedTable,
    status::StatusWriter,
};

#[derive(Default)]
pub struct Listeners {
    pub http: Option<std::net::TcpListener>,
    pub https: Option<std::net::TcpListener>,
}

#[derive(Clone)]
pub struct IngressConfig {
    /// Where clients reach us, as Ingresses say in their status.
    pub addresses: Vec<IpAddr>,
    pub access_log: Option<AccessLog>,
    pub metrics: Metrics,
    pub limits: Limits,
    /// Whether each Gateway gets an address of its own from the pool of load balancers.
    pub own_gateway_addresses: bool,
}

impl IngressConfig {
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        let limits = Limits::INGRESS;
        Self { addresses, access_log: None, metrics: Metrics::default(), limits, own_gateway_addresses: false }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IngressError {
    #[error("failed to listen: {0}")]
    Listen(#[from] std::io::Error),
    #[error("failed to make the default certificate: {0}")]
    Certificate(String),
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Serves until it is told to stop.
pub type Serving = BoxFuture<'static, ()>;

/// Reads the first lists: what it returns serves until `shutdown`.
pub async fn start(
    listeners: Listeners,
    config: IngressConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<Serving, IngressError> {
    let http = listeners.http.map(TcpListener::from_std).transpose()?;
    let https = listeners.https.map(TcpListener::from_std).transpose()?;
    let port = |listener: &Option<TcpListener>| -> std::io::Result<Option<u16>> {
        listener.as_ref().map(|listener| listener.local_addr().map(|address: SocketAddr| address.port())).transpose()
    };
    let ports = IngressPorts { http: port(&http)?, https: port(&https)? };
    let table = SharedTable::default();
    let default = default_certificate().map_err(IngressError::Certificate)?;
    ingress_class::ensure(informers.client(), &env).await;
    let proxy_config = ProxyConfig { access_log: config.access_log, metrics: config.metrics, ..ProxyConfig::default() };
    let proxy = Proxy::new(table.clone(), proxy_config, env.clone());
    let gateway_status = GatewayStatusWriter::new(config.addresses.clone(), informers.informer(), env.clone());
    let own = config.addresses.iter().find(|ip| ip.is_ipv4()).filter(|_| config.own_gateway_addresses);
    let balancers =
        own.map(|own| GatewayLoadBalancers::new(*own, informers.informer(), informers.informer(), env.clone()));
    let gateways = Gateways {
        objects: GatewayObjects::new(informers.clone(), env.clone()),
        ports: PortListeners {
            shared: ports,
            table: table.clone(),
            proxy: proxy.clone(),
            default_certificate: default.clone(),
            limits: config.limits.clone(),
            env: env.clone(),
            shutdown: shutdown.clone(),
            are_own: balancers.is_some(),
            open: HashMap::new(),
            wanted: HashSet::new(),
        },
        status: gateway_status.clone(),
        addresses: config.addresses.clone(),
        balancers: balancers.clone(),
        built: Built::default(),
    };
    let controller = Controller::new(table.clone(), ports, gateways, informers.clone(), env.clone());
    let following = controller.follow(shutdown.clone()).await;
    env.spawn(following);
    let client = informers.client().clone();
    if let Some(balancers) = balancers {
        let (client, until) = (client.clone(), shutdown.clone());
        env.spawn(async move {
            until.run_until_cancelled(balancers.run(client)).await;
        });
    }
    let status = StatusWriter::new(config.addresses, informers, env.clone());
    let until = shutdown.clone();
    env.spawn(async move {
        until.run_until_cancelled(async { tokio::join!(status.run(), gateway_status.run(client)) }).await;
    });
    let mut serving: Vec<BoxFuture<'static, ()>> = Vec::new();
    if let (Some(listener), Some(port)) = (http, ports.http) {
        let entry = Entry::new(proxy.clone(), port, false, ports.https);
        serving.push(Box::pin(serve_http(listener, entry, config.limits.clone(), env.clone(), shutdown.clone())));
    }
    if let (Some(listener), Some(port)) = (https, ports.https) {
        let entry = Entry::new(proxy, port, true, None);
        let tls = server_config(TableResolver { table, port, default })?;
        serving.push(Box::pin(serve_https(listener, tls, entry, config.limits, env, shutdown)));
    }
    Ok(Box::pin(async move {
        futures::future::join_all(serving).await;
    }))
}

pub fn server_config(resolver: TableResolver) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok(config)
}
