//! What this machine says about itself: its name and its address.
//! Used for defaults of flags.
//! Reads only.

use std::net::IpAddr;

use anyhow::{Result, bail};
use ipnet::IpNet;

use crate::cluster::members::switch;

/// The first address of that family of an interface that is up and not loopback. IPv4 makes do with loopback.
pub fn address(six: bool) -> Result<IpAddr> {
    match addresses()?.into_iter().find(|address| address.is_ipv6() == six) {
        Some(address) => Ok(address),
        None if six => bail!("this machine has no IPv6 address by which pods could reach it: give it one"),
        None => Ok(IpAddr::from([127, 0, 0, 1])),
    }
}

/// The same for the family of `range`.
pub fn address_like(range: Option<&IpNet>) -> Result<IpAddr> {
    address(range.is_some_and(|range| range.addr().is_ipv6()))
}

/// The first address of the other family that others can reach.
pub fn other_address(address: IpAddr) -> Option<IpAddr> {
    addresses().ok()?.into_iter().find(|other| other.is_ipv4() != address.is_ipv4())
}

fn addresses() -> Result<Vec<IpAddr>> {
    use nix::net::if_::InterfaceFlags;
    let mut found: Vec<IpAddr> = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let flags = interface.flags;
        if !flags.contains(InterfaceFlags::IFF_UP)
            || flags.contains(InterfaceFlags::IFF_LOOPBACK)
            || is_ours(&interface.interface_name)
        {
            continue;
        }
        if let Some(address) = interface.address.as_ref().and_then(|a| a.as_sockaddr_in()) {
            found.push(address.ip().into());
        }
        // Everybody has one that counts on its own link only.
        let six = interface.address.as_ref().and_then(|a| a.as_sockaddr_in6()).map(|a| a.ip());
        found.extend(six.filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::from));
    }
    Ok(found)
}

/// The largest packet on the interface that has this address; none is known of loopback, which leads nowhere.
pub fn mtu(address: IpAddr) -> Option<u32> {
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let (four, six) = (interface.address.as_ref()?.as_sockaddr_in(), interface.address.as_ref()?.as_sockaddr_in6());
        four.map(|a| IpAddr::V4(a.ip())).or_else(|| six.map(|a| IpAddr::V6(a.ip())))
    };
    let found = interfaces.into_iter().find(|i| has(i) == Some(address) && !address.is_loopback())?;
    // Not /sys: an agent that has entered a network namespace sees that of the machine there.
    let link = switch::ip(&["-j", "link", "show", "dev", &found.interface_name], "").ok()?;
    let link: serde_json::Value = serde_json::from_str(&link).ok()?;
    u32::try_from(link[0]["mtu"].as_u64()?).ok()
}

/// What is left of a packet between nodes when it carries one of VXLAN.
pub fn vxlan_mtu(underlay: Option<u32>, ipv4: bool) -> u32 {
    underlay.unwrap_or(1500).saturating_sub(if ipv4 { 50 } else { 70 })
}

/// Bridges and pairs of container networks are not the machine's own.
fn is_ours(name: &str) -> bool {
    ["veth", "cni", "docker", "minke", "mk", "br-"].iter().any(|prefix| name.starts_with(prefix))
}

pub fn name() -> Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().to_lowercase())
}

/// The host name in the form of a node name.
pub fn node_name() -> Result<String> {
    let name = name()?;
    if !api::names::dns_subdomain(&name, false).is_empty() {
        bail!("the host name {name:?} can't be a node name: give one with --node-name");
    }
    Ok(name)
}

/// The same until the machine boots again, and told to nobody but the programs on it and the Node objects that run there.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vxlan_leaves_room_for_its_headers() {
        for (underlay, ipv4, expected) in [
            (Some(1500), true, 1450),
            (Some(1500), false, 1430),
            (Some(1420), true, 1370),
            (Some(9000), true, 8950),
            (None, true, 1450),
        ] {
            assert_eq!(vxlan_mtu(underlay, ipv4), expected, "{underlay:?} {ipv4}");
        }
        assert_eq!(mtu(IpAddr::from([127, 0, 0, 1])), None);
        if let Ok(own) = address(false)
            && !own.is_loopback()
        {
            assert!(mtu(own).is_some_and(|mtu| mtu >= 576), "{own}");
        }
    }
}
