//! Pods that may not begin: one makes room for a critical pod, one waits and says why.
//! What runs already is asked nothing.

use serde_json::{Value, json};

use crate::harness::{Node, condition, pod, waits};

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_takes_the_place_of_a_lesser_one() {
    let Some(node) = Node::start_with("preemption", |_, config| config.max_pods = 2) else { return };
    node.api.create_pod("burstable", pod(json!({"resources": {"requests": {"cpu": "1m"}}})));
    node.wait("burstable", "ready", is_ready).await;
    node.api.create_pod("best-effort", pod(json!({})));
    node.wait("best-effort", "ready", is_ready).await;
    node.api.create_pod("late", pod(json!({})));
    node.wait("late", "rejected", |pod| pod["status"]["reason"] == "OutOfpods").await;
    let mut critical = pod(json!({}));
    critical["priority"] = 2_000_000_000.into();
    node.api.create_pod("critical", critical.clone());
    node.wait("critical", "ready", is_ready).await;
    let status = node.api.pod("best-effort").unwrap()["status"].clone();
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["reason"], "Preempting");
    assert_eq!(status["message"], "Preempted in order to admit critical pod");
    assert_eq!(condition(&node.api.pod("best-effort").unwrap(), "DisruptionTarget"), "True");
    node.event("Preempting", "Preempted in order to admit critical pod").await;
    assert!(is_ready(&node.api.pod("burstable").unwrap()));
    // Its selector keeps it out, so that nobody needs to go.
    critical["nodeSelector"] = json!({"disk": "tape"});
    node.api.create_pod("elsewhere", critical.clone());
    node.wait("elsewhere", "rejected", |pod| pod["status"]["reason"] == "NodeAffinity").await;
    assert!(is_ready(&node.api.pod("burstable").unwrap()));
    // And what nobody can give is not taken.
    critical["nodeSelector"] = json!({});
    critical["containers"][0]["resources"] = json!({"requests": {"memory": "1000Ti"}});
    node.api.create_pod("giant", critical);
    node.wait("giant", "rejected", |pod| pod["status"]["reason"] == "UnexpectedAdmissionError").await;
    let message = node.api.pod("giant").unwrap()["status"]["message"].to_string();
    assert!(message.contains("no set of running pods found to reclaim resources: [(res: memory, q: "), "{message}");
    assert!(is_ready(&node.api.pod("burstable").unwrap()));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_a_hook_that_gives_no_answer() {
    let hook = kubelet::HookConfig::parse("/nowhere/hook", "10s", "Wait").unwrap();
    let started = Node::start_with("hook", |_, config| config.pod_admission_hook = Some(hook));
    let Some(node) = started else { return };
    node.api.create_pod("asked", pod(json!({})));
    node.wait("asked", "blocked", |pod| waits(pod, "Blocked", "failed to run /nowhere/hook")).await;
    let status = node.api.pod("asked").unwrap()["status"].clone();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("PodAdmissionHook")));
    node.event("PodAdmissionHook", "Pod admission hook failed: failed to run /nowhere/hook").await;
    node.api.delete_pod("asked", 1);
    node.wait("asked", "gone", Value::is_null).await;
    node.stop().await;
}
