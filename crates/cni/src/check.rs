//! CHECK: whether everything that ADD made is still there.
//! Called by `attach`; names follow from the owner as they do there.
//! It changes nothing.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    Request,
    attach::{everywhere, host_link_name, owner},
    ipam::{self, Ipam, Owner},
    link::Links,
    netns, nft,
    portmap::{self, HostPorts},
    types::{Error, NetConf},
};

pub async fn check(request: &Request, conf: &NetConf) -> Result<(), Error> {
    let owner = owner(request);
    let held = addresses(conf, &owner)?;
    rules(conf, &owner, &held)?;
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
    let present = inside.addresses(&pod).await?;
    if let Some(ip) = held.iter().find(|ip| !present.iter().any(|net| net.addr() == **ip)) {
        return Err(Error::check_failed(format!("{ip} is not on {}", owner.ifname)));
    }
    let routes = inside.routes(&pod).await?;
    for gateway in conf.pod_cidrs.iter().map(ipam::gateway) {
        for route in [(IpNet::from(gateway), None), (everywhere(gateway), Some(gateway))] {
            if !routes.contains(&route) {
                return Err(missing(&format!("the route to {} through {}", route.0, owner.ifname)));
            }
        }
    }
    Ok(())
}

fn missing(what: &str) -> Error {
    Error::check_failed(format!("{what} is missing"))
}

/// In the order of the networks.
fn addresses(conf: &NetConf, owner: &Owner) -> Result<Vec<IpAddr>, Error> {
    let entries = Ipam::open(&conf.network_dir())?.entries()?;
    let held: Vec<IpAddr> = entries.into_iter().filter(|(_, holder)| holder == owner).map(|(ip, _)| ip).collect();
    let of = |network: &IpNet| held.iter().copied().find(|ip| network.contains(ip));
    let found: Vec<IpAddr> = conf.pod_cidrs.iter().filter_map(of).collect();
    if found.len() != conf.pod_cidrs.len() || found.len() != held.len() {
        return Err(Error::check_failed(format!("container {} holds addresses {held:?}", owner.container_id)));
    }
    Ok(found)
}

fn rules(conf: &NetConf, owner: &Owner, held: &[IpAddr]) -> Result<(), Error> {
    let ipam = Ipam::open(&conf.network_dir())?;
    if !nft::base(conf, &ipam.entries()?).present() {
        return Err(missing(&format!("masquerade in nftables table {}", conf.table)));
    }
    let ports = HostPorts::load(&ipam)?;
    let wanted = portmap::resolve(&conf.runtime_config.port_mappings, held)?;
    // Who does not say which ports there were does not ask about them.
    if !wanted.is_empty() && ports.owned_by(owner) != wanted {
        return Err(Error::check_failed(format!("host ports of container {} are another's", owner.container_id)));
    }
    if wanted.is_empty() || nft::host_ports(conf, &ports.all()).present() {
        Ok(())
    } else {
        Err(missing(&format!("host ports in nftables table {}", nft::ports_table(&conf.table))))
    }
}
