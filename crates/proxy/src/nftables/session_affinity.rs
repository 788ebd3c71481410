//! Carries session affinity over a full write of the table: clients keep their endpoint when the proxy restarts.
//! Used by `run` just before it replaces everything.
//! Invariant: only sets that the new rules have get their clients back (test: `clients_of_known_sets_come_back`).

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, sync::Arc};

use netfilter::Nft;
use serde_json::Value;

use crate::{rules::Family, ruleset::Ruleset};

/// Clients of the sets that are in the kernel now, as commands to put behind the new table.
pub async fn saved_clients(nft: &Nft, ruleset: &Ruleset, table: &str) -> String {
    let mut wanted: BTreeMap<Family, Vec<Arc<str>>> = BTreeMap::new();
    for (_, rules) in ruleset.services() {
        for (family, name) in rules.affinity.keys() {
            wanted.entry(*family).or_default().push(name.clone());
        }
    }
    let mut text = String::new();
    for (family, names) in wanted {
        let word = family.word();
        // Nothing there yet is the usual case at a first start.
        let Ok(listed) = nft.run(&["-j", "list", "sets", word], None).await else { continue };
        text.push_str(&commands(&listed, &format!("{word} {table}"), table, &names));
    }
    text
}

fn commands(listed: &str, full_table: &str, table: &str, names: &[Arc<str>]) -> String {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let mut text = String::new();
    for set in listed["nftables"].as_array().into_iter().flatten().map(|entry| &entry["set"]) {
        let name = set["name"].as_str().unwrap_or_default();
        if set["table"] != table || !names.iter().any(|wanted| **wanted == *name) {
            continue;
        }
        let timeout = set["timeout"].as_u64().unwrap_or_default();
        let clients = set["elem"].as_array().into_iter().flatten().filter_map(|entry| {
            let client: IpAddr = entry["elem"]["val"].as_str()?.parse().ok()?;
            let left = entry["elem"]["expires"].as_u64().filter(|left| *left > 0)?;
            Some(format!("{client} timeout {timeout}s expires {left}s"))
        });
        let clients: Vec<String> = clients.collect();
        if !clients.is_empty() {
            let _ = writeln!(text, "add element {full_table} {name} {{ {} }}", clients.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_known_sets_come_back() {
        let listed = r#"{"nftables": [{"metainfo": {}}, {"set": {"family": "ip", "name": "ep/a", "table": "t",
            "timeout": 60, "elem": [{"elem": {"val": "10.0.0.1", "expires": 54}}, {"elem": {"val": "10.0.0.2", "expires": 0}}]}},
            {"set": {"name": "ep/gone", "table": "t", "timeout": 60, "elem": [{"elem": {"val": "10.0.0.3", "expires": 9}}]}},
            {"set": {"name": "ep/a", "table": "other", "timeout": 60, "elem": [{"elem": {"val": "10.0.0.4", "expires": 9}}]}}]}"#;
        let text = commands(listed, "ip t", "t", &[Arc::from("ep/a")]);
        assert_eq!(text, "add element ip t ep/a { 10.0.0.1 timeout 60s expires 54s }\n");
    }
}
