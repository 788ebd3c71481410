//! Changes as the text of one nftables transaction.
//! Reads `ruleset`; fed to `nft -f -` by `nft`.
//! Every object is created before it is named and emptied before it is deleted; the kernel refuses anything else.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    model::NodeConfig,
    rules::{Family, Frontend, Key, MARK, SHARED_BALANCERS_MAX, UNALLOCATED, Value},
    ruleset::{Changes, Ruleset},
};

/// Words of one family's table.
struct TableWords {
    table: String,
    ip: &'static str,
    address: &'static str,
}

fn words(family: Family, table: &str) -> TableWords {
    match family {
        Family::V4 => TableWords { table: format!("ip {table}"), ip: "ip", address: "ipv4_addr" },
        Family::V6 => TableWords { table: format!("ip6 {table}"), ip: "ip6", address: "ipv6_addr" },
    }
}

/// The whole table, in place of whatever is there: old and new change over in one instant. In pieces, as it is long.
pub fn full_tables(ruleset: &Ruleset, config: &NodeConfig, table: &str) -> impl Iterator<Item = String> {
    let mut text = String::new();
    for family in Family::ALL {
        let words = words(family, table);
        // nftables 1.0.6 has no `destroy`: what is added for sure can be deleted for sure.
        let _ = writeln!(text, "add table {0}\ndelete table {0}\nadd table {0}", words.table);
        base(&mut text, &words, family, config);
        // All at once: nftables 1.0.6 refuses to add a rule that uses `endpoints` once the map exists.
        for count in 1..=SHARED_BALANCERS_MAX {
            balancer(&mut text, &words, count, false);
            balancer(&mut text, &words, count, true);
        }
    }
    std::iter::once(text).chain(ruleset.everything().map(move |piece| transaction(&piece, table)))
}

/// Takes the tables away.
pub fn delete_tables(table: &str) -> String {
    Family::ALL.map(|family| format!("add table {0}\ndelete table {0}\n", words(family, table).table)).concat()
}

fn base(text: &mut String, words: &TableWords, family: Family, config: &NodeConfig) {
    let TableWords { table, ip, address } = words;
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    let frontend = format!("{ip} daddr . meta l4proto . th dport");
    line(format!("add map {table} services {{ type {address} . inet_proto . inet_service : verdict; }}"));
    line(format!("add map {table} unserved {{ type {address} . inet_proto . inet_service : verdict; }}"));
    line(format!("add map {table} endpoints {{ typeof {frontend} . numgen random mod 2 : {ip} daddr . th dport; }}"));
    line(format!("add set {table} cluster-ips {{ type {address}; }}"));
    line(format!("add set {table} hairpin {{ type {address} . {address}; }}"));
    for chain in ["refuse", "dispatch", "check", UNALLOCATED] {
        line(format!("add chain {table} {chain}"));
    }
    for (chain, hook) in [
        ("guard", "filter hook prerouting priority -300"),
        ("prerouting", "nat hook prerouting priority -100"),
        ("nat-output", "nat hook output priority -100"),
        ("postrouting", "nat hook postrouting priority 100"),
        ("input", "filter hook input priority 0"),
        ("forward", "filter hook forward priority 0"),
        ("output", "filter hook output priority 0"),
    ] {
        line(format!("add chain {table} {chain} {{ type {hook}; }}"));
    }
    // The kernel limits how many ICMP errors it sends; a client that asks often would wait instead of being refused.
    line(format!("add rule {table} refuse meta l4proto tcp reject with tcp reset"));
    line(format!("add rule {table} refuse reject"));
    if family == Family::V4 && config.localhost_node_ports {
        // route_localnet is on for NodePorts on 127.0.0.1; nobody else may use it.
        line(format!("add rule {table} guard iif != lo ip daddr 127.0.0.0/8 drop"));
    }
    let pods: Vec<String> = config
        .pod_cidrs
        .iter()
        .filter(|net| Family::of_ip(net.addr()) == family)
        .map(|net| net.trunc().to_string())
        .collect();
    if config.masquerade_all {
        line(format!("add rule {table} dispatch {ip} daddr @cluster-ips {MARK}"));
    } else if !pods.is_empty() {
        let pods = pods.join(", ");
        line(format!("add rule {table} dispatch {ip} daddr @cluster-ips {ip} saddr != {{ {pods} }} {MARK}"));
    }
    line(format!("add rule {table} dispatch {frontend} vmap @services"));
    line(format!("add rule {table} prerouting goto dispatch"));
    line(format!("add rule {table} nat-output goto dispatch"));
    // The mark is ours for one journey: taken off before the packet leaves.
    line(format!(
        "add rule {table} postrouting meta mark and 0x4000 != 0 meta mark set meta mark xor 0x4000 \
         masquerade fully-random"
    ));
    line(format!(
        "add rule {table} postrouting ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random"
    ));
    line(format!("add rule {table} check {frontend} vmap @unserved"));
    // A port that the Service does not have.
    line(format!("add rule {table} check {ip} daddr @cluster-ips goto refuse"));
    for chain in ["input", "forward", "output"] {
        line(format!("add rule {table} {chain} ct state new jump check"));
    }
    // Not at the input: an address of this very machine is somebody's.
    for chain in ["forward", "output"] {
        line(format!("add rule {table} {chain} ct state new goto {UNALLOCATED}"));
    }
}

/// The changes, in an order the kernel accepts.
pub fn transaction(changes: &Changes, table: &str) -> String {
    let mut text = String::new();
    for ((family, name), seconds) in &changes.new_affinity {
        let TableWords { table, address, .. } = words(*family, table);
        let _ =
            writeln!(text, "add set {table} {name} {{ type {address}; flags dynamic,timeout; timeout {seconds}s; }}");
    }
    for (family, name) in changes.new_chains.keys() {
        let _ = writeln!(text, "add chain {} {name}", words(*family, table).table);
    }
    for (family, name) in changes.changed_chains.keys().chain(&changes.old_chains) {
        let _ = writeln!(text, "flush chain {} {name}", words(*family, table).table);
    }
    for ((family, name), rules) in changes.new_chains.iter().chain(&changes.changed_chains) {
        for rule in rules {
            let _ = writeln!(text, "add rule {} {name} {rule}", words(*family, table).table);
        }
    }
    elements(&mut text, changes, table);
    for (family, name) in &changes.old_chains {
        let _ = writeln!(text, "delete chain {} {name}", words(*family, table).table);
    }
    for (family, name) in &changes.old_affinity {
        let _ = writeln!(text, "delete set {} {name}", words(*family, table).table);
    }
    text
}

/// One chain for all Services with `count` endpoints: the packet's own destination is the key. It matches no protocol:
/// who comes here has been found in `services`, and a set in each of these rules would be read by every `nft`.
fn balancer(text: &mut String, words: &TableWords, count: u32, masquerade: bool) {
    let TableWords { table, ip, .. } = words;
    let name = balancer_name(count, masquerade);
    let _ = writeln!(text, "add chain {table} {name}");
    if masquerade {
        let _ = writeln!(text, "add rule {table} {name} {MARK} goto {}", balancer_name(count, false));
    } else {
        let _ = writeln!(
            text,
            "add rule {table} {name} dnat {ip} to \
             {ip} daddr . meta l4proto . th dport . numgen random mod {count} map @endpoints"
        );
    }
}

/// The chain that all Services with `count` endpoints share.
pub fn balancer_name(count: u32, masquerade: bool) -> String {
    if masquerade { format!("masquerade-{count}") } else { format!("balance-{count}") }
}

fn elements(text: &mut String, changes: &Changes, table: &str) {
    let mut old: BTreeMap<(Family, &str), String> = BTreeMap::new();
    let mut new: BTreeMap<(Family, &str), String> = BTreeMap::new();
    for (key, (before, after)) in &changes.elements {
        let ((family, map), text) = (set_of(key), key_text(key));
        if before.is_some() {
            let list = old.entry((family, map)).or_default();
            list.push_str(&text);
            list.push_str(", ");
        }
        if let Some(value) = after {
            let list = new.entry((family, map)).or_default();
            list.push_str(&text);
            value_text(list, value);
            list.push_str(", ");
        }
    }
    for (verb, lists) in [("delete", old), ("add", new)] {
        for ((family, map), list) in lists {
            let list = list.trim_end_matches(", ");
            let _ = writeln!(text, "{verb} element {} {map} {{ {list} }}", words(family, table).table);
        }
    }
}

/// The map or set that a key is in.
pub fn set_of(key: &Key) -> (Family, &'static str) {
    match key {
        Key::Service(f) => (Family::of_ip(f.ip), "services"),
        Key::Unserved(f) => (Family::of_ip(f.ip), "unserved"),
        Key::Endpoint(f, _) => (Family::of_ip(f.ip), "endpoints"),
        Key::ClusterIp(ip) => (Family::of_ip(*ip), "cluster-ips"),
        Key::Hairpin(ip) => (Family::of_ip(*ip), "hairpin"),
    }
}

fn key_text(key: &Key) -> String {
    let frontend = |f: &Frontend| format!("{} . {} . {}", f.ip, f.protocol.name(), f.port);
    match key {
        Key::Service(f) | Key::Unserved(f) => frontend(f),
        Key::Endpoint(f, index) => format!("{} . {index}", frontend(f)),
        Key::ClusterIp(ip) => ip.to_string(),
        Key::Hairpin(ip) => format!("{ip} . {ip}"),
    }
}

fn value_text(text: &mut String, value: &Value) {
    let _ = match value {
        Value::Member => Ok(()),
        Value::Balance { count, masquerade } => write!(text, " : goto {}", balancer_name(*count, *masquerade)),
        Value::Chain(name) => write!(text, " : goto {name}"),
        Value::Target(target) => write!(text, " : {} . {}", target.ip, target.port),
        Value::Reject => write!(text, " : goto refuse"),
        Value::Drop => write!(text, " : drop"),
    };
}
