//! The service proxy as part of a node: what it is told, and who may ask it.
//! Started by `agent`, or by `commands` in a process of its own.
//! Rules are the crate `proxy`'s.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result};
use client::InformerFactory;
use env::Env;
use ipnet::IpNet;
use nix::sys::socket::SockaddrStorage;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{host, instance::Instance, ports},
    components::Components,
    flags::{self, proxy_flags},
};

/// Where NodePorts answer: what this machine has in `networks`, or the primary addresses and 127.0.0.1.
fn node_port_addresses(networks: Option<&[IpNet]>, primary: &[IpAddr]) -> Result<(Vec<IpAddr>, bool)> {
    let Some(networks) = networks else { return Ok((primary.to_vec(), true)) };
    let interfaces = nix::ifaddrs::getifaddrs().context("failed to see this machine's addresses")?;
    let address = |storage: &SockaddrStorage| {
        let four = storage.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        four.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    };
    let own = interfaces.filter_map(|interface| address(&interface.address?));
    let inside = |ip: &IpAddr| networks.iter().any(|network| network.contains(ip));
    let chosen: BTreeSet<IpAddr> = own.filter(|ip| inside(ip) && !ip.is_loopback()).collect();
    Ok((chosen.into_iter().collect(), inside(&Ipv4Addr::LOCALHOST.into())))
}

pub fn config(
    flags: &flags::Node,
    instance: &Instance,
    node_name: &str,
    pod_cidrs: &[IpNet],
) -> Result<proxy::ProxyConfig> {
    let settings = proxy_flags::settings(flags)?;
    // A node may be known by another address than the machine's own; ports are open on both.
    let mut node_addresses = flags.node_ip.clone();
    let own = [host::address(false), host::address(true)].into_iter().flatten();
    node_addresses.extend(own.filter(|own| !flags.node_ip.contains(own) && !own.is_loopback()));
    let (node_port_addresses, localhost_node_ports) =
        node_port_addresses(settings.node_port_addresses.as_deref(), &node_addresses)?;
    let mut config = proxy::ProxyConfig::new(proxy::NodeConfig {
        node_name: node_name.to_string(),
        node_addresses,
        node_port_addresses,
        localhost_node_ports,
        masquerade_all: settings.masquerade_all,
        pod_cidrs: pod_cidrs.to_vec(),
        zone: None,
    });
    config.table = instance.proxy_table();
    let at = |address: Ipv4Addr, port: u16| (port != 0).then_some(SocketAddr::new(address.into(), port));
    config.healthz = at(Ipv4Addr::UNSPECIFIED, flags.proxy_healthz_port.unwrap_or(ports::PROXY_HEALTHZ_PORT));
    config.metrics = at(Ipv4Addr::LOCALHOST, flags.proxy_metrics_port.unwrap_or(ports::PROXY_METRICS_PORT));
    config.healthz = settings.healthz.unwrap_or(config.healthz);
    config.metrics = settings.metrics.unwrap_or(config.metrics);
    config.conntrack = Some(settings.conntrack);
    config.mode = settings.mode;
    config.iptables_sync_period = settings.iptables_sync_period.unwrap_or(config.iptables_sync_period);
    Ok(config)
}

/// Of both modes, as somebody may have changed it; a machine that has none of one is not asked for it.
pub async fn remove_rules(table: &str) -> Result<()> {
    let (nftables, iptables) = (proxy::remove(table).await, proxy::remove_iptables().await);
    match (nftables, iptables) {
        (Err(error), Err(_)) => Err(error).context("failed to remove the rules of Services"),
        _ => Ok(()),
    }
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
