//! The node's servers: its own over HTTPS, the read-only port, cAdvisor's page, submitted manifests and the health check.
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
    sources::submission::Submissions,
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
    submissions: Option<Arc<Submissions>>,
    shutdown: &CancellationToken,
) {
    let shared = &workers.shared;
    let config = &shared.config;
    let view = Arc::new(NodeView::new(shared.clone(), exits, health.clone()));
    if config.read_only_port != 0 {
        let address = SocketAddr::new(config.address.unwrap_or(EVERYWHERE), config.read_only_port);
        let (view, env, metrics, shutdown) =
            (view.clone(), shared.env.clone(), shared.metrics.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server::serve_read_only(address, view, env, metrics, shutdown).await {
                tracing::error!(%address, %error, "failed to serve the read-only port");
            }
        });
    }
    if config.cadvisor_port != 0 {
        let address = SocketAddr::new(config.cadvisor_address, config.cadvisor_port);
        let (monitor, env, shutdown) = (view.monitor(), shared.env.clone(), shutdown.clone());
        tasks.spawn(async move {
            match TcpListener::bind(address).await {
                Ok(listener) => cadvisor::http::serve(listener, monitor, env, shutdown).await,
                Err(error) => tracing::error!(%address, %error, "failed to serve cAdvisor's page"),
            }
        });
    }
    let make_server = |certificate| server::Server {
        view: view.clone(),
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
    if let (Some(submissions), Some(certificate)) = (submissions, config.serving_certificate.clone()) {
        serve_manifests(tasks, make_server(certificate), submissions, shutdown);
    }
    if let (Some(listener), Some(certificate)) = (listener, config.serving_certificate.clone()) {
        let server = make_server(certificate);
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

/// Only on loopback, and only where somebody can be refused.
fn serve_manifests(
    tasks: &mut JoinSet<()>,
    server: server::Server,
    submissions: Arc<Submissions>,
    shutdown: &CancellationToken,
) {
    let config = server.config.clone();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, config.manifest_server_port));
    if config.always_allow && config.anonymous_auth {
        tracing::error!(%address, "no manifests are taken: everybody would be allowed to submit them");
        return;
    }
    let shutdown = shutdown.clone();
    tasks.spawn(async move {
        let starting = submissions.clone();
        let started = env::spawn_blocking(move || starting.start()).await;
        if let Ok(Err(error)) = started {
            tracing::error!(%error, "failed to read submitted manifests");
        }
        let served = match TcpListener::bind(address).await {
            Ok(listener) => {
                server.serve_manifests(listener, submissions, shutdown).await.map_err(|e| e.message.clone())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = served {
            tracing::error!(%address, error, "failed to serve submitted manifests");
        }
    });
}
