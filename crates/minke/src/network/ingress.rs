//! The ingress as part of a cluster: its listeners, its addresses, and the line that says where it is.
//! Started by `up` beside the node, or by `commands` in a process of its own.
//! Routes and requests are the crate `ingress`'s.

use anyhow::{Context, Result};
use client::{Client, InformerFactory};
use env::Env;
use ingress::{AccessLog, IngressConfig};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::ports::IngressListeners, commands::report::Reporter, components::Components, flags::ingress_flags,
};

/// Bound to the role of the same name by the bootstrap policy.
pub const USER: &str = "minke:ingress";

/// Returns once requests are answered.
pub async fn start(
    taken: IngressListeners,
    flags: &ingress_flags::IngressPorts,
    mut config: IngressConfig,
    client: Client,
    (env, shutdown): (&Env, &CancellationToken),
    report: &Reporter,
    components: &Components,
) -> Result<()> {
    if let Some(path) = &flags.ingress_access_log {
        let log = AccessLog::open(path).with_context(|| format!("can't write to {}", path.display()))?;
        config.access_log = Some(log);
    }
    let summary = taken.summary();
    let informers = InformerFactory::new(client, env.clone(), shutdown.clone());
    let serving = ingress::start(taken.listeners, config, informers, env.clone(), shutdown.clone()).await?;
    components.run("the ingress", async move {
        serving.await;
        Ok::<_, std::convert::Infallible>(())
    });
    report.step(&summary);
    Ok(())
}
