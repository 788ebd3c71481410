//! Gives Services of type LoadBalancer their addresses, where nobody else does: those of the nodes, or some from a pool.
//! The core is `assignment`; the proxy of every node answers at what the status says.
//! Invariant: Services of another class are never touched (test: `classes_of_others_are_theirs`).

pub mod address_pool;
mod announcer_heartbeats;
mod assignment;

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use api::ApiError;
use async_trait::async_trait;
use client::{EventRecorder, Informer, ListParams, Patch, reference};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::{
    address_pool::AddressRange,
    announcer_heartbeats::{AnnouncerHeartbeats, Heartbeat, LEASE_NAMESPACE},
    assignment::{Refusal, current, is_local, is_ours, takes_traffic},
};
use crate::{
    common::meta::{Object, time},
    endpoints::SERVICE_NAME,
    runner::{Context, Controller, Outcome, Queue, Setup},
};

/// Where the addresses of load balancers come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoadBalancer {
    /// Those of the nodes.
    Nodes,
    /// A pool, which one node at a time announces on its link.
    Layer2(Vec<AddressRange>),
    /// Somebody else gives them.
    #[default]
    None,
}

/// The condition whose message names the node that announces the addresses; the nodes go by it.
const ANNOUNCED: &str = "minke.io/Layer2Announced";

const SLICES_OF_SERVICE: &str = "service";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (services, nodes) = (setup.informer::<Service>(), setup.informer::<Node>());
    let slices = setup.informer::<EndpointSlice>();
    slices.add_index(SLICES_OF_SERVICE, |slice| slice_service(slice).into_iter().collect());
    setup.on(&services, {
        let services = services.clone();
        move |change, queue| {
            queue.add(change.key.clone());
            // What this one no longer has may be what another waits for.
            let had =
                change.old.as_deref().filter(|old| is_ours(old)).map(|old| (assignment::ports(old), current(old)));
            let has =
                change.new.as_deref().filter(|new| is_ours(new)).map(|new| (assignment::ports(new), current(new)));
            if had.is_some() && had != has {
                queue_all(&services, queue);
            }
        }
    });
    setup.on(&nodes, {
        let services = services.clone();
        move |change, queue| {
            let of_interest = |node: &Option<Arc<Node>>| {
                let node = node.as_ref().filter(|node| takes_traffic(node))?;
                Some(node.status.as_ref().and_then(|status| status.addresses.clone()))
            };
            if of_interest(&change.old) != of_interest(&change.new) {
                queue_all(&services, queue);
            }
        }
    });
    setup.on(&slices, {
        let services = services.clone();
        move |change, queue| {
            let service = change.new.as_ref().or(change.old.as_ref()).and_then(|slice| service_of(slice));
            let local = |key: &String| services.get(key).is_some_and(|service| is_ours(&service) && is_local(&service));
            if let Some(key) = service.filter(local) {
                queue.add(key);
            }
        }
    });
    let heartbeats = Arc::new(AnnouncerHeartbeats::default());
    if matches!(setup.context.config.load_balancer, LoadBalancer::Layer2(_)) {
        let leases = setup.informer::<Lease>();
        let (services, heartbeats, env) = (services.clone(), heartbeats.clone(), setup.context.env.clone());
        setup.on(&leases, move |change, queue| {
            let Some(node) = change.key.strip_prefix("kube-node-lease/") else { return };
            if heartbeats.hear(node, change.new.as_deref(), env.monotonic()) {
                queue_all(&services, queue);
            }
        });
    }
    let recorder = setup.context.recorder("service-lb-controller");
    Arc::new(LoadBalancers {
        context: setup.context.clone(),
        services,
        nodes,
        slices,
        recorder,
        heartbeats,
        taken: Mutex::default(),
    })
}

fn queue_all(services: &Informer<Service>, queue: &Queue) {
    services.list().iter().filter(|service| is_ours(service)).for_each(|service| queue.add(service.key()));
}

fn service_of(slice: &EndpointSlice) -> Option<String> {
    Some(format!("{}/{}", slice.namespace(), slice.label(SERVICE_NAME)?))
}

fn slice_service(slice: &api::Object) -> Option<String> {
    let name = slice.meta.labels.get(SERVICE_NAME)?;
    Some(format!("{}/{name}", slice.meta.namespace.as_deref().unwrap_or_default()))
}

struct LoadBalancers {
    context: Context,
    services: Informer<Service>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    recorder: EventRecorder,
    heartbeats: Arc<AnnouncerHeartbeats>,
    /// Given away here, perhaps not in the cache yet.
    taken: Mutex<HashMap<IpAddr, String>>,
}

#[async_trait]
impl Controller for LoadBalancers {
    async fn reconcile(&self, key: &str) -> Outcome {
        if self.context.config.load_balancer == LoadBalancer::None {
            return Ok(None);
        }
        let service = self.services.get(key);
        let Some(service) = service.filter(|service| is_ours(service)) else {
            self.taken.lock().retain(|_, by| by != key);
            return self.withdraw(key).await.map(|()| None);
        };
        let again = self.look_after_announcer(&service).await?;
        match self.wanted(&service) {
            Ok(ips) => {
                if self.write(&service, &ips).await? && !ips.is_empty() {
                    self.recorder.normal(&reference(&*service), "EnsuredLoadBalancer", "Ensured load balancer");
                }
            }
            Err(refusal) => {
                self.write(&service, &[]).await?;
                self.recorder.warning(&reference(&*service), "SyncLoadBalancerFailed", refusal.to_string());
            }
        }
        Ok(again)
    }
}

/// The node that the status says announces the addresses.
fn announcer_of(service: &Service) -> Option<&str> {
    let mut conditions = service.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|held| held.type_ == ANNOUNCED && held.status == "True").map(|held| held.message.as_str())
}

impl LoadBalancers {
    /// Notes whether the node that announces the addresses is lost, long before its Node says so. When to look again.
    async fn look_after_announcer(&self, service: &Service) -> Result<Option<Duration>, ApiError> {
        let Some(node) = announcer_of(service) else { return Ok(None) };
        let env = &self.context.env;
        if let Heartbeat::Silent(renewed) = self.heartbeats.look(node, env.monotonic()) {
            // Perhaps it is the server that was silent, or the watch: it has to say itself that nothing is newer.
            let leases = self.context.informers.client().namespaced::<Lease>(LEASE_NAMESPACE);
            let found = leases.list(&ListParams::fields(format!("metadata.name={node}"))).await?.items;
            let now = found.first().and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
            if now == renewed {
                tracing::warn!(node, "a node that announces load balancer addresses is silent; another one takes over");
                self.heartbeats.give_up(node);
            } else {
                self.heartbeats.hear(node, found.first(), env.monotonic());
            }
        }
        Ok(match self.heartbeats.look(node, env.monotonic()) {
            Heartbeat::Alive(left) => Some(left),
            _ => None,
        })
    }

    fn wanted(&self, service: &Service) -> Result<Vec<IpAddr>, Refusal> {
        let all = self.services.list();
        match &self.context.config.load_balancer {
            LoadBalancer::None => Ok(Vec::new()),
            LoadBalancer::Nodes => match assignment::port_in_use(service, &all, &self.reserved()) {
                Some(refusal) => Err(refusal),
                None => {
                    let slices = self.slices.by_index(SLICES_OF_SERVICE, &service.key());
                    Ok(assignment::of_nodes(service, &self.nodes.list(), &slices))
                }
            },
            LoadBalancer::Layer2(pool) => {
                let mut taken = self.taken.lock();
                let key = service.key();
                for other in all.iter().filter(|other| is_ours(other) && other.key() != key) {
                    for ip in current(other) {
                        taken.entry(ip).or_insert_with(|| other.key());
                    }
                }
                taken.retain(|_, by| *by != key);
                let ips = assignment::from_pool(service, pool, &taken)?;
                taken.extend(ips.iter().map(|ip| (*ip, key.clone())));
                Ok(ips)
            }
        }
    }

    /// Ports that the nodes need for themselves.
    fn reserved(&self) -> Vec<(i32, &'static str)> {
        let nodes = self.nodes.list();
        let kubelets = nodes
            .iter()
            .filter_map(|node| Some(node.status.as_ref()?.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port));
        let servers = self.slices.by_index(SLICES_OF_SERVICE, "default/kubernetes");
        let servers = servers.iter().flat_map(|slice| slice.ports.iter().flatten()).filter_map(|port| port.port);
        let kept = self.context.config.node_ports_reserved.iter().map(|(port, by)| (i32::from(*port), *by));
        kubelets
            .map(|port| (port, "the kubelet"))
            .chain(servers.map(|port| (port, "the API server")))
            .chain(kept)
            .collect()
    }

    /// Of a Service that is no load balancer any more. One of another class is not ours to touch.
    async fn withdraw(&self, key: &str) -> Result<(), ApiError> {
        let Some(service) = self.services.get(key) else { return Ok(()) };
        let balanced = service.spec.as_ref().is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"));
        if balanced || service.deleting() {
            return Ok(());
        }
        self.write(&service, &[]).await.map(drop)
    }

    /// Who announces it, as a condition of its status.
    fn conditions(&self, service: &Service, ips: &[IpAddr]) -> Vec<Condition> {
        let held = service.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let (own, mut conditions): (Vec<_>, Vec<_>) = held.cloned().partition(|held| held.type_ == ANNOUNCED);
        if !matches!(self.context.config.load_balancer, LoadBalancer::Layer2(_)) || ips.is_empty() {
            return conditions;
        }
        let slices = self.slices.by_index(SLICES_OF_SERVICE, &service.key());
        let current = own.first().filter(|held| held.status == "True").map(|held| held.message.as_str());
        let mut nodes = self.nodes.list();
        nodes.retain(|node| !self.heartbeats.is_lost(node.name()));
        let node = assignment::announcer(service, &nodes, &slices, current);
        let (status, reason) = if node.is_some() { ("True", "NodeElected") } else { ("False", "NoNodeAvailable") };
        let message = node.unwrap_or_default();
        let same = own.into_iter().find(|held| held.status == status && held.message == message);
        conditions.push(same.unwrap_or_else(|| Condition {
            type_: ANNOUNCED.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            last_transition_time: time(self.context.env.now()),
            observed_generation: None,
        }));
        conditions
    }

    /// Whether there was anything to write.
    async fn write(&self, service: &Service, ips: &[IpAddr]) -> Result<bool, ApiError> {
        let conditions = self.conditions(service, ips);
        let held = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        if current(service) == ips && conditions == held {
            return Ok(false);
        }
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
        let ingress = if ingress.is_empty() { Value::Null } else { json!(ingress) };
        let conditions = if conditions.is_empty() { Value::Null } else { json!(conditions) };
        let status = json!({ "loadBalancer": { "ingress": ingress }, "conditions": conditions });
        let patch = json!({ "metadata": { "uid": service.uid() }, "status": status });
        let api = self.context.client.namespaced::<Service>(service.namespace());
        match api.patch_status(service.name(), &Patch::Merge(patch)).await {
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        }
    }
}
