//! Load balancer addresses on the node's link: who asks finds them, who knew another node is told.
//! Part of the packet tests.

use client::{Client, InformerFactory};
use env::Env;
use proxy::Layer2Config;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{Node, eventually, inside, service, shell};

/// A load balancer at 192.0.2.77 that `node` announces.
fn balanced(node: &str) -> Value {
    let mut service = service("web", "10.96.0.10", &json!({ "type": "LoadBalancer" }));
    let condition = json!({
        "type": "minke.io/Layer2Announced", "status": "True", "reason": "NodeElected", "message": node,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let balancer = json!({ "ingress": [{ "ip": "192.0.2.77", "ipMode": "VIP" }] });
    service["status"] = json!({ "loadBalancer": balancer, "conditions": [condition] });
    service
}

#[test]
fn an_address_of_the_link_moves_with_its_announcement() {
    let node = Node::new("layer2");
    node.serve("a");
    let n = node.name.clone();
    let shutdown = CancellationToken::new();
    let directory = tempfile::tempdir().unwrap();
    let (feed, until, record) = (node.feed.clone(), shutdown.clone(), directory.path().join("announced"));
    let announcing = inside(&n, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let env = Env::real();
            let client = Client::new(feed);
            let informers = InformerFactory::new(client.clone(), env.clone(), until.clone());
            let config =
                Layer2Config { node_name: "here".into(), node_addresses: vec!["192.0.2.1".parse().unwrap()], record };
            proxy::run_layer2(config, client, informers, env, until).await;
        });
    });
    let held = || shell(&format!("ip -n {n} address show dev up0")).contains("192.0.2.77/32");
    let neighbour = || shell(&format!("ip -n {n}-out neigh show 192.0.2.77"));
    node.endpoints("web", "TCP", &["10.244.0.2"]);
    node.change("services", balanced("there"));
    // The stranger knows it at another node.
    shell(&format!("ip -n {n}-out neigh add 192.0.2.77 lladdr 02:00:00:00:00:99 dev up0 nud reachable"));
    assert!(!held());
    node.feed.put("services", balanced("here"));
    eventually("announced", || held().then_some(()));
    eventually("its Lease is renewed", || {
        let beats = node.feed.lease_patches();
        let renews = |patch: &Value| !patch["spec"]["renewTime"].is_null();
        (beats.len() >= 2 && beats.iter().all(renews)).then_some(())
    });
    eventually("told", || (!neighbour().contains("02:00:00:00:00:99")).then_some(()));
    assert_eq!(node.ask("-out", "192.0.2.77:80"), "a 10.244.0.1");
    node.feed.put("services", balanced("there"));
    eventually("withdrawn", || (!held()).then_some(()));
    node.feed.put("services", balanced("here"));
    eventually("announced again", || held().then_some(()));
    shutdown.cancel();
    announcing.join().unwrap();
    assert!(!held(), "stopping withdraws");
    let last = node.feed.lease_patches().pop().unwrap();
    assert_eq!(last["metadata"]["annotations"]["minke.io/layer2-heartbeat"], Value::Null, "{last}");
}
