//! The pure core: one Service and its endpoints in, the nftables elements and chains that serve it out.
//! Reads `model`; `ruleset` puts the Services together and `render` writes them down.
//! Invariant: no input or output, no time; the same state gives the same rules (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use ipnet::IpNet;
pub use netfilter::Family;

use crate::{
    model::{EndpointInfo, NodeConfig, PodUid, PortInfo, Protocol, ServiceInfo, State},
    ruleset::Ruleset,
};

/// An address under which a Service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

/// Where a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub ip: IpAddr,
    pub port: u16,
}

/// The key of an element in one of the table's maps and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Service(Frontend),
    Endpoint(Frontend, u32),
    /// A frontend with nothing behind it.
    Unserved(Frontend),
    ClusterIp(IpAddr),
    /// A local endpoint that may come back to itself through a Service.
    Hairpin(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Member,
    /// The shared chain for this many endpoints.
    Balance {
        count: u32,
        masquerade: bool,
    },
    /// A chain of the Service's own.
    Chain(Arc<str>),
    Target(Target),
    Reject,
    Drop,
}

/// All that one Service needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub elements: BTreeMap<Key, Value>,
    pub chains: BTreeMap<(Family, Arc<str>), Vec<String>>,
    /// Client address sets for session affinity, with their timeout in seconds.
    pub affinity: BTreeMap<(Family, Arc<str>), u32>,
    /// Health check port and the number of local endpoints it reports: only ready ones, so that a load balancer
    /// turns away from a node whose last endpoint ends while that one still serves.
    pub health: Option<(u16, usize)>,
    /// Every UDP frontend and where a flow through it may go on going. A flow is kept as a TCP connection would be:
    /// by whoever serves, even while it ends, and whatever the traffic policies say about new ones. Sorted.
    pub flows: BTreeMap<Frontend, Arc<[Target]>>,
    /// Every endpoint address that may get a new connection.
    pub endpoints: BTreeSet<IpAddr>,
    /// Every pod among the Service's endpoints, sorted, and whether it gets new connections although nobody said
    /// that it ends. One that ends and is used all the same is used for want of a better one.
    pub pods: Vec<(PodUid, bool)>,
    /// The endpoints in the order of their indexes, so that the next version moves as few as possible.
    pub order: Vec<((Family, Protocol, u16), Vec<Target>)>,
}

/// The rules of the whole node.
pub fn rules(state: &State, config: &NodeConfig) -> Ruleset {
    let mut ruleset = Ruleset::default();
    let mut keys: Vec<&str> = state.service_keys().map(String::as_str).collect();
    keys.sort_unstable();
    for key in std::iter::once(NO_SERVICE).chain(keys) {
        ruleset.replace(key, service_rules(key, state, config, None));
    }
    ruleset
}

/// The rules of one Service; `previous` only keeps indexes stable.
pub fn service_rules(
    key: &str,
    state: &State,
    config: &NodeConfig,
    previous: Option<&ServiceRules>,
) -> Option<ServiceRules> {
    if key == NO_SERVICE {
        return Some(unallocated(state));
    }
    let service = state.service(key)?;
    let mut rules = ServiceRules::default();
    let mut ready_here: BTreeMap<Family, BTreeSet<IpAddr>> = BTreeMap::new();
    for port in &service.ports {
        for family in Family::ALL {
            let endpoints = Endpoints::choose(state, key, port, family);
            ready_here.entry(family).or_default().extend(&endpoints.ready_here);
            for target in &endpoints.perhaps_here {
                if !config.node_addresses.contains(&target.ip) {
                    rules.elements.insert(Key::Hairpin(target.ip), Value::Member);
                }
            }
            let slot = (family, port.protocol, port.port);
            let before = previous.and_then(|rules| rules.order.iter().find(|(held, _)| *held == slot));
            let order = settle(before.map(|(_, order)| order), &endpoints.cluster);
            let flows = (port.protocol == Protocol::Udp).then(|| flow_targets(state, key, port, family));
            Writer {
                key,
                service,
                port,
                family,
                config,
                endpoints: &endpoints,
                order: &order,
                flows,
                rules: &mut rules,
            }
            .write();
            if !order.is_empty() {
                rules.order.push((slot, order));
            }
        }
    }
    for ip in &service.cluster_ips {
        rules.elements.insert(Key::ClusterIp(*ip), Value::Member);
    }
    // A pod with an address of each family is one endpoint.
    let ready_here = ready_here.values().map(BTreeSet::len).max().unwrap_or_default();
    rules.health = service.health_check_node_port.map(|port| (port, ready_here));
    rules.pods = pods(state, key, &rules.endpoints);
    Some(rules)
}

/// What is sent to an address that no Service has disappears here, and not at whoever the default route leads to. The
/// chain is part of the table; only its content changes.
fn unallocated(state: &State) -> ServiceRules {
    let ranges = state.service_ranges();
    let chain = |family: Family| {
        let ours = ranges.iter().filter(|range| Family::of_ip(range.addr()) == family);
        let list: Vec<String> = ours.map(ToString::to_string).collect();
        let word = family.word();
        let rules = (!list.is_empty()).then(|| format!("{word} daddr {{ {} }} drop", list.join(", ")));
        ((family, Arc::from(UNALLOCATED)), rules.into_iter().collect())
    };
    ServiceRules { chains: Family::ALL.map(chain).into(), ..ServiceRules::default() }
}

fn pods(state: &State, key: &str, used: &BTreeSet<IpAddr>) -> Vec<(PodUid, bool)> {
    let endpoints = state.slices(key).flat_map(|slice| &slice.endpoints);
    let mut pods: Vec<_> = endpoints.filter_map(|e| Some((e.pod?, !e.terminating && used.contains(&e.ip)))).collect();
    // Both families of one pod: used by one is used.
    pods.sort_by_key(|(pod, used)| (*pod, !used));
    pods.dedup_by_key(|(pod, _)| *pod);
    pods.shrink_to_fit();
    pods
}

/// The endpoints of one port in one family, in whatever state.
fn endpoints_of<'a>(
    state: &'a State,
    key: &str,
    port: &'a PortInfo,
    family: Family,
) -> impl Iterator<Item = (Target, &'a EndpointInfo)> {
    state.slices(key).flat_map(move |slice| {
        let matching =
            slice.ports.iter().filter(|(name, protocol, _)| *name == port.name && *protocol == port.protocol);
        matching.flat_map(move |(_, _, number)| {
            let ours = slice.endpoints.iter().filter(move |endpoint| Family::of_ip(endpoint.ip) == family);
            ours.map(|endpoint| (Target { ip: endpoint.ip, port: *number }, endpoint))
        })
    })
}

/// Whoever serves. Where nobody does, whoever is known: an endpoint that may come back keeps its clients, one that is
/// gone does not.
fn flow_targets(state: &State, key: &str, port: &PortInfo, family: Family) -> Arc<[Target]> {
    let all = || endpoints_of(state, key, port, family);
    let targets = |serving: bool| -> BTreeSet<Target> {
        all().filter(|(_, e)| !serving || e.serving || e.ready).map(|(target, _)| target).collect()
    };
    let serving = targets(true);
    let kept = if serving.is_empty() { targets(false) } else { serving };
    kept.into_iter().collect()
}

/// The endpoints of one port in one family, by who may use them.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// May come back to themselves through the Service.
    perhaps_here: BTreeSet<Target>,
    pub(crate) cluster: Vec<Target>,
    pub(crate) local: Vec<Target>,
    ready_here: BTreeSet<IpAddr>,
}

impl Endpoints {
    /// Ready ones, and of those the ones meant for us; where there are none, those that still serve while they terminate.
    pub(crate) fn choose(state: &State, key: &str, port: &PortInfo, family: Family) -> Self {
        let mut ready: BTreeMap<Target, &EndpointInfo> = BTreeMap::new();
        let mut leaving: BTreeMap<Target, &EndpointInfo> = BTreeMap::new();
        let mut perhaps_here = BTreeSet::new();
        for (target, endpoint) in endpoints_of(state, key, port, family) {
            if !endpoint.elsewhere && (endpoint.ready || endpoint.serving && endpoint.terminating) {
                perhaps_here.insert(target);
            }
            if endpoint.ready {
                ready.insert(target, endpoint);
            } else if endpoint.serving && endpoint.terminating {
                leaving.insert(target, endpoint);
            }
        }
        let those = |from: &BTreeMap<Target, &EndpointInfo>, wanted: &dyn Fn(&EndpointInfo) -> bool| -> Vec<Target> {
            from.iter().filter(|(_, endpoint)| wanted(endpoint)).map(|(target, _)| *target).collect()
        };
        let local = |from| those(from, &|endpoint| endpoint.local);
        let hint = hint_to_follow(ready.values().copied());
        let or = |first: Vec<Target>, second: Vec<Target>| if first.is_empty() { second } else { first };
        let here = local(&ready);
        let ready_here = here.iter().map(|target| target.ip).collect();
        let meant = |endpoint: &EndpointInfo| hint.is_none_or(|hint| hint(endpoint) == Some(true));
        let cluster = or(those(&ready, &meant), those(&leaving, &|_| true));
        Self { cluster, local: or(here, local(&leaving)), ready_here, perhaps_here }
    }
}

type TopologyHint = fn(&EndpointInfo) -> Option<bool>;

/// The nearest of the hints that every ready endpoint has and that leaves us at least one of them.
fn hint_to_follow<'a>(ready: impl Iterator<Item = &'a EndpointInfo> + Clone) -> Option<TopologyHint> {
    let hints: [TopologyHint; 2] = [|endpoint| endpoint.for_node, |endpoint| endpoint.for_zone];
    let complete =
        |hint: &TopologyHint| ready.clone().all(|e| hint(e).is_some()) && ready.clone().any(|e| hint(e) == Some(true));
    hints.into_iter().find(complete)
}

/// Keeps who stays at their index and fills gaps from the end: a change touches few elements of a long list.
fn settle(previous: Option<&Vec<Target>>, wanted: &[Target]) -> Vec<Target> {
    let Some(previous) = previous else { return wanted.to_vec() };
    let set: BTreeSet<Target> = wanted.iter().copied().collect();
    let held: BTreeSet<Target> = previous.iter().copied().collect();
    let mut fresh = wanted.iter().copied().filter(|target| !held.contains(target));
    let mut slots: Vec<Option<Target>> =
        previous.iter().map(|target| set.contains(target).then_some(*target).or_else(|| fresh.next())).collect();
    slots.extend(fresh.map(Some));
    let mut index = 0;
    while index < slots.len() {
        if slots[index].is_none() {
            slots.swap_remove(index);
        } else {
            index += 1;
        }
    }
    slots.into_iter().flatten().collect()
}

/// Writes the rules of one port in one family.
struct Writer<'a> {
    key: &'a str,
    service: &'a ServiceInfo,
    port: &'a PortInfo,
    family: Family,
    config: &'a NodeConfig,
    endpoints: &'a Endpoints,
    order: &'a [Target],
    /// Where UDP flows may go on going; `None` for other protocols.
    flows: Option<Arc<[Target]>>,
    rules: &'a mut ServiceRules,
}

impl Writer<'_> {
    fn write(&mut self) {
        self.cluster_ips();
        let mut external = self.frontends(&self.service.external_ips, self.port.port);
        if let Some(node_port) = self.port.node_port {
            external.extend(self.frontends(&self.config.node_port_addresses, node_port));
            if self.config.localhost_node_ports {
                external.extend(self.frontends(&[IpAddr::V4(Ipv4Addr::LOCALHOST)], node_port));
            }
        }
        let balancers = self.frontends(&self.service.load_balancer_ips, self.port.port);
        if self.service.source_ranges.is_none() {
            external.extend(balancers);
        } else {
            self.fenced(&balancers);
        }
        self.external(&external);
    }

    fn frontends(&mut self, ips: &[IpAddr], port: u16) -> Vec<Frontend> {
        let ours = ips.iter().filter(|ip| Family::of_ip(**ip) == self.family);
        let frontends: Vec<_> = ours.map(|ip| Frontend { ip: *ip, protocol: self.port.protocol, port }).collect();
        if let Some(flows) = &self.flows {
            self.rules.flows.extend(frontends.iter().map(|frontend| (*frontend, flows.clone())));
        }
        frontends
    }

    fn cluster_ips(&mut self) {
        let frontends = self.frontends(&self.service.cluster_ips, self.port.port);
        if self.service.internal_local {
            let local = self.endpoints.local.clone();
            if local.is_empty() {
                let verdict = if self.endpoints.cluster.is_empty() { Value::Reject } else { Value::Drop };
                self.refuse(&frontends, &verdict);
            } else if self.needs_own_chain(&local) {
                let chain = self.balancer("int", &local);
                self.enter(&frontends, &chain);
            } else {
                self.balance(&frontends, &local, false);
            }
        } else if self.order.is_empty() {
            self.refuse(&frontends, &Value::Reject);
        } else if self.needs_own_chain(self.order) {
            let chain = self.balancer("svc", self.order);
            self.enter(&frontends, &chain);
        } else {
            self.balance(&frontends, self.order, false);
        }
    }

    fn needs_own_chain(&self, targets: &[Target]) -> bool {
        self.service.affinity_seconds.is_some() || targets.len() > SHARED_BALANCERS_MAX as usize
    }

    /// Traffic from outside: masqueraded under policy Cluster, kept on this node under policy Local.
    fn external(&mut self, frontends: &[Frontend]) {
        if frontends.is_empty() {
            return;
        }
        if self.order.is_empty() {
            self.refuse(frontends, &Value::Reject);
        } else if self.service.external_local || self.needs_own_chain(self.order) {
            let chain = self.external_chain();
            self.enter(frontends, &chain);
        } else {
            self.balance(frontends, self.order, true);
        }
    }

    /// Load balancer addresses that only some sources may use.
    fn fenced(&mut self, frontends: &[Frontend]) {
        if frontends.is_empty() {
            return;
        }
        if self.order.is_empty() {
            self.refuse(frontends, &Value::Reject);
            return;
        }
        let allowed =
            self.service.source_ranges.iter().flatten().filter(|range| Family::of_ip(range.addr()) == self.family);
        let mut allowed: Vec<_> = allowed.map(IpNet::trunc).collect();
        if self.config.node_addresses.iter().any(|node| allowed.iter().any(|range| range.contains(node))) {
            // Where the balancer's address is put on the node too, the node calls it from that very address.
            allowed.extend(frontends.iter().map(|frontend| IpNet::from(frontend.ip)));
        }
        let allowed: Vec<String> = IpNet::aggregate(&allowed).iter().map(ToString::to_string).collect();
        let inside = self.external_chain();
        let word = self.word();
        let rules = match allowed.is_empty() {
            true => vec!["drop".to_owned()],
            false => vec![format!("{word} saddr != {{ {} }} drop", allowed.join(", ")), format!("goto {inside}")],
        };
        let chain = self.chain("fw", rules);
        self.enter(frontends, &chain);
    }

    fn external_chain(&mut self) -> Arc<str> {
        let everyone = self.balancer("svc", self.order);
        if !self.service.external_local {
            return self.chain("ext", vec![MARK.to_owned(), format!("goto {everyone}")]);
        }
        // Pods and the node itself are inside: for them the policy is Cluster.
        let mut rules = Vec::new();
        let word = self.word();
        let pods = self.config.pod_cidrs.iter().filter(|net| Family::of_ip(net.addr()) == self.family);
        rules.extend(pods.map(|net| format!("{word} saddr {} goto {everyone}", net.trunc())));
        rules.push(format!("fib saddr type local {MARK} goto {everyone}"));
        let local = self.endpoints.local.clone();
        if local.is_empty() {
            rules.push("drop".to_owned());
        } else {
            rules.push(format!("goto {}", self.balancer("loc", &local)));
        }
        self.chain("ext", rules)
    }

    /// The shared way: only elements, no chain of its own.
    fn balance(&mut self, frontends: &[Frontend], targets: &[Target], masquerade: bool) {
        self.rules.endpoints.extend(targets.iter().map(|target| target.ip));
        for frontend in frontends {
            let value = Value::Balance { count: targets.len() as u32, masquerade };
            self.rules.elements.insert(Key::Service(*frontend), value);
            for (index, target) in targets.iter().enumerate() {
                self.rules.elements.insert(Key::Endpoint(*frontend, index as u32), Value::Target(*target));
            }
        }
    }

    fn enter(&mut self, frontends: &[Frontend], chain: &Arc<str>) {
        for frontend in frontends {
            self.rules.elements.insert(Key::Service(*frontend), Value::Chain(chain.clone()));
        }
    }

    fn refuse(&mut self, frontends: &[Frontend], verdict: &Value) {
        for frontend in frontends {
            self.rules.elements.insert(Key::Unserved(*frontend), verdict.clone());
        }
    }

    /// A chain that picks one of `targets`; with affinity, first the one this client had.
    fn balancer(&mut self, kind: &str, targets: &[Target]) -> Arc<str> {
        self.rules.endpoints.extend(targets.iter().map(|target| target.ip));
        let (word, protocol, count) = (self.word(), self.port.protocol.name(), targets.len());
        let Some(seconds) = self.service.affinity_seconds else {
            let list: Vec<String> =
                targets.iter().enumerate().map(|(i, t)| format!("{i} : {} . {}", t.ip, t.port)).collect();
            let list = list.join(", ");
            let rule = format!("meta l4proto {protocol} dnat {word} to numgen random mod {count} map {{ {list} }}");
            return self.chain(kind, vec![rule]);
        };
        let chains: Vec<Arc<str>> = targets.iter().map(|target| self.sticky(*target, seconds)).collect();
        let mut rules: Vec<String> = chains.iter().map(|c| format!("{word} saddr @{c} goto {c}")).collect();
        let list: Vec<String> = chains.iter().enumerate().map(|(i, chain)| format!("{i} : goto {chain}")).collect();
        rules.push(format!("numgen random mod {count} vmap {{ {} }}", list.join(", ")));
        self.chain(kind, rules)
    }

    /// One endpoint's chain and the set of its clients, under one name.
    fn sticky(&mut self, target: Target, seconds: u32) -> Arc<str> {
        let word = self.word();
        let protocol = self.port.protocol.name();
        let ip = target.ip.to_string().replace(':', ".");
        // The timeout is part of the name: a set cannot change its own.
        let name = format!("ep/{}/{protocol}/{}/{seconds}/{ip}/{}", self.key, self.port.port, target.port);
        let name: Arc<str> = name.into();
        self.rules.affinity.insert((self.family, name.clone()), seconds);
        let to = match target.ip {
            IpAddr::V4(ip) => format!("{ip}:{}", target.port),
            IpAddr::V6(ip) => format!("[{ip}]:{}", target.port),
        };
        let rules =
            vec![format!("update @{name} {{ {word} saddr }}"), format!("meta l4proto {protocol} dnat {word} to {to}")];
        self.rules.chains.insert((self.family, name.clone()), rules);
        name
    }

    fn chain(&mut self, kind: &str, rules: Vec<String>) -> Arc<str> {
        let name = format!("{kind}/{}/{}/{}", self.key, self.port.protocol.name(), self.port.port);
        let name: Arc<str> = name.into();
        self.rules.chains.insert((self.family, name.clone()), rules);
        name
    }

    fn word(&self) -> &'static str {
        self.family.word()
    }
}

/// Up to this many endpoints a Service needs no chain of its own.
pub const SHARED_BALANCERS_MAX: u32 = 128;

/// The key of the rules for addresses that no Service has; no Service has this key.
pub const NO_SERVICE: &str = "";
/// The chain with them.
pub const UNALLOCATED: &str = "unallocated";

/// Marks a packet for masquerade on its way out; the bit is upstream's.
pub const MARK: &str = "meta mark set meta mark or 0x4000";

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
