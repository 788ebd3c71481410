//! The service proxy as part of a node: what it is told, and who may ask it.
//! Started by `agent`, or by `commands` in a process of its own.
//! Rules are the crate `proxy`'s.

use std::net::{Ipv4Addr, SocketAddr};

use client::InformerFactory;
use env::Env;
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{host, instance::Instance, ports},
    components::Components,
    flags,
};

pub fn config(flags: &flags::Node, instance: &Instance, node_name: &str, pod_cidrs: &[IpNet]) -> proxy::ProxyConfig {
    // A node may be known by another address than the machine's own; ports are open on both.
    let mut node_addresses = flags.node_ip.clone();
    let own = [host::address(false), host::address(true)].into_iter().flatten();
    node_addresses.extend(own.filter(|own| !flags.node_ip.contains(own) && !own.is_loopback()));
    let mut config = proxy::ProxyConfig::new(proxy::NodeConfig {
        node_name: node_name.to_string(),
        node_addresses,
        localhost_node_ports: true,
        pod_cidrs: pod_cidrs.to_vec(),
        zone: None,
    });
    config.table = instance.proxy_table();
    let at = |address: Ipv4Addr, port: u16| (port != 0).then_some(SocketAddr::new(address.into(), port));
    config.healthz = at(Ipv4Addr::UNSPECIFIED, flags.proxy_healthz_port.unwrap_or(ports::PROXY_HEALTHZ_PORT));
    config.metrics = at(Ipv4Addr::LOCALHOST, flags.proxy_metrics_port.unwrap_or(ports::PROXY_METRICS_PORT));
    config
}

/// Lets a kubelet in another process ask what the rules hold.
pub fn answer_kubelet(config: &proxy::ProxyConfig, instance: &Instance, env: &Env, shutdown: &CancellationToken) {
    let (socket, applied_state) = (instance.proxy_socket(), config.applied_state.clone());
    let (task_env, until) = (env.clone(), shutdown.clone());
    env.spawn(async move {
        let served = until.run_until_cancelled(proxy::serve_applied_state(&socket, applied_state, task_env)).await;
        if let Some(Err(error)) = served {
            tracing::error!(%error, socket = %socket.display(), "kubelets can't ask about endpoints");
        }
    });
}

pub fn start(
    config: &proxy::ProxyConfig,
    env: &Env,
    shutdown: &CancellationToken,
    informers: &InformerFactory,
    components: &Components,
) {
    let running = proxy::run(config.clone(), informers.clone(), env.clone(), shutdown.clone());
    components.run("the service proxy", running);
}
