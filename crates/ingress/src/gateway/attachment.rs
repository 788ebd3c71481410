//! Which listeners a route attaches to.
//! Called by `model` for every parent that a route names.
//! Pure (tidy: `pure_files`). The first thing that is wrong is the reason, in the order of the specification: no such
//! listener, not allowed, no host in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    cluster::Cluster,
    conditions::{ACCEPTED, DesiredCondition, fails},
    hostnames,
    listeners::ListenerState,
    types::{ParentReference, namespace},
};

/// What all kinds of routes have.
#[derive(Clone, Copy)]
pub struct RouteHead<'a> {
    pub kind: &'static str,
    pub metadata: &'a ObjectMeta,
    pub parents: &'a [ParentReference],
    pub hostnames: &'a [String],
}

/// A listener, by its place among all, and the hosts that the route has there.
pub type Attached = (usize, Vec<String>);

/// `gateway` as `namespace/name`.
pub fn attach(
    route: RouteHead<'_>,
    parent: &ParentReference,
    gateway: &str,
    listeners: &[ListenerState],
    cluster: &dyn Cluster,
) -> Result<Vec<Attached>, DesiredCondition> {
    let named = |listener: &&(usize, &ListenerState)| {
        listener.1.gateway == gateway
            && parent.section_name.as_ref().is_none_or(|name| *name == listener.1.name)
            && parent.port.is_none_or(|port| port == listener.1.port)
    };
    let named: Vec<(usize, &ListenerState)> = listeners.iter().enumerate().filter(|l| named(&l)).collect();
    if named.is_empty() {
        let message = format!("Gateway {gateway} has no such listener");
        return Err(fails(ACCEPTED, "NoMatchingParent", message));
    }
    let allowed: Vec<(usize, &ListenerState)> = named
        .into_iter()
        .filter(|(_, listener)| {
            listener.is_accepted()
                && listener.kinds.iter().any(|kind| kind.is(route.kind))
                && allows_namespace(listener, namespace(route.metadata), cluster)
        })
        .collect();
    if allowed.is_empty() {
        let message = format!("no listener of Gateway {gateway} takes {} of this namespace", route.kind);
        return Err(fails(ACCEPTED, "NotAllowedByListeners", message));
    }
    let on_listener = |(at, listener): (usize, &ListenerState)| {
        hostnames::on_listener(&listener.hostname, route.hostnames).map(|hosts| (at, hosts))
    };
    let attached: Vec<Attached> = allowed.into_iter().filter_map(on_listener).collect();
    match attached.is_empty() {
        true => {
            let message = format!("no listener of Gateway {gateway} has one of the route's hosts");
            Err(fails(ACCEPTED, "NoMatchingListenerHostname", message))
        }
        false => Ok(attached),
    }
}

fn allows_namespace(listener: &ListenerState, of_route: &str, cluster: &dyn Cluster) -> bool {
    match listener.namespaces.from.as_deref().unwrap_or("Same") {
        "All" => true,
        "Same" => listener.namespace == of_route,
        "Selector" => {
            let selector = listener.namespaces.selector.as_ref();
            let selector = api::selectors::LabelSelector::from_meta(selector);
            selector.is_ok_and(|selector| selector.matches(&cluster.namespace_labels(of_route)))
        }
        _ => false,
    }
}
