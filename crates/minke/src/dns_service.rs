//! Cluster DNS as a Service: every node answers for itself on its bridge, behind the well-known addresses.
//! The Service is made by `server`; a node's part is started by `agent` once it has its pod range; `dns_endpoints`
//! joins the two.
//! Invariant: an ordinary Service and EndpointSlices, so that a foreign DNS can take its place.

use std::net::{IpAddr, SocketAddr};

use ::client::{Client, InformerFactory, Patch};
use anyhow::{Context, Result};
use env::Env;
use k8s_openapi::api::core::v1::{Node, Service};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "kube-dns";
/// On a Node: where it answers DNS, with commas between.
pub const ANNOTATION: &str = "minke.io/dns";
pub const PORT: u16 = 53;
/// Without a bridge of our own the node's address is used, where port 53 may be somebody else's.
pub const PORT_ON_NODE: u16 = 10053;

pub struct Params {
    pub node_name: String,
    /// Where to answer.
    pub listen: Vec<SocketAddr>,
    pub domain: String,
    /// 0 shows no metrics.
    pub metrics_port: u16,
    pub client: Client,
    pub informers: InformerFactory,
    pub env: Env,
    pub shutdown: CancellationToken,
}

/// Runs until shutdown.
pub async fn run(params: Params) -> Result<()> {
    let listen = params.listen;
    announce(&params.client, &params.node_name, &listen).await.context("failed to publish this node's DNS")?;
    let mut config = dns::DnsConfig::new(listen, &params.domain);
    config.metrics = match (params.metrics_port, config.listen.first()) {
        (0, _) | (_, None) => None,
        (port, Some(address)) => Some(SocketAddr::new(address.ip(), port)),
    };
    dns::run(config, params.informers, params.env, params.shutdown).await.context("cluster DNS stopped")
}

/// Says on our own Node where we answer; nowhere, when another DNS is in charge.
pub async fn announce(client: &Client, node_name: &str, addresses: &[SocketAddr]) -> Result<()> {
    let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let value = if text.is_empty() { Value::Null } else { text.join(",").into() };
    let patch = json!({ "metadata": { "annotations": { ANNOTATION: value } } });
    client.api::<Node>().patch(node_name, &Patch::Merge(patch)).await?;
    Ok(())
}

pub fn ports(port: u16) -> Value {
    json!([
        { "name": "dns", "protocol": "UDP", "port": port },
        { "name": "dns-tcp", "protocol": "TCP", "port": port },
    ])
}

pub fn apply(config: Value) -> Patch {
    Patch::Apply { manager: "minke".into(), force: true, config }
}

/// The Service, once for the cluster: one address of each family that Services have.
pub async fn publish(client: &Client, addresses: &[IpAddr]) -> Result<()> {
    let families: Vec<&str> = addresses.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": {
            "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS" } },
        "spec": {
            "clusterIP": addresses.first(), "clusterIPs": addresses, "ipFamilies": families, "ipFamilyPolicy": policy,
            "internalTrafficPolicy": "Local", "ports": ports(PORT),
        },
    });
    client.namespaced::<Service>(NAMESPACE).patch(NAME, &apply(service)).await?;
    Ok(())
}
