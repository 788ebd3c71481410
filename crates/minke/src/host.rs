//! What this machine says about itself: its name and its address.
//! Used for defaults of flags.
//! Invariant: reads only.

use std::net::IpAddr;

use anyhow::{Result, bail};

/// The first IPv4 address of an interface that is up and not loopback; loopback if there is nothing else.
pub fn address() -> Result<IpAddr> {
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
    }
    Ok(found.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1])))
}

/// Bridges and pairs of container networks are not the machine's own.
fn is_ours(name: &str) -> bool {
    ["veth", "cni", "docker", "minke", "mk", "br-"].iter().any(|prefix| name.starts_with(prefix))
}

/// The host name in the form of a node name.
pub fn node_name() -> Result<String> {
    let name = nix::unistd::gethostname()?.to_string_lossy().to_lowercase();
    if !api::names::dns_subdomain(&name, false).is_empty() {
        bail!("the host name {name:?} can't be a node name: give one with --node-name");
    }
    Ok(name)
}
