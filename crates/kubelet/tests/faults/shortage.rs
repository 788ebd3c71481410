//! A node that is short of memory: who has to go.
//! What a pod merely asks for protects it from nothing.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{Node, condition, pod},
};

#[tokio::test(start_paused = true)]
async fn pods_are_evicted_by_what_they_were_granted() {
    let started = Node::start_with("shortage", |_, config| {
        // More than any machine has, so it is always short; time enough to prepare.
        config.eviction_soft.insert("memory.available".into(), "1000Ti".into());
        config.eviction_soft_grace.insert("memory.available".into(), Duration::from_secs(120));
    });
    let Some(node) = started else { return };
    for (name, asks, uses) in [("greedy", "1Mi", 50 << 20), ("modest", "10Mi", 40 << 20)] {
        node.api.create_pod(name, pod(json!({"name": name, "resources": {"requests": {"memory": asks}}})));
        node.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await;
        node.runtime.set_memory(name, uses);
    }
    // More than the node has: it is not granted.
    let mut object = node.api.pod("greedy").unwrap();
    object["spec"]["containers"][0]["resources"]["requests"]["memory"] = "900Ti".into();
    node.api.put(&pod_path("greedy"), object);
    node.event("ResizeInfeasible", "Node didn't have enough capacity: memory").await;
    let evicted = |pod: &Value| pod["status"]["reason"] == "Evicted";
    let first = || ["greedy", "modest"].into_iter().find(|name| node.api.pod(name).is_some_and(|pod| evicted(&pod)));
    node.until("was one evicted", || first().is_some()).await;
    assert_eq!(first(), Some("greedy"));
    let message = node.api.pod("greedy").unwrap()["status"]["message"].to_string();
    assert!(message.contains("Container greedy was using 50Mi, request is 1Mi, "), "{message}");
    node.stop().await;
}
