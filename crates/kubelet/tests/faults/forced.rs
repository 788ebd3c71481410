//! A grace period that is shortened, or ends at once, while a pod that ignores its stop signal is ending.
//! What the node is doing for the longer period never delays the shorter one.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{Node, condition, pod},
};

/// Far less than the 600 seconds that the pods ask for.
const AT_ONCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    Running,
    Hook,
    Stopping,
}

fn stubborn(doing: Doing) -> Value {
    let hook = json!({"preStop": {"exec": {"command": ["sleep", "600"]}}});
    let mut spec = pod(if doing == Doing::Stopping { json!({}) } else { json!({"lifecycle": hook}) });
    spec["terminationGracePeriodSeconds"] = 600.into();
    spec
}

/// How often its container was told to stop in its own time.
fn signals(node: &Node) -> usize {
    node.runtime.calls().iter().filter(|call| call.starts_with("signal_container")).count()
}

async fn starting(name: &str, doing: Doing) -> Option<Node> {
    let node = Node::start_on(name, |runtime| runtime.ignore_stop_signal())?;
    node.runtime.hang("exec_sync", "");
    node.api.create_pod("stubborn", stubborn(doing));
    node.wait("stubborn", "ready", |pod| condition(pod, "Ready") == "True").await;
    if doing != Doing::Running {
        node.api.delete_pod("stubborn", 600);
        match doing {
            Doing::Hook => node.event("Killing", "Stopping container main").await,
            _ => node.until("signalled", || signals(&node) > 0).await,
        }
        node.env.sleep(Duration::from_secs(30)).await;
        assert_eq!(node.runtime.running("main").len(), 1, "{doing:?}: it has its time");
    }
    Some(node)
}

#[tokio::test(start_paused = true)]
async fn a_forced_deletion_kills_whatever_is_being_waited_for() {
    for doing in [Doing::Running, Doing::Hook, Doing::Stopping] {
        let Some(node) = starting("forced", doing).await else { return };
        let began = node.env.monotonic();
        node.api.remove(&pod_path("stubborn"));
        node.until("killed", || node.runtime.running("main").is_empty()).await;
        let took = node.env.monotonic() - began;
        assert!(took < AT_ONCE, "{doing:?}: {took:?}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_period_counts_from_when_it_came() {
    for doing in [Doing::Hook, Doing::Stopping] {
        for grace in [0, 1] {
            let Some(node) = starting("shorter", doing).await else { return };
            // One that ignores its signal is killed by the runtime after the time it was given; this one never does.
            let (began, before) = (node.env.monotonic(), signals(&node));
            node.api.delete_pod("stubborn", grace);
            let stopped_anew = || node.runtime.running("main").is_empty() || signals(&node) > before;
            node.until("stopped anew", stopped_anew).await;
            let took = node.env.monotonic() - began;
            assert!(took < AT_ONCE, "{doing:?} {grace}: {took:?}");
            assert_eq!(node.runtime.running("main").is_empty(), grace == 0, "{doing:?} {grace}");
            node.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_forced_deletion_while_the_node_was_down_kills_when_it_is_back() {
    for forced in ["removed", "marked"] {
        let Some(mut node) = starting("down", Doing::Stopping).await else { return };
        node.restart_after(|api| match forced {
            "removed" => api.remove(&pod_path("stubborn")),
            _ => api.delete_pod("stubborn", 0),
        })
        .await;
        let began = node.env.monotonic();
        node.until("killed", || node.runtime.running("main").is_empty()).await;
        let took = node.env.monotonic() - began;
        assert!(took < AT_ONCE, "{forced}: {took:?}");
        node.stop().await;
    }
}
