//! Gateways with addresses of their own: each has a Service of type LoadBalancer, whose endpoints are the ports that this
//! ingress listens on for it.
//! What is wanted is handed over by the controller at every build; a task of its own writes, so that no route waits for it.
//! Objects that somebody else has made under these names are left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use api::ApiError;
use client::{Client, Informer, ListParams, Patch};
use env::{Backoff, Env};
use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::types::GROUP;

/// On what we make for a Gateway, with its name; upstream's label for that.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "minke-ingress";
const CLASS: &str = "minke.io/load-balancer";
/// A Service's name is that of a DNS label; the rest of a longer one is told apart by its hash.
const NAME_LENGTH_MAX: usize = 63;
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// What one Gateway needs, by `namespace/name`.
pub type GatewayBalancers = BTreeMap<String, GatewayBalancer>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayBalancer {
    pub uid: String,
    /// The port that clients use, and the one that is listened on.
    pub ports: BTreeMap<u16, u16>,
    pub requested: Option<IpAddr>,
}

/// The Service of a Gateway.
pub fn service_name(gateway: &str) -> String {
    let name = format!("gateway-{gateway}");
    if name.len() <= NAME_LENGTH_MAX && !name.contains('.') {
        return name;
    }
    // FNV-1a: the same in every process.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let short: String = name.chars().take(NAME_LENGTH_MAX - 17).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{short}-{hash:016x}")
}

pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// The addresses that a Gateway's Service has been given.
pub fn assigned(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let all = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    all.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

/// Its Service and EndpointSlice, as they are applied. `node` is the one that this ingress is on.
fn objects(key: &str, wanted: &GatewayBalancer, own: IpAddr, node: Option<&str>) -> [Value; 2] {
    let (namespace, gateway) = key.split_once('/').unwrap_or(("", key));
    let name = service_name(gateway);
    let owner = json!([{ "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway", "name": gateway, "uid": wanted.uid }]);
    let mut labels = json!({ MANAGED_BY: MANAGER });
    // A label's value is shorter than a name may be.
    if gateway.len() <= NAME_LENGTH_MAX {
        labels[GATEWAY_NAME] = json!(gateway);
    }
    let port_name = |port: u16| format!("port-{port}");
    let ports: Vec<Value> = wanted
        .ports
        .iter()
        .map(
            |(port, served)| json!({ "name": port_name(*port), "port": port, "protocol": "TCP", "targetPort": served }),
        )
        .collect();
    let mut spec = json!({
        "type": "LoadBalancer", "loadBalancerClass": CLASS, "allocateLoadBalancerNodePorts": false,
        "ipFamilyPolicy": "SingleStack", "ipFamilies": [if own.is_ipv4() { "IPv4" } else { "IPv6" }],
        // Where the node is known, the address is announced by it, and clients keep theirs.
        "externalTrafficPolicy": if node.is_some() { "Local" } else { "Cluster" },
        "ports": ports,
    });
    if let Some(ip) = wanted.requested {
        spec["loadBalancerIP"] = json!(ip);
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "spec": spec,
        "metadata": { "name": name, "namespace": namespace, "labels": labels, "ownerReferences": owner },
    });
    let mut endpoint = json!({ "addresses": [own], "conditions": { "ready": true } });
    if let Some(node) = node {
        endpoint["nodeName"] = json!(node);
    }
    labels["kubernetes.io/service-name"] = json!(name);
    let ports = wanted.ports.iter();
    let ports: Vec<Value> =
        ports.map(|(port, served)| json!({ "name": port_name(*port), "port": served, "protocol": "TCP" })).collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "endpoints": [endpoint], "ports": ports,
        "addressType": if own.is_ipv4() { "IPv4" } else { "IPv6" },
        "metadata": {
            "name": format!("{name}-{}", own.to_string().replace([':', '.'], "-")), "namespace": namespace,
            "labels": labels, "ownerReferences": owner,
        },
    });
    [service, slice]
}

#[derive(Clone)]
pub struct GatewayLoadBalancers {
    own: IpAddr,
    services: Informer<Service>,
    nodes: Informer<Node>,
    wanted: Arc<Mutex<GatewayBalancers>>,
    changed: Arc<Notify>,
    env: Env,
}

impl GatewayLoadBalancers {
    pub fn new(own: IpAddr, services: Informer<Service>, nodes: Informer<Node>, env: Env) -> Self {
        Self { own, services, nodes, wanted: Arc::default(), changed: Arc::default(), env }
    }

    /// None where the Service is not ours; no address where it has none yet.
    pub fn addresses(&self, gateway: &str) -> Option<Vec<IpAddr>> {
        let (namespace, name) = gateway.split_once('/')?;
        match self.services.get(&format!("{namespace}/{}", service_name(name))) {
            Some(service) if !is_ours(&service.metadata) => None,
            Some(service) => Some(assigned(&service)),
            None => Some(Vec::new()),
        }
    }

    pub fn update(&self, wanted: GatewayBalancers) {
        let mut held = self.wanted.lock();
        if *held != wanted {
            *held = wanted;
            self.changed.notify_one();
        }
    }

    pub async fn run(self, client: Client) {
        self.nodes.synced().await;
        let mut written = GatewayBalancers::new();
        let mut backoff = RETRY_BACKOFF;
        // Before the first build nothing is known to be unwanted.
        self.changed.notified().await;
        loop {
            let wanted = self.wanted.lock().clone();
            match self.write(&client, &written, &wanted).await {
                Ok(()) => {
                    (written, backoff) = (wanted, RETRY_BACKOFF);
                    self.changed.notified().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to write the Service of a Gateway; will try again");
                    self.env.timeout(backoff.next_delay(), self.changed.notified()).await;
                }
            }
        }
    }

    async fn write(
        &self,
        client: &Client,
        written: &GatewayBalancers,
        wanted: &GatewayBalancers,
    ) -> Result<(), ApiError> {
        let nodes = self.nodes.list();
        let has_own = |node: &&Arc<Node>| {
            let mut addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            addresses.any(|address| address.address.parse() == Ok(self.own))
        };
        let node = nodes.iter().find(has_own).and_then(|node| node.metadata.name.as_deref());
        for (key, balancer) in wanted.iter().filter(|(key, balancer)| written.get(*key) != Some(balancer)) {
            let (namespace, gateway) = key.split_once('/').unwrap_or(("", key));
            let name = service_name(gateway);
            let held = client.namespaced::<Service>(namespace).find(&name).await?;
            if held.is_some_and(|service| !is_ours(&service.metadata)) {
                tracing::warn!(gateway = key, service = name, "a Service of somebody else has the Gateway's name");
                continue;
            }
            let [service, slice] = objects(key, balancer, self.own, node);
            let slice_name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let apply = |config: Value| Patch::Apply { manager: MANAGER.into(), force: true, config };
            client.namespaced::<Service>(namespace).patch(&name, &apply(service)).await?;
            client.namespaced::<EndpointSlice>(namespace).patch(&slice_name, &apply(slice)).await?;
        }
        self.remove_others(client, wanted).await
    }

    /// Of Gateways that are not served any more but are still there; with those that go, theirs go by themselves.
    async fn remove_others(&self, client: &Client, wanted: &GatewayBalancers) -> Result<(), ApiError> {
        let named: BTreeSet<String> = wanted
            .keys()
            .filter_map(|key| key.split_once('/').map(|(ns, name)| format!("{ns}/{}", service_name(name))))
            .collect();
        let labelled = ListParams::labels(format!("{MANAGED_BY}={MANAGER}"));
        for service in client.api::<Service>().list(&labelled).await?.items {
            let (Some(namespace), Some(name)) = (&service.metadata.namespace, &service.metadata.name) else { continue };
            let mut owners = service.metadata.owner_references.iter().flatten();
            let of_gateway = owners.any(|owner| owner.api_version.starts_with(GROUP));
            if !of_gateway || named.contains(&format!("{namespace}/{name}")) {
                continue;
            }
            match client.namespaced::<Service>(namespace).delete(name, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_becomes_a_service_with_our_ports_behind_it() {
        let wanted = GatewayBalancer {
            uid: "u".into(),
            ports: [(80, 40001), (443, 40002)].into(),
            requested: Some("192.0.2.9".parse().unwrap()),
        };
        let [service, slice] = objects("n/edge", &wanted, "10.0.0.1".parse().unwrap(), Some("here"));
        assert_eq!(service["metadata"]["name"], "gateway-edge");
        assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(service["spec"]["loadBalancerIP"], "192.0.2.9");
        assert_eq!(service["spec"]["externalTrafficPolicy"], "Local");
        assert_eq!(service["spec"]["ports"][1]["port"], 443);
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "gateway-edge");
        assert_eq!(slice["ports"][1], json!({ "name": "port-443", "port": 40002, "protocol": "TCP" }));
        assert_eq!(slice["endpoints"][0]["nodeName"], "here");
        let [service, _] = objects("n/edge", &wanted, "10.0.0.1".parse().unwrap(), None);
        assert_eq!(service["spec"]["externalTrafficPolicy"], "Cluster");
    }

    #[test]
    fn every_name_of_a_gateway_is_one_of_a_service() {
        for (name, expected) in [("edge", Some("gateway-edge")), ("a.b", None), (&"x".repeat(200), None)] {
            let found = service_name(name);
            assert!(found.len() <= NAME_LENGTH_MAX && !found.contains('.'), "{found}");
            assert!(expected.is_none_or(|expected| expected == found), "{found}");
        }
        assert_ne!(service_name("a.b"), service_name("a-b"));
    }
}
