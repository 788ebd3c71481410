//! The node agent: runs the pods that are assigned to this node, and says how they are.
//! Reads and writes the API through `client`, drives containers through `cri`; started by `minke`. `wiring` puts the
//! rooms together: `sources` and `pod` (what to run, one worker per pod), `runtime`, `images` and `volumes` (how),
//! `resources` (what it may use), `node` and `stats` (what is told of it), `server` (who asks), `logs` and `files`.
//! One worker per pod; what decides (`pod_actions`, `pod_status`, `container_config`) is pure, what acts decides
//! nothing.

pub mod config;
pub mod configuration;
mod csi;
pub mod endpoint_drain;
mod exec_plugin;
mod files;
mod images;
mod logs;
mod node;
mod pod;
pub mod resources;
mod runtime;
pub mod server;
pub mod sources;
mod stats;
#[cfg(test)]
mod test_api;
#[cfg(test)]
mod test_programs;
mod volumes;
mod wiring;

use std::{net::SocketAddr, path::Path, sync::Arc};

use client::{Client, InformerFactory};
pub use config::{CgroupDriver, Config, DeadContainerLimits};
use cri::{RemoteRuntime, Runtime};
use env::Env;
use futures::future::BoxFuture;
pub use images::image_manager::credential_provider::{CredentialProviderConfigError, CredentialProviderSettings};
pub use pod::admission::hook::HookConfig;
use tokio_util::sync::CancellationToken;
pub use wiring::lock_file::LockFile;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to reach the container runtime at {endpoint}: {source}")]
    Runtime { endpoint: String, source: cri::Error },
    #[error("failed to prepare {path}: {source}")]
    Directory { path: String, source: std::io::Error },
    #[error("failed to make control groups: {0}")]
    Groups(std::io::Error),
    #[error("failed to listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("invalid configuration: {0}")]
    Config(String),
    #[error("failed to start the container manager: {0}")]
    ResourceManagers(String),
    #[error("this machine has no address; name one with --node-ip")]
    NoAddress,
}

/// Runs the node until `shutdown`. Containers keep running afterwards.
pub fn run(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let image = config.image_endpoint.as_deref().map(text);
    let runtime = RemoteRuntime::new(&text(&config.runtime_endpoint), image.as_deref());
    let runtime = Arc::new(runtime.with_limit(config.runtime_request_timeout));
    run_with(config, client, informers, env, runtime, shutdown)
}

/// As `run`, on any runtime.
pub fn run_with(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    runtime: Arc<dyn Runtime>,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(wiring::run(config, client, informers, env, runtime, shutdown))
}
