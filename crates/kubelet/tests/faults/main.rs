//! Faults injected through a runtime in memory: the pod says what is wrong in its status and Events, others go on.
//! Time is simulated, so waiting for back-offs and grace periods costs nothing.
//! Invariant: every case ends with another pod becoming ready beside the broken one.

#[path = "../node/fake_api.rs"]
mod fake_api;

use std::{sync::Arc, time::Duration};

use client::InformerFactory;
use cri::{Error, fake::FakeRuntime};
use env::Env;
use fake_api::FakeApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "minke.local/image:1";
const LIMIT: Duration = Duration::from_secs(600);

struct Node {
    api: FakeApi,
    runtime: Arc<FakeRuntime>,
    env: Env,
    shutdown: CancellationToken,
    task: Option<tokio::task::JoinHandle<Result<(), kubelet::Error>>>,
    group: String,
    _directory: tempfile::TempDir,
}

impl Node {
    /// `None` where control groups can't be made.
    fn start(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("left out: needs root for control groups");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let group = format!("minke-faults-{name}-{}", std::process::id());
        let (api, runtime) = (FakeApi::new(), Arc::new(FakeRuntime::default()));
        runtime.add_image(IMAGE, 1);
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let shutdown = CancellationToken::new();
        let config = kubelet::Config {
            node_name: "node".into(),
            root_dir: directory.path().join("kubelet"),
            log_dir: directory.path().join("log"),
            cgroup_root: group.clone(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            healthz_port: 0,
            // A test machine may be short of disk.
            eviction_hard: Default::default(),
            ..Default::default()
        };
        let informers = InformerFactory::new(api.client(), env.clone(), shutdown.clone());
        let run = kubelet::run_with(config, api.client(), informers, env.clone(), runtime.clone(), shutdown.clone());
        let task = Some(tokio::spawn(run));
        Some(Self { api, runtime, env, shutdown, task, group, _directory: directory })
    }

    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = self.env.monotonic() + LIMIT;
        while !holds() {
            let events: Vec<String> =
                self.api.find("/events/").iter().map(|e| format!("{} {}", e["reason"], e["message"])).collect();
            let pods = self.api.find("/pods/");
            assert!(self.env.monotonic() < end, "never {what}\n{}\n{pods:#?}", events.join("\n"));
            self.env.sleep(Duration::from_millis(50)).await;
        }
    }

    async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) {
        self.until(&format!("was pod {name} {what}"), || wanted(&self.api.pod(name).unwrap_or_default())).await;
    }

    async fn event(&self, reason: &str, part: &str) {
        let fits = |e: &Value| e["reason"] == reason && e["message"].as_str().unwrap_or_default().contains(part);
        self.until(&format!("an event {reason} with {part:?}"), || self.api.find("/events/").iter().any(fits)).await;
    }

    /// Another pod, from the beginning to the end.
    async fn others_go_on(&self) {
        self.api.create_pod("other", pod(json!({})));
        self.wait("other", "ready", |pod| condition(pod, "Ready") == "True").await;
        self.api.delete_pod("other", 1);
        self.wait("other", "gone", Value::is_null).await;
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        self.runtime.release();
        if let Some(task) = self.task.take() {
            task.await.unwrap().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let groups = kubelet::container_manager::ContainerManager::new(&self.group, kubelet::CgroupDriver::Cgroupfs);
        let _ = groups.remove_all();
    }
}

/// One container of the image that is there, with `changes` to it.
fn pod(changes: Value) -> Value {
    let mut container = json!({"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (field, value) in changes.as_object().unwrap() {
        container[field] = value.clone();
    }
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [container]})
}

fn condition(pod: &Value, kind: &str) -> String {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == kind);
    found.map_or(String::new(), |c| c["status"].as_str().unwrap_or_default().to_string())
}

fn waits(pod: &Value, reason: &str, part: &str) -> bool {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    waiting["reason"] == reason && waiting["message"].as_str().unwrap_or_default().contains(part)
}

/// What a container waits for, and the Event that says why.
struct Case {
    name: &'static str,
    inject: fn(&FakeRuntime),
    spec: Value,
    waiting: (&'static str, &'static str),
    event: (&'static str, &'static str),
}

fn nothing(_: &FakeRuntime) {}

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

#[tokio::test(start_paused = true)]
async fn a_runtime_that_stops_answering_makes_the_node_unready_and_ends_nothing() {
    let Some(node) = Node::start("down") else { return };
    node.api.create_pod("steady", pod(json!({})));
    node.wait("steady", "ready", |pod| condition(pod, "Ready") == "True").await;
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
    node.until("was the node ready again", ready("True", "")).await;
    // Hanging is no better than being gone.
    node.runtime.hang("status", "");
    node.until("was the node unready", ready("False", "it does not answer")).await;
    node.runtime.release();
    node.until("was the node ready again", ready("True", "")).await;
    let steady = node.api.pod("steady").unwrap();
    assert_eq!(steady["status"]["containerStatuses"][0]["restartCount"], 0, "{steady:#}");
    assert_eq!(node.runtime.running("main").len(), 1);
    node.others_go_on().await;
    node.stop().await;
}
