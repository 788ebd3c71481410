//! Cluster DNS as a Service: made once, with one EndpointSlice per node and family.
//! A node says on its own Node object where it answers; nobody else may write these slices.
//! An address is believed only inside the node's pod range, which is inside the cluster's, or if it is the node's own
//! and neither a pod's nor a Service's.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api::{
    ApiError,
    cluster_dns::{NAMESPACE, NODE_ANNOTATION, PORT, SERVICE},
    cluster_ranges::{ClusterRanges, NodeNetwork},
};
use async_trait::async_trait;
use client::{Informer, ListParams, Patch};
use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use crate::{
    common::meta,
    runner::{Context, Controller, Outcome, Setup},
};

const MANAGER: &str = "minke-server";
/// The key of the Service in the queue; all others are names of nodes.
const SERVICE_KEY: &str = "kube-system/kube-dns";

/// Who answers cluster DNS.
#[derive(Debug, Clone, Default)]
pub enum ClusterDns {
    /// Not known to this controller manager, which leaves everything as it is.
    #[default]
    Unknown,
    /// Every node, behind a Service with these addresses: one of each family that Services have.
    Nodes { addresses: Vec<IpAddr>, ranges: ClusterRanges },
    /// Another program: the endpoints of our nodes are taken away.
    Other,
}

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (nodes, slices) = (setup.informer::<Node>(), setup.informer::<EndpointSlice>());
    setup.on_keys(&nodes);
    setup.on_objects(slices.objects(), |change, queue| {
        let changed = change.new.as_ref().or(change.old.as_ref());
        let ours = |object: &&Arc<api::Object>| {
            object.meta.labels.get("endpointslice.kubernetes.io/managed-by").is_some_and(|by| by == MANAGER)
        };
        if let Some(node) = changed
            .filter(ours)
            .and_then(|slice| slice.value()["endpoints"][0]["nodeName"].as_str().map(str::to_string))
        {
            queue.add(node);
        }
    });
    setup.queue.add(SERVICE_KEY.into());
    Arc::new(ClusterDnsController { context: setup.context.clone(), nodes, slices })
}

struct ClusterDnsController {
    context: Context,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
}

#[async_trait]
impl Controller for ClusterDnsController {
    async fn reconcile(&self, key: &str) -> Outcome {
        match &self.context.config.cluster_dns {
            ClusterDns::Unknown => {}
            ClusterDns::Nodes { addresses, .. } if key == SERVICE_KEY => self.publish_service(addresses).await?,
            ClusterDns::Nodes { ranges, .. } => self.write_slices(key, ranges).await?,
            ClusterDns::Other if key == SERVICE_KEY => self.remove_slices().await?,
            ClusterDns::Other => {}
        }
        Ok(None)
    }
}

impl ClusterDnsController {
    async fn publish_service(&self, addresses: &[IpAddr]) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<Service>(NAMESPACE);
        api.patch(SERVICE, &apply(service(addresses))).await.map(drop)
    }

    async fn write_slices(&self, node: &str, ranges: &ClusterRanges) -> Result<(), ApiError> {
        let wanted = self.nodes.get(node).map(|node| slices(&node, ranges)).unwrap_or_default();
        let api = self.context.client.namespaced::<EndpointSlice>(NAMESPACE);
        for ipv4 in [true, false] {
            let name = slice_name(node, ipv4);
            let found = self.slices.get(&meta::key(NAMESPACE, &name));
            match wanted.iter().find(|slice| slice["metadata"]["name"] == name) {
                // A node's heartbeat changes its object all the time, but not this.
                Some(slice) if found.as_ref().is_some_and(|found| holds(&json!(**found), slice)) => {}
                Some(slice) => drop(api.patch(&name, &apply(slice.clone())).await?),
                None if found.is_none() => {}
                None => match api.delete(&name, &DeleteOptions::default()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                },
            }
        }
        Ok(())
    }

    async fn remove_slices(&self) -> Result<(), ApiError> {
        let ours = ListParams::labels(format!("endpointslice.kubernetes.io/managed-by={MANAGER}"));
        let api = self.context.client.namespaced::<EndpointSlice>(NAMESPACE);
        api.delete_collection(&ours, &DeleteOptions::default()).await
    }
}

/// Whether every field of `wanted` is in `found`, where the server may have added others.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(field, value)| found.get(field).is_some_and(|found| holds(found, value)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| holds(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

fn apply(config: Value) -> Patch {
    Patch::Apply { manager: "minke".into(), force: true, config }
}

fn ports(port: u16) -> Value {
    json!([
        { "name": "dns", "protocol": "UDP", "port": port },
        { "name": "dns-tcp", "protocol": "TCP", "port": port },
    ])
}

fn service(addresses: &[IpAddr]) -> Value {
    let families: Vec<&str> = addresses.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": SERVICE, "namespace": NAMESPACE, "labels": {
            "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS" } },
        "spec": {
            "clusterIP": addresses.first(), "clusterIPs": addresses, "ipFamilies": families, "ipFamilyPolicy": policy,
            "internalTrafficPolicy": "Local", "ports": ports(PORT),
        },
    })
}

fn slice_name(node: &str, ipv4: bool) -> String {
    if ipv4 { format!("{SERVICE}-{node}") } else { format!("{SERVICE}-{node}-ipv6") }
}

/// What the node's DNS should look like to the Service.
fn slices(node: &Node, cluster: &ClusterRanges) -> Vec<Value> {
    let node_name = node.metadata.name.as_deref().unwrap_or_default();
    let said = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ANNOTATION)).map(String::as_str);
    let claim = NodeNetwork::from_node(node);
    let is_own = |ip: IpAddr| {
        let mut ranges = claim.pod_cidrs.iter().filter(|range| cluster.range_problem(range).is_none());
        ranges.any(|range| range.contains(&ip))
            || (claim.addresses.contains(&ip) && cluster.address_problem(ip).is_none())
    };
    let said = said.unwrap_or_default().split(',').filter_map(|text| text.trim().parse::<SocketAddr>().ok());
    let believed: Vec<SocketAddr> = said.filter(|address| is_own(address.ip())).collect();
    let of_family = |ipv4: bool| {
        let address = believed.iter().find(|address| address.is_ipv4() == ipv4)?;
        Some(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": slice_name(node_name, ipv4), "namespace": NAMESPACE,
                "labels": {
                    "kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": MANAGER,
                },
                // A node that is gone takes its endpoint along.
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": node_name,
                    "uid": node.metadata.uid.as_deref().unwrap_or_default(),
                }],
            },
            "addressType": if ipv4 { "IPv4" } else { "IPv6" },
            "endpoints": [{
                "addresses": [address.ip()], "nodeName": node_name,
                "conditions": { "ready": true, "serving": true, "terminating": false },
            }],
            "ports": ports(address.port()),
        }))
    };
    [true, false].into_iter().filter_map(of_family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_speaks_only_for_its_own_range() {
        let cluster = ClusterRanges {
            pods: ["10.244.0.0/16", "fd01::/16"].map(|range| range.parse().unwrap()).to_vec(),
            services: vec!["10.96.0.0/12".parse().unwrap()],
        };
        let check = |said: &str, expected: &[&str]| {
            let addresses = ["192.0.2.7", "10.96.0.10", "10.244.2.9", "127.0.0.1"];
            let node: Node = serde_json::from_value(json!({
                "metadata": { "name": "n", "uid": "u", "annotations": { NODE_ANNOTATION: said } },
                "spec": { "podCIDRs": ["10.244.1.0/24", "fd01:1::/64", "198.51.100.0/24"] },
                "status": { "addresses": addresses.map(|ip| json!({ "type": "InternalIP", "address": ip })) },
            }))
            .unwrap();
            let found: Vec<String> = slices(&node, &cluster)
                .iter()
                .map(|s| {
                    let (name, ip) = (&s["metadata"]["name"], &s["endpoints"][0]["addresses"][0]);
                    format!("{name} {ip} {}", s["ports"][0]["port"]).replace('"', "")
                })
                .collect();
            assert_eq!(found, expected, "{said}");
        };
        check("10.244.1.1:53", &["kube-dns-n 10.244.1.1 53"]);
        check("10.244.1.1:53,[fd01:1::1]:53", &["kube-dns-n 10.244.1.1 53", "kube-dns-n-ipv6 fd01:1::1 53"]);
        check("192.0.2.7:10053", &["kube-dns-n 192.0.2.7 10053"]);
        check("10.244.2.1:53,192.0.2.1:53,[fd02::1]:53", &[]);
        // What the node only says to be its own, of pods, Services or another place.
        check("10.244.2.9:53,10.96.0.10:53,127.0.0.1:53,198.51.100.1:53", &[]);
        check("", &[]);
        assert!(slices(&Node::default(), &cluster).is_empty());
        let family = |addresses: &[&str]| service(&addresses.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(family(&["10.96.0.10"])["spec"]["ipFamilyPolicy"], "SingleStack");
        assert_eq!(family(&["10.96.0.10", "fd02::a"])["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    }
}
