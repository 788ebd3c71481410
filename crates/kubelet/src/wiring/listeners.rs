//! The node's servers: its own over HTTPS, the read-only port and the health check.
//! Started by `loops`; pages and streams are in `server`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Error,
    pod::{pod_workers::PodWorkers, sync_loop::SyncLoopHealth},
    runtime::container_exits::ContainerExits,
    server::{self, server_view::NodeView},
};

const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The socket of the node's server, if it is to have one.
pub async fn bind(config: &Config) -> Result<Option<TcpListener>, Error> {
    if config.serving_certificate.is_none() || !config.enable_server {
        return Ok(None);
    }
    let address = SocketAddr::new(config.address.unwrap_or(EVERYWHERE), config.port);
    TcpListener::bind(metrics::http::everywhere(address))
        .await
        .map(Some)
        .map_err(|source| Error::Listen { address, source })
}

/// Serves in `tasks` until `shutdown`.
pub fn serve(
    tasks: &mut JoinSet<()>,
    workers: &PodWorkers,
    exits: ContainerExits,
    listener: Option<TcpListener>,
    health: Arc<SyncLoopHealth>,
    shutdown: &CancellationToken,
) {
    let shared = &workers.shared;
    let config = &shared.config;
    let view = Arc::new(NodeView::new(shared.clone(), exits));
    if config.read_only_port != 0 {
        let address = SocketAddr::new(config.address.unwrap_or(EVERYWHERE), config.read_only_port);
        let (view, env, shutdown) = (view.clone(), shared.env.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server::serve_read_only(address, view, env, shutdown).await {
                tracing::error!(%address, %error, "failed to serve the read-only port");
            }
        });
    }
    if let (Some(listener), Some(certificate)) = (listener, config.serving_certificate.clone()) {
        let server = server::Server {
            view,
            runtime: shared.runtime.runtime.clone(),
            client: shared.client.clone(),
            env: shared.env.clone(),
            config: config.clone(),
            serving_certificate: certificate,
            client_ca_pem: config.client_ca_pem.clone(),
            endpoint_drain: config.endpoint_drain.clone(),
            metrics: shared.metrics.clone(),
            connections: serve::Limits::KUBELET,
        };
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            if let Err(error) = server.serve(listener, shutdown).await {
                tracing::error!(%error, "the node's server stopped");
            }
        });
    }
    if config.healthz_port != 0 {
        let address = SocketAddr::new(config.healthz_address, config.healthz_port);
        let (env, shutdown) = (shared.env.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server::serve_health(address, move || health.is_alive(), env, shutdown).await {
                tracing::error!(%address, %error, "failed to serve health checks");
            }
        });
    }
}
