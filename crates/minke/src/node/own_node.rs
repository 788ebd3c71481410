//! The Node object of the node that this process is: waited for, and followed.
//! Used by `agent` and `pod_network`; the kubelet makes and updates it.
//! No polling; what is not said (an object that is gone, a field that is empty) changes nothing.

use std::net::IpAddr;

use client::{Client, Informer, InformerFactory, ListParams};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use tokio_util::sync::CancellationToken;

pub struct OwnNode {
    pub client: Client,
    pub name: String,
}

impl OwnNode {
    /// Ends with `stop`.
    fn informer(&self, env: &Env, stop: &CancellationToken) -> Informer<Node> {
        let informers = InformerFactory::new(self.client.clone(), env.clone(), stop.clone());
        informers.informer_with::<Node>(ListParams::fields(format!("metadata.name={}", self.name)))
    }

    /// Returns what `look` finds once it finds something; nothing when the process is stopping.
    pub async fn find<T>(
        &self,
        env: &Env,
        shutdown: &CancellationToken,
        look: impl Fn(&Node) -> Option<T>,
    ) -> Option<T> {
        let stop = shutdown.child_token();
        let _guard = stop.clone().drop_guard();
        let mut changes = self.informer(env, &stop).subscribe();
        let found = async {
            loop {
                if let Some(found) = changes.next().await?.new.as_deref().and_then(&look) {
                    return Some(found);
                }
            }
        };
        shutdown.run_until_cancelled(found).await.flatten()
    }

    /// Has `work` done with what `look` finds. Whenever that is something else, the work before is told to stop and
    /// waited for. Returns when the process is stopping.
    pub async fn follow<'a, T: PartialEq + Clone>(
        &self,
        env: &Env,
        shutdown: &CancellationToken,
        look: impl Fn(&Node) -> Option<T>,
        mut work: impl FnMut(T, CancellationToken) -> BoxFuture<'a, ()>,
    ) {
        let stop = shutdown.child_token();
        let _guard = stop.clone().drop_guard();
        let mut changes = self.informer(env, &stop).subscribe();
        let mut known: Option<T> = None;
        let mut until = stop.child_token();
        let mut running: BoxFuture<'a, ()> = Box::pin(std::future::ready(()));
        let mut over = true;
        loop {
            let change = tokio::select! {
                change = changes.next() => change,
                () = &mut running, if !over => {
                    over = true;
                    continue;
                }
                () = shutdown.cancelled() => None,
            };
            let Some(change) = change else { break };
            let Some(found) = change.new.as_deref().and_then(&look) else { continue };
            if known.as_ref() == Some(&found) {
                continue;
            }
            until.cancel();
            if !over {
                running.await;
            }
            until = stop.child_token();
            running = work(found.clone(), until.clone());
            (known, over) = (Some(found), false);
        }
        until.cancel();
        if !over {
            running.await;
        }
    }
}

/// Its addresses and names, if it says all of `expected`.
pub fn registered(node: &Node, expected: &[IpAddr]) -> Option<Names> {
    let mut names = Names::default();
    for address in node.status.iter().flat_map(|status| status.addresses.iter().flatten()) {
        match address.address.parse() {
            Ok(ip) if !names.addresses.contains(&ip) => names.addresses.push(ip),
            Ok(_) => {}
            Err(_) if !names.dns.contains(&address.address) => names.dns.push(address.address.clone()),
            Err(_) => {}
        }
    }
    expected.iter().all(|ip| names.addresses.contains(ip)).then_some(names)
}

/// By what others may call a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_known_by_all_its_names() {
        let node: Node = serde_json::from_value(json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "2001:db8::1" },
            { "type": "ExternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "a" },
            { "type": "InternalDNS", "address": "a.example.org" } ] } }))
        .unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let names = registered(&node, &[ip("2001:db8::1"), ip("192.0.2.1")]).unwrap();
        assert_eq!(names.addresses, [ip("192.0.2.1"), ip("2001:db8::1")]);
        assert_eq!(names.dns, ["a", "a.example.org"]);
        assert_eq!(registered(&node, &[ip("192.0.2.1"), ip("192.0.2.2")]), None, "not all are there yet");
    }
}
