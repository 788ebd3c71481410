//! The endpoints of cluster DNS, written by the control plane: one EndpointSlice per node and family.
//! A node says on its own Node object where it answers (`dns_service`); nobody else may write these slices.
//! Invariant: an address is believed only inside the node's pod range, which is inside the cluster's, or if it is the
//! node's own and neither a pod's nor a Service's.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use api::ApiError;
use client::{Client, InformerFactory, ListParams};
use env::Env;
use k8s_openapi::{
    api::{core::v1::Node, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use proxy::{ClusterRanges, NodeNetwork};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::network::dns_service::{ANNOTATION, NAME, NAMESPACE, apply, ports};

const MANAGER: &str = "minke-server";
const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs until shutdown.
pub async fn run(client: Client, cluster: ClusterRanges, env: Env, shutdown: CancellationToken) {
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    let mut nodes = informers.informer::<Node>().subscribe();
    let mut applied: HashMap<String, Vec<Value>> = HashMap::new();
    while let Some(change) = nodes.next().await {
        let wanted = change.new.as_deref().map(|node| slices(node, &cluster)).unwrap_or_default();
        // A node's heartbeat changes its object all the time, but not this.
        if applied.get(&change.key) == Some(&wanted) {
            continue;
        }
        while let Err(error) = bring(&client, &change.key, &wanted).await {
            tracing::warn!(%error, node = change.key, "failed to write the endpoints of cluster DNS; will try again");
            tokio::select! {
                () = env.sleep(RETRY) => {}
                () = shutdown.cancelled() => return,
            }
        }
        match change.new {
            Some(_) => drop(applied.insert(change.key, wanted)),
            None => drop(applied.remove(&change.key)),
        }
    }
}

/// Takes our slices away: another DNS is in charge.
pub async fn remove_all(client: &Client) -> Result<()> {
    let ours = ListParams::labels(format!("endpointslice.kubernetes.io/managed-by={MANAGER}"));
    let api = client.namespaced::<EndpointSlice>(NAMESPACE);
    Ok(api.delete_collection(&ours, &DeleteOptions::default()).await?)
}

fn ignore_missing<T>(result: Result<T, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.reason != api::Reason::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn name(node: &str, ipv4: bool) -> String {
    if ipv4 { format!("{NAME}-{node}") } else { format!("{NAME}-{node}-ipv6") }
}

async fn bring(client: &Client, node: &str, wanted: &[Value]) -> Result<(), ApiError> {
    let api = client.namespaced::<EndpointSlice>(NAMESPACE);
    for ipv4 in [true, false] {
        let name = name(node, ipv4);
        match wanted.iter().find(|slice| slice["metadata"]["name"] == name) {
            Some(slice) => drop(api.patch(&name, &apply(slice.clone())).await?),
            None => ignore_missing(api.delete(&name, &DeleteOptions::default()).await)?,
        }
    }
    Ok(())
}

/// What the node's DNS should look like to the Service.
fn slices(node: &Node, cluster: &ClusterRanges) -> Vec<Value> {
    let node_name = node.metadata.name.as_deref().unwrap_or_default();
    let said = node.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION)).map(String::as_str);
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
                "name": name(node_name, ipv4), "namespace": NAMESPACE,
                "labels": {
                    "kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": MANAGER,
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
                "metadata": { "name": "n", "uid": "u", "annotations": { ANNOTATION: said } },
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
    }
}
