//! `bridge`: a bridge, a pair of links for the pod, and addresses from whichever plugin the configuration names.
//! Called by `mod`; `host_local` is asked directly, other address plugins are called as the programs they are.
//! Invariant: every name is derived from the owner, so DEL finds what a dead ADD left (test:
//! `upstreams_configurations_are_taken_as_they_are`).

use std::{
    collections::BTreeMap,
    io::Write,
    net::IpAddr,
    os::fd::AsRawFd,
    process::{Command, Stdio},
};

use ipnet::IpNet;
use serde_json::{Value, json};

use super::{Configuration, host_local, records, table, valid_owners};
use crate::{
    Request,
    attach::{everywhere, host_link_name, is_host_link, owner, quiet_interface},
    ipam::{self, Ipam},
    link::{Link, Links, mac_of},
    netns, nft, portmap,
    types::{AddResult, Error, Interface},
};

const MASQUERADED: &str = "masqueraded.json";

pub async fn run(request: &Request, conf: &Configuration, input: &str) -> Result<Option<Value>, Error> {
    match request.command.as_str() {
        "ADD" => {
            let outcome = add(request, conf, input).await;
            if outcome.is_err() {
                // The first failure is the one to report; what this cannot undo, DEL will.
                let _ = del(request, conf, input).await;
            }
            outcome.map(|result| Some(result.to_json(&conf.cni_version)))
        }
        "DEL" => del(request, conf, input).await.map(|()| None),
        "CHECK" => check(request, conf, input).await.map(|()| None),
        "GC" => collect_garbage(request, conf, input).await.map(|()| None),
        _ => nft::probe().map_err(|error| Error::plugin_not_available(error.message)).map(|()| None),
    }
}

async fn add(request: &Request, conf: &Configuration, input: &str) -> Result<AddResult, Error> {
    let owner = owner(request);
    let namespace = netns::open(&request.netns)?
        .ok_or_else(|| Error::new(3, format!("network namespace {} does not exist", request.netns)))?;
    let host = Links::open()?;
    let mtu = Some(conf.mtu).filter(|mtu| *mtu > 0);
    let bridge = host.ensure_bridge(&conf.bridge, bridge_mac(conf), mtu).await?;
    host.up(&bridge).await?;
    if conf.promisc_mode {
        host.set_promiscuous(&bridge).await?;
    }

    let mut result = addresses(request, conf, input)?;
    let gateways: Vec<Option<IpAddr>> = result.ips.iter().map(|(ip, gateway)| gateway_of(conf, ip, *gateway)).collect();
    for ((_, gateway), found) in result.ips.iter_mut().zip(&gateways) {
        *gateway = *found;
    }
    if conf.is_default_gateway {
        for (ip, gateway) in &result.ips {
            let default = everywhere(ip.addr());
            if !result.routes.iter().any(|(to, _)| *to == default) {
                result.routes.push((default, *gateway));
            }
        }
    }

    let name = host_link_name(&owner);
    host.delete(&name).await?;
    let mac = match (conf.requested_mac(request)?, result.ips.first()) {
        (Some(mac), _) => mac,
        (None, Some((ip, _))) => mac_of(ip.addr()),
        (None, None) => mac_from(&portmap::key(&owner)),
    };
    host.add_veth(&name, mtu, &owner.ifname, mac, namespace.as_raw_fd()).await?;
    let port = host.expect(&name).await?;
    host.plug(&port, &bridge, conf.hairpin_mode).await?;

    let inside = netns::within(&namespace, || {
        quiet_interface(&owner.ifname);
        Links::open()
    })?;
    let pod = inside.expect(&owner.ifname).await?;
    inside.up(&pod).await?;
    for (ip, _) in &result.ips {
        inside.add_address(&pod, *ip).await?;
    }
    for (to, via) in &result.routes {
        let own = result.ips.iter().find(|(ip, _)| ip.addr().is_ipv4() == to.addr().is_ipv4());
        inside.add_route(&pod, *to, via.or_else(|| own?.1)).await?;
    }
    if conf.gives_gateway() {
        for (ip, gateway) in &result.ips {
            be_gateway(&host, &bridge, conf, ip, *gateway).await?;
        }
    }
    if conf.ip_masq {
        let book = records(conf)?;
        let mut masqueraded = load_masqueraded(&book)?;
        masqueraded.insert(portmap::key(&owner), result.ips.iter().map(|(ip, _)| *ip).collect());
        save_masqueraded(&book, &masqueraded)?;
        masquerade(conf, &masqueraded).ensure_under(&book)?;
    }

    let describe = |link: &Link, sandbox: Option<&str>| Interface {
        name: link.name.clone(),
        mac: link.mac.clone(),
        mtu: Some(link.mtu),
        sandbox: sandbox.map(str::to_owned),
    };
    // Its hardware address may have come with the port.
    let bridge = host.expect(&conf.bridge).await?;
    result.interfaces = vec![describe(&bridge, None), describe(&port, None), describe(&pod, Some(&request.netns))];
    result.ip_interface = Some(2);
    if conf.dns.is_some() {
        result.dns.clone_from(&conf.dns);
    }
    Ok(result)
}

/// The gateway of an address: what the address plugin says, or the first of its network where the bridge is to be one.
fn gateway_of(conf: &Configuration, ip: &IpNet, said: Option<IpAddr>) -> Option<IpAddr> {
    said.or_else(|| conf.gives_gateway().then(|| ipam::gateway(ip)))
}

fn mac_from(text: &str) -> [u8; 6] {
    let [.., a, b, c, d] = nft::fnv(text).to_be_bytes();
    [0x0a, 0x58, a, b, c, d]
}

/// Fixed, so that it does not change as ports come and go.
fn bridge_mac(conf: &Configuration) -> [u8; 6] {
    mac_from(&format!("bridge {}", conf.bridge))
}

fn addresses(request: &Request, conf: &Configuration, input: &str) -> Result<AddResult, Error> {
    match conf.ipam.as_ref().map(|ipam| ipam.plugin.as_str()) {
        // A bridge of the second layer alone.
        None | Some("") => Ok(AddResult::default()),
        Some("host-local") => host_local::add(request, conf),
        Some(other) => {
            let result = delegate(other, input)?;
            let texts = |list: &Value, name: &str| list[name].as_str().map(str::to_owned);
            let list = |name: &str| result[name].as_array().cloned().unwrap_or_default();
            let ip = |value: &Value| {
                let address = texts(value, "address")?.parse().ok()?;
                Some((address, texts(value, "gateway").and_then(|gateway| gateway.parse().ok())))
            };
            let route = |value: &Value| {
                Some((texts(value, "dst")?.parse().ok()?, texts(value, "gw").and_then(|gateway| gateway.parse().ok())))
            };
            let ips: Vec<_> = list("ips").iter().filter_map(ip).collect();
            if ips.is_empty() {
                return Err(Error::internal(format!("IPAM plugin {other} returned missing IP config")));
            }
            let routes = list("routes").iter().filter_map(route).collect();
            Ok(AddResult { ips, routes, dns: result.get("dns").cloned(), ..AddResult::default() })
        }
    }
}

/// Another address plugin, found where the runtime says that plugins are, with our own environment and input.
fn delegate(plugin: &str, input: &str) -> Result<Value, Error> {
    let failed = |error: std::io::Error| Error::io(format!("failed to run the IPAM plugin {plugin}: {error}"));
    let path = std::env::var_os("CNI_PATH").unwrap_or_default();
    let program = std::env::split_paths(&path).map(|directory| directory.join(plugin)).find(|file| file.is_file());
    let program = program.filter(|_| !plugin.contains('/'));
    let program = program.ok_or_else(|| {
        Error::invalid_config(format!("failed to find plugin {plugin:?} in path {:?}", path.to_string_lossy()))
    })?;
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that reads nothing says so itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(answer);
    }
    let code = answer["code"].as_u64().and_then(|code| u32::try_from(code).ok()).unwrap_or(999);
    Err(Error::new(code, answer["msg"].as_str().unwrap_or("the IPAM plugin failed").to_owned()))
}

/// The bridge has the gateway's address, and the node forwards.
async fn be_gateway(
    host: &Links,
    bridge: &Link,
    conf: &Configuration,
    ip: &IpNet,
    gateway: Option<IpAddr>,
) -> Result<(), Error> {
    let Some(gateway) = gateway.and_then(|gateway| IpNet::new(gateway, ip.prefix_len()).ok()) else { return Ok(()) };
    let present = host.addresses(bridge).await?;
    let overlaps = |held: &&IpNet| held.contains(&gateway.trunc()) || gateway.contains(&held.trunc());
    if let Some(other) = present.iter().filter(overlaps).find(|held| **held != gateway) {
        if !conf.force_address {
            return Err(Error::invalid_config(format!(
                "{:?} already has an IP address different from {gateway}",
                conf.bridge
            )));
        }
        host.remove_address(bridge, *other).await?;
    }
    if !present.contains(&gateway) {
        host.add_address(bridge, gateway).await?;
    }
    match gateway.addr() {
        IpAddr::V4(_) => netns::sysctl("ipv4/ip_forward", "1"),
        IpAddr::V6(_) => netns::sysctl("ipv6/conf/all/forwarding", "1"),
    }
}

/// Whose addresses are masqueraded, by owner.
type Masqueraded = BTreeMap<String, Vec<IpNet>>;

fn load_masqueraded(book: &Ipam) -> Result<Masqueraded, Error> {
    match std::fs::read(book.dir().join(MASQUERADED)) {
        // Nothing of ours writes half a file; what can't be read is written anew by the next change.
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Masqueraded::new()),
        Err(error) => Err(Error::io(format!("failed to read {MASQUERADED} in {}: {error}", book.dir().display()))),
    }
}

fn save_masqueraded(book: &Ipam, all: &Masqueraded) -> Result<(), Error> {
    book.write(MASQUERADED, &json!(all).to_string())
}

fn masquerade(conf: &Configuration, all: &Masqueraded) -> nft::Rules {
    let pods: Vec<IpNet> = all.values().flatten().copied().collect();
    nft::masquerade_table(&table("masq", conf), &pods)
}

/// Safe to repeat, and after an ADD that died anywhere. The address goes last: until then nobody else gets it.
async fn del(request: &Request, conf: &Configuration, input: &str) -> Result<(), Error> {
    let owner = owner(request);
    Links::open()?.delete(&host_link_name(&owner)).await?;
    if conf.ip_masq {
        let book = records(conf)?;
        let mut masqueraded = load_masqueraded(&book)?;
        if masqueraded.remove(&portmap::key(&owner)).is_some() {
            masquerade(conf, &masqueraded).ensure_under(&book)?;
            save_masqueraded(&book, &masqueraded)?;
        }
    }
    match conf.ipam.as_ref().map(|ipam| ipam.plugin.as_str()) {
        None | Some("") => Ok(()),
        Some("host-local") => host_local::run(request, conf).map(drop),
        Some(other) => delegate(other, input).map(drop),
    }
}

async fn check(request: &Request, conf: &Configuration, input: &str) -> Result<(), Error> {
    let missing = |what: &str| Error::check_failed(format!("{what} is missing"));
    let owner = owner(request);
    match conf.ipam.as_ref().map(|ipam| ipam.plugin.as_str()) {
        None | Some("") => {}
        Some("host-local") => drop(host_local::held(request, conf)?),
        Some(other) => drop(delegate(other, input)?),
    }
    let host = Links::open()?;
    let bridge = host.find(&conf.bridge).await?.ok_or_else(|| missing(&conf.bridge))?;
    let name = host_link_name(&owner);
    let port = host.find(&name).await?.ok_or_else(|| missing(&name))?;
    if port.controller != Some(bridge.index) {
        return Err(Error::check_failed(format!("{name} is not a port of {}", conf.bridge)));
    }
    let namespace = netns::open(&request.netns)?.ok_or_else(|| missing(&request.netns))?;
    let inside = netns::within(&namespace, Links::open)?;
    let pod = inside.find(&owner.ifname).await?.ok_or_else(|| missing(&owner.ifname))?;
    let (present, routes) = (inside.addresses(&pod).await?, inside.routes(&pod).await?);
    let previous = conf.prev_result.clone().unwrap_or_default();
    let named = |list: &str, field: &str| -> Vec<IpNet> {
        let items = previous[list].as_array().into_iter().flatten();
        items.filter_map(|item| item[field].as_str()?.parse().ok()).collect()
    };
    if let Some(ip) = named("ips", "address").iter().find(|ip| !present.contains(ip)) {
        return Err(Error::check_failed(format!("{ip} is not on {}", owner.ifname)));
    }
    if let Some(to) = named("routes", "dst").iter().find(|to| !routes.iter().any(|(held, _)| held == *to)) {
        return Err(missing(&format!("the route to {to} through {}", owner.ifname)));
    }
    let book = records(conf)?;
    if conf.ip_masq && !masquerade(conf, &load_masqueraded(&book)?).present() {
        return Err(missing(&format!("masquerade in nftables table {}", table("masq", conf))));
    }
    Ok(())
}

/// Frees what belongs to no valid attachment of this network.
async fn collect_garbage(request: &Request, conf: &Configuration, input: &str) -> Result<(), Error> {
    let valid = valid_owners(conf)?;
    let names: Vec<String> = valid.iter().map(host_link_name).collect();
    let keys: Vec<String> = valid.iter().map(portmap::key).collect();
    let host = Links::open()?;
    if let Some(bridge) = host.find(&conf.bridge).await? {
        for link in host.all().await? {
            let ours = link.controller == Some(bridge.index) && is_host_link(&link.name);
            if ours && !names.contains(&link.name) {
                host.delete(&link.name).await?;
            }
        }
    }
    if conf.ip_masq {
        let book = records(conf)?;
        let mut masqueraded = load_masqueraded(&book)?;
        masqueraded.retain(|key, _| keys.contains(key));
        masquerade(conf, &masqueraded).ensure_under(&book)?;
        save_masqueraded(&book, &masqueraded)?;
    }
    match conf.ipam.as_ref().map(|ipam| ipam.plugin.as_str()) {
        None | Some("") => Ok(()),
        Some("host-local") => host_local::run(request, conf).map(drop),
        Some(other) => delegate(other, input).map(drop),
    }
}
