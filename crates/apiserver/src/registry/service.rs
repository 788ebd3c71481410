//! Service addresses and node ports: handed out once each, taken back when the Service goes.
//! Used by `create`, `update` and `delete`; the ranges come from `config`.
//! Invariant: two Services never hold the same address or port, however many are created at once.

use std::{collections::HashSet, net::IpAddr, ops::RangeInclusive, sync::Arc};

use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Value, json};

use api::{
    ApiError,
    field::{ErrorList, Path},
};
use env::Env;

use super::object_meta;
use crate::{config::Config, served::Served};

#[derive(Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

pub struct Allocations {
    networks: Vec<IpNet>,
    ports: RangeInclusive<u16>,
    taken: Arc<Mutex<Taken>>,
    env: Env,
}

/// What one write took. Given back when dropped, unless kept; then what the write freed is given back instead.
pub struct Allocation {
    taken: Option<Arc<Mutex<Taken>>>,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    freed: Holdings,
}

/// The addresses and ports an object holds.
#[derive(Default, PartialEq)]
struct Holdings {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Holdings {
    fn of(service: &Value) -> Self {
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            return Self::default();
        }
        let texts = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut ports: Vec<u16> = spec["ports"].as_array().into_iter().flatten().filter_map(node_port).collect();
        ports.extend(port_at(&spec["healthCheckNodePort"]));
        ports.sort_unstable();
        ports.dedup();
        Self { addresses: texts.filter_map(|t| t.parse().ok()).collect(), ports }
    }
}

fn node_port(port: &Value) -> Option<u16> {
    port_at(&port["nodePort"])
}

fn port_at(value: &Value) -> Option<u16> {
    value.as_u64().filter(|p| *p > 0).and_then(|p| u16::try_from(p).ok())
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            let mut taken = taken.lock();
            for address in &self.addresses {
                taken.addresses.remove(address);
            }
            for port in &self.ports {
                taken.ports.remove(port);
            }
        }
    }
}

impl Allocation {
    fn none() -> Self {
        Self { taken: None, addresses: Vec::new(), ports: Vec::new(), freed: Holdings::default() }
    }

    /// The write happened: what it took stays taken, what it gave up is free.
    pub fn keep(mut self) {
        std::mem::take(&mut self.addresses);
        std::mem::take(&mut self.ports);
        self.addresses = std::mem::take(&mut self.freed.addresses);
        self.ports = std::mem::take(&mut self.freed.ports);
    }
}

fn is_service(served: &Served) -> bool {
    served.group.is_empty() && served.plural == "services"
}

fn invalid(name: &str, path: Path, value: Value, detail: String) -> ApiError {
    let mut errors = ErrorList::new();
    errors.invalid(&path, value, detail);
    ApiError::invalid("", "Service", name, errors)
}

impl Allocations {
    pub fn new(config: &Config, env: Env, services: impl Iterator<Item = Value>) -> Self {
        let mut taken = Taken::default();
        for service in services {
            let holdings = Holdings::of(&service);
            taken.addresses.extend(holdings.addresses);
            taken.ports.extend(holdings.ports);
        }
        Self {
            networks: config.service_cidrs.clone(),
            ports: config.node_ports.clone(),
            taken: Arc::new(Mutex::new(taken)),
            env,
        }
    }

    pub fn for_create(&self, served: &Served, object: &mut Value, dry_run: bool) -> Result<Allocation, ApiError> {
        match is_service(served) {
            true => self.allocate(object, &Holdings::default(), dry_run),
            false => Ok(Allocation::none()),
        }
    }

    pub fn for_update(
        &self,
        served: &Served,
        new: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Allocation, ApiError> {
        match is_service(served) && new["spec"] != old["spec"] {
            true => self.allocate(new, &Holdings::of(old), dry_run),
            false => Ok(Allocation::none()),
        }
    }

    pub fn release(&self, served: &Served, object: &Value) {
        if is_service(served) {
            let Holdings { addresses, ports } = Holdings::of(object);
            drop(Allocation { taken: Some(self.taken.clone()), addresses, ports, freed: Holdings::default() });
        }
    }

    fn allocate(&self, service: &mut Value, held: &Holdings, dry_run: bool) -> Result<Allocation, ApiError> {
        let mut allocation = Allocation::none();
        allocation.taken = Some(self.taken.clone());
        if service["spec"]["type"] != "ExternalName" {
            self.addresses(service, held, &mut allocation)?;
            self.node_ports(service, held, &mut allocation)?;
        }
        let now = Holdings::of(service);
        allocation.freed = Holdings {
            addresses: held.addresses.iter().filter(|a| !now.addresses.contains(a)).copied().collect(),
            ports: held.ports.iter().filter(|p| !now.ports.contains(p)).copied().collect(),
        };
        if dry_run {
            allocation.freed = Holdings::default();
        }
        Ok(allocation)
    }

    fn addresses(&self, service: &mut Value, held: &Holdings, allocation: &mut Allocation) -> Result<(), ApiError> {
        let name = object_meta::text(service, "name").to_string();
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
        held: &Holdings,
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
        if held.addresses.contains(&address) {
            return Ok(address);
        }
        let inside = self.networks.iter().any(|n| n.contains(&address) && address != n.network());
        if !inside {
            let networks: Vec<String> = self.networks.iter().map(ToString::to_string).collect();
            let detail = format!(
                "failed to allocate IP {text}: the provided network does not match the current range: {}",
                networks.join(",")
            );
            return Err(refuse(detail));
        }
        if !self.taken.lock().addresses.insert(address) {
            return Err(refuse(format!("failed to allocate IP {text}: provided IP is already allocated")));
        }
        allocation.addresses.push(address);
        Ok(address)
    }

    /// A random free address. The lowest part of the range is left to people who choose one themselves.
    fn any_address(&self, network: &IpNet, allocation: &mut Allocation, name: &str) -> Result<IpAddr, ApiError> {
        let bits = u32::from(network.max_prefix_len() - network.prefix_len()).min(20);
        let size = 1u64 << bits;
        let last = if network.addr().is_ipv4() { size.saturating_sub(1) } else { size };
        let reserved = (size / 16).clamp(16, 256).min(size / 2);
        let mut taken = self.taken.lock();
        for (low, high) in [(reserved, last), (1, reserved)] {
            let span = high.saturating_sub(low);
            let start = if span > 0 { self.env.random_u64() % span } else { 0 };
            for step in 0..span {
                let address = nth(network, low + (start + step) % span);
                if taken.addresses.insert(address) {
                    allocation.addresses.push(address);
                    return Ok(address);
                }
            }
        }
        let message = format!("failed to allocate a serviceIP for {name}: range is full");
        Err(ApiError::internal(message))
    }

    fn node_ports(&self, service: &mut Value, held: &Holdings, allocation: &mut Allocation) -> Result<(), ApiError> {
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
        held: &Holdings,
        allocation: &mut Allocation,
        name: &str,
        index: usize,
    ) -> Result<u16, ApiError> {
        let path = Path::new("spec").child("ports").index(index).child("nodePort");
        if held.ports.contains(&asked) || allocation.ports.contains(&asked) {
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
        if !self.taken.lock().ports.insert(asked) {
            return Err(invalid(name, path, asked.into(), "provided port is already allocated".into()));
        }
        allocation.ports.push(asked);
        Ok(asked)
    }

    fn any_port(&self, allocation: &mut Allocation) -> Result<u16, ApiError> {
        let (low, high) = (u64::from(*self.ports.start()), u64::from(*self.ports.end()));
        let span = high - low + 1;
        let start = self.env.random_u64() % span;
        let mut taken = self.taken.lock();
        let mut candidates = (0..span).map(|step| (low + (start + step) % span) as u16);
        let port = candidates.find(|p| taken.ports.insert(*p));
        let port = port.ok_or_else(|| ApiError::internal("failed to allocate a nodePort: range is full"))?;
        allocation.ports.push(port);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_each_address_once_and_takes_it_back() {
        let mut config = Config::in_process(String::new());
        config.service_cidrs = vec!["10.0.0.0/29".parse().unwrap()];
        config.node_ports = 30000..=30001;
        let base = "2026-01-01T00:00:00Z".parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _guard = runtime.enter();
        let all = Allocations::new(&config, Env::simulated(base, 1), std::iter::empty());
        let service =
            || json!({ "metadata": { "name": "a" }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
        let none = Holdings::default();
        let (mut a, mut b, mut c) = (service(), service(), service());
        all.allocate(&mut a, &none, false).unwrap().keep();
        all.allocate(&mut b, &none, false).unwrap().keep();
        assert_ne!(a["spec"]["clusterIP"], b["spec"]["clusterIP"]);
        assert_ne!(a["spec"]["ports"][0]["nodePort"], b["spec"]["ports"][0]["nodePort"]);
        // No port is left, so the address it had taken is free again.
        assert!(all.allocate(&mut c, &none, false).is_err());
        assert_eq!(all.taken.lock().addresses.len(), 2);
        // A service that stops being one with node ports gives its port back.
        let held = Holdings::of(&a);
        a["spec"] = json!({ "type": "ClusterIP", "clusterIPs": a["spec"]["clusterIPs"], "ports": [{ "port": 80 }] });
        all.allocate(&mut a, &held, false).unwrap().keep();
        assert_eq!(all.taken.lock().ports.len(), 1);
        let mut d = json!({ "metadata": {}, "spec": { "clusterIP": a["spec"]["clusterIP"] } });
        let error = all.allocate(&mut d, &none, false).err().unwrap();
        assert!(error.message.contains("provided IP is already allocated"), "{}", error.message);
    }
}
