//! Statuses of Gateways, their classes, routes and policies: what has to be written, and its writing.
//! The controller hands over what a build wants (`update`); a task of its own writes, so that no route waits for it.
//! Invariant: what other controllers have said is kept (test: `only_what_differs_is_written_and_others_words_stay`): a
//! write names the version that it has seen, and one that comes too late is made anew from the next.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, Informer};
use env::{Backoff, Env};
use http::Method;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    conditions::conditions,
    gateway_class::{CONTROLLER, SUPPORTED_FEATURES},
    model::{DesiredGatewayStatus, DesiredParentStatus, Statuses},
    objects::GatewayObjects,
    types::{
        Address, BackendTlsPolicy, GROUP, Gateway, GatewayClass, GatewayStatus, GrpcRoute, HttpRoute, ListenerStatus,
        ParentReference, PolicyAncestorStatus, RouteParentStatus, RouteStatus, TlsRoute,
    },
};
use crate::status::{node_addresses, wanted};

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// As many as a status may have.
const ADDRESSES_MAX: usize = 16;

/// By path of the object: the body of a merge patch.
type Pending = BTreeMap<String, Value>;

#[derive(Clone)]
pub struct GatewayStatusWriter {
    own: Arc<[IpAddr]>,
    nodes: Informer<Node>,
    pending: Arc<Mutex<Pending>>,
    added: Arc<Notify>,
    env: Env,
}

impl GatewayStatusWriter {
    pub fn new(own: Vec<IpAddr>, nodes: Informer<Node>, env: Env) -> Self {
        Self { own: own.into(), nodes, pending: Arc::default(), added: Arc::default(), env }
    }

    /// What is to be written now; what was waiting is out of date.
    pub fn update(&self, statuses: &Statuses, objects: &GatewayObjects) {
        let nodes = self.nodes.list();
        let known = node_addresses(&nodes);
        let now = Time(self.env.now());
        let mut pending = Pending::new();
        let mut add = |plural: &str, metadata: &ObjectMeta, status: Option<Value>| {
            let (Some(status), Some(resource)) = (status, objects.resource(plural)) else { return };
            let path = resource.path(metadata.namespace.as_deref(), metadata.name.as_deref());
            let body = json!({ "metadata": { "resourceVersion": metadata.resource_version }, "status": status });
            pending.insert(path, body);
        };
        for (name, desired) in &statuses.classes {
            let Some(class) = objects.get::<GatewayClass>("gatewayclasses", name) else { continue };
            let made = conditions(desired, &class.status.conditions, class.metadata.generation, now.clone());
            let features: Vec<Value> = SUPPORTED_FEATURES.iter().map(|name| json!({ "name": name })).collect();
            let is_same = made == class.status.conditions && class.status.supported_features == features;
            let status = (!is_same).then(|| json!({ "conditions": made, "supportedFeatures": features }));
            add("gatewayclasses", &class.metadata, status);
        }
        for (key, desired) in &statuses.gateways {
            let Some(gateway) = objects.get::<Gateway>("gateways", key) else { continue };
            let present = gateway.status.addresses.iter().filter_map(|address| address.value.clone()).collect();
            let addresses = match &desired.addresses {
                Some(own) => own.iter().map(ToString::to_string).collect(),
                None => wanted(&present, &self.own, &known),
            };
            let made = gateway_status(desired, &gateway, addresses.into_iter(), &now);
            add("gateways", &gateway.metadata, (made != gateway.status).then(|| json!(made)));
        }
        for ((kind, key), desired) in &statuses.routes {
            let found = match *kind {
                "HTTPRoute" => objects
                    .get::<HttpRoute>("httproutes", key)
                    .map(|r| ("httproutes", r.metadata.clone(), r.status.clone())),
                "GRPCRoute" => objects
                    .get::<GrpcRoute>("grpcroutes", key)
                    .map(|r| ("grpcroutes", r.metadata.clone(), r.status.clone())),
                _ => objects
                    .get::<TlsRoute>("tlsroutes", key)
                    .map(|r| ("tlsroutes", r.metadata.clone(), r.status.clone())),
            };
            let Some((plural, metadata, present)) = found else { continue };
            let made = route_status(desired, &present, metadata.generation, &now);
            add(plural, &metadata, (made != present).then(|| json!(made)));
        }
        for (key, (desired, gateways)) in &statuses.policies {
            let Some(policy) = objects.get::<BackendTlsPolicy>("backendtlspolicies", key) else { continue };
            let made = policy_ancestors(desired, gateways.iter(), &policy, &now);
            let status = (made != policy.status.ancestors).then(|| json!({ "ancestors": made }));
            add("backendtlspolicies", &policy.metadata, status);
        }
        let is_empty = pending.is_empty();
        *self.pending.lock() = pending;
        if !is_empty {
            self.added.notify_one();
        }
    }

    pub async fn run(self, client: Client) {
        let mut backoff = RETRY_BACKOFF;
        loop {
            let Some((path, body)) = self.pending.lock().pop_first() else {
                self.added.notified().await;
                continue;
            };
            match write(&client, &path, &body).await {
                Ok(()) => backoff = RETRY_BACKOFF,
                // The next version comes, and with it the next build.
                Err(error) if matches!(error.code, 404 | 409) => {}
                Err(error) => {
                    tracing::warn!(%error, path, "failed to write a status of the Gateway API; will try again");
                    self.env.sleep(backoff.next_delay()).await;
                    self.pending.lock().entry(path).or_insert(body);
                }
            }
        }
    }
}

async fn write(client: &Client, path: &str, body: &Value) -> Result<(), ApiError> {
    let uri = format!("{path}/status");
    client.call(Method::PATCH, &uri, "application/merge-patch+json", body.to_string()).await.map(drop)
}

fn gateway_status(
    desired: &DesiredGatewayStatus,
    gateway: &Gateway,
    addresses: impl Iterator<Item = String>,
    now: &Time,
) -> GatewayStatus {
    let (present, generation) = (&gateway.status, gateway.metadata.generation);
    let asked: Vec<&str> = gateway.spec.addresses.iter().filter_map(|address| address.value.as_deref()).collect();
    let address = |value: String| Address { kind: Some("IPAddress".into()), value: Some(value) };
    let addresses =
        addresses.filter(|value| asked.iter().all(|asked| asked.is_empty()) || asked.contains(&value.as_str()));
    let listeners = desired.listeners.iter().map(|listener| {
        let former = present.listeners.iter().find(|former| former.name == listener.name);
        let former = former.map_or(&[][..], |former| former.conditions.as_slice());
        ListenerStatus {
            name: listener.name.clone(),
            supported_kinds: listener.supported_kinds.clone(),
            attached_routes: listener.attached_routes,
            conditions: conditions(&listener.conditions, former, generation, now.clone()),
        }
    });
    GatewayStatus {
        conditions: conditions(&desired.conditions, &present.conditions, generation, now.clone()),
        addresses: addresses.take(ADDRESSES_MAX).map(address).collect(),
        listeners: listeners.collect(),
    }
}

/// Those of other controllers first, as they are.
fn route_status(
    desired: &[DesiredParentStatus],
    present: &RouteStatus,
    generation: Option<i64>,
    now: &Time,
) -> RouteStatus {
    let others = present.parents.iter().filter(|parent| parent.controller_name != CONTROLLER).cloned();
    let ours = desired.iter().map(|parent| {
        let is_same =
            |former: &&RouteParentStatus| former.controller_name == CONTROLLER && former.parent_ref == parent.parent;
        let former = present.parents.iter().find(is_same).map_or(&[][..], |former| former.conditions.as_slice());
        RouteParentStatus {
            parent_ref: parent.parent.clone(),
            controller_name: CONTROLLER.into(),
            conditions: conditions(&parent.conditions, former, generation, now.clone()),
        }
    });
    RouteStatus { parents: others.chain(ours).collect() }
}

fn policy_ancestors<'a>(
    desired: &[super::conditions::DesiredCondition],
    gateways: impl Iterator<Item = &'a String>,
    policy: &BackendTlsPolicy,
    now: &Time,
) -> Vec<PolicyAncestorStatus> {
    let present = &policy.status.ancestors;
    let others = present.iter().filter(|ancestor| ancestor.controller_name != CONTROLLER).cloned();
    let ours = gateways.map(|gateway| {
        let (namespace, name) = gateway.split_once('/').unwrap_or(("", gateway));
        let ancestor_ref = ParentReference {
            group: Some(GROUP.into()),
            kind: Some("Gateway".into()),
            namespace: Some(namespace.into()),
            name: name.into(),
            ..ParentReference::default()
        };
        let is_same = |former: &&PolicyAncestorStatus| {
            former.controller_name == CONTROLLER && former.ancestor_ref == ancestor_ref
        };
        let former = present.iter().find(is_same).map_or(&[][..], |former| former.conditions.as_slice());
        let conditions = conditions(desired, former, policy.metadata.generation, now.clone());
        PolicyAncestorStatus { ancestor_ref, controller_name: CONTROLLER.into(), conditions }
    });
    others.chain(ours).take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::conditions::{fails, holds};

    #[test]
    fn only_what_differs_is_written_and_others_words_stay() {
        let at = |second: i64| Time(jiff::Timestamp::from_second(second).unwrap());
        let parent = |name: &str| ParentReference { name: name.into(), ..ParentReference::default() };
        let foreign = RouteParentStatus {
            parent_ref: parent("g"),
            controller_name: "example.com/other".into(),
            conditions: Vec::new(),
        };
        let present = RouteStatus { parents: vec![foreign.clone()] };
        let desired = |accepted| [DesiredParentStatus { parent: parent("g"), conditions: vec![accepted] }];
        let first = route_status(&desired(holds("Accepted", "Accepted")), &present, Some(1), &at(1));
        assert_eq!(first.parents.len(), 2);
        assert_eq!(first.parents[0], foreign);
        let again = route_status(&desired(holds("Accepted", "Accepted")), &first, Some(1), &at(2));
        assert_eq!(again, first, "nothing to write");
        let other = route_status(&desired(fails("Accepted", "NoMatchingParent", "x")), &first, Some(2), &at(3));
        assert_eq!(other.parents[1].conditions[0].last_transition_time, at(3));
        assert_eq!(route_status(&[], &first, Some(2), &at(3)).parents, [foreign], "ours go with the parent");
    }
}
