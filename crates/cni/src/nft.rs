//! The plugin's own nftables tables: masquerade for pods that leave the cluster, and host ports.
//! Used by `attach` and `cleanup`; the rules of Services are the proxy's, in another table.
//! Invariant: both transactions may be applied again at any time; that is how a flushed table is repaired.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    os::fd::AsRawFd,
    process::{Child, Command, Stdio},
};

use ipnet::IpNet;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use crate::{
    portmap::HostPort,
    types::{Error, NetConf},
};

/// The table of the host ports, beside the one for everything else.
fn ports_table(table: &str) -> String {
    format!("{table}-ports")
}

/// Masquerade and the guard: all that does not change with the pods. Replaces the table as a whole.
pub fn base(conf: &NetConf) -> String {
    let table = format!("inet {}", conf.table);
    let bridge = &conf.bridge;
    let mut text = format!("add table {table}\ndelete table {table}\nadd table {table}\n");
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    line(format!("add chain {table} guard {{ type filter hook prerouting priority -300; }}"));
    // Host ports on 127.0.0.1 need route_localnet on the bridge; this keeps pods from using it the other way.
    line(format!("add rule {table} guard iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop"));
    line(format!("add chain {table} postrouting {{ type nat hook postrouting priority 100; }}"));
    line(format!("add rule {table} postrouting oifname \"{bridge}\" ip saddr 127.0.0.0/8 masquerade"));
    for network in &conf.pod_cidrs {
        let (word, _) = words(network.addr());
        let inside = inside(conf, network.addr().is_ipv4());
        let network = network.trunc();
        line(format!("add rule {table} postrouting {word} saddr {network} {word} daddr != {{ {inside} }} masquerade"));
    }
    let marker = marker(&text);
    text.push_str(&format!("add chain {table} {marker}\n"));
    text
}

/// An empty chain whose name says which rules are in the table: looking for it is much cheaper than writing them.
fn marker(text: &str) -> String {
    format!("rules-{:016x}", fnv(text))
}

/// Writes the base rules unless they are there.
pub fn ensure_base(conf: &NetConf) -> Result<Option<Transaction>, Error> {
    let text = base(conf);
    let marker = text.trim_end().rsplit(' ').next().unwrap_or_default();
    if chain_exists(&conf.table, marker) {
        return Ok(None);
    }
    Transaction::start(&text).map(Some)
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
    let table = &format!("inet {}", ports_table(&conf.table));
    let mut text = String::new();
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    line(format!("add table {table}"));
    for (chain, hook) in [
        ("hostports", ""),
        ("prerouting", "{ type nat hook prerouting priority -100; }"),
        ("output", "{ type nat hook output priority -100; }"),
        ("postrouting", "{ type nat hook postrouting priority 100; }"),
    ] {
        line(format!("add chain {table} {chain} {hook}"));
        line(format!("flush chain {table} {chain}"));
    }
    for chain in ["prerouting", "output"] {
        line(format!("add rule {table} {chain} fib daddr type local jump hostports"));
    }
    for (family, word, address) in [("4", "ip", "ipv4_addr"), ("6", "ip6", "ipv6_addr")] {
        let target = format!("{address} . inet_service");
        line(format!("add set {table} hairpin{family} {{ type {address} . {address}; }}"));
        line(format!("add map {table} hostport{family} {{ type inet_proto . inet_service : {target}; }}"));
        line(format!("add map {table} hostip{family} {{ type {address} . inet_proto . inet_service : {target}; }}"));
        line(format!("flush set {table} hairpin{family}"));
        line(format!("flush map {table} hostport{family}\nflush map {table} hostip{family}"));
        let ports = format!("meta nfproto ipv{family} meta l4proto {{ tcp, udp, sctp }} dnat {word} to");
        line(format!("add rule {table} hostports {ports} {word} daddr . meta l4proto . th dport map @hostip{family}"));
        line(format!("add rule {table} hostports {ports} meta l4proto . th dport map @hostport{family}"));
        line(format!(
            "add rule {table} postrouting ct status dnat {word} saddr . {word} daddr @hairpin{family} masquerade"
        ));
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

/// Removes both tables; what is not there is fine.
pub fn delete_tables(table: &str) -> Result<(), Error> {
    let ports = ports_table(table);
    let text = format!(
        "add table inet {table}\ndelete table inet {table}\nadd table inet {ports}\ndelete table inet {ports}\n"
    );
    Transaction::start(&text)?.finish()
}

/// FNV-1a: stable for ever, which the standard hasher does not promise.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Asks the kernel directly: a hundredth of the time that `nft` takes. No answer counts as no.
fn chain_exists(table: &str, chain: &str) -> bool {
    const GET_CHAIN: u16 = 10 << 8 | 4;
    const NEW_CHAIN: u16 = 10 << 8 | 3;
    const FAMILY_INET: u8 = 1;
    let mut body = vec![FAMILY_INET, 0, 0, 0];
    for (kind, name) in [(1_u16, table), (3, chain)] {
        body.extend(((4 + name.len() + 1) as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(name.as_bytes());
        body.push(0);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend(((16 + body.len()) as u32).to_ne_bytes());
    message.extend(GET_CHAIN.to_ne_bytes());
    // NLM_F_REQUEST, and a sequence number and sender that the kernel only repeats.
    message.extend(1_u16.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let asked = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)
        .and_then(|socket| {
            send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
            let mut answer = [0; 4096];
            recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            Ok(u16::from_ne_bytes([answer[4], answer[5]]))
        });
    asked == Ok(NEW_CHAIN)
}
