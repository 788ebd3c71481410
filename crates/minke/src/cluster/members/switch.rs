//! The switch between the members of a cluster on one machine, and the cables that lead to it.
//! Made by `up`, used by the members (`mod.rs`), removed by `down`.
//! Every name follows from a member's data directory, so that what was made is always found again.

use std::{
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use env::Env;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{instance::Instance, members::Kind},
    flags,
    network::nft_repair,
};

/// How far from the end of the range the servers begin, and then etcd.
const SERVERS_END: u32 = 20;
const ETCD_END: u32 = 10;

/// The switch between the nodes, with the host itself as the first of them.
#[derive(Debug)]
pub struct Switch {
    cidr: Ipv4Net,
    /// Where pods have addresses of IPv6, nodes have them too.
    six: Option<Ipv6Net>,
    /// Those of the pods, in their order, as whether it is IPv6.
    families: Vec<bool>,
    bridge: String,
    table: String,
    rules: String,
}

impl Switch {
    pub fn new(table: &str, bridge: &str, cidr: Ipv4Net, pod_cidrs: &[IpNet]) -> Self {
        let six = pod_cidrs.iter().any(|c| c.addr().is_ipv6()).then(|| six_beside(cidr));
        let own = [Some(IpNet::V4(cidr)), six.map(IpNet::V6)];
        let rules = own.into_iter().flatten().map(|own| rules(table, bridge, own, pod_cidrs)).collect();
        let families = pod_cidrs.iter().map(|c| c.addr().is_ipv6()).collect();
        Self { cidr, six, families, bridge: bridge.into(), table: table.into(), rules }
    }

    /// Makes it, and lets what is behind it out into the world.
    pub fn create(instance: &Instance, flags: &flags::Up) -> Result<Self> {
        let cidr = flags.node_cidr.unwrap_or_else(|| default_range(&instance.id)).trunc();
        let wanted = usize::from(flags.nodes) + if flags.servers > 1 { SERVERS_END as usize } else { 0 };
        if cidr.hosts().count() < wanted {
            bail!("--node-cidr {cidr} is too small for {} nodes and {} servers", flags.nodes, flags.servers);
        }
        if flags.server.bind_address.is_loopback() {
            bail!("other nodes can't reach an API server on {}: leave out --bind-address", flags.server.bind_address);
        }
        let bridge = instance.node_bridge();
        for range in flags.server.pod_cidr.iter().chain(&flags.server.service_cidr) {
            if range.contains(&IpNet::V4(cidr)) || IpNet::V4(cidr).contains(range) {
                bail!("--node-cidr {cidr} overlaps with {range} of pods or Services: choose another");
            }
        }
        refuse_overlap(cidr, &bridge)?;
        let switch = Self::new(&instance.nodes_table(), &bridge, cidr, &flags.server.pod_cidr);
        let mut batch = String::new();
        if !exists(&bridge) {
            batch += &format!("link add {bridge} type bridge\n");
        }
        batch += &format!("address replace {}/{} dev {bridge}\n", switch.host(), cidr.prefix_len());
        if let Some(six) = switch.six_of(1) {
            batch += &format!("address replace {six} dev {bridge} nodad\n");
        }
        batch += &format!("link set {bridge} up\n");
        ip(&["-batch", "-"], &batch)?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("failed to let packets through this machine")?;
        if switch.six.is_some() {
            let path = "/proc/sys/net/ipv6/conf/all/forwarding";
            fs::write(path, "1").context("failed to let packets through this machine")?;
        }
        nft(&switch.rules)?;
        Ok(switch)
    }

    /// Writes the rules anew whenever somebody else has deleted them. Runs until shutdown.
    pub fn keep_rules(&self, env: &Env, shutdown: &CancellationToken) -> impl Future<Output = ()> + use<> {
        let (table, rules) = (self.table.clone(), self.rules.clone());
        let families = if self.six.is_some() { &["ip", "ip6"][..] } else { &["ip"] };
        let restore = move || {
            let there = |family: &&str| {
                let rules = feed("nft", "nftables", &["list", "chain", family, &table, "postrouting"], "");
                rules.is_ok_and(|rules| rules.contains("masquerade"))
            };
            if families.iter().all(there) { Ok(false) } else { nft(&rules).map(|()| true) }
        };
        nft_repair::repair_on_change(vec![self.table.clone()], restore, env.clone(), shutdown.clone())
    }

    /// The host's address on the switch: the first.
    fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn address(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.cidr.network()) + n)
    }

    fn six_of(&self, n: u32) -> Option<Ipv6Net> {
        let six = self.six?;
        let address = Ipv6Addr::from(u128::from(six.network()) + u128::from(n));
        Ipv6Net::new(address, six.prefix_len()).ok()
    }

    /// All of node `n`: one of each family that pods have.
    pub fn addresses(&self, n: u32) -> Vec<IpAddr> {
        let of = |six: &bool| match six {
            true => self.six_of(n).map(|six| six.addr().into()),
            false => Some(self.address(n).into()),
        };
        self.families.iter().filter_map(of).collect()
    }

    /// Where the host is reached by those whose addresses are like `range`.
    pub fn host_like(&self, range: Option<&IpNet>) -> Option<IpAddr> {
        let six = range.is_some_and(|range| range.addr().is_ipv6());
        self.addresses(1).into_iter().find(|address| address.is_ipv6() == six)
    }

    /// Where a member is on the switch: nodes from its beginning, servers and etcd from its end, so that none moves when there
    /// are more of the others.
    pub fn place(&self, kind: Kind, number: u32) -> u32 {
        let last = u32::from(self.cidr.broadcast()) - u32::from(self.cidr.network()) - 1;
        match kind {
            Kind::Node => number,
            Kind::Server => last - SERVERS_END + number,
            Kind::Etcd => last - ETCD_END + number,
        }
    }

    /// The address of the `n`th that is like `range`.
    pub fn address_like(&self, n: u32, range: Option<&IpNet>) -> IpAddr {
        let six = range.filter(|range| range.addr().is_ipv6()).and_then(|_| self.six_of(n));
        six.map_or_else(|| self.address(n).into(), |six| six.addr().into())
    }

    /// The namespace and cable of the `n`th.
    pub fn plug_in(&self, member: &Instance, n: u32) -> Result<()> {
        let (id, cable) = (&member.id, member.cable());
        if !member.netns().exists() {
            ip(&["netns", "add", id], "")?;
        }
        if !exists(&cable) {
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", id], "")?;
        }
        ip(&["link", "set", &cable, "master", &self.bridge, "up"], "")?;
        // A node port may lead back to the node that asks; where bridges pass through netfilter, that is decided in here.
        ip(&["link", "set", &cable, "type", "bridge_slave", "hairpin", "on"], "")?;
        let (address, prefix, host) = (self.address(n), self.cidr.prefix_len(), self.host());
        ip(
            &["-n", id, "-batch", "-"],
            &format!(
                "link set lo up\naddress replace {address}/{prefix} dev eth0\nlink set eth0 up\n\
                 route replace default via {host}\n"
            ),
        )?;
        if let (Some(own), Some(host)) = (self.six_of(n), self.six_of(1)) {
            ip(&["-n", id, "address", "replace", &own.to_string(), "dev", "eth0", "nodad"], "")?;
            ip(&["-6", "-n", id, "route", "replace", "default", "via", &host.addr().to_string()], "")?;
        }
        Ok(())
    }
}

/// Takes away the namespace and the cable.
pub fn unplug(member: &Instance) -> Result<()> {
    for (there, arguments) in [
        (exists(&member.cable()), ["link", "del", &member.cable()]),
        (member.netns().exists(), ["netns", "del", &member.id]),
    ] {
        if there {
            ip(&arguments, "")?;
        }
    }
    Ok(())
}

/// Takes away the switch itself.
pub fn remove(instance: &Instance) -> Result<()> {
    let bridge = instance.node_bridge();
    if exists(&bridge) {
        ip(&["link", "del", &bridge], "")?;
    }
    let table = instance.nodes_table();
    let gone = |family: &str| format!("add table {family} {table}\ndelete table {family} {table}\n");
    nft(&(gone("ip") + &gone("ip6")))
}

/// 198.18.0.0/15 is set aside for tests of networks: no other machine is in there.
fn default_range(id: &str) -> Ipv4Net {
    let hash = Sha256::digest(id.as_bytes());
    let address = Ipv4Addr::new(198, 18 + (hash[0] & 1), hash[1], 0);
    Ipv4Net::new(address, 24).expect("24 is a prefix length")
}

/// A range of local addresses (RFC 4193) that follows from the other family's.
fn six_beside(cidr: Ipv4Net) -> Ipv6Net {
    let hash = Sha256::digest(cidr.to_string());
    let part = |n: usize| u16::from_be_bytes([hash[n], hash[n + 1]]);
    let address = Ipv6Addr::new(0xfd00 | u16::from(hash[6]), part(0), part(2), part(4), 0, 0, 0, 0);
    Ipv6Net::new(address, 64).expect("64 is a prefix length")
}

/// Pods and nodes see each other's own addresses; only the rest of the world sees this machine's.
fn rules(table: &str, bridge: &str, own: IpNet, pod_cidrs: &[IpNet]) -> String {
    let family = if own.addr().is_ipv4() { "ip" } else { "ip6" };
    let inside = pod_cidrs.iter().filter(|c| c.addr().is_ipv4() == own.addr().is_ipv4()).map(ToString::to_string);
    let inside: Vec<String> = inside.chain([own.to_string()]).collect();
    format!(
        "add table {family} {table}\ndelete table {family} {table}\ntable {family} {table} {{ chain postrouting {{\n\
         type nat hook postrouting priority srcnat; policy accept;\n{family} saddr {own} {family} daddr != {{ {} }} \
         oifname != \"{bridge}\" fib daddr type != local masquerade\n}}\n}}\n",
        inside.join(", ")
    )
}

fn refuse_overlap(cidr: Ipv4Net, own: &str) -> Result<()> {
    for interface in nix::ifaddrs::getifaddrs()?.filter(|i| i.interface_name != own) {
        let address = interface.address.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip());
        let mask = interface.netmask.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip());
        let (Some(address), Some(mask)) = (address, mask) else { continue };
        let Ok(network) = Ipv4Net::with_netmask(address, mask) else { continue };
        if network.contains(&cidr.network()) || cidr.contains(&address) {
            bail!("--node-cidr {cidr} overlaps with {network} on {}: choose another", interface.interface_name);
        }
    }
    Ok(())
}

pub fn exists(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

pub fn is_up(interface: &str) -> bool {
    let mut all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.any(|i| i.interface_name == interface && i.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
}

pub fn ip(arguments: &[&str], input: &str) -> Result<String> {
    feed("ip", "iproute2", arguments, input)
}

fn nft(input: &str) -> Result<()> {
    feed("nft", "nftables", &["-f", "-"], input).map(drop)
}

fn feed(program: &str, package: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("failed to run {program}: apt-get install {package}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that gave up early says why on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        bail!("{program} {} failed: {said}", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_from_the_instance() {
        let outer: Ipv4Net = "198.18.0.0/15".parse().unwrap();
        let range = default_range("minke");
        assert!(outer.contains(&range));
        assert_eq!(range, default_range("minke"));
        assert_ne!(range, default_range("mk012345"));
        let switch = |pods: &[&str]| {
            let pods: Vec<IpNet> = pods.iter().map(|p| p.parse().unwrap()).collect();
            Switch::new("t", "b", "198.18.7.0/24".parse().unwrap(), &pods)
        };
        let six = switch(&["fd01::/48"]).addresses(3);
        assert!(six.len() == 1 && six[0].is_ipv6(), "{six:?}");
        let four: IpAddr = "198.18.7.3".parse().unwrap();
        assert_eq!(switch(&["10.244.0.0/16"]).addresses(3), [four]);
        assert_eq!(switch(&["fd01::/48", "10.244.0.0/16"]).addresses(3), [six[0], four]);
        let places = [Kind::Node, Kind::Server, Kind::Etcd].map(|kind| {
            let switch = switch(&["10.244.0.0/16"]);
            switch.addresses(switch.place(kind, 3))[0].to_string()
        });
        assert_eq!(places, ["198.18.7.3", "198.18.7.237", "198.18.7.247"]);
        let loopback = refuse_overlap("127.0.0.0/24".parse().unwrap(), "own").unwrap_err();
        assert!(loopback.to_string().contains("--node-cidr"), "{loopback}");
    }
}
