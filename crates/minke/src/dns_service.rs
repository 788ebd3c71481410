//! Cluster DNS as a Service: every node answers for itself on its bridge, behind the one well-known address.
//! The Service is made by `server`; a node's part is started by `agent` once it has its pod range.
//! Invariant: an ordinary Service and EndpointSlices, so that a foreign DNS can take its place.

use std::net::{IpAddr, SocketAddr};

use ::client::{Client, InformerFactory, Patch};
use anyhow::{Context, Result};
use env::Env;
use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
const PORT: u16 = 53;

pub struct Params {
    pub node_name: String,
    pub pod_cidrs: Vec<IpNet>,
    pub domain: String,
    pub client: Client,
    pub informers: InformerFactory,
    pub env: Env,
    pub shutdown: CancellationToken,
}

/// Runs until shutdown.
pub async fn run(params: Params) -> Result<()> {
    let gateway = params.pod_cidrs.first().and_then(|c| c.hosts().next()).context("the pod range is empty")?;
    publish_endpoint(&params, gateway).await.context("failed to publish this node's DNS")?;
    let config = dns::DnsConfig::new(vec![SocketAddr::new(gateway, PORT)], &params.domain);
    dns::run(config, params.informers, params.env, params.shutdown).await.context("cluster DNS stopped")
}

fn ports() -> Value {
    json!([
        { "name": "dns", "protocol": "UDP", "port": PORT },
        { "name": "dns-tcp", "protocol": "TCP", "port": PORT },
    ])
}

fn apply(config: Value) -> Patch {
    Patch::Apply { manager: "minke".into(), force: true, config }
}

/// The Service, once for the cluster.
pub async fn publish(client: &Client, address: IpAddr) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": {
            "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS" } },
        "spec": { "clusterIP": address, "internalTrafficPolicy": "Local", "ports": ports() },
    });
    client.namespaced::<Service>(NAMESPACE).patch(NAME, &apply(service)).await?;
    Ok(())
}

/// This node's endpoint behind it.
async fn publish_endpoint(params: &Params, gateway: IpAddr) -> Result<()> {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": format!("{NAME}-{}", params.node_name), "namespace": NAMESPACE, "labels": {
            "kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": "minke-agent" } },
        "addressType": if gateway.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [gateway], "nodeName": params.node_name,
            "conditions": { "ready": true, "serving": true, "terminating": false } }],
        "ports": ports(),
    });
    let name = format!("{NAME}-{}", params.node_name);
    params.client.namespaced::<EndpointSlice>(NAMESPACE).patch(&name, &apply(slice)).await?;
    Ok(())
}
