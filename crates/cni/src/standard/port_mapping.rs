//! `portmap`: ports of the node lead to a pod whose addresses an earlier plugin of the list gave.
//! Called by `mod`; the record is `crate::portmap`'s, the rules are `nft`'s, in a table of the network's own.
//! A port has one owner: the last container that asked for it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Configuration, link_bandwidth::host_end, records, table, valid_owners};
use crate::{
    Request,
    attach::owner,
    conntrack,
    ipam::Ipam,
    netns, nft,
    portmap::{self, HostPort, HostPorts},
    types::Error,
};

pub async fn run(request: &Request, conf: &Configuration) -> Result<Option<Value>, Error> {
    match request.command.as_str() {
        "ADD" => {
            let previous = previous_result(conf)?;
            let ports = wanted(conf, previous)?;
            if !ports.is_empty() {
                if ports.iter().any(|port| port.pod_ip.is_ipv4()) {
                    route_loopback(request).await?;
                }
                let book = records(conf)?;
                let mut all = HostPorts::load(&book)?;
                all.set(&owner(request), ports);
                all.save(&book)?;
                rules(conf, &all).ensure_under(&book)?;
                conntrack::forget(all.owned_by(&owner(request)));
            }
            Ok(Some(previous.clone()))
        }
        "DEL" => {
            let book = records(conf)?;
            let mut all = HostPorts::load(&book)?;
            let freed = all.remove(&owner(request));
            free(conf, &book, &all, &freed).map(|()| None)
        }
        "GC" => {
            let keys: Vec<String> = valid_owners(conf)?.iter().map(portmap::key).collect();
            let book = records(conf)?;
            let mut all = HostPorts::load(&book)?;
            let freed = all.retain(|owner| keys.iter().any(|key| key == owner));
            free(conf, &book, &all, &freed).map(|()| None)
        }
        "CHECK" => check(request, conf).map(|()| None),
        _ => nft::probe().map_err(|error| Error::plugin_not_available(error.message)).map(|()| None),
    }
}

/// What the earlier plugins of the list made.
pub fn previous_result(conf: &Configuration) -> Result<&Value, Error> {
    conf.prev_result.as_ref().ok_or_else(|| Error::invalid_config("must be called as chained plugin"))
}

fn rules(conf: &Configuration, ports: &HostPorts) -> nft::Rules {
    nft::host_port_table(table("portmap", conf), &ports.all(), true)
}

/// The rules go before the record of them: whoever comes after a failure knows what is left to do.
fn free(conf: &Configuration, book: &Ipam, left: &HostPorts, freed: &[HostPort]) -> Result<(), Error> {
    rules(conf, left).ensure_under(book)?;
    if freed.is_empty() {
        return Ok(());
    }
    conntrack::forget(freed);
    left.save(book)
}

/// The ports that the runtime asks for, at the pod's first address of each family.
fn wanted(conf: &Configuration, previous: &Value) -> Result<Vec<HostPort>, Error> {
    if conf.runtime_config.port_mappings.is_empty() {
        return Ok(Vec::new());
    }
    let listed = previous["ips"].as_array().into_iter().flatten();
    let networks: Vec<IpNet> = listed.filter_map(|ip| ip["address"].as_str()?.parse().ok()).collect();
    let first = |ipv4: bool| networks.iter().find(move |net| net.addr().is_ipv4() == ipv4);
    let addresses: Vec<IpAddr> = [true, false].into_iter().filter_map(first).map(IpNet::addr).collect();
    let mut ports = portmap::resolve(&conf.runtime_config.port_mappings, &addresses)?;
    if conf.snat != Some(false) {
        for port in &mut ports {
            port.neighbours = networks.iter().find(|net| net.addr() == port.pod_ip).map(IpNet::trunc);
        }
    }
    Ok(ports)
}

/// Ports on 127.0.0.1 lead out of the node's end of the pod's link, or of the bridge that it is plugged into.
async fn route_loopback(request: &Request) -> Result<(), Error> {
    let Some(namespace) = netns::open(&request.netns)? else { return Ok(()) };
    let end = host_end(request, &namespace).await?;
    let links = crate::link::Links::open()?.all().await?;
    let bridge = links.into_iter().find(|link| Some(link.index) == end.controller);
    netns::sysctl_if_present(&format!("ipv4/conf/{}/route_localnet", bridge.unwrap_or(end).name), "1");
    Ok(())
}

fn check(request: &Request, conf: &Configuration) -> Result<(), Error> {
    let ports = wanted(conf, previous_result(conf)?)?;
    let book = records(conf)?;
    let all = HostPorts::load(&book)?;
    if ports.is_empty() || (all.owned_by(&owner(request)) == ports && rules(conf, &all).present()) {
        return Ok(());
    }
    Err(Error::check_failed(format!("host ports of container {} are missing", request.container_id)))
}
