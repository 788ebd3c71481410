//! Whether the cluster's address ranges are free: of each other, and of the networks this machine is on.
//! Checked before `up`, `server` and `agent` start anything.
//! Invariant: looks only; a refusal is one line that says which flag to change.

use std::net::IpAddr;

use anyhow::{Result, bail};
use ipnet::IpNet;

use crate::{
    flags::{self, Choice},
    instance::Instance,
};

/// An address of this machine with the network it is in.
#[derive(Debug, Clone)]
pub struct Local {
    pub interface: String,
    pub network: IpNet,
}

/// All of this machine's addresses but those on interfaces that this cluster itself made. None with somebody else's
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
    Ok(found)
}

/// Refuses ranges that overlap each other or hold addresses of this machine's networks.
pub fn check(pods: &[IpNet], services: &[IpNet], local: &[Local]) -> Result<()> {
    let overlaps = |a: &IpNet, b: &IpNet| a.contains(&b.network()) || b.contains(&a.network());
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
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_use_are_refused() {
        let nets = |texts: &str| texts.split_whitespace().map(|t| t.parse().unwrap()).collect::<Vec<IpNet>>();
        let local = ["127.0.0.1/8", "192.168.1.5/24", "10.0.0.7/8", "fe80::1/64", "fd12::1/64"];
        let local: Vec<Local> = local.map(|t| Local { interface: "eth0".into(), network: t.parse().unwrap() }).to_vec();
        let check = |pods: &str, services: &str, expected: Option<&str>| match (
            check(&nets(pods), &nets(services), &local),
            expected,
        ) {
            (Ok(()), None) => {}
            (Err(error), Some(text)) => assert!(error.to_string().contains(text), "{error}"),
            (got, expected) => panic!("{pods} {services}: {got:?}, expected {expected:?}"),
        };
        check("10.244.0.0/16", "10.96.0.0/12", None);
        check("10.244.0.0/16 fd01::/48", "10.96.0.0/12 fd02::/112", None);
        check("10.96.0.0/16", "10.96.0.0/12", Some("overlaps with --service-cidr 10.96.0.0/12"));
        check("192.168.0.0/16", "10.96.0.0/12", Some("choose another range with --pod-cidr"));
        check("10.244.0.0/16", "10.0.0.0/24", Some("eth0: choose another range with --service-cidr"));
        check("10.244.0.0/16 fd12::/48", "10.96.0.0/12", Some("fd12::/64"));
        check("10.244.0.0/16 10.245.0.0/16", "10.96.0.0/12", Some("one of each family"));
    }
}
