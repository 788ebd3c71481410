//! What the conformance texts ask of a node that needs no kernel to tell: counts, generations, resizes, namespaces.
//! The runtime in memory is asked what it was told, not the node what it thinks.

use std::time::Duration;

use cri::Runtime;
use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{IMAGE, Node, condition, pod, waits},
};

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

#[tokio::test(start_paused = true)]
async fn restarts_are_counted_one_by_one() {
    let Some(node) = Node::start("restarts") else { return };
    node.api.create_pod("again", pod(json!({})));
    node.wait("again", "ready", ready).await;
    for count in 1..=5 {
        let running = node.runtime.running("main");
        assert_eq!(running.len(), 1);
        node.runtime.exit(&running[0], 1);
        let counted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
        node.wait("again", "restarted", |pod| counted(pod) == count && ready(pod)).await;
        // One that has run for a while starts again at once.
        node.env.sleep(Duration::from_secs(1200)).await;
        assert_eq!(counted(&node.api.pod("again").unwrap()), count, "no restart without an end");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_image_ends_the_wait_after_a_crash() {
    let Some(node) = Node::start_on("cured", |runtime| runtime.add_image("minke.local/cure:1", 1)) else { return };
    node.api.create_pod("ill", pod(json!({})));
    let crash = || {
        node.runtime.set_clock(node.env.now().as_nanosecond() as i64);
        node.runtime.running("main").iter().for_each(|id| node.runtime.exit(id, 1));
    };
    let runs = || !node.runtime.running("main").is_empty();
    // After its first end it starts again at once.
    node.until("did it run", runs).await;
    crash();
    for wait in ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s"] {
        node.until("did it run again", runs).await;
        crash();
        let why = format!("back-off {wait} restarting failed container=main");
        node.wait("ill", "waiting", |pod| waits(pod, "CrashLoopBackOff", &why)).await;
    }
    let mut object = node.api.pod("ill").unwrap();
    object["spec"]["containers"][0]["image"] = "minke.local/cure:1".into();
    node.api.put(&pod_path("ill"), object);
    let began = node.env.monotonic();
    node.wait("ill", "ready", ready).await;
    assert!(node.env.monotonic() - began < Duration::from_secs(60), "{:?}", node.env.monotonic() - began);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_newest_generation_is_told_however_many_there_are() {
    let Some(node) = Node::start("generations") else { return };
    node.api.create_pod("busy", pod(json!({})));
    node.wait("busy", "ready", ready).await;
    for generation in 2..=501 {
        let mut object = node.api.pod("busy").unwrap();
        object["metadata"]["generation"] = generation.into();
        object["spec"]["tolerations"] = json!([{"key": format!("k{generation}"), "operator": "Exists"}]);
        node.api.put(&pod_path("busy"), object);
        if generation % 50 == 0 {
            node.env.sleep(Duration::from_millis(10)).await;
        }
    }
    node.wait("busy", "told of", |pod| pod["status"]["observedGeneration"] == 501).await;
    let pod = node.api.pod("busy").unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    node.stop().await;
}

async fn finish(node: &Node, name: &str) {
    node.until(&format!("did {name} run"), || !node.runtime.running(name).is_empty()).await;
    node.runtime.running(name).iter().for_each(|id| node.runtime.exit(id, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_sandbox_died_is_initialized_anew_and_in_order() {
    let Some(node) = Node::start("died") else { return };
    let init = |name: &str| json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    let mut spec = pod(json!({}));
    spec["initContainers"] = json!([init("first"), init("second")]);
    node.api.create_pod("prepared", spec);
    finish(&node, "first").await;
    finish(&node, "second").await;
    node.wait("prepared", "ready", ready).await;
    let sandbox = node.runtime.list_pod_sandboxes(None).await.unwrap().remove(0).id;
    node.runtime.stop_pod_sandbox(&sandbox).await.unwrap();
    node.runtime.exit(&sandbox, 0);
    node.event("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.").await;
    node.until("did the first run again", || !node.runtime.running("first").is_empty()).await;
    node.env.sleep(Duration::from_secs(60)).await;
    assert!(node.runtime.running("main").is_empty() && node.runtime.running("second").is_empty());
    finish(&node, "first").await;
    finish(&node, "second").await;
    node.wait("prepared", "ready again", |pod| ready(pod) && !node.runtime.running("main").is_empty()).await;
    node.stop().await;
}

/// What `kubectl get` shows is the containers' state where there is one, so a refused pod must have none.
#[tokio::test(start_paused = true)]
async fn refused_pods_say_why_and_overdue_ones_when_they_have_ended() {
    let Some(node) = Node::start("refused") else { return };
    let mut spec = pod(json!({}));
    spec["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]});
    node.api.create_pod("refused", spec);
    node.wait("refused", "refused", |pod| pod["status"]["phase"] == "Failed").await;
    let status = node.api.pod("refused").unwrap()["status"].clone();
    assert_eq!(
        (&status["reason"], &status["containerStatuses"]),
        (&json!("SysctlForbidden"), &Value::Null),
        "{status}"
    );
    let mut spec = pod(json!({}));
    spec["activeDeadlineSeconds"] = 30.into();
    node.api.create_pod("overdue", spec);
    node.wait("overdue", "ready", ready).await;
    let id = node.runtime.running("main").remove(0);
    node.runtime.hang("stop_container", &id);
    node.event("DeadlineExceeded", "longer than the specified deadline").await;
    node.wait("overdue", "unready", |pod| condition(pod, "Ready") == "False").await;
    assert_eq!(node.api.pod("overdue").unwrap()["status"]["phase"], "Running", "it still runs");
    node.runtime.release();
    node.wait("overdue", "over", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(node.api.pod("overdue").unwrap()["status"]["reason"], "DeadlineExceeded");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hooks_run_at_once_and_sidecars_stop_last() {
    let Some(node) = Node::start("order") else { return };
    let container = |name: &str| {
        json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "lifecycle": {"preStop": {"exec": {"command": [format!("bye-{name}")]}}}})
    };
    let sidecar = |name: &str| {
        let mut container = container(name);
        container["restartPolicy"] = "Always".into();
        container
    };
    let mut spec = json!({"restartPolicy": "Always", "containers": [container("app")]});
    spec["initContainers"] = json!([sidecar("first"), sidecar("second")]);
    node.api.create_pod("ordered", spec);
    node.wait("ordered", "ready", ready).await;
    let ids = ["app", "second", "first"].map(|name| node.runtime.running(name).remove(0));
    node.runtime.hang("stop_container", &ids[0]);
    node.api.delete_pod("ordered", 600);
    let calls = |part: &str| node.runtime.calls().into_iter().filter(|call| call.contains(part)).collect::<Vec<_>>();
    node.until("had all hooks run", || calls("exec_sync").len() == 3).await;
    node.env.sleep(Duration::from_secs(60)).await;
    assert_eq!(calls("stop_container").len(), 0, "sidecars wait for the app");
    node.runtime.release();
    node.wait("ordered", "gone", Value::is_null).await;
    assert_eq!(calls("stop_container"), ids.map(|id| format!("stop_container {id}")));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hooks_that_nobody_can_run_fail() {
    let Some(node) = Node::start("hooks") else { return };
    let hook = json!({"tcpSocket": {"port": 1}});
    node.api.create_pod("hooked", pod(json!({"lifecycle": {"preStop": hook}})));
    node.wait("hooked", "ready", ready).await;
    node.api.delete_pod("hooked", 5);
    node.event("FailedPreStopHook", "PreStopHook failed").await;
    node.wait("hooked", "gone", Value::is_null).await;
    node.stop().await;
}

/// What the node says of itself, and of what it lacks.
#[tokio::test(start_paused = true)]
async fn the_nodes_own_events() {
    let Some(mut node) = Node::start_with("events", |_, config| config.enforce_node_allocatable = true) else { return };
    for event in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"] {
        node.event(event, &format!("Node node status is now: {event}")).await;
    }
    node.event("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods").await;
    node.api.create_pod("lost", pod(json!({})));
    node.event("MissingClusterDNS", "pod: \"lost_default(").await;
    node.event("MissingClusterDNS", "kubelet does not have ClusterDNS IP configured").await;
    assert!(!node.api.find("/events/").iter().any(|event| event["reason"] == "Rebooted"));
    let mut object = node.api.get("/api/v1/nodes/node").unwrap();
    object["status"]["nodeInfo"]["bootID"] = "an earlier one".into();
    node.restart_after(|api| drop(api.put("/api/v1/nodes/node", object))).await;
    node.event("Rebooted", "Node node has been rebooted, boot id: ").await;
    node.stop().await;
}

/// Three containers by name, each with a limit of processor and memory.
fn sized(sizes: [(&str, &str); 3]) -> Value {
    let container = |(name, (cpu, memory)): (&str, (&str, &str))| {
        let resources = json!({"cpu": cpu, "memory": memory});
        json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": "NotRequired"}],
            "resources": {"requests": resources, "limits": resources}})
    };
    let containers: Vec<Value> = ["c1", "c2", "c3"].into_iter().zip(sizes).map(container).collect();
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": containers})
}

#[tokio::test(start_paused = true)]
async fn resources_of_several_containers_change_in_place() {
    let Some(node) = Node::start("resize") else { return };
    let before = [("20m", "20Mi"), ("20m", "20Mi"), ("20m", "20Mi")];
    node.api.create_pod("sized", sized(before));
    node.wait("sized", "ready", ready).await;
    let steps = [
        // More in all, less in all, both at once, the same in other words.
        [("25m", "30Mi"), ("25m", "30Mi"), ("15m", "15Mi")],
        [("30m", "35Mi"), ("15m", "15Mi"), ("10m", "12Mi")],
        [("40m", "35Mi"), ("10m", "30Mi"), ("20m", "40Mi")],
        [("0.04", "36700160"), ("0.010", "30Mi"), ("20m", "40Mi")],
    ];
    for (number, sizes) in steps.into_iter().enumerate() {
        let generation = number as u64 + 2;
        let mut object = node.api.pod("sized").unwrap();
        for (index, container) in sized(sizes)["containers"].as_array().unwrap().iter().enumerate() {
            object["spec"]["containers"][index]["resources"] = container["resources"].clone();
        }
        object["metadata"]["generation"] = generation.into();
        node.api.put(&pod_path("sized"), object);
        let memory = |text: &str| match text.strip_suffix("Mi") {
            Some(mebibytes) => mebibytes.parse::<i64>().unwrap() << 20,
            None => text.parse().unwrap(),
        };
        let told = || {
            ["c1", "c2", "c3"].into_iter().zip(sizes).all(|(name, (_, wanted))| {
                node.runtime.resources(name).is_some_and(|found| found.memory_limit_in_bytes == memory(wanted))
            })
        };
        node.until(&format!("did the runtime hear of step {number}"), told).await;
        node.wait("sized", "told of", |pod| pod["status"]["observedGeneration"] == generation).await;
    }
    let pod = node.api.pod("sized").unwrap();
    for status in pod["status"]["containerStatuses"].as_array().unwrap() {
        assert_eq!(status["restartCount"], 0, "{status}");
    }
    node.stop().await;
}

/// As the control plane does when it does not hear of a node for a while.
#[tokio::test(start_paused = true)]
async fn a_status_that_somebody_else_changed_is_said_again() {
    let Some(node) = Node::start("said") else { return };
    node.api.create_pod("spoken", pod(json!({})));
    node.wait("spoken", "ready", ready).await;
    for _ in 0..3 {
        node.env.sleep(Duration::from_secs(60)).await;
        let mut object = node.api.pod("spoken").unwrap();
        for condition in object["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = "False".into();
        }
        node.api.put(&pod_path("spoken"), object);
        node.wait("spoken", "ready again", ready).await;
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn secrets_are_those_of_the_pods_own_namespace() {
    let Some(node) = Node::start("namespaces") else { return };
    for (namespace, value) in [("default", "b3Vycw=="), ("other", "dGhlaXJz")] {
        let metadata = json!({"name": "same", "namespace": namespace});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": value}});
        node.api.put(&format!("/api/v1/namespaces/{namespace}/secrets/same"), secret);
    }
    let mut spec = pod(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    spec["volumes"] = json!([{"name": "v", "secret": {"secretName": "same"}}]);
    node.api.create_pod("reader", spec);
    node.wait("reader", "ready", ready).await;
    let mounts = node.runtime.mounts("main");
    let place = mounts.iter().find(|mount| mount.container_path == "/v").map(|mount| mount.host_path.clone());
    let place = place.expect("the volume is mounted");
    assert!(place.starts_with(&*node.directory.path().to_string_lossy()), "{place}");
    assert_eq!(std::fs::read_to_string(format!("{place}/key")).unwrap(), "ours");
    node.api.delete_pod("reader", 1);
    node.wait("reader", "gone", Value::is_null).await;
    node.stop().await;
}
