//! All objects of the Gateway API become the tables of ports, and the statuses that go with them.
//! Called by the controller; listeners come from `listeners`, routes from `attachment` and `rules`.
//! Pure (tidy: `pure_files`): the same objects give the same tables, in whatever order they come.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    attachment::{Attached, RouteHead, attach},
    backend_references::{References, Referrer, Resolver},
    backend_tls::{BackendTls, PolicyState},
    cluster::{Cluster, GatewayAddresses},
    conditions::{ACCEPTED, DesiredCondition, PROGRAMMED, RESOLVED_REFS, fails, holds},
    gateway_class,
    listeners::{ListenerProtocol, ListenerState, is_gateway, listeners},
    load_balancers::{GatewayBalancer, GatewayBalancers},
    reference_grants::ReferenceGrants,
    rules,
    types::{
        BackendTlsPolicy, Gateway, GatewayClass, GrpcRoute, HttpRoute, ParentReference, ReferenceGrant, RouteGroupKind,
        TlsRoute, age, key, namespace,
    },
};
use crate::{
    backends::Protocol,
    destinations::{Destination, Destinations},
    routes::{GatewayPort, HostTable, Route, TlsPassthrough},
};

#[derive(Default)]
pub struct GatewaySnapshot {
    pub classes: Vec<Arc<GatewayClass>>,
    pub gateways: Vec<Arc<Gateway>>,
    pub http_routes: Vec<Arc<HttpRoute>>,
    pub grpc_routes: Vec<Arc<GrpcRoute>>,
    pub tls_routes: Vec<Arc<TlsRoute>>,
    pub grants: Vec<Arc<ReferenceGrant>>,
    pub policies: Vec<Arc<BackendTlsPolicy>>,
}

#[derive(Default)]
pub struct Built {
    pub ports: BTreeMap<u16, Arc<GatewayPort>>,
    /// Those of them where no handshake takes place.
    pub only_passthrough: BTreeSet<u16>,
    pub statuses: Statuses,
    /// What Gateways with addresses of their own need.
    pub balancers: GatewayBalancers,
}

/// What objects shall say, by `namespace/name`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statuses {
    pub classes: BTreeMap<String, Vec<DesiredCondition>>,
    pub gateways: BTreeMap<String, DesiredGatewayStatus>,
    /// By kind too.
    pub routes: BTreeMap<(&'static str, String), Vec<DesiredParentStatus>>,
    pub policies: BTreeMap<String, (Vec<DesiredCondition>, BTreeSet<String>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DesiredGatewayStatus {
    pub conditions: Vec<DesiredCondition>,
    /// Its own; none: those of the nodes.
    pub addresses: Option<Vec<IpAddr>>,
    pub listeners: Vec<DesiredListenerStatus>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DesiredListenerStatus {
    pub name: String,
    pub supported_kinds: Vec<RouteGroupKind>,
    pub attached_routes: i32,
    pub conditions: Vec<DesiredCondition>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DesiredParentStatus {
    pub parent: ParentReference,
    pub conditions: Vec<DesiredCondition>,
}

pub fn build(snapshot: &GatewaySnapshot, addresses: &[IpAddr], cluster: &mut dyn Cluster) -> Built {
    let mut statuses = Statuses::default();
    let ours: HashSet<&str> = snapshot
        .classes
        .iter()
        .filter(|class| gateway_class::is_ours(class))
        .map(|class| {
            let name = class.metadata.name.as_deref().unwrap_or_default();
            statuses.classes.insert(name.to_string(), vec![gateway_class::accepted(class)]);
            name
        })
        .collect();
    let mut gateways: Vec<Arc<Gateway>> = snapshot.gateways.clone();
    gateways.retain(|gateway| ours.contains(gateway.spec.gateway_class_name.as_str()));
    gateways.sort_by_cached_key(|gateway| age(&gateway.metadata));
    let (served, refused): (Vec<_>, Vec<_>) =
        gateways.into_iter().map(|gateway| (refusal(&gateway), gateway)).partition(|(refusal, _)| refusal.is_none());
    for (refusal, gateway) in refused {
        let programmed = fails(PROGRAMMED, "Invalid", "the Gateway is not accepted");
        let conditions = refusal.into_iter().chain([programmed]).collect();
        let status = DesiredGatewayStatus { conditions, addresses: None, listeners: Vec::new() };
        statuses.gateways.insert(key(&gateway.metadata), status);
    }
    let gateways: Vec<Arc<Gateway>> = served.into_iter().map(|(_, gateway)| gateway).collect();
    let grants = ReferenceGrants::new(&snapshot.grants);
    let mut builder = Builder {
        listeners: listeners(&gateways, &grants, cluster),
        gateways: gateways.iter().map(|gateway| key(&gateway.metadata)).collect(),
        tls: BackendTls::new(&snapshot.policies, cluster),
        grants,
        cluster,
        entries: Vec::new(),
        passthrough: Vec::new(),
        statuses,
    };
    builder.add_routes(snapshot);
    let only_passthrough = builder.only_passthrough();
    let ports = builder.ports();
    let mut balancers = GatewayBalancers::new();
    for gateway in &gateways {
        let own = builder.cluster.addresses(&key(&gateway.metadata));
        if own != GatewayAddresses::Shared {
            balancers.insert(key(&gateway.metadata), balancer(gateway, &builder.listeners));
        }
        let status = gateway_status(gateway, &builder.listeners, addresses, own);
        builder.statuses.gateways.insert(key(&gateway.metadata), status);
    }
    for PolicyState { key, conditions, gateways, .. } in builder.tls.into_states() {
        builder.statuses.policies.insert(key, (conditions, gateways));
    }
    Built { ports, only_passthrough, statuses: builder.statuses, balancers }
}

/// Why a Gateway is not served at all.
fn refusal(gateway: &Gateway) -> Option<DesiredCondition> {
    let spec = &gateway.spec;
    if spec.infrastructure.as_ref().is_some_and(|infrastructure| infrastructure.parameters_ref.is_some()) {
        return Some(fails(ACCEPTED, "InvalidParameters", "there are no parameters for Gateways"));
    }
    if spec.tls.is_some() {
        return Some(fails(ACCEPTED, "InvalidParameters", "spec.tls is not supported"));
    }
    let kinds = spec.addresses.iter().map(|address| address.kind.as_deref().unwrap_or("IPAddress"));
    let other = kinds.into_iter().find(|kind| *kind != "IPAddress")?;
    Some(fails(ACCEPTED, "UnsupportedAddress", format!("addresses of type {other} are not supported")))
}

/// The address that a Gateway asks for; more than one of a family is not to be had.
fn requested(gateway: &Gateway) -> Option<IpAddr> {
    gateway.spec.addresses.iter().find_map(|address| address.value.as_deref()?.parse().ok())
}

fn balancer(gateway: &Gateway, all: &[ListenerState]) -> GatewayBalancer {
    let name = key(&gateway.metadata);
    let own = all.iter().filter(|listener| listener.gateway == name);
    GatewayBalancer {
        uid: gateway.metadata.uid.clone().unwrap_or_default(),
        ports: own.filter_map(|listener| Some((listener.port, listener.served_port?))).collect(),
        requested: requested(gateway),
    }
}

fn gateway_status(
    gateway: &Gateway,
    all: &[ListenerState],
    of_nodes: &[IpAddr],
    own: GatewayAddresses,
) -> DesiredGatewayStatus {
    let addresses = match &own {
        GatewayAddresses::Own(addresses) => addresses.as_slice(),
        GatewayAddresses::Shared => of_nodes,
        GatewayAddresses::Taken => &[],
    };
    let name = key(&gateway.metadata);
    let listeners: Vec<&ListenerState> = all.iter().filter(|listener| listener.gateway == name).collect();
    let accepted = match (listeners.iter().all(|l| l.is_programmed()), listeners.iter().any(|l| l.is_programmed())) {
        (true, _) => holds(ACCEPTED, "Accepted"),
        (false, true) => {
            let message = "some listeners are not valid".to_string();
            DesiredCondition { message, ..holds(ACCEPTED, "ListenersNotValid") }
        }
        (false, false) => fails(ACCEPTED, "ListenersNotValid", "no listener is valid"),
    };
    let wanted = gateway.spec.addresses.iter().filter_map(|address| address.value.as_deref());
    let is_own = |wanted: &str| wanted.parse::<IpAddr>().is_ok_and(|wanted| addresses.contains(&wanted));
    let foreign = wanted.filter(|wanted| !wanted.is_empty()).find(|wanted| !is_own(wanted));
    let programmed = match foreign {
        _ if !accepted.status => fails(PROGRAMMED, "Invalid", "no listener is valid"),
        _ if own == GatewayAddresses::Taken => {
            fails(PROGRAMMED, "AddressNotAssigned", "a Service of somebody else has the name of the Gateway's")
        }
        Some(address) if own == GatewayAddresses::Shared => {
            fails(PROGRAMMED, "AddressNotUsable", format!("{address} is no address of a node of ours"))
        }
        Some(address) => {
            fails(PROGRAMMED, "AddressNotUsable", format!("{address} has not been given to the Gateway's Service"))
        }
        None if addresses.is_empty() && own != GatewayAddresses::Shared => {
            fails(PROGRAMMED, "AddressNotAssigned", "the Gateway's Service has no address yet")
        }
        None => holds(PROGRAMMED, "Programmed"),
    };
    let listeners = listeners.into_iter().map(|listener| DesiredListenerStatus {
        name: listener.name.clone(),
        supported_kinds: listener.kinds.clone(),
        attached_routes: listener.attached_routes,
        conditions: listener.conditions(),
    });
    let addresses = (own != GatewayAddresses::Shared).then(|| addresses.to_vec());
    DesiredGatewayStatus { conditions: vec![accepted, programmed], addresses, listeners: listeners.collect() }
}

struct Builder<'a> {
    cluster: &'a mut dyn Cluster,
    listeners: Vec<ListenerState>,
    gateways: HashSet<String>,
    grants: ReferenceGrants,
    tls: BackendTls,
    entries: Vec<Entry>,
    passthrough: Vec<(usize, String, TlsPassthrough)>,
    statuses: Statuses,
}

/// One route on one listener, and its place among others with the same path.
struct Entry {
    listener: usize,
    hosts: Vec<String>,
    route: Arc<Route>,
    age: Arc<(Option<jiff::Timestamp>, String)>,
    order: usize,
}

/// What a route becomes once it is attached.
enum Work {
    Http(Vec<Arc<Route>>),
    Passthrough(Arc<Destinations>),
}

impl Builder<'_> {
    fn add_routes(&mut self, snapshot: &GatewaySnapshot) {
        for route in &snapshot.http_routes {
            let (parents, hostnames) = (&route.spec.parent_refs, &route.spec.hostnames);
            let head = RouteHead { kind: "HTTPRoute", metadata: &route.metadata, parents, hostnames };
            self.add(head, |resolver| {
                rules::http(route, resolver).map(|compiled| (Work::Http(compiled.routes), compiled.references))
            });
        }
        for route in &snapshot.grpc_routes {
            let (parents, hostnames) = (&route.spec.parent_refs, &route.spec.hostnames);
            let head = RouteHead { kind: "GRPCRoute", metadata: &route.metadata, parents, hostnames };
            self.add(head, |resolver| {
                rules::grpc(route, resolver).map(|compiled| (Work::Http(compiled.routes), compiled.references))
            });
        }
        let mut tls_routes: Vec<&TlsRoute> = snapshot.tls_routes.iter().map(Arc::as_ref).collect();
        // The first one has its hosts.
        tls_routes.sort_by_cached_key(|route| age(&route.metadata));
        for route in tls_routes {
            let (parents, hostnames) = (&route.spec.parent_refs, &route.spec.hostnames);
            let head = RouteHead { kind: "TLSRoute", metadata: &route.metadata, parents, hostnames };
            self.add(head, |resolver| Ok(passthrough(route, resolver)));
        }
    }

    fn add(
        &mut self,
        head: RouteHead<'_>,
        compile: impl FnOnce(&mut Resolver<'_>) -> Result<(Work, References), DesiredCondition>,
    ) {
        let own = namespace(head.metadata);
        let gateway =
            |parent: &ParentReference| format!("{}/{}", parent.namespace.as_deref().unwrap_or(own), parent.name);
        let is_ours = |parent: &&ParentReference| {
            is_gateway(parent.group.as_deref(), parent.kind.as_deref()) && self.gateways.contains(&gateway(parent))
        };
        let parents: Vec<&ParentReference> = head.parents.iter().filter(is_ours).collect();
        let status_key = (head.kind, key(head.metadata));
        if parents.is_empty() {
            self.statuses.routes.insert(status_key, Vec::new());
            return;
        }
        let mut resolver = Resolver { cluster: &mut *self.cluster, grants: &self.grants, tls: &self.tls };
        let compiled = compile(&mut resolver);
        let resolved = match compiled.as_ref().map(|(_, references)| &references.problem) {
            Ok(Some(problem)) => problem.clone(),
            _ => holds(RESOLVED_REFS, "ResolvedRefs"),
        };
        let mut attached: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        let mut desired = Vec::new();
        for parent in parents {
            let gateway = gateway(parent);
            let found = attach(head, parent, &gateway, &self.listeners, self.cluster);
            let accepted = match (&compiled, found) {
                (_, Err(problem)) => problem,
                (Err(problem), _) => problem.clone(),
                (Ok((_, references)), Ok(found)) => {
                    attached.extend(found.into_iter().map(|(at, hosts): Attached| (at, hosts)));
                    for policy in &references.policies {
                        self.tls.used_by(*policy, &gateway);
                    }
                    holds(ACCEPTED, "Accepted")
                }
            };
            let conditions = vec![accepted, resolved.clone()];
            desired.push(DesiredParentStatus { parent: parent.clone(), conditions });
        }
        self.statuses.routes.insert(status_key, desired);
        if let Ok((work, _)) = compiled {
            self.attach(head, work, attached);
        }
    }

    fn attach(&mut self, head: RouteHead<'_>, work: Work, attached: BTreeMap<usize, Vec<String>>) {
        let age = Arc::new(age(head.metadata));
        for (listener, hosts) in attached {
            self.listeners[listener].attached_routes += 1;
            if !self.listeners[listener].is_programmed() {
                continue;
            }
            match &work {
                Work::Http(routes) => {
                    for (order, route) in routes.iter().enumerate() {
                        let (hosts, route, age) = (hosts.clone(), route.clone(), age.clone());
                        self.entries.push(Entry { listener, hosts, route, age, order });
                    }
                }
                Work::Passthrough(destinations) => {
                    for host in hosts {
                        let (owner, destinations) = (age.1.as_str().into(), destinations.clone());
                        self.passthrough.push((listener, host, TlsPassthrough { owner, destinations }));
                    }
                }
            }
        }
    }

    fn only_passthrough(&self) -> BTreeSet<u16> {
        let served = |listener: &ListenerState| listener.served_port.filter(|_| listener.is_programmed());
        let passes = |listener: &&ListenerState| listener.protocol == Some(ListenerProtocol::TlsPassthrough);
        let mut ports: BTreeSet<u16> = self.listeners.iter().filter(passes).filter_map(served).collect();
        for port in self.listeners.iter().filter(|listener| !passes(listener)).filter_map(served) {
            ports.remove(&port);
        }
        ports
    }

    /// More conditions come first, then older routes, then earlier rules.
    fn ports(&mut self) -> BTreeMap<u16, Arc<GatewayPort>> {
        let mut ports: BTreeMap<u16, GatewayPort> = BTreeMap::new();
        for listener in self.listeners.iter().filter(|listener| listener.is_programmed()) {
            let Some(served) = listener.served_port else { continue };
            let port = ports.entry(served).or_default();
            if listener.protocol != Some(ListenerProtocol::TlsPassthrough) {
                port.listeners.entry(&listener.hostname, HostTable::default);
            }
            if let Some(certificate) = &listener.certificate {
                port.certificates.entry(&listener.hostname, || certificate.clone());
            }
        }
        self.entries.sort_by(|one, other| {
            let rank = one.route.condition.rank().cmp(&other.route.condition.rank());
            rank.then_with(|| one.age.cmp(&other.age)).then(one.order.cmp(&other.order))
        });
        for entry in self.entries.drain(..) {
            let listener = &self.listeners[entry.listener];
            let Some(port) = listener.served_port.and_then(|served| ports.get_mut(&served)) else { continue };
            let table = port.listeners.entry(&listener.hostname, HostTable::default);
            for host in &entry.hosts {
                table.insert(host, entry.route.clone());
            }
        }
        for (listener, host, passthrough) in self.passthrough.drain(..) {
            let served = self.listeners[listener].served_port;
            if let Some(port) = served.and_then(|served| ports.get_mut(&served)) {
                port.passthrough.entry(&host, || passthrough);
            }
        }
        ports.into_iter().map(|(port, table)| (port, Arc::new(table))).collect()
    }
}

fn passthrough(route: &TlsRoute, resolver: &mut Resolver<'_>) -> (Work, References) {
    let from = Referrer {
        kind: "TLSRoute",
        namespace: namespace(&route.metadata),
        protocol: Protocol::Http1,
        passthrough: true,
    };
    let mut references = References::default();
    let backends = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs);
    let list = backends.map(|reference| Destination {
        weight: reference.weight.unwrap_or(1),
        backend: resolver.backend(from, reference, &mut references),
        filters: None,
    });
    let destinations = Destinations::new(list.collect());
    (Work::Passthrough(Arc::new(destinations)), references)
}

#[cfg(test)]
#[path = "model_tests/mod.rs"]
mod tests;
