//! The CNI verbs: ADD, DEL, CHECK, GC, STATUS, for pods and for `loopback`.
//! Called by `lib`; puts `ipam`, `link`, `portmap` and `nft` in order.
//! Invariant: ADD writes the owner down before it makes anything, and every name is derived from the owner (test:
//! `death_in_the_middle_leaks_nothing`).

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    os::fd::AsRawFd,
    path::Path,
};

use ipnet::IpNet;
use serde_json::Value;

use crate::{
    Request, check, conntrack,
    ipam::{self, Ipam, Owner},
    link::{Link, Links, mac_of},
    netns, nft,
    policy_claim::PolicyClaim,
    portmap::{self, HostPort, HostPorts},
    types::{AddResult, Attachment, Error, Interface, NetConf},
};

pub fn dispatch(request: &Request, conf: &NetConf) -> Result<Option<Value>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Error::io(format!("failed to start a runtime: {error}")))?;
    runtime.block_on(async {
        if conf.plugin == "loopback" {
            return loopback(request, conf).await;
        }
        match request.command.as_str() {
            "ADD" => add(request, conf).await.map(|result| Some(result.to_json(&conf.cni_version))),
            "DEL" => del(request, conf).await.map(|()| None),
            "CHECK" => check::check(request, conf).await.map(|()| None),
            "GC" => collect_garbage(conf).await.map(|()| None),
            _ => status(conf).await.map(|()| None),
        }
    })
}

/// Makes the bridge with its addresses and the base rules before the first pod comes.
pub fn prepare(conf: &NetConf) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Error::io(format!("failed to start a runtime: {error}")))?;
    runtime.block_on(async { ensure_bridge(&Links::open()?, conf).await })?;
    let ipam = Ipam::open(&conf.network_dir())?;
    nft::base(conf, &ipam.entries()?).write_under(&ipam)?;
    runtime.block_on(async { leave_former_ranges(&Links::open()?, conf, &ipam).await })?;
    // Pods that outlived the agent keep their host ports, whatever happened to the rules; others lose them.
    let ports = HostPorts::load(&ipam)?.all();
    let rules = nft::host_ports(conf, &ports);
    if ports.is_empty() { rules.ensure_under(&ipam) } else { rules.write_under(&ipam) }
}

/// Writes the rules that are not as they should be; whether there were any.
pub fn restore(conf: &NetConf) -> Result<bool, Error> {
    let ipam = Ipam::open(&conf.network_dir())?;
    let base = nft::base(conf, &ipam.entries()?);
    let lost_base = !base.present();
    if lost_base {
        base.write_under(&ipam)?;
    }
    let ports = nft::host_ports(conf, &HostPorts::load(&ipam)?.all());
    let lost_ports = !ports.present();
    if lost_ports {
        ports.write_under(&ipam)?;
    }
    Ok(lost_base || lost_ports)
}

/// Who holds addresses, each once.
pub fn attachments(network_dir: &Path) -> Result<Vec<Attachment>, Error> {
    let entries = Ipam::open(network_dir)?.entries()?;
    let holders: BTreeSet<_> = entries.into_iter().map(|(_, owner)| (owner.container_id, owner.ifname)).collect();
    Ok(holders.into_iter().map(|(container_id, ifname)| Attachment { container_id, ifname }).collect())
}

pub fn owner(request: &Request) -> Owner {
    Owner { container_id: request.container_id.clone(), ifname: request.ifname.clone() }
}

/// The host's end of the pair: short enough for the kernel, and found again without any state.
pub fn host_link_name(owner: &Owner) -> String {
    format!("veth{:010x}", nft::fnv(&portmap::key(owner)) >> 24)
}

/// Whether a name may be one of ours; somebody may plug a link of their own into the bridge.
pub fn is_host_link(name: &str) -> bool {
    name.strip_prefix("veth").is_some_and(|rest| rest.len() == 10 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

async fn add(request: &Request, conf: &NetConf) -> Result<AddResult, Error> {
    let outcome = try_add(request, conf).await;
    if outcome.is_err() {
        // The first failure is the one to report; what this cannot undo, DEL or GC will.
        let _ = del(request, conf).await;
    }
    outcome
}

async fn try_add(request: &Request, conf: &NetConf) -> Result<AddResult, Error> {
    let owner = owner(request);
    let namespace = netns::open(&request.netns)?
        .ok_or_else(|| Error::new(3, format!("network namespace {} does not exist", request.netns)))?;
    let (addresses, transaction) = reserve(conf, &owner)?;
    let claim = PolicyClaim::send(request, conf, &addresses)?;

    let host = Links::open()?;
    let bridge = ensure_bridge(&host, conf).await?;
    let name = host_link_name(&owner);
    host.delete(&name).await?;
    host.add_veth(&name, conf.mtu, &owner.ifname, mac_of(addresses[0]), namespace.as_raw_fd()).await?;
    let port = host.expect(&name).await?;

    let inside = netns::within(&namespace, || {
        quiet_interface(&owner.ifname);
        Links::open()
    })?;
    let lo = inside.expect("lo").await?;
    inside.up(&lo).await?;
    let pod = inside.expect(&owner.ifname).await?;
    inside.up(&pod).await?;
    let mut result = AddResult { ip_interface: Some(2), ..AddResult::default() };
    for (network, address) in conf.pod_cidrs.iter().zip(&addresses) {
        let gateway = ipam::gateway(network);
        inside.add_address(&pod, IpNet::from(*address)).await?;
        // Everything goes through the gateway, pods next door too: replies then pass the node's connection
        // tracking and a Service works without br_netfilter.
        inside.add_route(&pod, IpNet::from(gateway), None).await?;
        inside.add_route(&pod, everywhere(gateway), Some(gateway)).await?;
        result.ips.push((IpNet::from(*address), Some(gateway)));
        result.routes.push((everywhere(gateway), Some(gateway)));
    }
    conf.runtime_config.bandwidth.limit(&name, &owner.ifname, &namespace)?;
    host.plug(&port, &bridge, true).await?;
    if let Some(transaction) = transaction {
        transaction.finish()?;
    }
    claim.wait()?;

    let describe = |link: &Link, sandbox: Option<&str>| Interface {
        name: link.name.clone(),
        mac: link.mac.clone(),
        mtu: Some(link.mtu),
        sandbox: sandbox.map(str::to_owned),
    };
    result.interfaces = vec![describe(&bridge, None), describe(&port, None), describe(&pod, Some(&request.netns))];
    Ok(result)
}

/// Addresses and host ports, written down; the rules for them under way.
fn reserve(conf: &NetConf, owner: &Owner) -> Result<(Vec<IpAddr>, Option<nft::Transaction>), Error> {
    let ipam = Ipam::open(&conf.network_dir())?;
    let addresses = ipam.allocate(&conf.pod_cidrs, owner)?;
    let mut ports = HostPorts::load(&ipam)?;
    let wanted = portmap::resolve(&conf.runtime_config.port_mappings, &addresses)?;
    if wanted != ports.owned_by(owner) {
        ports.set(owner, wanted);
        ports.save(&ipam)?;
    }
    nft::host_ports(conf, &ports.all()).ensure_under(&ipam)?;
    conntrack::forget(ports.owned_by(owner));
    let base = nft::base(conf, &ipam.entries()?).start_under(&ipam)?;
    Ok((addresses, base))
}

pub fn everywhere(like: IpAddr) -> IpNet {
    let any = if like.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    any.parse().expect("a constant")
}

async fn ensure_bridge(host: &Links, conf: &NetConf) -> Result<Link, Error> {
    let gateways: Vec<IpNet> = conf
        .pod_cidrs
        .iter()
        .filter_map(|network| IpNet::new(ipam::gateway(network), network.prefix_len()).ok())
        .collect();
    let bridge = host.ensure_bridge(&conf.bridge, mac_of(gateways[0].addr()), conf.mtu).await?;
    let present = host.addresses(&bridge).await?;
    if gateways.iter().all(|gateway| present.contains(gateway)) {
        return Ok(bridge);
    }
    refuse_clash(host, conf, Some(bridge.index)).await?;
    let name = &conf.bridge;
    for gateway in &gateways {
        if gateway.addr().is_ipv4() {
            netns::sysctl("ipv4/ip_forward", "1")?;
        } else {
            netns::sysctl("ipv6/conf/all/forwarding", "1")?;
            netns::sysctl_if_present(&format!("ipv6/conf/{name}/accept_dad"), "0");
        }
    }
    netns::sysctl_if_present(&format!("ipv4/conf/{name}/send_redirects"), "0");
    netns::sysctl_if_present(&format!("ipv4/conf/{name}/route_localnet"), "1");
    host.up(&bridge).await?;
    // Last: an address on the bridge is the sign that the rest is done.
    for gateway in gateways {
        host.add_address(&bridge, gateway).await?;
    }
    Ok(bridge)
}

/// A node that was deleted and made again has other ranges, and the former may be another node's: the bridge leaves them
/// with their last pod.
async fn leave_former_ranges(host: &Links, conf: &NetConf, ipam: &Ipam) -> Result<(), Error> {
    let Some(bridge) = host.find(&conf.bridge).await? else { return Ok(()) };
    let held = ipam.entries()?;
    for address in host.addresses(&bridge).await? {
        let network = address.trunc();
        let ours = address.addr() == ipam::gateway(&network) && conf.cluster_cidrs.iter().any(|c| c.contains(&network));
        let used = conf.pod_cidrs.contains(&network) || held.iter().any(|(ip, _)| network.contains(ip));
        if ours && !used {
            host.remove_address(&bridge, address).await?;
        }
    }
    Ok(())
}

/// A range in which the node itself lives can't be the pods'.
async fn refuse_clash(host: &Links, conf: &NetConf, bridge: Option<u32>) -> Result<(), Error> {
    for (holder, address) in host.all_addresses().await? {
        let clash = conf.pod_cidrs.iter().find(|net| net.contains(&address) && net.network() != address);
        if let Some(network) = clash.filter(|_| Some(holder) != bridge) {
            return Err(Error::invalid_config(format!(
                "pod network {network} is in use: the node has {address} on another interface"
            )));
        }
    }
    Ok(())
}

/// Pods neither listen to routers nor to redirects, and their link-local address is usable at once.
pub fn quiet_interface(ifname: &str) {
    for scope in ["all", "default", ifname] {
        netns::sysctl_if_present(&format!("ipv4/conf/{scope}/accept_redirects"), "0");
        netns::sysctl_if_present(&format!("ipv6/conf/{scope}/accept_redirects"), "0");
    }
    netns::sysctl_if_present(&format!("ipv6/conf/{ifname}/accept_ra"), "0");
    netns::sysctl_if_present(&format!("ipv6/conf/{ifname}/accept_dad"), "0");
    netns::sysctl_if_present(&format!("ipv6/conf/{ifname}/disable_ipv6"), "0");
}

/// Safe to repeat, and after an ADD that died anywhere. The address goes last: until then nobody else gets it.
async fn del(request: &Request, conf: &NetConf) -> Result<(), Error> {
    let owner = owner(request);
    let host = Links::open()?;
    host.delete(&host_link_name(&owner)).await?;
    let ipam = Ipam::open(&conf.network_dir())?;
    let mut ports = HostPorts::load(&ipam)?;
    let freed = ports.remove(&owner);
    free_ports(conf, &ipam, &ports, &freed)?;
    let freed = ipam.release(&owner)?;
    after_release(&host, conf, &ipam, &freed).await
}

/// What was kept only for pods of a former range goes with them.
async fn after_release(host: &Links, conf: &NetConf, ipam: &Ipam, freed: &[IpAddr]) -> Result<(), Error> {
    if freed.iter().all(|ip| conf.has(ip)) {
        return Ok(());
    }
    nft::base(conf, &ipam.entries()?).ensure_under(ipam)?;
    leave_former_ranges(host, conf, ipam).await
}

/// The rules go before the record of them: whoever comes after a failure knows what is left to do.
fn free_ports(conf: &NetConf, ipam: &Ipam, left: &HostPorts, freed: &[HostPort]) -> Result<(), Error> {
    nft::host_ports(conf, &left.all()).ensure_under(ipam)?;
    if freed.is_empty() {
        return Ok(());
    }
    conntrack::forget(freed);
    left.save(ipam)
}

/// Frees what belongs to no valid attachment of this network.
async fn collect_garbage(conf: &NetConf) -> Result<(), Error> {
    let Some(valid) = &conf.valid_attachments else {
        return Err(Error::invalid_config("GC needs cni.dev/valid-attachments"));
    };
    let valid: Vec<Owner> =
        valid.iter().map(|a| Owner { container_id: a.container_id.clone(), ifname: a.ifname.clone() }).collect();
    let names: HashSet<String> = valid.iter().map(host_link_name).collect();
    let keys: HashSet<String> = valid.iter().map(portmap::key).collect();

    let host = Links::open()?;
    if let Some(bridge) = host.find(&conf.bridge).await? {
        for link in host.all().await? {
            let ours = link.controller == Some(bridge.index) && is_host_link(&link.name);
            if ours && !names.contains(&link.name) {
                host.delete(&link.name).await?;
            }
        }
    }
    let ipam = Ipam::open(&conf.network_dir())?;
    let mut ports = HostPorts::load(&ipam)?;
    let freed = ports.retain(|owner| keys.contains(owner));
    free_ports(conf, &ipam, &ports, &freed)?;
    let freed = ipam.release_where(|holder| holder.is_none_or(|holder| !valid.contains(holder)))?;
    after_release(&host, conf, &ipam, &freed).await
}

async fn status(conf: &NetConf) -> Result<(), Error> {
    let unavailable = |error: Error| Error::plugin_not_available(error.message);
    let host = Links::open().map_err(unavailable)?;
    let bridge = host.find(&conf.bridge).await.map_err(unavailable)?;
    refuse_clash(&host, conf, bridge.map(|bridge| bridge.index)).await.map_err(unavailable)?;
    Ipam::open(&conf.network_dir()).map_err(unavailable)?;
    nft::probe().map_err(unavailable)
}

/// containerd calls `loopback` beside every network.
async fn loopback(request: &Request, conf: &NetConf) -> Result<Option<Value>, Error> {
    let add = request.command == "ADD";
    if !add && request.command != "CHECK" {
        return Ok(None);
    }
    let namespace = netns::open(&request.netns)?
        .ok_or_else(|| Error::new(3, format!("network namespace {} does not exist", request.netns)))?;
    let inside = netns::within(&namespace, Links::open)?;
    let lo = inside.expect("lo").await?;
    if !add {
        return Ok(None);
    }
    inside.up(&lo).await?;
    let interface = Interface {
        name: lo.name.clone(),
        mac: lo.mac.clone(),
        mtu: Some(lo.mtu),
        sandbox: Some(request.netns.clone()),
    };
    let ips = inside.addresses(&lo).await?.into_iter().map(|address| (address, None)).collect();
    let result = AddResult { interfaces: vec![interface], ips, ip_interface: Some(0), ..AddResult::default() };
    Ok(Some(result.to_json(&conf.cni_version)))
}
