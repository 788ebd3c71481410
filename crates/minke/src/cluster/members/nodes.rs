//! Nodes on this machine after the first: what their agents are told.
//! Added by `up --nodes`; started and disturbed as any member (`mod.rs`).
//! Holds no state.

use std::path::Path;

use anyhow::Result;
use ipnet::IpNet;

use crate::{
    cluster::{
        instance::Instance,
        members::{Kind, Member, switch::Switch},
    },
    flags,
};

/// The names of the nodes after the first.
pub fn names(first: &str, nodes: u8) -> impl Iterator<Item = (u32, String)> + '_ {
    (2..=u32::from(nodes)).map(move |n| (n, format!("{first}-{n}")))
}

/// The namespace and cable of node `n` (2, 3, …) of a cluster whose API servers are at these addresses, and the record of
/// how its agent is started.
pub fn add(
    switch: &Switch,
    instance: &Instance,
    servers: &str,
    flags: &flags::Up,
    (n, name): (u32, &str),
) -> Result<Member> {
    let node = Member::new(instance, Kind::Node, name);
    switch.plug_in(&node.instance, n)?;
    let mut arguments = arguments(instance, &node.instance, servers, flags, name);
    let addresses = switch.addresses(n);
    let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    arguments.extend(["--node-ip".to_string(), listed.join(",")]);
    node.keep(addresses.first().copied().unwrap_or_else(|| switch.address_like(n, None)), arguments)?;
    Ok(node)
}

fn arguments(instance: &Instance, node: &Instance, servers: &str, flags: &flags::Up, name: &str) -> Vec<String> {
    let list = |cidrs: &[IpNet]| cidrs.iter().map(|c| c.to_string()).collect::<Vec<_>>().join(",");
    let path = |path: &Path| path.display().to_string();
    let mut arguments = vec!["agent".to_string()];
    let mut flag = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
    flag("data-dir", path(&node.data));
    flag("netns", path(&node.netns()));
    flag("server", servers.to_string());
    flag("token-file", path(&instance.join_token()));
    flag("ca-file", path(&instance.pki().join("ca.crt")));
    flag("node-name", name.to_string());
    for (name, port) in [
        ("kubelet-port", flags.node.kubelet_port),
        ("healthz-port", flags.node.healthz_port),
        ("proxy-healthz-port", flags.node.proxy_healthz_port),
        ("proxy-metrics-port", flags.node.proxy_metrics_port),
        ("dns-metrics-port", flags.node.dns_metrics_port),
    ] {
        if let Some(port) = port {
            flag(name, port.to_string());
        }
    }
    let gates = flags.server.security.features.feature_gates.flag();
    if !gates.is_empty() {
        flag("feature-gates", gates);
    }
    flag("cni", flags.node.cni.name().to_string());
    // A network of ours has a configuration per node; one of somebody else's is the machine's.
    let directories = [
        ("cni-conf-dir", &flags.node.cni_directories.cni_conf_dir),
        ("cni-bin-dir", &flags.node.cni_directories.cni_bin_dir),
    ];
    for (name, directory) in directories.into_iter().filter(|_| flags.node.cni == flags::Choice::None) {
        if let Some(directory) = directory {
            flag(name, path(directory));
        }
    }
    if let Some(enforcer) = flags.node.network_policy {
        flag("network-policy", enforcer.name().to_string());
    }
    flag("dns", flags.server.dns.name().to_string());
    flag("local-storage", flags.server.local_storage.name().to_string());
    flag("pod-network", flags.node.pod_network.name().to_string());
    flag("pod-cidr", list(&flags.server.pod_cidr));
    flag("service-cidr", list(&flags.server.service_cidr));
    flag("image-gc-high-threshold", flags.node.image_gc_high_threshold.to_string());
    if let Some(thresholds) = &flags.node.eviction_hard {
        flag("eviction-hard", thresholds.clone());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_first() {
        assert_eq!(names("a", 3).collect::<Vec<_>>(), [(2, "a-2".to_string()), (3, "a-3".to_string())]);
        assert_eq!(names("a", 1).count(), 0);
    }
}
