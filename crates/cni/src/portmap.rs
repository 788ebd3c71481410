//! Which host ports belong to which container, on disk beside the addresses and under the same lock.
//! Used by `attach` and `cleanup`; turned into rules by `nft`.
//! Invariant: a host port has one owner: the last container that asked for it, as the runtime recreates sandboxes
//! (test: `the_last_owner_of_a_port_wins`).

use std::{collections::BTreeMap, fs, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    ipam::{Ipam, Owner},
    types::{Error, PortMapping},
};

const FILE: &str = "host_ports.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: String,
    pub host_port: u16,
    pub host_ip: Option<IpAddr>,
    pub pod_ip: IpAddr,
    pub container_port: u16,
    /// Whose calls to the port have to come back by the node: `None` for the pod's own alone. On a bridge of upstream's
    /// kind pods answer their neighbours directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<IpNet>,
}

impl HostPort {
    fn key(&self) -> (&str, u16, Option<IpAddr>, bool) {
        (&self.protocol, self.host_port, self.host_ip, self.pod_ip.is_ipv4())
    }
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostPorts(BTreeMap<String, Vec<HostPort>>);

impl HostPorts {
    pub fn load(ipam: &Ipam) -> Result<Self, Error> {
        match fs::read(ipam.dir().join(FILE)) {
            // Nothing of ours writes half a file; what can't be parsed is written anew by the next change.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io(format!("failed to read {FILE} in {}: {error}", ipam.dir().display()))),
        }
    }

    pub fn save(&self, ipam: &Ipam) -> Result<(), Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        ipam.write(FILE, &text)
    }

    /// Makes `ports` the owner's, taking them from whoever had them.
    pub fn set(&mut self, owner: &Owner, ports: Vec<HostPort>) {
        for held in self.0.values_mut() {
            held.retain(|port| ports.iter().all(|new| new.key() != port.key()));
        }
        self.0.insert(key(owner), ports);
        self.0.retain(|_, held| !held.is_empty());
    }

    /// What the owner had.
    pub fn remove(&mut self, owner: &Owner) -> Vec<HostPort> {
        self.0.remove(&key(owner)).unwrap_or_default()
    }

    /// What the others had.
    pub fn retain(&mut self, alive: impl Fn(&str) -> bool) -> Vec<HostPort> {
        let gone = self.0.extract_if(.., |owner, _| !alive(owner));
        gone.flat_map(|(_, ports)| ports).collect()
    }

    pub fn owned_by(&self, owner: &Owner) -> &[HostPort] {
        self.0.get(&key(owner)).map_or(&[], Vec::as_slice)
    }

    pub fn all(&self) -> Vec<HostPort> {
        self.0.values().flatten().cloned().collect()
    }
}

pub fn key(owner: &Owner) -> String {
    format!("{}/{}", owner.container_id, owner.ifname)
}

/// The wanted mappings against the pod's addresses. A host address of one family binds only that family; the two
/// wildcards, and no address at all, bind every address.
pub fn resolve(mappings: &[PortMapping], addresses: &[IpAddr]) -> Result<Vec<HostPort>, Error> {
    let mut ports = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.host_port != 0) {
        let protocol = mapping.protocol.to_ascii_lowercase();
        if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
            return Err(Error::invalid_config(format!("unknown port mapping protocol {:?}", mapping.protocol)));
        }
        let host_ip: Option<IpAddr> = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| Error::invalid_config(format!("invalid hostIP {text:?}")))?),
        };
        for pod_ip in addresses {
            if host_ip.is_some_and(|ip| ip.is_ipv4() != pod_ip.is_ipv4()) {
                continue;
            }
            ports.push(HostPort {
                protocol: protocol.clone(),
                host_port: mapping.host_port,
                host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
                pod_ip: *pod_ip,
                container_port: mapping.container_port,
                neighbours: None,
            });
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_bind_the_families_they_name() {
        let addresses: Vec<IpAddr> = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let check = |host_ip: &str, expected: &[(&str, Option<&str>)]| {
            let mapping =
                PortMapping { host_port: 80, container_port: 8080, protocol: "TCP".into(), host_ip: host_ip.into() };
            let got: Vec<_> = resolve(&[mapping], &addresses)
                .unwrap()
                .iter()
                .map(|port| (port.pod_ip.to_string(), port.host_ip.map(|ip| ip.to_string())))
                .collect();
            let expected: Vec<_> =
                expected.iter().map(|(pod, host)| ((*pod).to_owned(), host.map(str::to_owned))).collect();
            assert_eq!(got, expected, "{host_ip}");
        };
        check("", &[("10.0.0.2", None), ("fd00::2", None)]);
        check("0.0.0.0", &[("10.0.0.2", None)]);
        check("127.0.0.1", &[("10.0.0.2", Some("127.0.0.1"))]);
        check("::1", &[("fd00::2", Some("::1"))]);
    }

    #[test]
    fn the_last_owner_of_a_port_wins() {
        let owner = |id: &str| Owner { container_id: id.into(), ifname: "eth0".into() };
        let port = |pod: &str| HostPort {
            protocol: "tcp".into(),
            host_port: 80,
            host_ip: None,
            pod_ip: pod.parse().unwrap(),
            container_port: 80,
            neighbours: None,
        };
        let mut ports = HostPorts::default();
        ports.set(&owner("a"), vec![port("10.0.0.2")]);
        ports.set(&owner("b"), vec![port("10.0.0.3")]);
        assert_eq!(ports.remove(&owner("a")), vec![]);
        assert_eq!(ports.all(), vec![port("10.0.0.3")]);
        assert_eq!(ports.remove(&owner("b")), vec![port("10.0.0.3")]);
    }
}
