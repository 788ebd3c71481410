//! In-place resizes that meet an obstacle: memory in use, a full node, containers that must restart or do not run.
//! The runtime and the kernel are asked what they were told, not the node what it thinks.

use std::time::Duration;

use cri::Runtime;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{Node, condition, free_port, pod, waits},
};

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

/// Changes what the first container asks for.
fn resize(node: &Node, name: &str, resources: Value) {
    let mut object = node.api.pod(name).unwrap();
    object["spec"]["containers"][0]["resources"] = resources;
    object["metadata"]["generation"] = (object["metadata"]["generation"].as_u64().unwrap_or(1) + 1).into();
    node.api.put(&pod_path(name), object);
}

fn limit(memory: &str) -> Value {
    json!({"requests": {"memory": "1Mi"}, "limits": {"memory": memory}})
}

fn find(pod: &Value, kind: &str) -> Option<Value> {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == kind)
}

#[tokio::test(start_paused = true)]
async fn a_limit_below_what_is_in_use_waits() {
    let Some(node) = Node::start("usage") else { return };
    node.api.create_pod("busy", pod(json!({"resources": limit("100Mi")})));
    node.wait("busy", "ready", ready).await;
    node.runtime.set_memory("main", 60 << 20);
    resize(&node, "busy", limit("50Mi"));
    let named = r#"{"containers":[{"name":"main","resources":{"limits":{"memory":"50Mi"},"requests":{"memory":"1Mi"}}}],"generation":2"#;
    node.event("ResizeStarted", &format!("Pod resize started: {named}}}")).await;
    let why = "cannot decrease memory limits: attempting to set container \"main\" memory limit (52428800) \
        below current usage (62914560)";
    let error = |pod: &Value| find(pod, "PodResizeInProgress").filter(|c| c["reason"] == "Error");
    node.wait("busy", "told why", |pod| {
        error(pod).is_some_and(|c| c["status"] == "True" && c["message"] == why && c["observedGeneration"] == 2)
    })
    .await;
    node.event("ResizeError", &format!("Pod resize error: {named},\"error\":")).await;
    let shown = node.api.pod("busy").unwrap()["status"]["containerStatuses"][0]["resources"].clone();
    assert_eq!(shown["limits"]["memory"], "100Mi");
    assert_eq!(node.runtime.resources("main").unwrap().memory_limit_in_bytes, 100 << 20);
    assert_eq!(node.memory_limit("busy"), Some(100 << 20));
    node.runtime.set_memory("main", 10 << 20);
    node.until("resized", || node.runtime.resources("main").unwrap().memory_limit_in_bytes == 50 << 20).await;
    node.event("ResizeCompleted", &format!("Pod resize completed: {named}}}")).await;
    node.wait("busy", "done", |pod| find(pod, "PodResizeInProgress").is_none()).await;
    assert_eq!(node.memory_limit("busy"), Some(50 << 20));
    // One that is given up is over at once.
    node.runtime.set_memory("main", 40 << 20);
    resize(&node, "busy", limit("30Mi"));
    node.wait("busy", "told why again", |pod| error(pod).is_some_and(|c| c["observedGeneration"] == 3)).await;
    resize(&node, "busy", limit("50Mi"));
    node.wait("busy", "as before", |pod| {
        find(pod, "PodResizeInProgress").is_none() && pod["status"]["observedGeneration"] == 4
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_goes_on_after_a_restart_and_begins_only_once() {
    let Some(mut node) = Node::start("resumed") else { return };
    let state = node.directory.path().join("kubelet/granted_resources");
    node.api.create_pod("plain", pod(json!({"name": "plain", "resources": limit("10Mi")})));
    node.api.create_pod("busy", pod(json!({"resources": limit("100Mi")})));
    node.wait("plain", "ready", ready).await;
    node.wait("busy", "ready", ready).await;
    assert!(!state.exists(), "nothing is written for pods that have what they ask for");
    node.runtime.set_memory("main", 60 << 20);
    resize(&node, "busy", limit("50Mi"));
    node.event("ResizeError", "below current usage").await;
    // Granted and not in effect; what is asked for now is a third thing.
    resize(&node, "busy", json!({"requests": {"cpu": "9000"}, "limits": {"memory": "50Mi"}}));
    node.event("ResizeInfeasible", "Node didn't have enough capacity: cpu").await;
    let begun = |node: &Node| {
        let events = node.api.find("/events/").into_iter().filter(|e| e["reason"] == "ResizeStarted");
        events.map(|e| e["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    assert_eq!(begun(&node), 1);
    node.restart().await;
    let told = |pod: &Value| find(pod, "PodResizePending").is_some_and(|c| c["reason"] == "Infeasible");
    node.wait("busy", "still told", told).await;
    node.runtime.set_memory("main", 10 << 20);
    node.until("resized", || node.runtime.resources("main").unwrap().memory_limit_in_bytes == 50 << 20).await;
    node.event("ResizeCompleted", "Pod resize completed: ").await;
    assert_eq!(node.memory_limit("busy"), Some(50 << 20));
    // Neither a torn file nor a stranger's keeps the node from its work.
    for text in ["{\"busy", "{\"data\":\"{}\",\"checksum\":7}"] {
        node.restart_after(|_| std::fs::write(&state, text).unwrap()).await;
        node.others_go_on().await;
    }
    resize(&node, "busy", limit("40Mi"));
    node.until("resized again", || node.runtime.resources("main").unwrap().memory_limit_in_bytes == 40 << 20).await;
    node.until("had it begun once more", || begun(&node) == 2).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_machine_lost_comes_back_with_what_it_had() {
    let Some(mut node) = Node::start("lost") else { return };
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    node.api.create_pod("greedy", pod(json!({"resources": asks("10m")})));
    node.wait("greedy", "ready", ready).await;
    resize(&node, "greedy", asks("9000"));
    node.event("ResizeInfeasible", "Node didn't have enough capacity: cpu").await;
    let runtime = node.runtime.clone();
    node.restart_after(|_| {
        for sandbox in runtime.list_pod_sandboxes(None).now_or_never().unwrap().unwrap() {
            runtime.stop_pod_sandbox(&sandbox.id).now_or_never().unwrap().unwrap();
            runtime.remove_pod_sandbox(&sandbox.id).now_or_never().unwrap().unwrap();
        }
        assert!(runtime.running("main").is_empty());
    })
    .await;
    node.until("runs again", || !node.runtime.running("main").is_empty()).await;
    node.wait("greedy", "ready as before", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        ready(pod) && status["allocatedResources"]["cpu"] == "10m"
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn resizes_are_counted() {
    let port = free_port();
    let Some(node) = Node::start_with("counted", |_, config| config.read_only_port = port) else { return };
    let requested = |labels: &str| {
        let (resource, rest) = labels.split_once(' ').unwrap();
        let (requirement, operation) = rest.split_once(' ').unwrap();
        format!(
            "kubelet_container_requested_resizes_total{{resource=\"{resource}\",requirement=\"{requirement}\",\
             operation=\"{operation}\"}} 1"
        )
    };
    node.api.create_pod("busy", pod(json!({"resources": limit("100Mi")})));
    node.wait("busy", "ready", ready).await;
    node.counted("kubelet_pod_in_progress_resizes 0").await;
    node.runtime.set_memory("main", 60 << 20);
    resize(&node, "busy", limit("50Mi"));
    node.event("ResizeError", "below current usage").await;
    node.counted(&requested("memory limits decrease")).await;
    node.counted("kubelet_pod_in_progress_resizes 1").await;
    node.runtime.set_memory("main", 10 << 20);
    node.event("ResizeCompleted", "Pod resize completed: ").await;
    node.counted("kubelet_pod_in_progress_resizes 0").await;
    node.counted("kubelet_pod_resize_duration_milliseconds_count{success=\"true\"} 1").await;
    resize(&node, "busy", json!({"requests": {"cpu": "9000"}, "limits": {"memory": "50Mi"}}));
    node.counted("kubelet_pod_pending_resizes{reason=\"infeasible\"} 1").await;
    node.counted("kubelet_pod_infeasible_resizes_total{reason_detail=\"insufficient_node_allocatable\"} 1").await;
    node.counted(&requested("cpu requests add")).await;
    node.counted(&requested("memory requests remove")).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_waits_takes_nothing_from_others() {
    let Some(mut node) = Node::start("greedy") else { return };
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    node.api.create_pod("greedy", pod(json!({"resources": asks("10m")})));
    node.wait("greedy", "ready", ready).await;
    resize(&node, "greedy", asks("9000"));
    node.event("ResizeInfeasible", "Pod resize Infeasible: ").await;
    node.event("ResizeInfeasible", "Node didn't have enough capacity: cpu, requested: 9000000, capacity: ").await;
    for round in ["before", "after"] {
        node.api.create_pod(round, pod(json!({"resources": asks("10m")})));
        node.wait(round, "ready", ready).await;
        node.restart().await;
        let told = |pod: &Value| find(pod, "PodResizePending").is_some_and(|c| c["reason"] == "Infeasible");
        node.wait("greedy", "still told", told).await;
    }
    let status = &node.api.pod("greedy").unwrap()["status"]["containerStatuses"][0];
    assert_eq!(status["allocatedResources"]["cpu"], "10m", "{status}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deferred_resize_goes_on_when_another_pod_has_gone() {
    let port = free_port();
    let Some(node) = Node::start_with("deferred", |_, config| config.read_only_port = port) else { return };
    let cpu = || {
        let object = node.api.get("/api/v1/nodes/node").unwrap_or_default();
        let text = object["status"]["allocatable"]["cpu"].as_str().unwrap_or_default().to_string();
        let thousandths = text.strip_suffix('m').map(str::to_string).unwrap_or_else(|| format!("{text}000"));
        thousandths.parse::<u64>().unwrap_or(0)
    };
    node.until("did the node say what it has", || cpu() > 0).await;
    let asks = |milli: u64| json!({"requests": {"cpu": format!("{milli}m")}});
    let most = cpu() - 100;
    node.api.create_pod("holder", pod(json!({"resources": asks(most)})));
    node.api.create_pod("waiter", pod(json!({"resources": asks(50)})));
    node.wait("holder", "ready", ready).await;
    node.wait("waiter", "ready", ready).await;
    resize(&node, "waiter", asks(most));
    let why =
        format!("Node didn't have enough resource: cpu, requested: {most}, used: {most}, capacity: {}", most + 100);
    node.wait("waiter", "told to wait", |pod| {
        find(pod, "PodResizePending")
            .is_some_and(|c| c["reason"] == "Deferred" && c["message"] == why.as_str() && c["observedGeneration"] == 2)
    })
    .await;
    node.event("ResizeDeferred", "Pod resize Deferred: ").await;
    node.counted("kubelet_pod_pending_resizes{reason=\"deferred\"} 1").await;
    let began = node.env.monotonic();
    node.api.delete_pod("holder", 1);
    node.event("ResizeCompleted", "Pod resize completed: ").await;
    node.wait("waiter", "resized", |pod| {
        find(pod, "PodResizePending").is_none()
            && pod["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == format!("{most}m")
    })
    .await;
    // It is told of the room rather than looking for it every ten seconds.
    assert!(node.env.monotonic() - began < Duration::from_secs(5), "{:?}", node.env.monotonic() - began);
    node.counted("kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"pods_removed\"} 1").await;
    node.stop().await;
}

/// Also where nothing else would start it again: it ends well, and is to be restarted only on failure.
#[tokio::test(start_paused = true)]
async fn a_container_that_must_restart_is_resized_when_it_has() {
    for policy in ["Always", "OnFailure"] {
        let Some(node) = Node::start(&format!("sized-{policy}")) else { return };
        node.runtime.set_stopped_code(0);
        let resize_policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        let mut spec = pod(json!({"resources": limit("100Mi"), "resizePolicy": resize_policy}));
        spec["restartPolicy"] = policy.into();
        node.api.create_pod("sized", spec);
        node.wait("sized", "ready", ready).await;
        let id = node.runtime.running("main").remove(0);
        node.runtime.set_memory("main", 60 << 20);
        node.runtime.hang("stop_container", &id);
        resize(&node, "sized", limit("50Mi"));
        node.event("Killing", "Container main resize requires restart").await;
        node.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(node.memory_limit("sized"), Some(100 << 20), "what ends still needs it");
        let in_progress = find(&node.api.pod("sized").unwrap(), "PodResizeInProgress").unwrap_or_default();
        assert_eq!((&in_progress["status"], &in_progress["reason"]), (&json!("True"), &Value::Null));
        node.runtime.release();
        node.event("ResizeCompleted", "Pod resize completed: ").await;
        node.wait("sized", "restarted", |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == 1 && status["resources"]["limits"]["memory"] == "50Mi" && ready(pod)
        })
        .await;
        assert_eq!(node.runtime.resources("main").unwrap().memory_limit_in_bytes, 50 << 20);
        assert_eq!(node.memory_limit("sized"), Some(50 << 20));
        // Also if only its request changes.
        resize(&node, "sized", json!({"requests": {"memory": "2Mi"}, "limits": {"memory": "50Mi"}}));
        node.wait("sized", "restarted again", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 2 && ready(pod)
        })
        .await;
        node.stop().await;
    }
}

/// What had too little to live gets more, though it does not run while that is decided.
#[tokio::test(start_paused = true)]
async fn a_group_grows_while_its_container_waits_after_a_crash() {
    let Some(node) = Node::start("starved") else { return };
    node.api.create_pod("starved", pod(json!({"resources": limit("10Mi")})));
    for _ in 0..2 {
        node.until("did it run", || !node.runtime.running("main").is_empty()).await;
        node.runtime.set_clock(node.env.now().as_nanosecond() as i64);
        node.runtime.running("main").iter().for_each(|id| node.runtime.exit(id, 137));
    }
    node.wait("starved", "waiting", |pod| waits(pod, "CrashLoopBackOff", "")).await;
    assert_eq!(node.memory_limit("starved"), Some(10 << 20));
    resize(&node, "starved", limit("100Mi"));
    node.wait("starved", "ready", ready).await;
    assert_eq!(node.memory_limit("starved"), Some(100 << 20));
    assert_eq!(node.runtime.resources("main").unwrap().memory_limit_in_bytes, 100 << 20);
    node.wait("starved", "done", |pod| find(pod, "PodResizeInProgress").is_none()).await;
    node.stop().await;
}
