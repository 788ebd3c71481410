//! Whether the cluster's address ranges are free: of each other, and of the networks this machine is on.
//! Settled and checked before `up`, `server` and `agent` start anything.
//! A cluster keeps its ranges for life; a refusal is one line that says which flag to change.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use anyhow::{Result, bail};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    certificates::pki::write_private,
    cluster::{clusters::ClusterRecord, instance::Instance, members::switch},
    control_plane::server,
    flags::{self, Choice},
    network::pod_network,
};

/// An address of this machine with the network it is in, or a network that it has a route to.
#[derive(Debug, Clone)]
pub struct Local {
    pub interface: String,
    pub network: IpNet,
}

/// All of this machine's addresses and routes but those on interfaces that this cluster itself made. None with somebody else's
/// network plugin, whose interfaces we can't tell apart.
pub fn local(flags: &flags::Node, instance: &Instance) -> Result<Vec<Local>> {
    if flags.cni == Choice::None {
        return Ok(Vec::new());
    }
    let own = [instance.bridge(), instance.vxlan(), instance.node_bridge()];
    let mut found = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()?.filter(|i| !own.contains(&i.interface_name)) {
        let ip = |address: Option<&nix::sys::socket::SockaddrStorage>| -> Option<IpAddr> {
            let address = address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
        };
        let (Some(address), Some(mask)) = (ip(interface.address.as_ref()), ip(interface.netmask.as_ref())) else {
            continue;
        };
        if let Ok(network) = IpNet::with_netmask(address, mask) {
            found.push(Local { interface: interface.interface_name, network });
        }
    }
    for family in ["-4", "-6"] {
        let listed = switch::ip(&["-j", family, "route", "show", "table", "all"], "")?;
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap_or_default();
        found.extend(listed.iter().filter_map(route).filter(|route| !own.contains(&route.interface)));
    }
    Ok(found)
}

/// Where packets to somewhere else go, as a VPN or an administrator says. Routes to other nodes' pods are ours.
fn route(listed: &Value) -> Option<Local> {
    let text = |field: &str| listed[field].as_str().unwrap_or_default();
    let own = text("protocol") == pod_network::ROUTE_PROTOCOL.to_string();
    if own || ["local", "broadcast", "anycast", "multicast"].contains(&text("type")) {
        return None;
    }
    let to = text("dst");
    let network = to.parse().or_else(|_| to.parse::<IpAddr>().map(IpNet::from)).ok()?;
    Some(Local { interface: text("dev").into(), network })
}

/// Whom this machine asks for names.
pub fn name_servers() -> Vec<IpAddr> {
    dns::HostFiles::default().name_servers()
}

/// What a cluster has where no flags and no earlier start say otherwise.
pub const USUAL_PODS: &str = "10.244.0.0/16";
pub const USUAL_SERVICES: &str = "10.96.0.0/12";

/// The ranges a cluster was started with; the same ones count at the next start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    pub pods: Vec<IpNet>,
    pub services: Vec<IpNet>,
}

/// The ranges of the cluster in this data directory, if it was ever started.
pub fn kept(instance: &Instance) -> Option<Ranges> {
    let text = fs::read(file(instance)).ok();
    if let Some(kept) = text.and_then(|text| serde_json::from_slice(&text).ok()) {
        return Some(kept);
    }
    // From before ranges were written down.
    instance.store().exists().then(usual)
}

fn file(instance: &Instance) -> PathBuf {
    instance.data.join("ranges.json")
}

fn usual() -> Ranges {
    let range = |text: &str| vec![text.parse().expect("a constant")];
    Ranges { pods: range(USUAL_PODS), services: range(USUAL_SERVICES) }
}

/// Ranges to try for a cluster beside others: the usual ones first, then their neighbours of the same size.
fn candidates(usual: &str, others: impl Iterator<Item = u8>) -> Vec<Vec<IpNet>> {
    let usual: Ipv4Net = usual.parse().expect("a constant");
    let beside = others.map(|second| Ipv4Net::new(Ipv4Addr::new(10, second, 0, 0), usual.prefix_len()));
    std::iter::once(usual).chain(beside.flatten()).map(|range| vec![IpNet::V4(range)]).collect()
}

/// Fills in the ranges that no flag says: those of the last start, or the first that are free here.
pub fn settle(
    server: &mut flags::Server,
    instance: &Instance,
    local: &[Local],
    name_servers: &[IpAddr],
    others: &[ClusterRecord],
) -> Result<()> {
    let kept = kept(instance);
    let options = |given: &[IpNet], kept: Option<Vec<IpNet>>, candidates: Vec<Vec<IpNet>>| match (given, kept) {
        ([], None) => candidates,
        ([], Some(kept)) => vec![kept],
        (given, _) => vec![given.to_vec()],
    };
    let pods = candidates(USUAL_PODS, (240..=243).rev().chain(245..=255));
    let pods = options(&server.pod_cidr, kept.as_ref().map(|kept| kept.pods.clone()), pods);
    let services = candidates(USUAL_SERVICES, (112..=224).step_by(16));
    let services = options(&server.service_cidr, kept.map(|kept| kept.services), services);
    let fit = |pods: &[IpNet], services: &[IpNet]| {
        check(pods, services, local, name_servers).and_then(|()| check_beside(pods, services, others))
    };
    let mut pairs = pods.iter().flat_map(|pods| services.iter().map(move |services| (pods, services)));
    let free = pairs.find(|(pods, services)| fit(pods, services).is_ok());
    // Where nothing fits, what is wrong with the last is told: what a flag says is in the way of every choice.
    let (pods, services) = free.unwrap_or((&pods[pods.len() - 1], &services[services.len() - 1]));
    fit(pods, services)?;
    (server.pod_cidr, server.service_cidr) = (pods.clone(), services.clone());
    record(server, instance)
}

/// Fills them in for a control plane alone, on whose machine nothing has such addresses.
pub fn settle_apart(server: &mut flags::Server, instance: &Instance) -> Result<()> {
    let kept = kept(instance).unwrap_or_else(usual);
    if server.pod_cidr.is_empty() {
        server.pod_cidr = kept.pods;
    }
    if server.service_cidr.is_empty() {
        server.service_cidr = kept.services;
    }
    // A node of the cluster may be on this machine already, with its part of the pod range.
    check(&server.pod_cidr, &server.service_cidr, &[], &[])?;
    record(server, instance)
}

fn record(server: &flags::Server, instance: &Instance) -> Result<()> {
    let ranges = Ranges { pods: server.pod_cidr.clone(), services: server.service_cidr.clone() };
    write_private(&file(instance), &serde_json::to_string(&ranges)?)
}

fn overlaps(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Refuses ranges of other clusters on this machine: rules of both would be for the same addresses.
fn check_beside(pods: &[IpNet], services: &[IpNet], others: &[ClusterRecord]) -> Result<()> {
    for (flag, range) in pods.iter().map(|r| ("--pod-cidr", r)).chain(services.iter().map(|r| ("--service-cidr", r))) {
        for other in others {
            if let Some(taken) = other.pod_cidrs.iter().chain(&other.service_cidrs).find(|t| overlaps(t, range)) {
                bail!(
                    "{flag} {range} overlaps with {taken} of the cluster in {} on this machine: choose another range \
                     with {flag}",
                    other.data.display()
                );
            }
        }
    }
    Ok(())
}

/// Refuses ranges that overlap each other or hold addresses of this machine's networks or of its name servers.
pub fn check(pods: &[IpNet], services: &[IpNet], local: &[Local], name_servers: &[IpAddr]) -> Result<()> {
    for (flag, ranges) in [("--pod-cidr", pods), ("--service-cidr", services)] {
        let families = [
            ranges.iter().filter(|r| r.addr().is_ipv4()).count(),
            ranges.iter().filter(|r| r.addr().is_ipv6()).count(),
        ];
        if ranges.is_empty() || families.iter().any(|count| *count > 1) {
            bail!("{flag} takes one range, or one of each family for dual stack");
        }
    }
    for (pod, service) in pods.iter().flat_map(|pod| services.iter().map(move |service| (pod, service))) {
        if overlaps(pod, service) {
            bail!("--pod-cidr {pod} overlaps with --service-cidr {service}: choose another for one of them");
        }
    }
    for service in services {
        if !pods.iter().any(|pod| pod.addr().is_ipv4() == service.addr().is_ipv4()) {
            bail!(
                "no pod could serve at addresses of --service-cidr {service}: give --pod-cidr a range of that family too"
            );
        }
    }
    for (flag, range) in pods.iter().map(|r| ("--pod-cidr", r)).chain(services.iter().map(|r| ("--service-cidr", r))) {
        // A wider network around the range is no harm: the narrower route wins.
        if let Some(taken) =
            local.iter().find(|l| range.contains(&l.network.addr()) || range.contains(&l.network.trunc()))
        {
            bail!(
                "{flag} {range} overlaps with {} on this machine's interface {}: choose another range with {flag}",
                taken.network.trunc(),
                taken.interface
            );
        }
        // A machine may well ask the cluster's own.
        let own = server::dns_addresses(services)?;
        if let Some(server) = name_servers.iter().find(|server| range.contains(*server) && !own.contains(server)) {
            bail!("{flag} {range} holds {server}, this machine's name server: choose another range with {flag}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_in_use_are_refused() {
        let nets = |texts: &str| texts.split_whitespace().map(|t| t.parse().unwrap()).collect::<Vec<IpNet>>();
        let local = ["127.0.0.1/8", "192.168.1.5/24", "10.0.0.7/8", "fe80::1/64", "fd12::1/64"];
        let local: Vec<Local> = local.map(|t| Local { interface: "eth0".into(), network: t.parse().unwrap() }).to_vec();
        let check = |pods: &str, services: &str, expected: Option<&str>| match (
            check(&nets(pods), &nets(services), &local, &["10.100.0.2".parse().unwrap(), "fd02::a".parse().unwrap()]),
            expected,
        ) {
            (Ok(()), None) => {}
            (Err(error), Some(text)) => assert!(error.to_string().contains(text), "{error}"),
            (got, expected) => panic!("{pods} {services}: {got:?}, expected {expected:?}"),
        };
        check("10.244.0.0/16", "10.96.0.0/16", None);
        check("10.244.0.0/16 fd01::/48", "10.96.0.0/16 fd02::/112", None);
        check("fd01::/48", "fd02::/112", None);
        check("10.96.0.0/16", "10.96.0.0/12", Some("overlaps with --service-cidr 10.96.0.0/12"));
        check("192.168.0.0/16", "10.96.0.0/16", Some("choose another range with --pod-cidr"));
        check("10.244.0.0/16", "10.0.0.0/24", Some("eth0: choose another range with --service-cidr"));
        check("10.244.0.0/16 fd12::/48", "10.96.0.0/16", Some("fd12::/64"));
        check("10.244.0.0/16 10.245.0.0/16", "10.96.0.0/16", Some("one of each family"));
        check("fd01::/48", "10.96.0.0/16", Some("give --pod-cidr a range of that family"));
        check("10.244.0.0/16", "10.96.0.0/12", Some("holds 10.100.0.2, this machine's name server"));
        check("10.100.0.0/16", "10.96.0.0/16", Some("choose another range with --pod-cidr"));
        check("fd01::/48", "fd02::/120", None);
    }

    #[test]
    fn a_second_cluster_gets_ranges_of_its_own_and_keeps_them() {
        use clap::Parser;
        let flags = |arguments: &[&str]| {
            let flags = flags::Flags::try_parse_from(["minke", "up"].iter().chain(arguments)).expect("valid flags");
            let flags::Command::Up(up) = flags.command else { panic!("up") };
            up.server
        };
        let directory = tempfile::tempdir().unwrap();
        let instance = |name: &str| {
            let instance = Instance::new(&directory.path().join(name));
            fs::create_dir_all(&instance.data).unwrap();
            instance
        };
        let settled = |arguments: &[&str], instance: &Instance, others: &[ClusterRecord]| {
            let mut server = flags(arguments);
            settle(&mut server, instance, &[], &[], others).map(|()| {
                let list = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                format!("{} {}", list(&server.pod_cidr), list(&server.service_cidr))
            })
        };
        let record = |instance: &Instance| {
            let Ranges { pods, services } = kept(instance).unwrap();
            ClusterRecord { data: instance.data.clone(), pod_cidrs: pods, service_cidrs: services }
        };
        let (first, second, third) = (instance("first"), instance("second"), instance("third"));
        assert_eq!(settled(&[], &first, &[]).unwrap(), "10.244.0.0/16 10.96.0.0/12");
        let one = record(&first);
        assert_eq!(settled(&[], &second, std::slice::from_ref(&one)).unwrap(), "10.243.0.0/16 10.112.0.0/12");
        assert_eq!(settled(&[], &second, &[]).unwrap(), "10.243.0.0/16 10.112.0.0/12", "kept");
        let both = [one, record(&second)];
        let error = settled(&["--service-cidr", "10.100.0.0/16"], &third, &both).unwrap_err().to_string();
        assert!(error.contains("of the cluster in") && error.ends_with("with --service-cidr"), "{error}");
        assert_eq!(settled(&["--pod-cidr", "10.7.0.0/16"], &third, &both).unwrap(), "10.7.0.0/16 10.128.0.0/12");
        // One that was started before ranges were written down has the usual ones.
        let old = instance("old");
        fs::create_dir(old.store()).unwrap();
        assert!(settled(&[], &old, &both).is_err());
        assert_eq!(settled(&[], &old, &[]).unwrap(), "10.244.0.0/16 10.96.0.0/12");
    }

    #[test]
    fn routes_of_others_count() {
        let check = |listed: Value, expected: Option<&str>| {
            let found = route(&listed).map(|r| format!("{} {}", r.network, r.interface));
            assert_eq!(found.as_deref(), expected, "{listed}");
        };
        check(
            json!({ "dst": "10.100.0.0/16", "gateway": "10.8.0.1", "dev": "tun0", "flags": [] }),
            Some("10.100.0.0/16 tun0"),
        );
        check(json!({ "dst": "10.100.0.7", "dev": "wg0", "scope": "link" }), Some("10.100.0.7/32 wg0"));
        check(json!({ "type": "blackhole", "dst": "fd02::/64", "dev": "lo" }), Some("fd02::/64 lo"));
        check(json!({ "dst": "10.244.1.0/24", "dev": "eth0", "protocol": "77" }), None);
        check(json!({ "type": "local", "dst": "10.8.0.2", "dev": "tun0", "table": "local" }), None);
        check(json!({ "dst": "default", "dev": "eth0" }), None);
    }
}
