//! Services and EndpointSlices as the proxy needs them: small, typed, indexed by Service.
//! Fed by `run` from informers; read by `rules`.
//! Whatever the API server lets through is taken in; what is unusable of it is left out (type: `apply_*` return no
//! errors).

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use api::names;
use ipnet::IpNet;
use k8s_openapi::{
    api::{
        core::v1::{Service, ServiceSpec},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
pub use netfilter::Protocol;

/// What is true of this node and the same for every Service.
#[derive(Debug, Clone, Default)]
pub struct NodeConfig {
    pub node_name: String,
    /// The node's own: its primary address of each family, and by what else it is known.
    pub node_addresses: Vec<IpAddr>,
    /// Where NodePorts answer.
    pub node_port_addresses: Vec<IpAddr>,
    /// Let NodePorts answer on 127.0.0.1 too (IPv4 only; the kernel has no such switch for IPv6).
    pub localhost_node_ports: bool,
    /// The cluster's pod networks: ClusterIP traffic from anywhere else is masqueraded. Empty: none is.
    pub pod_cidrs: Vec<IpNet>,
    /// Masquerade all that goes to ClusterIPs, wherever it comes from.
    pub masquerade_all: bool,
    /// Where the node is, as its labels say.
    pub zone: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInfo {
    pub ports: Vec<PortInfo>,
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    pub external_local: bool,
    pub internal_local: bool,
    pub affinity_seconds: Option<u32>,
    /// Who may call the load balancer; none: anybody. What can't be read of the list lets nobody in.
    pub source_ranges: Option<Vec<IpNet>>,
    pub health_check_node_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceInfo {
    pub ports: Vec<(String, Protocol, u16)>,
    pub endpoints: Vec<EndpointInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    pub ip: IpAddr,
    /// The pod behind it, if there is one.
    pub pod: Option<PodUid>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub local: bool,
    /// Known to be on another node: slices that people write need not say where their endpoints are.
    pub elsewhere: bool,
    /// Whether it is meant for this node, and for this node's zone, if anybody said for whom it is.
    pub for_node: Option<bool>,
    pub for_zone: Option<bool>,
}

/// A pod's UID in little room: there are tens of thousands of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid([u8; 16]);

impl PodUid {
    /// `None` for what is no UUID; every UID that an API server gives is one.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().filter(|byte| *byte != b'-');
        let mut value: u128 = 0;
        let mut count = 0;
        for digit in digits {
            value = (value << 4) | u128::from(char::from(digit).to_digit(16)?);
            count += 1;
        }
        (count == 32).then(|| Self(value.to_be_bytes()))
    }
}

/// What is another proxy's, or nobody's, by its label.
fn is_not_ours(metadata: &ObjectMeta) -> bool {
    let keys = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];
    metadata.labels.as_ref().is_some_and(|labels| keys.iter().any(|key| labels.contains_key(*key)))
}

impl ServiceInfo {
    /// `None` for what has no virtual address: headless, ExternalName, or another proxy's.
    pub fn from_service(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        if is_not_ours(&service.metadata) || spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        let cluster_ips = cluster_ips(spec);
        if cluster_ips.is_empty() {
            return None;
        }
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            Some(PortInfo {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::parse(port.protocol.as_deref())?,
                port: u16::try_from(port.port).ok()?,
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            })
        });
        let affinity_seconds = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
            let config = spec.session_affinity_config.as_ref();
            let seconds = config.and_then(|config| config.client_ip.as_ref()).and_then(|ip| ip.timeout_seconds);
            seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(10_800)
        });
        let external_local = spec.external_traffic_policy.as_deref() == Some("Local");
        Some(Self {
            ports: ports.collect(),
            cluster_ips,
            external_ips: parsed(spec.external_ips.iter().flatten()),
            load_balancer_ips: load_balancer_ips(service),
            external_local,
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            affinity_seconds,
            source_ranges: source_ranges(service, spec),
            health_check_node_port: spec
                .health_check_node_port
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port != 0 && external_local),
        })
    }
}

fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    // "None" does not parse: a headless Service has no address.
    let ips: Vec<IpAddr> = parsed(spec.cluster_ips.iter().flatten());
    if ips.is_empty() { parsed(spec.cluster_ip.iter()) } else { ips }
}

/// Those of the spec, or else of the annotation that was there before it; the API server has checked both.
fn source_ranges(service: &Service, spec: &ServiceSpec) -> Option<Vec<IpNet>> {
    let listed = spec.load_balancer_source_ranges.clone().filter(|ranges| !ranges.is_empty());
    let annotated = || {
        let text = service.metadata.annotations.as_ref()?.get(SOURCE_RANGES)?.trim();
        (!text.is_empty()).then(|| text.split(',').map(str::to_owned).collect())
    };
    let ranges: Vec<String> = listed.or_else(annotated)?;
    // As the API server reads them: other readers know fewer spellings.
    let range = |text: &String| {
        let (address, length) = names::parse_cidr(text.trim())?;
        IpNet::new(address, length).ok()
    };
    Some(ranges.iter().filter_map(range).collect())
}

const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn load_balancer_ips(service: &Service) -> Vec<IpAddr> {
    let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    // In mode Proxy the load balancer terminates: traffic for its address must go to it.
    let short_cut = ingress.into_iter().flatten().filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    short_cut.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

fn parsed<'a, T: std::str::FromStr>(texts: impl Iterator<Item = &'a String>) -> Vec<T> {
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

impl SliceInfo {
    fn from_slice(slice: &EndpointSlice, config: &NodeConfig) -> Self {
        let node_name = config.node_name.as_str();
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let number = u16::try_from(port.port?).ok()?;
            Some((port.name.clone().unwrap_or_default(), Protocol::parse(port.protocol.as_deref())?, number))
        });
        let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let condition = |pick: fn(&k8s_openapi::api::discovery::v1::EndpointConditions) -> Option<bool>| {
                conditions.and_then(pick)
            };
            let ready = condition(|c| c.ready).unwrap_or(true);
            let hints = endpoint.hints.as_ref();
            let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).filter(|nodes| !nodes.is_empty());
            let zones = hints.and_then(|hints| hints.for_zones.as_ref()).filter(|zones| !zones.is_empty());
            Some(EndpointInfo {
                ip: endpoint.addresses.first()?.parse().ok()?,
                pod: endpoint
                    .target_ref
                    .as_ref()
                    .filter(|target| target.kind.as_deref() == Some("Pod"))
                    .and_then(|target| PodUid::parse(target.uid.as_deref()?)),
                ready,
                serving: condition(|c| c.serving).unwrap_or(ready),
                terminating: condition(|c| c.terminating).unwrap_or(false),
                local: endpoint.node_name.as_deref() == Some(node_name),
                elsewhere: endpoint.node_name.as_deref().is_some_and(|name| name != node_name),
                for_node: nodes.map(|nodes| nodes.iter().any(|node| node.name == node_name)),
                for_zone: zones.map(|zones| zones.iter().any(|zone| Some(&zone.name) == config.zone.as_ref())),
            })
        });
        // Kept for long: no room to spare.
        let mut endpoints: Vec<EndpointInfo> = endpoints.collect();
        endpoints.shrink_to_fit();
        Self { ports: ports.collect(), endpoints }
    }
}

/// Everything the rules are made from. Keys are `namespace/name`.
#[derive(Debug, Default)]
pub struct State {
    services: HashMap<String, ServiceInfo>,
    /// By Service; nearly always one each, so a list takes the least room.
    slices: HashMap<String, Vec<(String, SliceInfo)>>,
    service_of_slice: HashMap<String, String>,
    /// Where ClusterIPs come from, by the name of the ServiceCIDR.
    service_ranges: BTreeMap<String, Vec<IpNet>>,
}

impl State {
    /// `true` when the Service's rules may have to change.
    pub fn apply_service(&mut self, key: &str, service: Option<&Service>) -> bool {
        match service.and_then(ServiceInfo::from_service) {
            Some(info) if self.services.get(key) == Some(&info) => false,
            Some(info) => {
                self.services.insert(key.to_owned(), info);
                true
            }
            None => self.services.remove(key).is_some(),
        }
    }

    /// The Services whose rules may have to change: two when a slice moves from one to another.
    pub fn apply_slice(&mut self, key: &str, slice: Option<&EndpointSlice>, config: &NodeConfig) -> Vec<String> {
        let ours = |slice: &&EndpointSlice| slice.address_type != "FQDN" && !is_not_ours(&slice.metadata);
        let owner = slice.filter(ours).and_then(|slice| {
            let name = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
            Some(format!("{}/{name}", slice.metadata.namespace.as_deref().unwrap_or_default()))
        });
        let mut dirty = Vec::new();
        let before = self.service_of_slice.get(key).cloned();
        if let Some(before) = before.filter(|before| Some(before) != owner.as_ref()) {
            self.service_of_slice.remove(key);
            if let Some(slices) = self.slices.get_mut(&before) {
                slices.retain(|(name, _)| name != key);
                if slices.is_empty() {
                    self.slices.remove(&before);
                }
            }
            dirty.push(before);
        }
        if let (Some(owner), Some(slice)) = (owner, slice) {
            let info = SliceInfo::from_slice(slice, config);
            let slices = self.slices.entry(owner.clone()).or_insert_with(|| Vec::with_capacity(1));
            let held = slices.iter_mut().find(|(name, _)| name == key);
            if held.as_ref().is_none_or(|(_, held)| *held != info) {
                match held {
                    Some((_, held)) => *held = info,
                    None => slices.push((key.to_owned(), info)),
                }
                self.service_of_slice.insert(key.to_owned(), owner.clone());
                dirty.push(owner);
            }
        }
        dirty
    }

    /// `true` when the rules for addresses of no Service may have to change.
    pub fn apply_service_cidr(&mut self, key: &str, range: Option<&ServiceCIDR>) -> bool {
        let cidrs = range.and_then(|range| range.spec.as_ref()?.cidrs.as_ref());
        match cidrs.map(|cidrs| parsed(cidrs.iter())) {
            Some(ranges) if self.service_ranges.get(key) == Some(&ranges) => false,
            Some(ranges) => {
                self.service_ranges.insert(key.to_owned(), ranges);
                true
            }
            None => self.service_ranges.remove(key).is_some(),
        }
    }

    /// All from which ClusterIPs come, none inside another.
    pub fn service_ranges(&self) -> Vec<IpNet> {
        let ranges: Vec<IpNet> = self.service_ranges.values().flatten().map(IpNet::trunc).collect();
        IpNet::aggregate(&ranges)
    }

    pub fn service(&self, key: &str) -> Option<&ServiceInfo> {
        self.services.get(key)
    }

    pub fn service_keys(&self) -> impl Iterator<Item = &String> {
        self.services.keys()
    }

    pub fn slices(&self, key: &str) -> impl Iterator<Item = &SliceInfo> {
        self.slices.get(key).into_iter().flatten().map(|(_, slice)| slice)
    }
}
