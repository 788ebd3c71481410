//! Service addresses and node ports: handed out once each, written together with the Service that holds them.
//! Used by `create`, `update` and `delete`; the ranges come from `config` and from ServiceCIDR objects.
//! Two Services never hold the same address or port, however many servers create them at once: every address is an
//! IPAddress object and every port a key of its own, made in the transaction that writes the Service.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use bytes::Bytes;
use ipnet::IpNet;
use serde_json::{Value, json};

use api::{
    ApiError, Object,
    field::{ErrorList, Path},
    kinds::Allocates,
};
use env::Env;
use store::{Compare, Operation};

use super::object_meta;
use crate::{
    discovery::served::Served,
    server::config::Config,
    storage,
    storage::{
        cluster::Cluster,
        index::{Index, Indexed},
    },
};

/// Beside the objects: a port is no object upstream either.
pub const NODE_PORTS: &str = "/minke/node-ports/";
pub const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// What a Service can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Held {
    Address(IpAddr),
    Port(u16),
}

impl Held {
    pub fn key(self) -> String {
        match self {
            Held::Address(address) => storage::builtin_key("ipaddresses", &address.to_string()),
            Held::Port(port) => format!("{NODE_PORTS}{port}"),
        }
    }

    /// What is stored to say that `service` holds it.
    pub fn value(self, service: &Value, env: &Env) -> Bytes {
        let (namespace, name) = (object_meta::text(service, "namespace"), object_meta::text(service, "name"));
        match self {
            Held::Port(_) => format!("{namespace}/{name}").into(),
            Held::Address(address) => storage::encode(&json!({
                "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
                "metadata": {
                    "name": address.to_string(), "uid": env.uuid(),
                    "creationTimestamp": object_meta::timestamp(env.now()),
                    "labels": { FAMILY: family(&address), MANAGED_BY.0: MANAGED_BY.1 },
                },
                "spec": { "parentRef": { "resource": "services", "namespace": namespace, "name": name } },
            })),
        }
    }
}

/// Everything a Service holds.
pub fn holdings(service: &Value) -> Vec<Held> {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return Vec::new();
    }
    let texts = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut held: Vec<Held> = texts.filter_map(|t| t.parse().ok()).map(Held::Address).collect();
    let mut ports: Vec<u16> = spec["ports"].as_array().into_iter().flatten().filter_map(node_port).collect();
    ports.extend(port_at(&spec["healthCheckNodePort"]));
    ports.sort_unstable();
    ports.dedup();
    held.extend(ports.into_iter().map(Held::Port));
    held
}

fn node_port(port: &Value) -> Option<u16> {
    port_at(&port["nodePort"])
}

fn port_at(value: &Value) -> Option<u16> {
    value.as_u64().filter(|p| *p > 0).and_then(|p| u16::try_from(p).ok())
}

/// What the cache knows to be held. A moment old: only the store knows for sure.
#[derive(Default)]
struct Known(HashMap<Held, usize>);

impl Index for Known {
    const RESOURCES: &'static [&'static str] = &["services", "ipaddresses"];

    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>) {
        let held = |object: &Object| match resource {
            "services" => holdings(&object.value()),
            _ => object.meta.name.parse().map(Held::Address).into_iter().collect(),
        };
        for gone in old.map(held).into_iter().flatten() {
            if let Some(count) = self.0.get_mut(&gone) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&gone);
                }
            }
        }
        for taken in new.map(held).into_iter().flatten() {
            *self.0.entry(taken).or_default() += 1;
        }
    }
}

pub struct Allocations {
    networks: Vec<IpNet>,
    ports: RangeInclusive<u16>,
    known: Indexed<Known>,
    cluster: Arc<Cluster>,
}

/// What one write takes and gives back, all of it with the write or not at all.
#[derive(Default)]
pub struct Allocation {
    /// With what the client is told if someone else has it; nothing where any other would do.
    taken: Vec<(Held, Option<ApiError>)>,
    freed: Vec<Held>,
}

impl Allocation {
    /// What must hold and happen together with the write of `service`.
    pub fn writes(&self, service: &Value, env: &Env) -> (Vec<Compare>, Vec<Operation>) {
        let compare = self.taken.iter().map(|(held, _)| Compare { key: held.key(), mod_revision: 0 });
        let freed = self.freed.iter().map(|held| Operation::Delete { key: held.key() });
        let taken = self.taken.iter().map(|(held, _)| Operation::Put {
            key: held.key(),
            value: held.value(service, env),
            ttl_seconds: None,
        });
        (compare.collect(), freed.chain(taken).collect())
    }

    /// The error for a client that asked for the one at `index` of what is compared.
    pub fn refusal(&self, index: usize) -> Option<ApiError> {
        self.taken.get(index).and_then(|(_, error)| error.clone())
    }

    fn has(&self, held: Held) -> bool {
        self.taken.iter().any(|(h, _)| *h == held)
    }
}

fn allocates(served: &Served) -> bool {
    served.behavior.allocates() == Allocates::ServiceAddressesAndPorts
}

fn invalid(name: &str, path: Path, value: Value, detail: String) -> ApiError {
    let mut errors = ErrorList::new();
    errors.invalid(&path, value, detail);
    ApiError::invalid("", "Service", name, errors)
}

impl Allocations {
    pub fn new(config: &Config, cluster: &Arc<Cluster>) -> Self {
        Self {
            networks: config.service_cidrs.clone(),
            ports: config.node_ports.clone(),
            known: Indexed::new(cluster),
            cluster: cluster.clone(),
        }
    }

    /// Whether objects of this kind hold anything.
    pub fn concern(&self, served: &Served) -> bool {
        allocates(served)
    }

    /// For a write that is only tried: what the store would refuse, as far as is known here.
    pub fn check(&self, allocation: &Allocation) -> Result<(), ApiError> {
        let contested = allocation.taken.iter().find(|(held, _)| self.is_known(*held));
        contested.and_then(|(_, error)| error.clone()).map_or(Ok(()), Err)
    }

    pub async fn for_create(&self, served: &Served, object: &mut Value) -> Result<Allocation, ApiError> {
        match allocates(served) {
            true => self.allocate(object, &[]).await,
            false => Ok(Allocation::default()),
        }
    }

    pub async fn for_update(&self, served: &Served, new: &mut Value, old: &Value) -> Result<Allocation, ApiError> {
        match allocates(served) && new["spec"] != old["spec"] {
            true => self.allocate(new, &holdings(old)).await,
            false => Ok(Allocation::default()),
        }
    }

    /// Everything an object holds, to go with it.
    pub fn for_delete(&self, served: &Served, object: &Value) -> Allocation {
        let freed = if allocates(served) { holdings(object) } else { Vec::new() };
        Allocation { taken: Vec::new(), freed }
    }

    /// A range is full only when nothing that another server freed is still on its way here.
    async fn allocate(&self, service: &mut Value, held: &[Held]) -> Result<Allocation, ApiError> {
        let before = service.clone();
        match self.allocate_known(service, held) {
            Err(full) if full.code == 500 => {
                self.cluster.cache.wait_until_fresh().await?;
                *service = before;
                self.allocate_known(service, held)
            }
            done => done,
        }
    }

    fn allocate_known(&self, service: &mut Value, held: &[Held]) -> Result<Allocation, ApiError> {
        let mut allocation = Allocation::default();
        if service["spec"]["type"] != "ExternalName" {
            self.addresses(service, held, &mut allocation)?;
            self.node_ports(service, held, &mut allocation)?;
        }
        let now: HashSet<Held> = holdings(service).into_iter().collect();
        allocation.freed = held.iter().filter(|h| !now.contains(h)).copied().collect();
        Ok(allocation)
    }

    /// The configured networks and those of ServiceCIDR objects that are there to stay.
    fn networks(&self) -> Vec<IpNet> {
        let mut networks = self.networks.clone();
        for object in self.cluster.list("servicecidrs", "") {
            let object = object.value();
            let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            let refused = conditions.any(|c| c["type"] == "Ready" && c["status"] == "False");
            if refused || object["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            let texts = object["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for network in texts.filter_map(|t| t.parse::<IpNet>().ok()) {
                if !networks.contains(&network) {
                    networks.push(network);
                }
            }
        }
        networks
    }

    fn is_known(&self, held: Held) -> bool {
        self.known.read().0.contains_key(&held)
    }

    fn addresses(&self, service: &mut Value, held: &[Held], allocation: &mut Allocation) -> Result<(), ApiError> {
        let name = object_meta::text(service, "name").to_string();
        if self.names_families_only(&mut service["spec"]) {
            return Ok(());
        }
        let families = self.families(service, &name)?;
        let spec = &mut service["spec"];
        let headless = spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None";
        spec["ipFamilies"] = families.iter().map(|n| family(&n.addr())).collect();
        if headless {
            spec["clusterIP"] = "None".into();
            spec["clusterIPs"] = json!(["None"]);
            return Ok(());
        }
        let asked: Vec<String> = match spec["clusterIPs"].as_array() {
            Some(list) => list.iter().filter_map(|t| t.as_str().map(str::to_string)).collect(),
            None => spec["clusterIP"].as_str().filter(|t| !t.is_empty()).map(str::to_string).into_iter().collect(),
        };
        let mut addresses: Vec<String> = Vec::new();
        for (index, network) in families.iter().enumerate() {
            let address = match asked.get(index).filter(|t| !t.is_empty()) {
                Some(text) => self.take_address(text, held, allocation, &name, index)?,
                None => self.any_address(network, allocation, &name)?,
            };
            addresses.push(address.to_string());
        }
        let spec = &mut service["spec"];
        spec["clusterIP"] = addresses.first().cloned().unwrap_or_default().into();
        spec["clusterIPs"] = json!(addresses);
        Ok(())
    }

    /// A headless Service that selects nothing: its endpoints may be of families that this cluster does not have.
    fn names_families_only(&self, spec: &mut Value) -> bool {
        let selects = spec["selector"].as_object().is_some_and(|selector| !selector.is_empty());
        let several = spec["ipFamilies"].as_array().is_some_and(|families| families.len() > 1);
        if spec["clusterIP"] != "None" || selects || (several && spec["ipFamilyPolicy"] == "SingleStack") {
            return false;
        }
        if spec["ipFamilyPolicy"].is_null() {
            spec["ipFamilyPolicy"] = "RequireDualStack".into();
        }
        let mut families = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
        if families.is_empty() {
            families.extend(self.networks.first().map(|network| family(&network.addr()).into()));
        }
        if let ([one], true) = (&families[..], spec["ipFamilyPolicy"] != "SingleStack") {
            let other = if *one == "IPv4" { "IPv6" } else { "IPv4" };
            families.push(other.into());
        }
        spec["ipFamilies"] = families.into();
        spec["clusterIPs"] = json!(["None"]);
        true
    }

    /// The networks a Service gets addresses from, by its policy and families.
    fn families(&self, service: &mut Value, name: &str) -> Result<Vec<IpNet>, ApiError> {
        let spec = &mut service["spec"];
        let path = Path::new("spec");
        if spec["ipFamilyPolicy"].is_null() {
            let several = spec["clusterIPs"].as_array().is_some_and(|a| a.len() > 1)
                || spec["ipFamilies"].as_array().is_some_and(|a| a.len() > 1);
            spec["ipFamilyPolicy"] = if several { "RequireDualStack" } else { "SingleStack" }.into();
        }
        let policy = spec["ipFamilyPolicy"].as_str().unwrap_or("SingleStack").to_string();
        if policy == "RequireDualStack" && self.networks.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services".to_string();
            return Err(invalid(name, path.child("ipFamilyPolicy"), policy.into(), detail));
        }
        let by_address = |text: &str| {
            let address: IpAddr = text.parse().ok()?;
            self.networks.iter().find(|n| n.addr().is_ipv4() == address.is_ipv4()).copied()
        };
        let asked = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<IpNet> = Vec::new();
        for (index, wanted) in asked.iter().enumerate() {
            match self.networks.iter().find(|n| *wanted == family(&n.addr())) {
                Some(network) => found.push(*network),
                None => {
                    let detail = "not configured on this cluster".to_string();
                    return Err(invalid(name, path.child("ipFamilies").index(index), wanted.clone(), detail));
                }
            }
        }
        if found.is_empty() {
            let texts = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            found.extend(texts.filter_map(by_address));
        }
        if found.is_empty() {
            found.extend(spec["clusterIP"].as_str().and_then(by_address).or(self.networks.first().copied()));
        }
        if policy != "SingleStack" {
            let others = self.networks.iter().filter(|n| !found.contains(n)).copied().collect::<Vec<_>>();
            found.extend(others);
            found.truncate(2);
        } else {
            found.truncate(1);
        }
        Ok(found)
    }

    fn take_address(
        &self,
        text: &str,
        held: &[Held],
        allocation: &mut Allocation,
        name: &str,
        index: usize,
    ) -> Result<IpAddr, ApiError> {
        let path = Path::new("spec").child("clusterIPs");
        let refuse = |detail: String| invalid(name, path.clone(), json!([text]), detail);
        let address: IpAddr = text.parse().map_err(|_| {
            invalid(
                name,
                path.index(index),
                text.into(),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into(),
            )
        })?;
        if held.contains(&Held::Address(address)) {
            return Ok(address);
        }
        let networks = self.networks();
        if !networks.iter().any(|n| n.contains(&address) && address != n.network()) {
            let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
            let detail = format!(
                "failed to allocate IP {text}: the provided network does not match the current range: {}",
                networks.join(",")
            );
            return Err(refuse(detail));
        }
        let taken = refuse(format!("failed to allocate IP {text}: provided IP is already allocated"));
        allocation.taken.push((Held::Address(address), Some(taken)));
        Ok(address)
    }

    /// A random free address of the network's family.
    fn any_address(&self, network: &IpNet, allocation: &mut Allocation, name: &str) -> Result<IpAddr, ApiError> {
        let same = |n: &IpNet| n.addr().is_ipv4() == network.addr().is_ipv4();
        let address = self.networks().iter().filter(|n| same(n)).find_map(|n| self.free_address(n, allocation));
        let full = || ApiError::internal(format!("failed to allocate a serviceIP for {name}: range is full"));
        let address = address.ok_or_else(full)?;
        allocation.taken.push((Held::Address(address), None));
        Ok(address)
    }

    /// The lowest part of the range is left to people who choose one themselves.
    fn free_address(&self, network: &IpNet, allocation: &Allocation) -> Option<IpAddr> {
        let bits = u32::from(network.max_prefix_len() - network.prefix_len()).min(20);
        let size = 1u64 << bits;
        let last = if network.addr().is_ipv4() { size.saturating_sub(1) } else { size };
        let reserved = (size / 16).clamp(16, 256).min(size / 2);
        let known = self.known.read();
        for (low, high) in [(reserved, last), (1, reserved)] {
            let span = high.saturating_sub(low);
            let start = if span > 0 { self.cluster.env.random_u64() % span } else { 0 };
            let mut all = (0..span).map(|step| nth(network, low + (start + step) % span));
            let free = |a: &IpAddr| !known.0.contains_key(&Held::Address(*a)) && !allocation.has(Held::Address(*a));
            if let Some(address) = all.find(free) {
                return Some(address);
            }
        }
        None
    }

    fn node_ports(&self, service: &mut Value, held: &[Held], allocation: &mut Allocation) -> Result<(), ApiError> {
        let name = object_meta::text(service, "name").to_string();
        let spec = &mut service["spec"];
        let kind = spec["type"].as_str().unwrap_or("ClusterIP").to_string();
        let balancer = kind == "LoadBalancer";
        let wanted = kind == "NodePort" || (balancer && spec["allocateLoadBalancerNodePorts"] != false);
        // One number may serve several protocols of the same Service.
        let mut own: Vec<(u16, u16, String)> = Vec::new();
        for (index, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
            let number = port_at(&port["port"]).unwrap_or(0);
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_string();
            let taken = match node_port(port) {
                Some(asked) if own.iter().any(|(n, _, p)| *n == asked && *p != protocol) => asked,
                Some(asked) => self.take_port(asked, held, allocation, &name, index)?,
                None if !wanted => continue,
                None => match own.iter().find(|(_, n, p)| *n == number && *p != protocol) {
                    Some((shared, ..)) => *shared,
                    None => self.any_port(allocation)?,
                },
            };
            own.push((taken, number, protocol));
            port["nodePort"] = taken.into();
        }
        if balancer && spec["externalTrafficPolicy"] == "Local" {
            let port = match port_at(&spec["healthCheckNodePort"]) {
                Some(asked) => self.take_port(asked, held, allocation, &name, 0)?,
                None => self.any_port(allocation)?,
            };
            spec["healthCheckNodePort"] = port.into();
        }
        Ok(())
    }

    fn take_port(
        &self,
        asked: u16,
        held: &[Held],
        allocation: &mut Allocation,
        name: &str,
        index: usize,
    ) -> Result<u16, ApiError> {
        let path = Path::new("spec").child("ports").index(index).child("nodePort");
        if held.contains(&Held::Port(asked)) || allocation.has(Held::Port(asked)) {
            return Ok(asked);
        }
        if !self.ports.contains(&asked) {
            let detail = format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                self.ports.start(),
                self.ports.end()
            );
            return Err(invalid(name, path, asked.into(), detail));
        }
        let taken = invalid(name, path, asked.into(), "provided port is already allocated".into());
        allocation.taken.push((Held::Port(asked), Some(taken)));
        Ok(asked)
    }

    fn any_port(&self, allocation: &mut Allocation) -> Result<u16, ApiError> {
        let (low, high) = (u64::from(*self.ports.start()), u64::from(*self.ports.end()));
        let span = high - low + 1;
        let start = self.cluster.env.random_u64() % span;
        let mut all = (0..span).map(|step| (low + (start + step) % span) as u16);
        let free = |p: &u16| !self.is_known(Held::Port(*p)) && !allocation.has(Held::Port(*p));
        let port = all.find(free);
        let port = port.ok_or_else(|| ApiError::internal("failed to allocate a nodePort: range is full"))?;
        allocation.taken.push((Held::Port(port), None));
        Ok(port)
    }
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The address `offset` steps into a network.
pub fn nth(network: &IpNet, offset: u64) -> IpAddr {
    match network.network() {
        IpAddr::V4(base) => IpAddr::V4((u32::from(base).wrapping_add(offset as u32)).into()),
        IpAddr::V6(base) => IpAddr::V6((u128::from(base).wrapping_add(u128::from(offset))).into()),
    }
}
