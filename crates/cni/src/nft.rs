//! The plugin's own nftables tables: masquerade for pods that leave the cluster, and host ports.
//! Used by `attach` and `cleanup`; the rules of Services are the proxy's, in another table.
//! Invariant: rules may be written again at any time; that is how a flushed table is repaired (test:
//! `what_a_stranger_deletes_is_restored`).

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Child, Command, Stdio},
};

use ipnet::IpNet;

use crate::{
    ipam::{Ipam, Owner},
    kernel_rules,
    portmap::HostPort,
    types::{Error, NetConf},
};

/// A table as it should be. Its last rule names the text, so the kernel can be asked whether all of it is there.
pub struct Rules {
    table: String,
    text: String,
    seal: String,
    /// Whether no rule at all is as good.
    optional: bool,
}

impl Rules {
    fn new(table: String, mut text: String, optional: bool) -> Self {
        let seal = format!("rules-{:016x}", fnv(&text));
        let _ = writeln!(text, "add chain inet {table} seal\nflush chain inet {table} seal");
        let _ = writeln!(text, "add rule inet {table} seal return comment \"{seal}\"");
        Self { table, text, seal, optional }
    }

    /// Whether the kernel has them: much cheaper than writing them.
    pub fn present(&self) -> bool {
        let Ok(rules) = kernel_rules::list(&self.table) else { return false };
        if rules.is_empty() {
            return self.optional;
        }
        let sealed = |rule: &Vec<u8>| rule.windows(self.seal.len()).any(|part| part == self.seal.as_bytes());
        let wanted = self.text.lines().filter(|line| line.starts_with("add rule ")).count();
        rules.len() >= wanted && rules.iter().any(sealed)
    }

    /// Begins to write them unless they are there. `nft` holds the lock as well: when we are killed, nobody goes on
    /// before it has ended, so rules come in the order of what the record says.
    pub fn start_under(&self, lock: &Ipam) -> Result<Option<Transaction>, Error> {
        if self.present() { Ok(None) } else { Transaction::start(&self.text, lock.shared()?).map(Some) }
    }

    /// Writes them, there or not.
    pub fn write_under(&self, lock: &Ipam) -> Result<(), Error> {
        Transaction::start(&self.text, lock.shared()?)?.finish()
    }

    /// The same, unless they are there.
    pub fn ensure_under(&self, lock: &Ipam) -> Result<(), Error> {
        if self.present() { Ok(()) } else { self.write_under(lock) }
    }
}

/// The table of the host ports, beside the one for everything else.
pub fn ports_table(table: &str) -> String {
    format!("{table}-ports")
}

/// Masquerade and the guard: all that does not change with the pods, but for those that still live in a range that the
/// node had before: `held` are the addresses in use. Replaces the table as a whole.
pub fn base(conf: &NetConf, held: &[(IpAddr, Owner)]) -> Rules {
    let former: BTreeSet<IpAddr> = held.iter().map(|(ip, _)| *ip).filter(|ip| !conf.has(ip)).collect();
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
    let networks = conf.pod_cidrs.iter().map(IpNet::trunc);
    for network in networks.chain(former.iter().map(|ip| IpNet::from(*ip))) {
        let (word, _) = words(network.addr());
        let inside = inside(conf, &former, network.addr().is_ipv4());
        line(format!("add rule {table} postrouting {word} saddr {network} {word} daddr != {{ {inside} }} masquerade"));
    }
    Rules::new(conf.table.clone(), text, false)
}

/// The destinations that see a pod's own address. Multicast is among them: its answers would not find back.
fn inside(conf: &NetConf, former: &BTreeSet<IpAddr>, ipv4: bool) -> String {
    let multicast: IpNet = if ipv4 { "224.0.0.0/4" } else { "ff00::/8" }.parse().expect("a constant");
    let networks = conf.pod_cidrs.iter().chain(&conf.cluster_cidrs).map(IpNet::trunc);
    let networks = networks.chain(former.iter().map(|ip| IpNet::from(*ip))).chain([multicast]);
    let networks: Vec<IpNet> = networks.filter(|net| net.addr().is_ipv4() == ipv4).collect();
    // nft refuses overlapping networks in a set.
    let disjoint: Vec<String> = IpNet::aggregate(&networks).iter().map(ToString::to_string).collect();
    disjoint.join(", ")
}

fn words(ip: IpAddr) -> (&'static str, &'static str) {
    if ip.is_ipv4() { ("ip", "4") } else { ("ip6", "6") }
}

/// All host ports of the node, in place of those that were there.
pub fn host_ports(conf: &NetConf, host_ports: &[HostPort]) -> Rules {
    host_port_table(ports_table(&conf.table), host_ports, false)
}

/// The same in a table of that name; `alone` where no other table of ours masquerades what comes from loopback.
pub fn host_port_table(name: String, host_ports: &[HostPort], alone: bool) -> Rules {
    let table = &format!("inet {name}");
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
        let flags = if alone { "flags interval; " } else { "" };
        line(format!("add set {table} hairpin{family} {{ type {address} . {address}; {flags}}}"));
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
    if alone {
        line(format!("add rule {table} postrouting ct status dnat ip saddr 127.0.0.0/8 masquerade"));
        line(format!("add chain {table} guard {{ type filter hook prerouting priority -300; }}"));
        line(format!("flush chain {table} guard\nadd rule {table} guard iifname != \"lo\" ip daddr 127.0.0.0/8 drop"));
    }
    // One pod may have several ports.
    let mut hairpins = BTreeSet::new();
    for port in host_ports {
        let (_, family) = words(port.pod_ip);
        let key = format!("{} . {}", port.protocol, port.host_port);
        let target = format!("{} . {}", port.pod_ip, port.container_port);
        let _ = match port.host_ip {
            Some(ip) => writeln!(text, "add element {table} hostip{family} {{ {ip} . {key} : {target} }}"),
            None => writeln!(text, "add element {table} hostport{family} {{ {key} : {target} }}"),
        };
        hairpins.insert((
            family,
            port.neighbours.map_or_else(|| port.pod_ip.to_string(), |net| net.to_string()),
            port.pod_ip,
        ));
    }
    for (family, from, to) in hairpins {
        let _ = writeln!(text, "add element {table} hairpin{family} {{ {from} . {to} }}");
    }
    Rules::new(name, text, host_ports.is_empty())
}

/// A transaction under way: started early, waited for at the end, so it runs beside the netlink work.
pub struct Transaction(Child);

impl Transaction {
    fn start(text: &str, stdout: Stdio) -> Result<Self, Error> {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(stdout)
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

/// Masquerade for pods of a network that somebody else's configuration describes: each by its own address, for all but its
/// network and multicast.
pub fn masquerade_table(name: &str, pods: &[IpNet]) -> Rules {
    let table = format!("inet {name}");
    let mut text = format!("add table {table}\ndelete table {table}\nadd table {table}\n");
    let _ = writeln!(text, "add chain {table} postrouting {{ type nat hook postrouting priority 100; }}");
    for pod in pods {
        let (word, _) = words(pod.addr());
        let multicast = if pod.addr().is_ipv4() { "224.0.0.0/4" } else { "ff00::/8" };
        let (ip, network) = (pod.addr(), pod.trunc());
        let _ = writeln!(
            text,
            "add rule {table} postrouting {word} saddr {ip} {word} daddr != {{ {network}, {multicast} }} masquerade"
        );
    }
    Rules::new(name.to_owned(), text, pods.is_empty())
}

/// Removes both tables; what is not there is fine.
pub fn delete_tables(table: &str) -> Result<(), Error> {
    let ports = ports_table(table);
    let text = format!(
        "add table inet {table}\ndelete table inet {table}\nadd table inet {ports}\ndelete table inet {ports}\n"
    );
    Transaction::start(&text, Stdio::null())?.finish()
}

/// Whether this machine takes rules at all.
pub fn probe() -> Result<(), Error> {
    let text = "add table inet minke-cni-probe\ndelete table inet minke-cni-probe\n";
    Transaction::start(text, Stdio::null())?.finish()
}

/// FNV-1a: stable for ever, which the standard hasher does not promise.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
