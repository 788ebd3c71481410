//! resolv.conf: which of the node's is of use to others, and what it says. What pods get is the kubelet's.
//! Used by `upstreams`, and by the agent for the path alone; pure but for reading.
//! A file that is not there says nothing.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

const OWN: &str = "/etc/resolv.conf";
/// Where systemd-resolved writes the servers that it asks itself.
const BEHIND_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The two files that may say whom the node asks.
#[derive(Debug, Clone)]
pub struct HostFiles {
    pub own: PathBuf,
    pub behind_resolved: PathBuf,
}

impl Default for HostFiles {
    fn default() -> Self {
        Self { own: OWN.into(), behind_resolved: BEHIND_RESOLVED.into() }
    }
}

impl HostFiles {
    pub fn paths(&self) -> [PathBuf; 2] {
        [self.own.clone(), self.behind_resolved.clone()]
    }

    /// The one that those in other network namespaces can use: nobody answers on their loopback.
    pub fn usable_elsewhere(&self) -> &Path {
        let own = fs::read_to_string(&self.own).unwrap_or_default();
        if useless_elsewhere(&own) && self.behind_resolved.exists() { &self.behind_resolved } else { &self.own }
    }

    pub fn name_servers(&self) -> Vec<IpAddr> {
        let text = fs::read_to_string(self.usable_elsewhere()).unwrap_or_default();
        servers(&text).filter_map(|server| server.parse().ok()).collect()
    }
}

/// A file that names no server means the one on loopback, too.
fn useless_elsewhere(own: &str) -> bool {
    servers(own).all(|server| server.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback()))
}

fn servers(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
        words.next().filter(|word| *word == "nameserver").and(words.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_on_loopback_is_of_no_use_elsewhere() {
        for (own, useless) in [
            ("nameserver 127.0.0.53\noptions edns0\n", true),
            ("nameserver 127.0.0.53\nnameserver ::1\n", true),
            ("# nameserver 192.0.2.53\n", true),
            ("", true),
            ("nameserver 127.0.0.53\nnameserver 192.0.2.53\n", false),
            ("nameserver 192.0.2.53\n", false),
            ("nameserver fe80::1%eth0\n", false),
        ] {
            assert_eq!(useless_elsewhere(own), useless, "{own:?}");
        }
    }
}
