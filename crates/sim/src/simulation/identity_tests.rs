//! Components have the rights of their own users and no others.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};

use super::*;

#[tokio::test(start_paused = true)]
async fn what_a_component_may_not_do_is_a_violation() {
    let simulation = Simulation::start(1, Topology::single(1), &Bootstrapped::make()).await;
    let env = simulation.env.clone();
    env.sleep(Duration::from_secs(30)).await;
    assert_eq!(simulation.oracle.take_violations(), [], "what they do by themselves they may");
    let scheduler = simulation.client(&simulation.schedulers[0], &env);
    scheduler.namespaced::<Secret>("kube-system").get("any").await.unwrap_err();
    let node = simulation.client(&simulation.nodes[0], &env);
    node.api::<Node>().delete("node-1", &Default::default()).await.unwrap_err();
    let found = simulation.oracle.take_violations();
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].0.starts_with("system:kube-scheduler may not GET"), "{found:#?}");
    assert!(found[1].0.starts_with("system:node:node-0 may not DELETE"), "{found:#?}");
}
