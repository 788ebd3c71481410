//! What the API says about names: Services, EndpointSlices, pods and namespaces, indexed for questions.
//! Fed by `run` from informers; asked by `zone`.
//! Applying the same object twice changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use hickory_proto::rr::Name;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};

/// Whether `a-b-c-d.namespace.pod` exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodRecords {
    Disabled,
    /// For every address, as clusters usually do: no pod has to be watched.
    #[default]
    Insecure,
    /// Only for addresses of pods in that namespace.
    Verified,
}

/// The cluster's zone. Keys are `namespace/name`.
pub struct Zone {
    pub(crate) origin: Name,
    pub(crate) ttl: u32,
    pub(crate) pod_records: PodRecords,
    /// Where this name server answers, for its own NS record.
    pub(crate) server_addresses: Vec<IpAddr>,
    pub(crate) services: HashMap<String, ServiceEntry>,
    slices: HashMap<String, BTreeMap<String, SliceEntry>>,
    service_of_slice: HashMap<String, String>,
    namespaces: HashSet<String>,
    services_in: HashMap<String, usize>,
    pods: HashMap<String, (String, Vec<IpAddr>)>,
    pod_addresses: HashMap<(String, IpAddr), usize>,
    /// Who has an address: a Service itself, or one of a headless Service's endpoints by host name.
    pub(crate) owners: HashMap<IpAddr, BTreeSet<(String, Option<String>)>>,
    pub(crate) serial: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServiceEntry {
    pub external_name: Option<String>,
    /// Empty for a headless Service.
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<PortEntry>,
    /// A headless Service's ready endpoints by host name.
    pub hosts: BTreeMap<String, HostEntry>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostEntry {
    pub addresses: BTreeSet<IpAddr>,
    pub ports: BTreeSet<PortEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortEntry {
    pub name: String,
    pub protocol: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SliceEntry {
    ports: Vec<PortEntry>,
    /// Host name and address of what is ready.
    endpoints: Vec<(String, IpAddr)>,
}

impl Zone {
    /// `domain` without a final dot, such as `cluster.local`.
    pub fn new(domain: &str, ttl: u32, pod_records: PodRecords) -> Result<Self, hickory_proto::ProtoError> {
        let mut origin = Name::from_ascii(domain)?.to_lowercase();
        origin.set_fqdn(true);
        Ok(Self {
            origin,
            ttl,
            pod_records,
            server_addresses: Vec::new(),
            services: HashMap::new(),
            slices: HashMap::new(),
            service_of_slice: HashMap::new(),
            namespaces: HashSet::new(),
            services_in: HashMap::new(),
            pods: HashMap::new(),
            pod_addresses: HashMap::new(),
            owners: HashMap::new(),
            serial: 1,
        })
    }

    pub fn set_server_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.server_addresses = addresses;
    }

    pub fn apply_namespace(&mut self, name: &str) {
        self.namespaces.insert(name.to_owned());
    }

    pub fn delete_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name) || self.services_in.contains_key(name)
    }

    pub fn apply_service(&mut self, key: &str, service: &Service) {
        let entry = service_entry(service);
        if !self.services.contains_key(key) {
            *self.services_in.entry(namespace(key).to_owned()).or_default() += 1;
        }
        self.forget_addresses(key);
        self.services.insert(key.to_owned(), entry);
        self.refresh(key);
    }

    pub fn delete_service(&mut self, key: &str) {
        self.forget_addresses(key);
        if self.services.remove(key).is_none() {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(count) = self.services_in.get_mut(namespace(key)) {
            *count -= 1;
            if *count == 0 {
                self.services_in.remove(namespace(key));
            }
        }
    }

    pub fn apply_endpoint_slice(&mut self, key: &str, slice: &EndpointSlice) {
        let labels = slice.metadata.labels.as_ref();
        let owner = labels
            .and_then(|labels| labels.get("kubernetes.io/service-name"))
            .map(|name| format!("{}/{name}", namespace(key)));
        if self.service_of_slice.get(key) != owner.as_ref() {
            self.delete_endpoint_slice(key);
        }
        let Some(owner) = owner else { return };
        let entry = slice_entry(slice);
        let slices = self.slices.entry(owner.clone()).or_default();
        if slices.get(key) == Some(&entry) {
            return;
        }
        slices.insert(key.to_owned(), entry);
        self.service_of_slice.insert(key.to_owned(), owner.clone());
        self.forget_addresses(&owner);
        self.refresh(&owner);
    }

    pub fn delete_endpoint_slice(&mut self, key: &str) {
        let Some(owner) = self.service_of_slice.remove(key) else { return };
        if let Some(slices) = self.slices.get_mut(&owner) {
            slices.remove(key);
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        self.forget_addresses(&owner);
        self.refresh(&owner);
    }

    /// Needed only for [`PodRecords::Verified`].
    pub fn apply_pod(&mut self, key: &str, pod: &Pod) {
        self.delete_pod(key);
        let status = pod.status.as_ref();
        let over =
            status.and_then(|s| s.phase.as_deref()).is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase));
        let on_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        if over || on_host {
            return;
        }
        let ips = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        let addresses: Vec<IpAddr> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
        for ip in &addresses {
            *self.pod_addresses.entry((namespace(key).to_owned(), *ip)).or_default() += 1;
        }
        self.pods.insert(key.to_owned(), (namespace(key).to_owned(), addresses));
    }

    pub fn delete_pod(&mut self, key: &str) {
        let Some((namespace, addresses)) = self.pods.remove(key) else { return };
        for ip in addresses {
            let slot = (namespace.clone(), ip);
            if let Some(count) = self.pod_addresses.get_mut(&slot) {
                *count -= 1;
                if *count == 0 {
                    self.pod_addresses.remove(&slot);
                }
            }
        }
    }

    pub(crate) fn has_pod(&self, namespace: &str, ip: IpAddr) -> bool {
        match self.pod_records {
            PodRecords::Disabled => false,
            PodRecords::Insecure => true,
            PodRecords::Verified => self.pod_addresses.contains_key(&(namespace.to_owned(), ip)),
        }
    }

    /// The ready endpoints of this host name. Only a headless Service has them indexed: of others they are rarely asked.
    pub(crate) fn host_addresses(&self, key: &str, host: &str) -> Vec<IpAddr> {
        match self.services.get(key) {
            Some(service) if service.cluster_ips.is_empty() => {
                service.hosts.get(host).into_iter().flat_map(|entry| entry.addresses.iter().copied()).collect()
            }
            Some(_) => {
                let slices = self.slices.get(key).into_iter().flat_map(BTreeMap::values);
                let found = slices.flat_map(|slice| &slice.endpoints).filter(|(name, _)| name == host);
                found.map(|(_, ip)| *ip).collect::<BTreeSet<_>>().into_iter().collect()
            }
            None => Vec::new(),
        }
    }

    /// Brings a Service's hosts and address owners in line with its slices.
    fn refresh(&mut self, key: &str) {
        self.serial = self.serial.wrapping_add(1);
        let Some(service) = self.services.get_mut(key) else { return };
        service.hosts.clear();
        if service.external_name.is_some() {
            return;
        }
        if !service.cluster_ips.is_empty() {
            for ip in &service.cluster_ips {
                self.owners.entry(*ip).or_default().insert((key.to_owned(), None));
            }
            return;
        }
        for slice in self.slices.get(key).into_iter().flat_map(BTreeMap::values) {
            for (host, ip) in &slice.endpoints {
                let entry = service.hosts.entry(host.clone()).or_default();
                entry.addresses.insert(*ip);
                entry.ports.extend(slice.ports.iter().cloned());
                self.owners.entry(*ip).or_default().insert((key.to_owned(), Some(host.clone())));
            }
        }
    }

    fn forget_addresses(&mut self, key: &str) {
        let Some(service) = self.services.get(key) else { return };
        let of_hosts = service.hosts.values().flat_map(|host| host.addresses.iter());
        for ip in service.cluster_ips.iter().chain(of_hosts) {
            if let Some(owners) = self.owners.get_mut(ip) {
                owners.retain(|(owner, _)| owner != key);
                if owners.is_empty() {
                    self.owners.remove(ip);
                }
            }
        }
    }
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn service_entry(service: &Service) -> ServiceEntry {
    let Some(spec) = &service.spec else { return ServiceEntry::default() };
    if spec.type_.as_deref() == Some("ExternalName") {
        return ServiceEntry { external_name: spec.external_name.clone(), ..ServiceEntry::default() };
    }
    // "None" does not parse.
    let parse = |ips: Option<&Vec<String>>| ips.into_iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
    let mut cluster_ips: Vec<IpAddr> = parse(spec.cluster_ips.as_ref());
    if cluster_ips.is_empty() {
        cluster_ips.extend(spec.cluster_ip.as_ref().and_then(|ip| ip.parse::<IpAddr>().ok()));
    }
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        Some(port_entry(port.name.as_deref(), port.protocol.as_deref(), number))
    });
    ServiceEntry { cluster_ips, ports: ports.collect(), ..ServiceEntry::default() }
}

fn slice_entry(slice: &EndpointSlice) -> SliceEntry {
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        let number = u16::try_from(port.port?).ok()?;
        Some(port_entry(port.name.as_deref(), port.protocol.as_deref(), number))
    });
    let ready = slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
    let endpoints = ready.flat_map(|endpoint| {
        let ips = endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
        ips.map(|ip| {
            let given = endpoint.hostname.as_ref().filter(|name| !name.is_empty());
            (given.map_or_else(|| dashed(ip), |name| name.to_ascii_lowercase()), ip)
        })
    });
    SliceEntry { ports: ports.collect(), endpoints: endpoints.collect() }
}

fn port_entry(name: Option<&str>, protocol: Option<&str>, port: u16) -> PortEntry {
    PortEntry {
        name: name.unwrap_or_default().to_ascii_lowercase(),
        protocol: protocol.unwrap_or("TCP").to_ascii_lowercase(),
        port,
    }
}

/// An address as a label: `10-0-0-1`, `fd00--1`.
pub(crate) fn dashed(ip: IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}
