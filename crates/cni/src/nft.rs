//! The plugin's own nftables table: masquerade for pods that leave the cluster, and host ports, as one transaction.
//! Used by `attach` and `cleanup`; the rules of Services are the proxy's, in another table.
//! Invariant: both transactions may be applied again at any time; that is how a flushed table is repaired.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Child, Command, Stdio},
};

use ipnet::IpNet;

use crate::{
    portmap::HostPort,
    types::{Error, NetConf},
};

/// Table, sets and maps: what both transactions start with.
fn declarations(table: &str) -> String {
    let mut text = String::new();
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    line(format!("add table {table}"));
    for (family, address) in [("4", "ipv4_addr"), ("6", "ipv6_addr")] {
        line(format!("add set {table} hairpin{family} {{ type {address} . {address}; }}"));
        line(format!(
            "add map {table} hostport{family} {{ type inet_proto . inet_service : {address} . inet_service; }}"
        ));
        line(format!(
            "add map {table} hostip{family} {{ type {address} . inet_proto . inet_service : {address} . inet_service; }}"
        ));
    }
    text
}

/// Everything but the host ports themselves, which change under the lock.
pub fn base(conf: &NetConf) -> String {
    let table = format!("inet {}", conf.table);
    let bridge = &conf.bridge;
    let mut text = declarations(&table);
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    for (chain, hook) in [
        ("hostports", ""),
        ("guard", "{ type filter hook prerouting priority -300; }"),
        ("prerouting", "{ type nat hook prerouting priority -100; }"),
        ("output", "{ type nat hook output priority -100; }"),
        ("postrouting", "{ type nat hook postrouting priority 100; }"),
    ] {
        line(format!("add chain {table} {chain} {hook}"));
        line(format!("flush chain {table} {chain}"));
    }
    // Host ports on 127.0.0.1 need route_localnet on the bridge; this keeps pods from using it the other way.
    line(format!("add rule {table} guard iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop"));
    for chain in ["prerouting", "output"] {
        line(format!("add rule {table} {chain} fib daddr type local jump hostports"));
    }
    for (family, word) in [("4", "ip"), ("6", "ip6")] {
        let ports = format!("meta nfproto ipv{family} meta l4proto {{ tcp, udp, sctp }} dnat {word} to");
        line(format!("add rule {table} hostports {ports} {word} daddr . meta l4proto . th dport map @hostip{family}"));
        line(format!("add rule {table} hostports {ports} meta l4proto . th dport map @hostport{family}"));
        line(format!(
            "add rule {table} postrouting ct status dnat {word} saddr . {word} daddr @hairpin{family} masquerade"
        ));
    }
    line(format!("add rule {table} postrouting oifname \"{bridge}\" ip saddr 127.0.0.0/8 masquerade"));
    for network in &conf.pod_cidrs {
        let (word, _) = words(network.addr());
        let inside = inside(conf, network.addr().is_ipv4());
        let network = network.trunc();
        line(format!("add rule {table} postrouting {word} saddr {network} {word} daddr != {{ {inside} }} masquerade"));
    }
    text
}

/// The destinations that see a pod's own address. Multicast is among them: its answers would not find back.
fn inside(conf: &NetConf, ipv4: bool) -> String {
    let multicast: IpNet = if ipv4 { "224.0.0.0/4" } else { "ff00::/8" }.parse().expect("a constant");
    let networks = conf.pod_cidrs.iter().chain(&conf.cluster_cidrs).filter(|net| net.addr().is_ipv4() == ipv4);
    let networks: Vec<IpNet> = networks.map(IpNet::trunc).chain([multicast]).collect();
    // nft refuses overlapping networks in a set.
    let disjoint: Vec<String> = IpNet::aggregate(&networks).iter().map(ToString::to_string).collect();
    disjoint.join(", ")
}

fn words(ip: IpAddr) -> (&'static str, &'static str) {
    if ip.is_ipv4() { ("ip", "4") } else { ("ip6", "6") }
}

/// All host ports of the node, in place of those that were there.
pub fn host_ports(conf: &NetConf, host_ports: &[HostPort]) -> String {
    let table = &format!("inet {}", conf.table);
    let mut text = declarations(table);
    for family in ["4", "6"] {
        let _ = writeln!(text, "flush set {table} hairpin{family}");
        let _ = writeln!(text, "flush map {table} hostport{family}\nflush map {table} hostip{family}");
    }
    for port in host_ports {
        let (_, family) = words(port.pod_ip);
        let key = format!("{} . {}", port.protocol, port.host_port);
        let target = format!("{} . {}", port.pod_ip, port.container_port);
        let _ = match port.host_ip {
            Some(ip) => writeln!(text, "add element {table} hostip{family} {{ {ip} . {key} : {target} }}"),
            None => writeln!(text, "add element {table} hostport{family} {{ {key} : {target} }}"),
        };
        let _ = writeln!(text, "add element {table} hairpin{family} {{ {0} . {0} }}", port.pod_ip);
    }
    text
}

/// A transaction under way: started early, waited for at the end, so it runs beside the netlink work.
pub struct Transaction(Child);

impl Transaction {
    pub fn start(text: &str) -> Result<Self, Error> {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io(format!("failed to run nft (apt-get install nftables): {error}")))?;
        if let Some(mut input) = child.stdin.take() {
            // A child that died early says why on stderr; the broken pipe adds nothing.
            let _ = input.write_all(text.as_bytes());
        }
        Ok(Self(child))
    }

    pub fn finish(self) -> Result<(), Error> {
        let output =
            self.0.wait_with_output().map_err(|error| Error::io(format!("failed to wait for nft: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::io(format!("failed to apply nftables rules: {}", said.trim())))
    }
}

/// Removes a table; one that is not there is fine.
pub fn delete_table(table: &str) -> Result<(), Error> {
    Transaction::start(&format!("add table inet {table}\ndelete table inet {table}\n"))?.finish()
}
