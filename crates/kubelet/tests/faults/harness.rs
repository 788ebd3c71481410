//! A node on a runtime and an API server in memory, under simulated time.
//! Used by the tests beside it.
//! A node that is dropped leaves no control groups behind.

use std::{sync::Arc, time::Duration};

use crate::fake_api::FakeApi;
use client::InformerFactory;
use cri::fake::FakeRuntime;
use env::Env;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub const IMAGE: &str = "minke.local/image:1";
const LIMIT: Duration = Duration::from_secs(600);

pub struct Node {
    pub api: FakeApi,
    pub runtime: Arc<FakeRuntime>,
    pub env: Env,
    pub directory: tempfile::TempDir,
    config: kubelet::Config,
    shutdown: CancellationToken,
    task: Option<tokio::task::JoinHandle<Result<(), kubelet::Error>>>,
    group: String,
}

impl Node {
    /// `None` where control groups can't be made.
    pub fn start(name: &str) -> Option<Self> {
        Self::start_on(name, |_| {})
    }

    pub fn start_on(name: &str, prepare: impl FnOnce(&FakeRuntime)) -> Option<Self> {
        Self::start_with(name, |runtime, _| prepare(runtime))
    }

    pub fn start_with(name: &str, prepare: impl FnOnce(&FakeRuntime, &mut kubelet::Config)) -> Option<Self> {
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
        let mut config = kubelet::Config {
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
        prepare(&runtime, &mut config);
        let mut node = Self { api, runtime, env, config, shutdown, task: None, group, directory };
        node.run();
        Some(node)
    }

    fn run(&mut self) {
        let (client, env) = (self.api.client(), self.env.clone());
        let informers = InformerFactory::new(client.clone(), env.clone(), self.shutdown.clone());
        let (config, runtime) = (self.config.clone(), self.runtime.clone());
        let run = kubelet::run_with(config, client, informers, env, runtime, self.shutdown.clone());
        self.task = Some(env::spawn(run));
    }

    /// Another kubelet takes over what this one leaves.
    pub async fn restart(&mut self) {
        self.restart_after(|_| {}).await;
    }

    /// As `restart`, with something happening in between.
    pub async fn restart_after(&mut self, meanwhile: impl FnOnce(&FakeApi)) {
        self.end().await;
        meanwhile(&self.api);
        self.shutdown = CancellationToken::new();
        self.run();
    }

    pub async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = self.env.monotonic() + LIMIT;
        while !holds() {
            let events: Vec<String> =
                self.api.find("/events/").iter().map(|e| format!("{} {}", e["reason"], e["message"])).collect();
            let pods = self.api.find("/pods/");
            assert!(self.env.monotonic() < end, "never {what}\n{}\n{pods:#?}", events.join("\n"));
            self.env.sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) {
        self.until(&format!("was pod {name} {what}"), || wanted(&self.api.pod(name).unwrap_or_default())).await;
    }

    pub async fn event(&self, reason: &str, part: &str) {
        let fits = |e: &Value| e["reason"] == reason && e["message"].as_str().unwrap_or_default().contains(part);
        self.until(&format!("an event {reason} with {part:?}"), || self.api.find("/events/").iter().any(fits)).await;
    }

    /// Another pod, from the beginning to the end.
    pub async fn others_go_on(&self) {
        self.api.create_pod("other", pod(json!({})));
        self.wait("other", "ready", |pod| condition(pod, "Ready") == "True").await;
        self.api.delete_pod("other", 1);
        self.wait("other", "gone", Value::is_null).await;
    }

    pub async fn stop(mut self) {
        self.runtime.release();
        self.end().await;
    }

    fn groups(&self) -> kubelet::resources::container_manager::ContainerManager {
        kubelet::resources::container_manager::ContainerManager::new(&self.group, kubelet::CgroupDriver::Cgroupfs)
    }

    /// Whether the page of metrics has this line; `config.read_only_port` is where it is asked for.
    pub async fn counted(&self, line: &str) {
        let end = self.env.monotonic() + LIMIT;
        loop {
            let page = self.page("/metrics").await;
            if page.lines().any(|found| found == line) {
                return;
            }
            let resizes: Vec<&str> = page.lines().filter(|line| line.contains("resize")).collect();
            assert!(self.env.monotonic() < end, "never {line}\n{}", resizes.join("\n"));
            self.env.sleep(Duration::from_millis(500)).await;
        }
    }

    async fn page(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.config.read_only_port)).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The memory that a pod's group may have.
    pub fn memory_limit(&self, name: &str) -> Option<i64> {
        let pod = serde_json::from_value(self.api.pod(name)?).ok()?;
        let files = self.groups().pod_directories(&pod).into_iter();
        let mut files = files.flat_map(|place| ["memory.max", "memory.limit_in_bytes"].map(|file| place.join(file)));
        files.find_map(|file| std::fs::read_to_string(file).ok())?.trim().parse().ok()
    }

    async fn end(&mut self) {
        self.shutdown.cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.groups().remove_all();
    }
}

/// A port that nobody has just now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// One container of the image that is there, with `changes` to it.
pub fn pod(changes: Value) -> Value {
    let mut container = json!({"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (field, value) in changes.as_object().unwrap() {
        container[field] = value.clone();
    }
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [container]})
}

pub fn condition(pod: &Value, kind: &str) -> String {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == kind);
    found.map_or(String::new(), |c| c["status"].as_str().unwrap_or_default().to_string())
}

pub fn waits(pod: &Value, reason: &str, part: &str) -> bool {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    waiting["reason"] == reason && waiting["message"].as_str().unwrap_or_default().contains(part)
}
