//! Listeners of Gateways: which are valid, what they take, and which stand in each other's way.
//! Called by `model`; routes attach to what it makes (`attachment`).
//! Pure (tidy: `pure_files`). Where Gateways share the addresses of their nodes, of two that want one port for different
//! protocols the older one has it, and listeners of one port and host take the routes of both.

use std::{collections::HashMap, sync::Arc};

use rustls::sign::CertifiedKey;

use super::{
    cluster::{Cluster, GatewayAddresses},
    conditions::{ACCEPTED, CONFLICTED, DesiredCondition, PROGRAMMED, RESOLVED_REFS, fails, holds},
    reference_grants::{ReferenceGrants, Referent},
    types::{GROUP, Gateway, Listener, ObjectReference, RouteGroupKind, RouteNamespaces, key, namespace},
};
use crate::model::CertificateProblem;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListenerProtocol {
    Http,
    Https,
    TlsPassthrough,
}

impl ListenerProtocol {
    pub fn is_tls(self) -> bool {
        self != Self::Http
    }

    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Http | Self::Https => &["HTTPRoute", "GRPCRoute"],
            Self::TlsPassthrough => &["TLSRoute"],
        }
    }
}

/// One listener, as far as it is known.
#[derive(Debug)]
pub struct ListenerState {
    /// Of its Gateway, as `namespace/name`.
    pub gateway: String,
    pub namespace: String,
    pub name: String,
    /// In lower case; empty for any.
    pub hostname: String,
    pub port: u16,
    /// None when it can't be served at all.
    pub protocol: Option<ListenerProtocol>,
    /// Where it is in the route table.
    pub served_port: Option<u16>,
    pub namespaces: RouteNamespaces,
    pub kinds: Vec<RouteGroupKind>,
    pub certificate: Option<Arc<CertifiedKey>>,
    pub attached_routes: i32,
    pub accepted: DesiredCondition,
    pub resolved_refs: DesiredCondition,
    pub conflicted: Option<(&'static str, String)>,
}

impl ListenerState {
    pub fn is_accepted(&self) -> bool {
        self.accepted.status && self.conflicted.is_none()
    }

    /// Whether requests get through it.
    pub fn is_programmed(&self) -> bool {
        let has_certificate = self.protocol != Some(ListenerProtocol::Https) || self.certificate.is_some();
        self.is_accepted() && has_certificate && self.served_port.is_some() && !self.kinds.is_empty()
    }

    pub fn conditions(&self) -> Vec<DesiredCondition> {
        let programmed = match self.is_programmed() {
            true => holds(PROGRAMMED, "Programmed"),
            false => fails(PROGRAMMED, "Invalid", "the listener is not valid"),
        };
        let (accepted, conflicted) = match &self.conflicted {
            Some((reason, message)) => (
                fails(ACCEPTED, reason, message.clone()),
                DesiredCondition { message: message.clone(), ..holds(CONFLICTED, reason) },
            ),
            None => (self.accepted.clone(), fails(CONFLICTED, "NoConflicts", "")),
        };
        vec![accepted, programmed, self.resolved_refs.clone(), conflicted]
    }
}

/// The listeners of all Gateways, the oldest Gateway first.
pub fn listeners(gateways: &[Arc<Gateway>], grants: &ReferenceGrants, cluster: &mut dyn Cluster) -> Vec<ListenerState> {
    let mut all = Vec::new();
    for gateway in gateways {
        let of_gateway = gateway.spec.listeners.iter().map(|listener| state(gateway, listener, grants, cluster));
        let mut of_gateway: Vec<ListenerState> = of_gateway.collect();
        find_conflicts(&mut of_gateway);
        if cluster.addresses(&key(&gateway.metadata)) == GatewayAddresses::Shared {
            find_conflicts_with_older(&all, &mut of_gateway);
        }
        all.append(&mut of_gateway);
    }
    for listener in all.iter_mut().filter(|listener| listener.is_accepted()) {
        let Some(protocol) = listener.protocol else { continue };
        match cluster.listen(&listener.gateway, listener.port, protocol.is_tls()) {
            Ok(port) => listener.served_port = Some(port),
            Err(why) => listener.accepted = fails(ACCEPTED, "PortUnavailable", why),
        }
    }
    all
}

fn state(gateway: &Gateway, listener: &Listener, grants: &ReferenceGrants, cluster: &mut dyn Cluster) -> ListenerState {
    let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
    let protocol = match (listener.protocol.as_str(), mode) {
        ("HTTP", _) => Ok(ListenerProtocol::Http),
        ("HTTPS", "Terminate") => Ok(ListenerProtocol::Https),
        ("TLS", "Passthrough") => Ok(ListenerProtocol::TlsPassthrough),
        ("HTTPS" | "TLS", mode) => Err(format!("protocol {} with TLS mode {mode} is not supported", listener.protocol)),
        (other, _) => Err(format!("protocol {other} is not supported")),
    };
    let mut state = ListenerState {
        gateway: key(&gateway.metadata),
        namespace: namespace(&gateway.metadata).to_string(),
        name: listener.name.clone(),
        hostname: listener.hostname.as_deref().unwrap_or_default().to_ascii_lowercase(),
        port: listener.port,
        protocol: protocol.as_ref().ok().copied(),
        served_port: None,
        namespaces: listener.allowed_routes.namespaces.clone(),
        kinds: Vec::new(),
        certificate: None,
        attached_routes: 0,
        accepted: holds(ACCEPTED, "Accepted"),
        resolved_refs: holds(RESOLVED_REFS, "ResolvedRefs"),
        conflicted: None,
    };
    let protocol = match protocol {
        Ok(protocol) => protocol,
        Err(why) => {
            state.accepted = fails(ACCEPTED, "UnsupportedProtocol", why);
            return state;
        }
    };
    let (kinds, unknown) = route_kinds(protocol, &listener.allowed_routes.kinds);
    state.kinds = kinds;
    if protocol == ListenerProtocol::Https {
        match certificate(gateway, listener, grants, cluster) {
            Ok(certificate) => state.certificate = Some(certificate),
            Err(problem) => state.resolved_refs = problem,
        }
    }
    if let Some(kind) = unknown {
        let message = format!("routes of kind {kind} can't attach to a listener for {}", listener.protocol);
        state.resolved_refs = fails(RESOLVED_REFS, "InvalidRouteKinds", message);
    }
    state
}

/// The kinds of routes that may attach, and one that was asked for and can't.
fn route_kinds(protocol: ListenerProtocol, asked: &[RouteGroupKind]) -> (Vec<RouteGroupKind>, Option<String>) {
    let known = protocol.kinds();
    if asked.is_empty() {
        return (known.iter().map(|kind| RouteGroupKind::new(kind)).collect(), None);
    }
    let is_known = |asked: &&RouteGroupKind| known.iter().any(|kind| asked.is(kind));
    let kinds = asked.iter().filter(is_known).map(|kind| RouteGroupKind::new(&kind.kind)).collect();
    let unknown = asked.iter().find(|kind| !is_known(kind)).map(|kind| kind.kind.clone());
    (kinds, unknown)
}

/// The first certificate; all of them have to be there.
fn certificate(
    gateway: &Gateway,
    listener: &Listener,
    grants: &ReferenceGrants,
    cluster: &mut dyn Cluster,
) -> Result<Arc<CertifiedKey>, DesiredCondition> {
    let references = listener.tls.as_ref().map_or(&[][..], |tls| tls.certificate_refs.as_slice());
    let mut first = None;
    for reference in references {
        let found = one_certificate(namespace(&gateway.metadata), reference, grants, cluster)?;
        first.get_or_insert(found);
    }
    first.ok_or_else(|| fails(RESOLVED_REFS, "InvalidCertificateRef", "the listener names no certificate"))
}

fn one_certificate(
    own: &str,
    reference: &ObjectReference,
    grants: &ReferenceGrants,
    cluster: &mut dyn Cluster,
) -> Result<Arc<CertifiedKey>, DesiredCondition> {
    let invalid = |message: String| fails(RESOLVED_REFS, "InvalidCertificateRef", message);
    let (group, kind) = (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref().unwrap_or("Secret"));
    if (group, kind) != ("", "Secret") {
        return Err(invalid(format!("a certificate is a Secret, not a {kind}")));
    }
    let namespace = reference.namespace.as_deref().unwrap_or(own);
    let secret = format!("{namespace}/{}", reference.name);
    if !grants.allow("Gateway", own, Referent { group, kind, namespace, name: &reference.name }) {
        let message = format!("no ReferenceGrant lets Gateways of {own} use Secret {secret}");
        return Err(fails(RESOLVED_REFS, "RefNotPermitted", message));
    }
    cluster.certificate(&secret).map_err(|problem| match problem {
        CertificateProblem::Missing => invalid(format!("there is no Secret {secret} of type kubernetes.io/tls")),
        CertificateProblem::Bad(why) => invalid(format!("the certificate of Secret {secret} can't be used: {why}")),
    })
}

/// Of one Gateway: all that stand in each other's way are marked.
fn find_conflicts(listeners: &mut [ListenerState]) {
    let mut by_port: HashMap<u16, Vec<usize>> = HashMap::new();
    for (at, listener) in listeners.iter().enumerate().filter(|(_, listener)| listener.protocol.is_some()) {
        by_port.entry(listener.port).or_default().push(at);
    }
    for (port, same) in by_port {
        let is_tls = |at: &usize| listeners[*at].protocol.is_some_and(ListenerProtocol::is_tls);
        if same.iter().any(is_tls) && !same.iter().all(is_tls) {
            let message = format!("port {port} is asked for with TLS and without");
            for at in same {
                listeners[at].conflicted = Some(("ProtocolConflict", message.clone()));
            }
            continue;
        }
        let mut by_host: HashMap<String, Vec<usize>> = HashMap::new();
        for at in same {
            by_host.entry(listeners[at].hostname.clone()).or_default().push(at);
        }
        for at in by_host.into_values().filter(|same| same.len() > 1).flatten() {
            let shown = if listeners[at].hostname.is_empty() { "any host" } else { &listeners[at].hostname };
            let message = format!("another listener of port {port} is for {shown} too");
            listeners[at].conflicted = Some(("HostnameConflict", message));
        }
    }
}

fn find_conflicts_with_older(older: &[ListenerState], listeners: &mut [ListenerState]) {
    for listener in listeners {
        let Some(protocol) = listener.protocol else { continue };
        let mut same = older.iter().filter(|older| older.port == listener.port && older.is_accepted());
        let clash = same.find_map(|older| {
            let other = older.protocol?;
            if other.is_tls() != protocol.is_tls() {
                return Some(("ProtocolConflict", older));
            }
            (other != protocol && older.hostname == listener.hostname).then_some(("HostnameConflict", older))
        });
        if let Some((reason, older)) = clash {
            let message = format!("port {} belongs to Gateway {}, which is older", listener.port, older.gateway);
            listener.conflicted = Some((reason, message));
        }
    }
}

/// Whether a reference to a parent is to a Gateway.
pub fn is_gateway(group: Option<&str>, kind: Option<&str>) -> bool {
    group.unwrap_or(GROUP) == GROUP && kind.unwrap_or("Gateway") == "Gateway"
}
