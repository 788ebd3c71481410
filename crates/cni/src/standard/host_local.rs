//! `host-local`: addresses from ranges, in a file each, in upstream's form and place.
//! Called by `bridge`, and by any plugin that delegates to it by name.
//! Knows nothing of links.

use std::{fs, net::IpAddr, path::Path};

use serde_json::{Value, json};

use super::{Configuration, records, valid_owners};
use crate::{
    Request,
    attach::owner,
    types::{AddResult, Error},
};

pub fn run(request: &Request, conf: &Configuration) -> Result<Option<Value>, Error> {
    match request.command.as_str() {
        "ADD" => add(request, conf).map(|result| Some(result.to_json(&conf.cni_version))),
        "DEL" => records(conf)?.release(&owner(request)).map(|_| None),
        "CHECK" => held(request, conf).map(|_| None),
        "GC" => {
            let valid = valid_owners(conf)?;
            let doomed = |holder: Option<&crate::ipam::Owner>| holder.is_none_or(|holder| !valid.contains(holder));
            records(conf)?.release_where(doomed).map(|_| None)
        }
        _ => conf.range_sets().map(|_| None),
    }
}

pub fn add(request: &Request, conf: &Configuration) -> Result<AddResult, Error> {
    let sets = conf.range_sets()?;
    let wanted = conf.requested_addresses(request)?;
    let nowhere = wanted.iter().find(|ip| !sets.iter().flatten().any(|range| range.contains(**ip)));
    if let Some(ip) = nowhere {
        return Err(Error::invalid_config(format!("failed to allocate all requested IPs: {ip} is in no range")));
    }
    let found = records(conf)?.allocate_from_sets(&sets, &wanted, &owner(request))?;
    let ipam = conf.ipam.as_ref();
    let ips = found.into_iter().map(|(ip, range)| (range.interface_address(ip), Some(range.gateway))).collect();
    let routes = ipam.into_iter().flat_map(|ipam| &ipam.routes).map(|route| (route.dst, route.gw)).collect();
    let dns = ipam.and_then(|ipam| ipam.resolv_conf.as_deref()).map(name_servers).transpose()?;
    Ok(AddResult { ips, routes, dns, ..AddResult::default() })
}

/// What the container holds; nothing is a failed check.
pub fn held(request: &Request, conf: &Configuration) -> Result<Vec<IpAddr>, Error> {
    let owner = owner(request);
    let entries = records(conf)?.entries()?;
    let held: Vec<IpAddr> = entries.into_iter().filter(|(_, holder)| *holder == owner).map(|(ip, _)| ip).collect();
    if held.is_empty() {
        let id = &owner.container_id;
        return Err(Error::check_failed(format!("host-local: Failed to find address added by container {id}")));
    }
    Ok(held)
}

/// The `resolvConf` file in the form of a result.
fn name_servers(file: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(file)
        .map_err(|error| Error::io(format!("failed to read resolvConf {}: {error}", file.display())))?;
    Ok(read_name_servers(&text))
}

fn read_name_servers(text: &str) -> Value {
    let (mut servers, mut domain, mut search, mut options) = (Vec::new(), None, Vec::new(), Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => servers.extend(words.next()),
            Some("domain") => domain = words.next(),
            Some("search") => search.extend(words),
            Some("options") => options.extend(words),
            _ => {}
        }
    }
    let mut dns = json!({ "nameservers": servers });
    if let Some(domain) = domain {
        dns["domain"] = json!(domain);
    }
    for (name, list) in [("search", search), ("options", options)] {
        if !list.is_empty() {
            dns[name] = json!(list);
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_of_a_file() {
        let text = "# here\nnameserver 192.0.2.53\nnameserver fd00::53\nsearch a.test b.test\noptions ndots:5\n";
        let expected = json!({
            "nameservers": ["192.0.2.53", "fd00::53"], "search": ["a.test", "b.test"], "options": ["ndots:5"],
        });
        assert_eq!(read_name_servers(text), expected);
    }
}
