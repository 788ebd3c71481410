//! Ingresses say in their status where they are reached.
//! Follows Ingresses and Nodes by itself, so that a slow write holds no route up; started by `run`.
//! Invariant: of several ingresses each adds its own addresses and takes away only those that no Node has, so that they
//! never write against each other (test: `addresses_are_added_and_those_of_lost_nodes_go`).

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};

use client::{Informer, InformerFactory, Patch, WorkQueue};
use env::Env;
use k8s_openapi::api::{
    core::v1::Node,
    networking::v1::{Ingress, IngressClass},
};
use serde_json::json;

use crate::{ingress_class, model::key};

pub struct StatusWriter {
    own: Vec<IpAddr>,
    ingresses: Informer<Ingress>,
    classes: Informer<IngressClass>,
    nodes: Informer<Node>,
    informers: InformerFactory,
    env: Env,
}

impl StatusWriter {
    pub fn new(own: Vec<IpAddr>, informers: InformerFactory, env: Env) -> Self {
        Self {
            own,
            ingresses: informers.informer(),
            classes: informers.informer(),
            nodes: informers.informer(),
            informers,
            env,
        }
    }

    pub async fn run(self) {
        self.nodes.synced().await;
        let queue = WorkQueue::new(self.env.clone());
        tokio::select! {
            () = self.feed(&queue) => {}
            () = self.work(&queue) => {}
        }
    }

    async fn feed(&self, queue: &WorkQueue<String>) {
        let (mut ingresses, mut classes) = (self.ingresses.subscribe(), self.classes.subscribe());
        loop {
            tokio::select! {
                Some(change) = ingresses.next() => queue.add(change.key),
                Some(_) = classes.next() => {
                    // Seldom enough to look at all of them.
                    for ingress in self.ingresses.list() {
                        queue.add(key(&ingress));
                    }
                }
                else => return,
            }
        }
    }

    async fn work(&self, queue: &WorkQueue<String>) {
        while let Some(key) = queue.get().await {
            match self.write(&key).await {
                true => queue.forget(&key),
                false => queue.add_rate_limited(key.clone()),
            }
            queue.done(&key);
        }
    }

    /// False when it shall be tried again.
    async fn write(&self, key: &str) -> bool {
        let Some(ingress) = self.ingresses.get(key) else { return true };
        let class = ingress_class::of_ingress(&ingress).and_then(|class| self.classes.get(class));
        if !class.is_some_and(|class| ingress_class::is_ours(&class)) {
            return true;
        }
        let present = addresses(&ingress);
        let wanted = wanted(&present, &self.own, &node_addresses(&self.nodes.list()));
        if present == wanted {
            return true;
        }
        let list: Vec<_> = wanted.iter().map(|ip| json!({ "ip": ip })).collect();
        let patch = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": list } } }));
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let api = self.informers.client().namespaced::<Ingress>(namespace);
        match api.patch_status(name, &patch).await {
            Ok(_) => true,
            Err(error) if error.is_not_found() => true,
            Err(error) => {
                tracing::warn!(%error, ingress = key, "failed to write an Ingress' status; will try again");
                false
            }
        }
    }
}

fn addresses(ingress: &Ingress) -> BTreeSet<String> {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let all = balancer.and_then(|balancer| balancer.ingress.as_ref());
    all.into_iter().flatten().filter_map(|ingress| ingress.ip.clone()).collect()
}

pub fn node_addresses(nodes: &[Arc<Node>]) -> HashSet<String> {
    let of_node = |node: &Arc<Node>| node.status.clone().and_then(|status| status.addresses).unwrap_or_default();
    nodes.iter().flat_map(of_node).map(|address| address.address).collect()
}

/// Our own, with those of others that a Node still has.
pub fn wanted(present: &BTreeSet<String>, own: &[IpAddr], known: &HashSet<String>) -> BTreeSet<String> {
    let kept = present.iter().filter(|address| known.contains(*address)).cloned();
    kept.chain(own.iter().map(ToString::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_added_and_those_of_lost_nodes_go() {
        let node: Node = serde_json::from_value(json!({"metadata": {}, "status": {"addresses": [
            {"type": "InternalIP", "address": "10.0.0.2"}]}}))
        .unwrap();
        let check = |present: &[&str], expected: &[&str]| {
            let present = present.iter().map(ToString::to_string).collect();
            let own = ["10.0.0.1".parse().unwrap()];
            let found: Vec<String> =
                wanted(&present, &own, &node_addresses(&[Arc::new(node.clone())])).into_iter().collect();
            assert_eq!(found, expected);
        };
        check(&[], &["10.0.0.1"]);
        check(&["10.0.0.2"], &["10.0.0.1", "10.0.0.2"]);
        check(&["10.0.0.1", "10.0.0.3"], &["10.0.0.1"]);
    }
}
