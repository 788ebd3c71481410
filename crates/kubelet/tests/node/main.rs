//! The whole node on a real containerd, against an API server in memory.
//! One containerd for all cases, ended with everything in it.

#[path = "../../../cri/tests/support/mod.rs"]
mod containerd;
mod exclusive_cpus;
mod fake_api;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use client::InformerFactory;
use cri::{RemoteRuntime, Runtime};
use env::Env;
use fake_api::FakeApi;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

const CGROUP: &str = "minke-kubelet-test";
const LIMIT: Duration = Duration::from_secs(180);

struct Node {
    api: FakeApi,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), kubelet::Error>>,
    pods: std::path::PathBuf,
    /// Of the pages that anyone may read.
    port: u16,
    cadvisor_port: u16,
}

impl Node {
    fn start(api: &FakeApi, shutdown: &CancellationToken, dir: &Path, socket: &Path) -> Self {
        Self::start_with(api, shutdown, dir, socket, |_| {})
    }

    fn start_with(
        api: &FakeApi,
        shutdown: &CancellationToken,
        dir: &Path,
        socket: &Path,
        change: impl FnOnce(&mut kubelet::Config),
    ) -> Self {
        let shutdown = shutdown.child_token();
        let env = Env::real();
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Both are held until both are known.
        let [port, cadvisor_port] = [free(), free()].map(|listener| listener.local_addr().unwrap().port());
        let mut config = kubelet::Config {
            address: Some("127.0.0.1".parse().unwrap()),
            read_only_port: port,
            cadvisor_port,
            node_name: "node".into(),
            root_dir: dir.join("kubelet"),
            log_dir: dir.join("log"),
            runtime_endpoint: socket.into(),
            cgroup_root: CGROUP.into(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            manifest_dir: Some(dir.join("manifests")),
            healthz_port: 0,
            // A test machine may be short of disk.
            eviction_hard: Default::default(),
            image_gc_high_percent: 100,
            ..Default::default()
        };
        change(&mut config);
        let informers = InformerFactory::new(api.client(), env.clone(), shutdown.clone());
        let task = env::spawn(kubelet::run(config, api.client(), informers, env, shutdown.clone()));
        Self { api: api.clone(), shutdown, task, pods: dir.join("kubelet/pods"), port, cadvisor_port }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Waits until the pod is as wanted; it is shown when that never happens.
    async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = env::instant_now() + LIMIT;
        loop {
            let pod = self.api.pod(name).unwrap_or(Value::Null);
            if wanted(&pod) {
                return pod;
            }
            let events: Vec<String> = self.api.find("/events/").iter().map(|e| e["message"].to_string()).collect();
            assert!(env::instant_now() < end, "{name} never was {what}: {pod:#}\n{}", events.join("\n"));
            env::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn page(&self, path: &str) -> String {
        self.page_at(self.port, path).await
    }

    async fn page_at(&self, port: u16, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_string()).unwrap()
    }

    async fn wait_ready(&self, name: &str) -> Value {
        self.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await
    }
}

fn condition(pod: &Value, kind: &str) -> String {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == kind);
    found.map_or(String::new(), |c| c["status"].as_str().unwrap_or_default().to_string())
}

fn container(command: &str) -> Value {
    json!({"name": "main", "image": containerd::IMAGE, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command]})
}

fn host_pod(container: Value) -> Value {
    json!({"hostNetwork": true, "restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [container]})
}

const FOREVER: &str = "while true; do sleep 0.1; done";
const TRAP: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn pods_live_and_end() {
    if !containerd::possible() {
        return;
    }
    let _ = tracing_subscriber::fmt().with_env_filter("warn,kubelet=debug").with_test_writer().try_init();
    let dir = tempfile::Builder::new().prefix("mk").tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("manifests")).unwrap();
    let containerd = containerd::start(dir.path()).await;
    let socket = containerd.socket();
    let api = FakeApi::new();
    let shutdown = CancellationToken::new();
    // In a task of its own, so that a failed case does not keep the rest from being cleaned up.
    let outcome = env::spawn(cases(api, shutdown.clone(), dir.path().to_path_buf(), socket.clone())).await;
    shutdown.cancel();
    let runtime = RemoteRuntime::new(&socket.to_string_lossy(), None);
    // Removals that the node had under way when it stopped end in the runtime's own time; it refuses them to others.
    let end = env::instant_now() + LIMIT;
    while let Err(error) = cri::remove_all(&runtime).await {
        assert!(env::instant_now() < end, "{error}");
        env::sleep(Duration::from_millis(20)).await;
    }
    while !runtime.list_containers(None).await.unwrap().is_empty() {
        assert!(env::instant_now() < end, "containers stay");
        env::sleep(Duration::from_millis(20)).await;
    }
    containerd.stop().await;
    let groups = kubelet::resources::container_manager::ContainerManager::new(CGROUP, kubelet::CgroupDriver::Cgroupfs);
    let _ = groups.remove_all();
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure.into_panic());
    }
}

async fn cases(api: FakeApi, shutdown: CancellationToken, dir: PathBuf, socket: PathBuf) {
    let node = Node::start(&api, &shutdown, &dir, &socket);
    plain_pod(&node).await;
    completed_pod(&node).await;
    init_and_sidecar(&node).await;
    volumes_and_environment(&node).await;
    numbers(&node).await;
    crash_loop(&node).await;
    probes(&node, &dir.join("probe")).await;
    hooks_and_force(&node).await;
    bad_image(&node).await;
    static_pod(&node, &dir).await;
    resized(&node).await;
    many_pods(&node).await;
    survives_restart(node, &shutdown, &dir, &socket).await.stop().await;
    exclusive_cpus::cases(&shutdown, &dir, &socket).await;
}

async fn gone(node: &Node, name: &str) {
    node.wait(name, "gone", Value::is_null).await;
}

async fn plain_pod(node: &Node) {
    let began = env::instant_now();
    node.api.create_pod("plain", host_pod(container(TRAP)));
    let pod = node.wait_ready("plain").await;
    let started = began.elapsed();
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert!(pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().starts_with("containerd://"));
    let began = env::instant_now();
    node.api.delete_pod("plain", 5);
    gone(node, "plain").await;
    eprintln!("create to ready {started:?}, delete to gone {:?}", began.elapsed());
    for event in node.api.find("/events/").iter().filter(|e| e["involvedObject"]["name"] == "plain") {
        eprintln!("event {} {}", event["reason"], event["message"]);
    }
}

async fn completed_pod(node: &Node) {
    let mut spec = host_pod(container("echo bye > /dev/termination-log; exit 3"));
    spec["restartPolicy"] = "Never".into();
    node.api.create_pod("once", spec);
    let pod = node.wait("once", "failed", |pod| pod["status"]["phase"] == "Failed").await;
    let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&state["exitCode"], &state["reason"], &state["message"]),
        (&json!(3), &json!("Error"), &json!("bye\n"))
    );
    node.api.delete_pod("once", 5);
    gone(node, "once").await;
}

async fn init_and_sidecar(node: &Node) {
    let mut spec = host_pod(container("cat /work/said; trap 'exit 0' TERM; while true; do sleep 0.1; done"));
    let mount = json!([{"name": "work", "mountPath": "/work"}]);
    spec["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = mount.clone();
    let mut first = container("echo first > /work/said");
    first["name"] = "first".into();
    first["volumeMounts"] = mount.clone();
    let mut side = container("echo side >> /work/said; trap 'exit 0' TERM; while true; do sleep 0.1; done");
    side["name"] = "side".into();
    side["restartPolicy"] = "Always".into();
    side["volumeMounts"] = mount;
    spec["initContainers"] = json!([first, side]);
    node.api.create_pod("inits", spec);
    let pod = node.wait_ready("inits").await;
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(pod["status"]["initContainerStatuses"][1]["ready"], true);
    node.api.delete_pod("inits", 5);
    gone(node, "inits").await;
}

async fn volumes_and_environment(node: &Node) {
    let path = "/api/v1/namespaces/default/configmaps/settings";
    let map = |value: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "default"}, "data": {"key": value}})
    };
    let script = "[ \"$KEY\" = one ] && [ -d /secret ] && [ $(cat /token/token) = the-token ] \
                  && [ \"$NAME\" = volumes ] && [ -d /deep ] && [ $(cat /one) = one ] || exit 1; \
                  while [ $(cat /config/key) != two ]; do sleep 0.05; done; exit 0";
    let mut spec = host_pod(container(script));
    spec["restartPolicy"] = "Never".into();
    spec["serviceAccountName"] = "default".into();
    spec["volumes"] = json!([
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "config", "mountPath": "/config"},
        {"name": "memory", "mountPath": "/secret"}, {"name": "memory", "mountPath": "/deep", "subPath": "a/b"},
        {"name": "config", "mountPath": "/one", "subPath": "key"},
        {"name": "token", "mountPath": "/token", "readOnly": true}]);
    // Where swap can be limited, it is.
    spec["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    spec["containers"][0]["env"] = json!([
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "key"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    node.api.create_pod("volumes", spec);
    // The ConfigMap does not exist yet: the pod waits for it and starts as soon as it does.
    env::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.api.pod("volumes").unwrap()["status"]["phase"], "Pending");
    node.api.put(path, map("one"));
    let pod = node.wait_ready("volumes").await;
    cannot_swap(pod["metadata"]["uid"].as_str().unwrap());
    node.api.put(path, map("two"));
    node.wait("volumes", "done", |pod| pod["status"]["phase"] == "Succeeded").await;
    node.api.delete_pod("volumes", 5);
    gone(node, "volumes").await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let pods = node.pods.display().to_string();
    assert!(!mounts.contains(&pods), "{pods} in {mounts}");
}

/// Where the kernel can limit swap, the container with 64 MiB has none beside them.
fn cannot_swap(uid: &str) {
    for (root, file, expected) in [
        ("/sys/fs/cgroup/memory", "memory.memsw.limit_in_bytes", "67108864"),
        ("/sys/fs/cgroup", "memory.swap.max", "0"),
    ] {
        let pod = PathBuf::from(root).join(CGROUP).join("kubepods/burstable").join(format!("pod{uid}"));
        if !pod.join(file).exists() {
            continue;
        }
        let groups = std::fs::read_dir(pod).unwrap().flatten().map(|entry| entry.path());
        let limits: Vec<String> = groups.filter_map(|group| std::fs::read_to_string(group.join(file)).ok()).collect();
        assert!(limits.iter().any(|limit| limit.trim() == expected), "{file}: {limits:?}");
    }
}

/// What is told of a pod that has everything to tell of.
async fn numbers(node: &Node) {
    let mut spec = host_pod(container(&format!("echo hello; {TRAP}")));
    spec["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    spec["containers"][0]["resources"] = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    spec["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
    node.api.create_pod("counted", spec);
    let pod = node.wait_ready("counted").await;
    let summary: Value = serde_json::from_str(&node.page("/stats/summary").await).unwrap();
    let told = summary["pods"].as_array().unwrap().iter().find(|p| p["podRef"]["name"] == "counted").unwrap();
    assert!(told["process_stats"]["process_count"].as_u64() >= Some(2), "the sandbox's and its own: {told:#}");
    assert_eq!(told["volume"][0]["name"], "work", "{told:#}");
    assert!(told["containers"][0]["logs"]["inodesUsed"].as_u64() >= Some(1), "{told:#}");
    assert!(told["network"].is_null(), "it has none of its own: {told:#}");
    assert!(summary["node"]["rlimit"]["maxpid"].as_i64() > Some(0), "{summary:#}");
    assert!(summary["node"]["runtime"]["imageFs"]["capacityBytes"].as_u64() > Some(0), "{summary:#}");
    let page = node.page("/metrics/cadvisor").await;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().replace("containerd://", "");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let labels = format!(
        "container=\"main\",id=\"/{CGROUP}/kubepods/pod{uid}/{id}\",image=\"docker.io/library/minke-test:1\",\
         name=\"{id}\",namespace=\"default\",pod=\"counted\""
    );
    for (name, value) in [
        ("container_cpu_cfs_periods_total", ""),
        ("container_spec_cpu_quota", "50000"),
        ("container_spec_memory_limit_bytes", "67108864"),
        ("container_start_time_seconds", ""),
        ("container_processes", ""),
    ] {
        let line = format!("{name}{{{labels}}} {value}");
        assert!(page.lines().any(|found| found.starts_with(&line)), "{line} is missing in\n{page}");
    }
    for id in ["/", &*format!("/{CGROUP}/kubepods"), &format!("/{CGROUP}/kubepods/pod{uid}")] {
        let row = |line: &str| {
            line.starts_with("container_memory_working_set_bytes{") && line.contains(&format!("id=\"{id}\""))
        };
        assert!(page.lines().any(row), "{id} is missing in\n{page}");
    }
    let system = summary["node"]["systemContainers"].as_array().unwrap();
    let told_of = |name: &str| system.iter().any(|c| c["name"] == name && c["memory"]["rssBytes"].as_u64() > Some(0));
    assert!(["kubelet", "runtime", "pods"].into_iter().all(told_of), "{system:#?}");
    assert!(told["memory"]["availableBytes"].as_u64() > Some(0), "of 64 MiB: {told:#}");
    let group = format!("/{CGROUP}/kubepods/pod{uid}");
    let rows: Value = serde_json::from_str(&node.page_at(node.cadvisor_port, "/ui/list").await).unwrap();
    assert!(rows.as_array().unwrap().iter().any(|row| row["pod"] == "counted" && row["name"] == group), "{rows:#}");
    let answer = node.page_at(node.cadvisor_port, &format!("/api/v1.3/containers{group}/{id}")).await;
    let viewed: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&viewed["id"], &viewed["spec"]["memory"]["limit"]), (&json!(id), &json!(67_108_864)), "{viewed:#}");
    let listed = node.page_at(node.cadvisor_port, &format!("/api/v2.0/ps{group}")).await;
    assert!(listed.contains("\"cmd\":\"sleep\"") || listed.contains("\"cmd\":\"sh\""), "{listed}");
    node.api.delete_pod("counted", 5);
    gone(node, "counted").await;
}

async fn crash_loop(node: &Node) {
    node.api.create_pod("crash", host_pod(container("exit 7")));
    let waits = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let pod = node.wait("crash", "backing off", waits).await;
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!((&status["restartCount"], &status["lastState"]["terminated"]["exitCode"]), (&json!(1), &json!(7)));
    node.api.delete_pod("crash", 5);
    gone(node, "crash").await;
}

/// A container makes the files that its probes look for, and only this test takes them away: every state stays until
/// it has been seen, however slow the machine.
async fn probes(node: &Node, files: &Path) {
    std::fs::create_dir_all(files).unwrap();
    let mut main = container(&format!("trap 'exit 0' TERM; touch /probe/ready /probe/alive; {FOREVER}"));
    let check = |file: &str, failures: u32| {
        json!({"exec": {"command": ["cat", format!("/probe/{file}")]}, "periodSeconds": 1, "timeoutSeconds": 60,
            "failureThreshold": failures})
    };
    main["startupProbe"] = check("alive", 100);
    main["readinessProbe"] = check("ready", 1);
    main["livenessProbe"] = check("alive", 2);
    main["volumeMounts"] = json!([{"name": "files", "mountPath": "/probe"}]);
    let mut spec = host_pod(main);
    spec["volumes"] = json!([{"name": "files", "hostPath": {"path": files}}]);
    node.api.create_pod("probed", spec);
    node.wait_ready("probed").await;
    std::fs::remove_file(files.join("ready")).unwrap();
    node.wait("probed", "unready", |pod| condition(pod, "Ready") == "False").await;
    std::fs::remove_file(files.join("alive")).unwrap();
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    node.wait("probed", "restarted", restarted).await;
    node.wait("probed", "ready again", |pod| restarted(pod) && condition(pod, "Ready") == "True").await;
    node.api.delete_pod("probed", 1);
    gone(node, "probed").await;
}

async fn hooks_and_force(node: &Node) {
    let mut main = container("while true; do sleep 0.1; done");
    main["lifecycle"] = json!({"postStart": {"exec": {"command": ["touch", "/tmp/started"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "sleep 100"]}}});
    node.api.create_pod("hooked", host_pod(main));
    node.wait_ready("hooked").await;
    node.api.delete_pod("hooked", 600);
    env::sleep(Duration::from_millis(300)).await;
    assert!(node.api.pod("hooked").is_some());
    // A shorter grace period takes effect while the longer one runs.
    node.api.delete_pod("hooked", 0);
    gone(node, "hooked").await;
}

async fn bad_image(node: &Node) {
    let mut main = container("true");
    main["image"] = "localhost:1/none:1".into();
    node.api.create_pod("bad", host_pod(main));
    let reason = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    node.wait("bad", "refused", |pod| reason(pod) == "ErrImagePull").await;
    node.wait("bad", "backing off", |pod| reason(pod) == "ImagePullBackOff").await;
    node.api.delete_pod("bad", 5);
    gone(node, "bad").await;
}

async fn static_pod(node: &Node, dir: &Path) {
    let manifest =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fixed"}, "spec": host_pod(container(TRAP))});
    let file = dir.join("manifests/fixed.json");
    std::fs::write(&file, manifest.to_string()).unwrap();
    let pod = node.wait_ready("fixed-node").await;
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    std::fs::remove_file(&file).unwrap();
    gone(node, "fixed-node").await;
}

async fn resized(node: &Node) {
    let mut main = container(TRAP);
    main["resources"] = json!({"requests": {"cpu": "10m"}, "limits": {"cpu": "100m"}});
    node.api.create_pod("resized", host_pod(main));
    let before = node.wait_ready("resized").await;
    // Seen once before it changes, as in life.
    env::sleep(Duration::from_millis(300)).await;
    let mut pod = node.api.pod("resized").unwrap();
    pod["metadata"]["labels"] = json!({"touched": "yes"});
    node.api.put(&fake_api::pod_path("resized"), pod.clone());
    env::sleep(Duration::from_millis(300)).await;
    let mut pod = node.api.pod("resized").unwrap();
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "200m".into();
    pod["metadata"]["generation"] = 2.into();
    node.api.put(&fake_api::pod_path("resized"), pod);
    let told = |pod: &Value| {
        let done = node.api.find("/events/").iter().any(|event| event["reason"] == "ResizeCompleted");
        let limit = &pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"];
        done && pod["status"]["observedGeneration"] == 2 && *limit == "200m"
    };
    let after = node.wait("resized", "resized", told).await;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&before), id(&after));
    assert_eq!(after["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"], "200m");
    node.api.delete_pod("resized", 5);
    gone(node, "resized").await;
}

async fn many_pods(node: &Node) {
    let names: Vec<String> = (0..12).map(|i| format!("many-{i}")).collect();
    let began = env::instant_now();
    for name in &names {
        node.api.create_pod(name, host_pod(container(TRAP)));
    }
    for name in &names {
        node.wait_ready(name).await;
    }
    eprintln!("{} pods ready in {:?}", names.len(), began.elapsed());
    // A shell that has not yet set its trap would sit out the grace period.
    env::sleep(Duration::from_secs(1)).await;
    let began = env::instant_now();
    for name in &names {
        node.api.delete_pod(name, 5);
    }
    for name in &names {
        gone(node, name).await;
    }
    eprintln!("{} pods gone in {:?}", names.len(), began.elapsed());
}

async fn survives_restart(node: Node, shutdown: &CancellationToken, dir: &Path, socket: &Path) -> Node {
    let mut main = container(TRAP);
    // It answers only after a while: until then, what was told before holds.
    main["readinessProbe"] = json!({"exec": {"command": ["sleep", "3"]}, "periodSeconds": 1, "timeoutSeconds": 60});
    node.api.create_pod("survivor", host_pod(main));
    let before = node.wait_ready("survivor").await;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    let api = node.api.clone();
    node.stop().await;
    let node = Node::start(&api, shutdown, dir, socket);
    let began = env::instant_now();
    while began.elapsed() < Duration::from_secs(4) {
        let pod = node.api.pod("survivor").unwrap();
        assert_eq!(condition(&pod, "Ready"), "True", "{pod:#}");
        env::sleep(Duration::from_millis(20)).await;
    }
    let after = node.wait_ready("survivor").await;
    assert_eq!(id(&before), id(&after));
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    node.api.delete_pod("survivor", 5);
    gone(&node, "survivor").await;
    node
}
