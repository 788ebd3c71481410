//! Faults injected through a runtime in memory: the pod says what is wrong in its status and Events, others go on.
//! Time is simulated, so waiting for back-offs and grace periods costs nothing.
//! Every case ends with another pod becoming ready beside the broken one.

mod admission;
mod claims;
mod confined;
mod exclusive_cpus;
#[path = "../node/fake_api.rs"]
mod fake_api;
mod forced;
mod harness;
mod life;
mod logs;
mod pod_cleanup;
mod probes;
mod resize;
mod resolver;
mod shortage;
mod spans;
mod statics;

use std::time::Duration;

use cri::{Error, fake::FakeRuntime};
use fake_api::FakeApi;
use harness::{Node, condition, pod, waits};
use serde_json::{Value, json};

fn nothing(_: &FakeRuntime) {}

/// What a container waits for, and the Event that says why.
struct Case {
    name: &'static str,
    inject: fn(&FakeRuntime),
    spec: Value,
    waiting: (&'static str, &'static str),
    event: (&'static str, &'static str),
}

fn cases() -> Vec<Case> {
    let missing_key = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]);
    vec![
        Case {
            name: "a name that is none",
            inject: nothing,
            spec: pod(json!({"image": "Not A Name"})),
            waiting: ("InvalidImageName", ""),
            event: ("InspectFailed", "Failed to apply default image tag"),
        },
        Case {
            name: "an image that is nowhere",
            inject: nothing,
            spec: pod(json!({"image": "registry.invalid/none:1"})),
            waiting: ("ImagePullBackOff", "Back-off pulling image \"registry.invalid/none:1\""),
            event: ("Failed", "not found"),
        },
        Case {
            name: "a registry that refuses",
            inject: |runtime| {
                let refused =
                    "rpc error: code = Unavailable desc = dial tcp 192.0.2.1:443: connect: connection refused";
                (0..50).for_each(|_| runtime.fail_next("pull_image", Error::Unavailable(refused.into())));
            },
            spec: pod(json!({"image": "192.0.2.1/image:1"})),
            waiting: ("ImagePullBackOff", "Back-off pulling image"),
            event: ("Failed", "connection refused"),
        },
        Case {
            name: "an image that must not be pulled",
            inject: nothing,
            spec: pod(json!({"image": "registry.invalid/none:1", "imagePullPolicy": "Never"})),
            waiting: ("ErrImageNeverPull", "is not present with pull policy of Never"),
            event: ("ErrImageNeverPull", "is not present with pull policy of Never"),
        },
        Case {
            name: "a command that is not there",
            inject: |runtime| {
                let missing = "exec: \"nope\": executable file not found in $PATH";
                (0..50).for_each(|_| runtime.fail_next("start_container", Error::Other(missing.into())));
            },
            spec: pod(json!({"command": ["nope"]})),
            waiting: ("RunContainerError", "executable file not found"),
            event: ("Failed", "executable file not found"),
        },
        Case {
            name: "a container that can't be made",
            inject: |runtime| {
                (0..50).for_each(|_| runtime.fail_next("create_container", Error::Other("no room".into())));
            },
            spec: pod(json!({})),
            waiting: ("CreateContainerError", "no room"),
            event: ("Failed", "no room"),
        },
        Case {
            name: "an environment that is not there",
            inject: nothing,
            spec: pod(json!({"env": missing_key})),
            waiting: ("CreateContainerConfigError", "configmap \"none\" not found"),
            event: ("Failed", "configmap \"none\" not found"),
        },
    ]
}

#[tokio::test(start_paused = true)]
async fn containers_that_cannot_start_say_why() {
    for (number, case) in cases().into_iter().enumerate() {
        let Some(node) = Node::start(&format!("start{number}")) else { return };
        (case.inject)(&node.runtime);
        node.api.create_pod("broken", case.spec);
        node.wait("broken", case.name, |pod| waits(pod, case.waiting.0, case.waiting.1)).await;
        node.event(case.event.0, case.event.1).await;
        // What was injected is for the broken one: its calls only.
        if !case.name.contains("command") && !case.name.contains("made") {
            node.others_go_on().await;
        }
        node.api.delete_pod("broken", 5);
        node.wait("broken", "gone", Value::is_null).await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_that_are_not_there_are_waited_for() {
    let Some(node) = Node::start("volumes") else { return };
    let mut spec = pod(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    spec["volumes"] = json!([{"name": "v", "configMap": {"name": "late"}}]);
    node.api.create_pod("broken", spec);
    node.event("FailedMount", "configmap \"late\" not found").await;
    node.wait("broken", "waiting", |pod| waits(pod, "ContainerCreating", "")).await;
    node.others_go_on().await;
    let late = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}});
    node.api.put("/api/v1/namespaces/default/configmaps/late", late);
    node.wait("broken", "ready", |pod| condition(pod, "Ready") == "True").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_fail_are_made_again() {
    let Some(node) = Node::start("sandbox") else { return };
    node.runtime.fail_next("run_pod_sandbox", Error::Other("no address left".into()));
    node.api.create_pod("broken", pod(json!({})));
    node.event("FailedCreatePodSandBox", "no address left").await;
    node.wait("broken", "ready", |pod| condition(pod, "Ready") == "True").await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_never_ends_delays_no_other_pod_and_no_deletion() {
    let hook = |kind: &str| json!({"lifecycle": {kind: {"exec": {"command": ["forever"]}}}});
    let pull = json!({"image": "slow.invalid/image:1"});
    for (number, (method, argument, changes)) in [
        ("run_pod_sandbox", "broken", json!({})),
        ("pull_image", "slow.invalid", pull),
        ("exec_sync", "forever", hook("postStart")),
        ("exec_sync", "forever", hook("preStop")),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(node) = Node::start(&format!("hang{number}")) else { return };
        node.runtime.hang(method, argument);
        node.api.create_pod("broken", pod(changes));
        node.others_go_on().await;
        let began = node.env.monotonic();
        node.api.delete_pod("broken", 5);
        node.wait("broken", "gone", Value::is_null).await;
        let took = node.env.monotonic() - began;
        // Its grace period, two seconds more for what hangs, and the time to look.
        assert!(took < Duration::from_secs(15), "{method}: {took:?}");
        assert!(node.runtime.running("main").is_empty(), "{method}");
        node.stop().await;
    }
}

/// The end of a pod does not cut off the start of its container, which would then say that it failed.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_being_started_is_started_though_its_pod_ends() {
    let Some(node) = Node::start("cut") else { return };
    node.runtime.hang("start_container", "");
    node.api.create_pod("slow", pod(json!({})));
    let called = |what: &str| node.runtime.calls().iter().any(|call| call.starts_with(what));
    node.until("was the container being started", || called("create_container")).await;
    node.api.delete_pod("slow", 30);
    node.env.sleep(Duration::from_secs(10)).await;
    assert!(!called("stop_container"), "{:?}", node.runtime.calls());
    node.runtime.release();
    node.until("had the container run", || called("start_container")).await;
    node.wait("slow", "gone", Value::is_null).await;
    assert!(called("stop_container"), "{:?}", node.runtime.calls());
    node.stop().await;
}

/// However many there are.
#[tokio::test(start_paused = true)]
async fn many_that_hang_leave_room_for_others() {
    for (number, method) in ["run_pod_sandbox", "stop_pod_sandbox"].into_iter().enumerate() {
        let Some(node) = Node::start(&format!("many{number}")) else { return };
        let names: Vec<String> = (0..40).map(|n| format!("broken-{n}")).collect();
        if method == "run_pod_sandbox" {
            node.runtime.hang(method, "broken");
        }
        for name in &names {
            node.api.create_pod(name, pod(json!({})));
        }
        if method == "stop_pod_sandbox" {
            for name in &names {
                node.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await;
            }
            node.runtime.hang(method, "broken");
            names.iter().for_each(|name| node.api.delete_pod(name, 1));
        }
        node.others_go_on().await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_stops_answering_makes_the_node_unready_and_ends_nothing() {
    let Some(node) = Node::start("down") else { return };
    let probe = json!({"exec": {"command": ["look"]}, "periodSeconds": 1, "failureThreshold": 1});
    node.api.create_pod("steady", pod(json!({"livenessProbe": probe, "readinessProbe": probe})));
    node.wait("steady", "ready", |pod| condition(pod, "Ready") == "True").await;
    let before = since_ready(&node);
    let ready = |wanted: &'static str, part: &'static str| {
        let api = node.api.clone();
        move || {
            let object = api.get("/api/v1/nodes/node").unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| {
                c["type"] == "Ready"
                    && c["status"] == wanted
                    && c["message"].as_str().unwrap_or_default().contains(part)
            })
        }
    };
    node.until("was the node ready", ready("True", "")).await;
    node.runtime.set_down(true);
    node.until("was the node unready", ready("False", "container runtime is down")).await;
    node.runtime.set_down(false);
    // A probe that could not be made says nothing about the container.
    node.event("Unhealthy", "probe errored and resulted in unknown state").await;
    node.until("was the node ready again", ready("True", "")).await;
    // Hanging is no better than being gone.
    node.runtime.hang("status", "");
    node.until("was the node unready", ready("False", "it does not answer")).await;
    node.runtime.release();
    node.until("was the node ready again", ready("True", "")).await;
    node.others_go_on().await;
    let steady = node.api.pod("steady").unwrap();
    assert_eq!(steady["status"]["containerStatuses"][0]["restartCount"], 0, "{steady:#}");
    assert_eq!(since_ready(&node), before, "{steady:#}");
    assert_eq!(node.runtime.running("main").len(), 1);
    node.stop().await;
}

/// When the steady pod became ready.
fn since_ready(node: &Node) -> Value {
    let pod = node.api.pod("steady").unwrap_or_default();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == "Ready" && c["status"] == "True").unwrap_or_default()
}

/// The Node object is watched: what others write to it holds at once, whenever the node reports next.
#[tokio::test(start_paused = true)]
async fn words_about_the_node_that_are_not_true_are_set_right() {
    let Some(node) = Node::start("watched") else { return };
    let path = "/api/v1/nodes/node";
    let ready = |api: &FakeApi| {
        let object = api.get(path).unwrap_or_default();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "Ready").map(|c| c["status"].clone()).unwrap_or_default()
    };
    node.until("was the node ready", || ready(&node.api) == "True").await;
    node.env.sleep(Duration::from_secs(1)).await;
    // As the node lifecycle controller does when it has not heard of a node for a while.
    let mut object = node.api.get(path).unwrap();
    for condition in object["status"]["conditions"].as_array_mut().unwrap() {
        condition["status"] = "Unknown".into();
    }
    node.api.put(path, object);
    let began = node.env.monotonic();
    node.until("was the node ready again", || ready(&node.api) == "True").await;
    // The node looks at itself only every ten seconds.
    assert!(node.env.monotonic() - began < Duration::from_secs(1), "{:?}", node.env.monotonic() - began);
    node.stop().await;
}

/// A runtime that can't mount images says nothing; the node does.
#[tokio::test(start_paused = true)]
async fn image_volumes_are_mounted_or_said_to_be_impossible() {
    for (number, version) in ["1.6.20", "2.1.3"].into_iter().enumerate() {
        let Some(node) =
            Node::start_on(&format!("image{number}"), |runtime| runtime.set_version("containerd", version))
        else {
            return;
        };
        node.runtime.add_image("minke.local/data:1", 1);
        let mut spec = pod(json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}));
        let source = json!({"reference": "minke.local/data:1", "pullPolicy": "IfNotPresent"});
        spec["volumes"] = json!([{"name": "data", "image": source}]);
        node.api.create_pod("broken", spec);
        if version.starts_with('1') {
            let why = "image volumes need containerd 2.1 or newer, and this node has 1.6.20";
            node.wait("broken", "refused", |pod| waits(pod, "CreateContainerError", why)).await;
            node.event("Failed", "Error: ImageVolumeMountFailed: volume \"data\"").await;
        } else {
            node.wait("broken", "ready", |pod| condition(pod, "Ready") == "True").await;
            let mounts = node.runtime.mounts("main");
            let image = mounts.iter().find(|m| m.container_path == "/data").and_then(|m| m.image.clone());
            assert!(image.is_some_and(|image| !image.image.is_empty()), "{mounts:?}");
        }
        node.others_go_on().await;
        node.stop().await;
    }
}
