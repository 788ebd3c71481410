//! The tables and their changes as the text of one nftables transaction.
//! Reads `changes`; fed to `nft -f -` by `run`.
//! Invariant: pure (tidy: `pure_files`). Every object is created before it is named and emptied before it is deleted; the
//! kernel refuses anything else.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use netfilter::Family;

use crate::{
    changes::{Changes, Key, SetKind, Value},
    isolation_class::DENY,
    model::Direction,
    policy_index::{ITSELF, map_name},
};

/// Where all begins.
pub const FORWARD: &str = "forward";

/// More on one line make `nft` slow.
const ELEMENTS_PER_COMMAND_MAX: usize = 4096;

fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// The whole tables, in place of whatever is there: old and new change over in one instant.
pub fn full_tables(everything: &Changes, table: &str) -> String {
    let mut text = String::new();
    for family in Family::ALL {
        let of = format!("{} {table}", family.word());
        // nftables 1.0.6 has no `destroy`: what is added for sure can be deleted for sure.
        let _ = writeln!(text, "add table {of}\ndelete table {of}\nadd table {of}");
        base(&mut text, family, &of);
    }
    text.push_str(&transaction(everything, table));
    text
}

/// Takes the tables away.
pub fn delete_tables(table: &str) -> String {
    Family::ALL.map(|family| format!("add table {0} {table}\ndelete table {0} {table}\n", family.word())).concat()
}

/// Routed packets alone: what the node itself sends to its pods, and they to it, no policy stops. Services are translated
/// before, so both ends are the real ones. An answer is judged by the call it answers, so no flow outlives its permission.
fn base(text: &mut String, family: Family, table: &str) {
    let (ip, address) = (family.word(), address_type(family));
    let mut line = |rule: String| {
        text.push_str(&rule);
        text.push('\n');
    };
    for direction in Direction::ALL {
        for reply in [false, true] {
            line(format!("add map {table} {} {{ type {address} : verdict; }}", map_name(direction, reply)));
        }
    }
    line(format!("add set {table} {ITSELF} {{ type {address} . {address}; }}"));
    line(format!("add chain {table} {DENY}"));
    // A connection that was allowed before is told; who comes anew hears nothing.
    line(format!("add rule {table} {DENY} ct state established meta l4proto tcp reject with tcp reset"));
    line(format!("add rule {table} {DENY} drop"));
    line(format!("add chain {table} reply"));
    line(format!("add rule {table} reply {ip} daddr vmap @{}", map_name(Direction::Egress, true)));
    line(format!("add rule {table} reply {ip} saddr vmap @{}", map_name(Direction::Ingress, true)));
    line(format!("add chain {table} {FORWARD} {{ type filter hook forward priority 0; }}"));
    // Errors about a flow that was allowed.
    line(format!("add rule {table} {FORWARD} ct state related accept"));
    line(format!("add rule {table} {FORWARD} {ip} saddr . {ip} daddr @{ITSELF} accept"));
    line(format!("add rule {table} {FORWARD} ct direction reply goto reply"));
    line(format!("add rule {table} {FORWARD} {ip} saddr vmap @{}", map_name(Direction::Egress, false)));
    line(format!("add rule {table} {FORWARD} {ip} daddr vmap @{}", map_name(Direction::Ingress, false)));
}

/// The changes, in an order the kernel accepts.
pub fn transaction(changes: &Changes, table: &str) -> String {
    let mut text = additions(changes, table);
    elements(&mut text, changes, table);
    text.push_str(&removals(changes, table));
    text
}

/// New sets and chains with their rules. Until an element names them they do nothing.
pub fn additions(changes: &Changes, table: &str) -> String {
    let mut text = String::new();
    for ((family, name), change) in &changes.sets {
        if let (None, Some(kind)) = change {
            let (ip, address) = (family.word(), address_type(*family));
            let of = match kind {
                SetKind::Addresses => address.to_owned(),
                SetKind::AddressPorts => format!("{address} . inet_proto . inet_service"),
            };
            let _ = writeln!(text, "add set {ip} {table} {name} {{ type {of}; }}");
        }
    }
    let new = || changes.chains.iter().filter_map(|(name, (_, after))| Some((name, after.as_ref()?)));
    for ((family, name), _) in new() {
        let _ = writeln!(text, "add chain {} {table} {name}", family.word());
    }
    for ((family, name), rules) in new() {
        for rule in rules.iter() {
            let _ = writeln!(text, "add rule {} {table} {name} {rule}", family.word());
        }
    }
    text
}

/// Chains and sets that no element names any more.
pub fn removals(changes: &Changes, table: &str) -> String {
    let mut text = String::new();
    let old: Vec<_> = changes.chains.iter().filter(|(_, (_, after))| after.is_none()).map(|(name, _)| name).collect();
    for verb in ["flush", "delete"] {
        for (family, name) in &old {
            let _ = writeln!(text, "{verb} chain {} {table} {name}", family.word());
        }
    }
    for ((family, name), change) in &changes.sets {
        if let (Some(_), None) = change {
            let _ = writeln!(text, "delete set {} {table} {name}", family.word());
        }
    }
    text
}

fn elements(text: &mut String, changes: &Changes, table: &str) {
    let mut old: BTreeMap<(Family, &Arc<str>), Vec<String>> = BTreeMap::new();
    let mut new: BTreeMap<(Family, &Arc<str>), Vec<String>> = BTreeMap::new();
    for ((family, set, key), (before, after)) in &changes.elements {
        if before.is_some() {
            old.entry((*family, set)).or_default().push(key_text(key));
        }
        if let Some(value) = after {
            new.entry((*family, set)).or_default().push(match value {
                Value::Member => key_text(key),
                Value::Jump(chain) => format!("{} : jump {chain}", key_text(key)),
            });
        }
    }
    for (verb, lists) in [("delete", old), ("add", new)] {
        for ((family, set), list) in lists {
            for some in list.chunks(ELEMENTS_PER_COMMAND_MAX) {
                let _ = writeln!(text, "{verb} element {} {table} {set} {{ {} }}", family.word(), some.join(", "));
            }
        }
    }
}

fn key_text(key: &Key) -> String {
    match key {
        Key::Address(ip) => ip.to_string(),
        Key::AddressPort(ip, protocol, port) => format!("{ip} . {} . {port}", protocol.name()),
        Key::Itself(ip) => format!("{ip} . {ip}"),
    }
}
