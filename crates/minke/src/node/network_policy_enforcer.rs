//! The enforcement of NetworkPolicy as part of a node: what it is told, and how the network plugin reaches it.
//! Started by `agent`, or by `commands` beside a service proxy in a process of its own.
//! Rules are the crate `network_policy`'s.

use client::InformerFactory;
use env::Env;
use metrics::Metrics;
use network_policy::{NetworkPolicyConfig, PodClaims};
use tokio_util::sync::CancellationToken;

use crate::{cluster::instance::Instance, components::Components};

pub fn start(
    instance: &Instance,
    node_name: &str,
    metrics: &Metrics,
    env: &Env,
    shutdown: &CancellationToken,
    informers: &InformerFactory,
    components: &Components,
) {
    let claims = PodClaims::default();
    let (socket, until) = (instance.policy_socket(), shutdown.clone());
    let served = claims.serve(&socket, env.clone());
    env.spawn(async move {
        if let Some(Err(error)) = until.run_until_cancelled(served).await {
            tracing::error!(%error, socket = %socket.display(), "no pod with a network of its own can start");
        }
    });
    let config = NetworkPolicyConfig {
        node_name: node_name.to_owned(),
        table: instance.policy_table(),
        claims,
        claims_directory: instance.policy_claims(),
        metrics: metrics.clone(),
    };
    let running = network_policy::run(config, informers.clone(), env.clone(), shutdown.clone());
    components.run("the enforcement of NetworkPolicies", running);
}
