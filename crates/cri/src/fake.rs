//! A runtime in memory, for tests: containers have states but no processes.
//! Implements `Runtime`; tests drive it with `exit`, `fail_next`, `hang` and `calls`.
//! Follows CRI's rules (a container needs a ready sandbox, stop is idempotent), so code that works here only by
//! breaking them fails.

use std::collections::{BTreeMap, HashMap, VecDeque};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use crate::{Error, EventStream, Result, Runtime, RuntimeEvent, v1};

pub struct FakeRuntime {
    state: Mutex<State>,
    released: tokio::sync::Notify,
    events: broadcast::Sender<RuntimeEvent>,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, v1::PodSandboxStatus>,
    containers: BTreeMap<String, (String, v1::ContainerStatus)>,
    images: BTreeMap<String, v1::Image>,
    pullable: BTreeMap<String, u64>,
    exec_results: HashMap<String, VecDeque<v1::ExecSyncResponse>>,
    failures: HashMap<&'static str, VecDeque<Error>>,
    /// Methods that fail every time, and what they say.
    refused: HashMap<&'static str, String>,
    /// What it says of itself beyond being up.
    said: v1::StatusResponse,
    /// Calls that do not end: method and what their argument contains.
    hanging: Vec<(&'static str, String)>,
    /// Bytes in use, by the container's name.
    memory: HashMap<String, u64>,
    /// What containers that are stopped end with; killed unless told.
    stopped_code: Option<i32>,
    /// Containers end only when they are killed.
    ignore_stop_signal: bool,
    /// Nothing is answered at all.
    down: bool,
    /// The name and the version of the runtime it pretends to be.
    version: (Option<String>, Option<String>),
    calls: Vec<String>,
    next: u64,
    clock: i64,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self { state: Mutex::default(), released: tokio::sync::Notify::new(), events: broadcast::channel(1024).0 }
    }
}

impl State {
    fn call(&mut self, name: &'static str, argument: &str) -> Result<()> {
        self.calls.push(format!("{name} {argument}").trim_end().to_string());
        self.refusal(name)?;
        self.failures.get_mut(name).and_then(VecDeque::pop_front).map_or(Ok(()), Err)
    }

    fn refusal(&self, name: &'static str) -> Result<()> {
        self.refused.get(name).map_or(Ok(()), |text| Err(Error::Other(text.clone())))
    }

    fn id(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    /// A clock that only orders: every reading is later than the one before.
    fn tick(&mut self) -> i64 {
        self.clock += 1_000_000;
        self.clock
    }

    fn finish(&mut self, id: &str, exit_code: i32) {
        let now = self.tick();
        if let Some((_, status)) = self.containers.get_mut(id)
            && status.state() == v1::ContainerState::ContainerRunning
        {
            status.set_state(v1::ContainerState::ContainerExited);
            status.exit_code = exit_code;
            status.finished_at = now;
            status.reason = if exit_code == 0 { "Completed" } else { "Error" }.into();
        }
    }
}

fn missing(what: &str, id: &str) -> Error {
    Error::NotFound(format!("rpc error: code = NotFound desc = {what} {id:?} not found"))
}

impl FakeRuntime {
    /// Makes an image present.
    pub fn add_image(&self, name: &str, size: u64) {
        let image = v1::Image {
            id: format!("sha256:{name}"),
            repo_tags: vec![name.into()],
            size,
            spec: Some(v1::ImageSpec { image: name.into(), ..Default::default() }),
            ..Default::default()
        };
        self.state.lock().images.insert(name.into(), image);
    }

    /// Makes an image pullable; every other pull fails.
    pub fn add_pullable(&self, name: &str, size: u64) {
        self.state.lock().pullable.insert(name.into(), size);
    }

    /// Sets the clock, in nanoseconds since the epoch, for those who compare it with their own. It never goes back.
    pub fn set_clock(&self, now: i64) {
        let mut state = self.state.lock();
        state.clock = state.clock.max(now);
    }

    /// Ends a container's process.
    pub fn exit(&self, id: &str, exit_code: i32) {
        self.state.lock().finish(id, exit_code);
        let _ = self.events.send(RuntimeEvent::Exited { id: id.into() });
    }

    /// The next call of `method` (its name in `Runtime`) fails with `error`.
    pub fn fail_next(&self, method: &'static str, error: Error) {
        self.state.lock().failures.entry(method).or_default().push_back(error);
    }

    /// Every call of `method` fails.
    pub fn refuse(&self, method: &'static str, text: &str) {
        self.state.lock().refused.insert(method, text.into());
    }

    /// What it answers about itself; conditions are given where they are not as they should be.
    pub fn say(&self, said: v1::StatusResponse) {
        self.state.lock().said = said;
    }

    /// Calls of `method` with `argument` in their argument do not end until `release`.
    pub fn hang(&self, method: &'static str, argument: &str) {
        self.state.lock().hanging.push((method, argument.into()));
    }

    /// Lets every call that hangs go on.
    pub fn release(&self) {
        self.state.lock().hanging.clear();
        self.released.notify_waiters();
    }

    /// Whether every call fails as if nobody listened on the socket.
    pub fn set_version(&self, name: &str, version: &str) {
        self.state.lock().version = (Some(name.into()), Some(version.into()));
    }

    /// The newest container of that name.
    fn newest(&self, name: &str) -> Option<v1::ContainerStatus> {
        let state = self.state.lock();
        let named = |status: &&v1::ContainerStatus| status.metadata.as_ref().is_some_and(|m| m.name == name);
        let all = state.containers.values().map(|(_, status)| status);
        all.filter(named).max_by_key(|status| status.created_at).cloned()
    }

    /// The mounts of the newest container of that name.
    pub fn mounts(&self, name: &str) -> Vec<v1::Mount> {
        self.newest(name).map(|status| status.mounts).unwrap_or_default()
    }

    /// What the newest container of that name may use.
    pub fn resources(&self, name: &str) -> Option<v1::LinuxContainerResources> {
        self.newest(name)?.resources?.linux
    }

    /// What containers of that name use; nothing unless told.
    pub fn set_memory(&self, name: &str, bytes: u64) {
        self.state.lock().memory.insert(name.into(), bytes);
    }

    /// Containers that are stopped end with this.
    pub fn set_stopped_code(&self, code: i32) {
        self.state.lock().stopped_code = Some(code);
    }

    /// Containers let a stop signal pass; only a stop without any time for it ends them.
    pub fn ignore_stop_signal(&self) {
        self.state.lock().ignore_stop_signal = true;
    }

    pub fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    async fn hold(&self, method: &'static str, argument: &str) {
        loop {
            let released = self.released.notified();
            let hangs = self.state.lock().hanging.iter().any(|(m, a)| *m == method && argument.contains(a.as_str()));
            if !hangs {
                return;
            }
            released.await;
        }
    }

    fn answer(&self) -> Result<()> {
        match self.state.lock().down {
            true => Err(Error::Unavailable("rpc error: code = Unavailable desc = connection refused".into())),
            false => Ok(()),
        }
    }

    pub fn push_exec_result(&self, container_id: &str, result: v1::ExecSyncResponse) {
        self.state.lock().exec_results.entry(container_id.into()).or_default().push_back(result);
    }

    /// Every mutating call so far, as "method argument".
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// Ids of the running containers with this name.
    pub fn running(&self, name: &str) -> Vec<String> {
        let state = self.state.lock();
        let matches = |status: &v1::ContainerStatus| {
            status.state() == v1::ContainerState::ContainerRunning
                && status.metadata.as_ref().is_some_and(|m| m.name == name)
        };
        state.containers.iter().filter(|(_, (_, status))| matches(status)).map(|(id, _)| id.clone()).collect()
    }
}

fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        let state = self.state.lock();
        Ok(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: state.version.0.clone().unwrap_or_else(|| "fake".into()),
            runtime_version: state.version.1.clone().unwrap_or_else(|| "1".into()),
            runtime_api_version: "v1".into(),
        })
    }

    async fn status(&self, _verbose: bool) -> Result<v1::StatusResponse> {
        self.hold("status", "").await;
        self.answer()?;
        let mut state = self.state.lock();
        state.call("status", "")?;
        let mut answer = state.said.clone();
        let condition = |name: &str| v1::RuntimeCondition { r#type: name.into(), status: true, ..Default::default() };
        let conditions = &mut answer.status.get_or_insert_default().conditions;
        for name in ["RuntimeReady", "NetworkReady"] {
            if !conditions.iter().any(|known| known.r#type == name) {
                conditions.push(condition(name));
            }
        }
        Ok(answer)
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        self.state.lock().call("update_runtime_config", pod_cidr)
    }

    async fn checkpoint_container(&self, id: &str, location: &str, _timeout_seconds: i64) -> Result<()> {
        self.state.lock().call("checkpoint_container", id)?;
        std::fs::write(location, "checkpoint").map_err(|error| Error::Other(error.to_string()))
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        self.hold("run_pod_sandbox", config.metadata.as_ref().map_or("", |m| m.name.as_str())).await;
        self.answer()?;
        let mut state = self.state.lock();
        state.call("run_pod_sandbox", &config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default())?;
        let (id, created_at) = (state.id("sandbox-"), state.tick());
        let context = config.linux.and_then(|linux| linux.security_context).unwrap_or_default();
        let options = context.namespace_options.unwrap_or_default();
        // In the node's own network it has no address of its own.
        let ip = match options.network() {
            v1::NamespaceMode::Node => String::new(),
            _ => format!("10.88.0.{}", state.next),
        };
        let status = v1::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            created_at,
            network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips: vec![] }),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options: Some(options) }) }),
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: runtime_handler.into(),
            ..Default::default()
        };
        state.sandboxes.insert(id.clone(), status);
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let named = |status: &v1::PodSandboxStatus| status.metadata.as_ref().map(|m| m.name.clone());
        let name = self.state.lock().sandboxes.get(id).and_then(named).unwrap_or_default();
        self.hold("stop_pod_sandbox", &name).await;
        let mut state = self.state.lock();
        state.call("stop_pod_sandbox", id)?;
        let inside: Vec<String> =
            state.containers.iter().filter(|(_, (s, _))| s == id).map(|(id, _)| id.clone()).collect();
        for container in inside {
            state.finish(&container, 137);
        }
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.set_state(v1::PodSandboxState::SandboxNotready);
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.call("remove_pod_sandbox", id)?;
        state.containers.retain(|_, (sandbox, _)| sandbox != id);
        state.sandboxes.remove(id);
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str, _verbose: bool) -> Result<v1::PodSandboxStatusResponse> {
        let state = self.state.lock();
        let status = state.sandboxes.get(id).cloned().ok_or_else(|| missing("sandbox", id))?;
        Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    async fn list_pod_sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>> {
        self.answer()?;
        let mut state = self.state.lock();
        if let Some(error) = state.failures.get_mut("list_pod_sandboxes").and_then(VecDeque::pop_front) {
            return Err(error);
        }
        let filter = filter.unwrap_or_default();
        Ok(state
            .sandboxes
            .values()
            .filter(|s| filter.id.is_empty() || s.id == filter.id)
            .filter(|s| filter.state.as_ref().is_none_or(|wanted| wanted.state == s.state))
            .filter(|s| selected(&s.labels, &filter.label_selector))
            .map(|s| v1::PodSandbox {
                id: s.id.clone(),
                metadata: s.metadata.clone(),
                state: s.state,
                created_at: s.created_at,
                labels: s.labels.clone(),
                annotations: s.annotations.clone(),
                runtime_handler: s.runtime_handler.clone(),
            })
            .collect())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let mut state = self.state.lock();
        state.call("create_container", &config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default())?;
        let sandbox = state.sandboxes.get(sandbox_id).ok_or_else(|| missing("sandbox", sandbox_id))?;
        if sandbox.state() != v1::PodSandboxState::SandboxReady {
            return Err(Error::Other(format!("sandbox {sandbox_id:?} is not ready")));
        }
        let (id, created_at) = (state.id("container-"), state.tick());
        let image_ref = config.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
        let mut status = v1::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            created_at,
            image: config.image,
            image_ref,
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: format!("{}/{}", sandbox_config.log_directory, config.log_path),
            resources: config
                .linux
                .and_then(|linux| linux.resources)
                .map(|linux| v1::ContainerResources { linux: Some(linux), ..Default::default() }),
            ..Default::default()
        };
        status.set_state(v1::ContainerState::ContainerCreated);
        state.containers.insert(id.clone(), (sandbox_id.into(), status));
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.hold("start_container", id).await;
        self.answer()?;
        let mut state = self.state.lock();
        state.call("start_container", id)?;
        let now = state.tick();
        let (_, status) = state.containers.get_mut(id).ok_or_else(|| missing("container", id))?;
        if status.state() != v1::ContainerState::ContainerCreated {
            return Err(Error::Other(format!("container {id:?} is in {:?} state", status.state())));
        }
        status.set_state(v1::ContainerState::ContainerRunning);
        status.started_at = now;
        // Where somebody made room for logs, there is one.
        let _ = std::fs::write(&status.log_path, "");
        drop(state);
        let _ = self.events.send(RuntimeEvent::Started { id: id.into() });
        Ok(())
    }

    async fn stop_container(&self, id: &str, timeout_seconds: i64) -> Result<()> {
        self.hold("stop_container", id).await;
        self.answer()?;
        let ignored = timeout_seconds > 0 && self.state.lock().ignore_stop_signal;
        if ignored {
            self.state.lock().call("signal_container", id)?;
            // Times of tests end before any such time does.
            std::future::pending::<()>().await;
        }
        let mut state = self.state.lock();
        state.call("stop_container", id)?;
        let code = state.stopped_code.unwrap_or(137);
        state.finish(id, code);
        drop(state);
        let _ = self.events.send(RuntimeEvent::Exited { id: id.into() });
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.call("remove_container", id)?;
        state.containers.remove(id);
        Ok(())
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        self.answer()?;
        let state = self.state.lock();
        let filter = filter.unwrap_or_default();
        Ok(state
            .containers
            .values()
            .filter(|(_, c)| filter.id.is_empty() || c.id == filter.id)
            .filter(|(sandbox, _)| filter.pod_sandbox_id.is_empty() || *sandbox == filter.pod_sandbox_id)
            .filter(|(_, c)| filter.state.as_ref().is_none_or(|wanted| wanted.state == c.state))
            .filter(|(_, c)| selected(&c.labels, &filter.label_selector))
            .map(|(sandbox, c)| v1::Container {
                id: c.id.clone(),
                pod_sandbox_id: sandbox.clone(),
                metadata: c.metadata.clone(),
                image: c.image.clone(),
                image_ref: c.image_ref.clone(),
                state: c.state,
                created_at: c.created_at,
                labels: c.labels.clone(),
                annotations: c.annotations.clone(),
                image_id: c.image_id.clone(),
            })
            .collect())
    }

    async fn container_status(&self, id: &str, _verbose: bool) -> Result<v1::ContainerStatusResponse> {
        let state = self.state.lock();
        let (_, status) = state.containers.get(id).ok_or_else(|| missing("container", id))?;
        Ok(v1::ContainerStatusResponse { status: Some(status.clone()), info: HashMap::new() })
    }

    async fn update_container_resources(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let mut state = self.state.lock();
        state.call("update_container_resources", id)?;
        let (_, status) = state.containers.get_mut(id).ok_or_else(|| missing("container", id))?;
        let before = status.resources.take().and_then(|resources| resources.linux).unwrap_or_default();
        status.resources = Some(v1::ContainerResources {
            linux: Some(crate::fake_resources::updated(before, resources)),
            ..Default::default()
        });
        Ok(())
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        self.state.lock().call("reopen_container_log", id)
    }

    async fn exec_sync(&self, id: &str, command: Vec<String>, _timeout_seconds: i64) -> Result<v1::ExecSyncResponse> {
        self.hold("exec_sync", &command.join(" ")).await;
        self.answer()?;
        let mut state = self.state.lock();
        state.call("exec_sync", &format!("{id} {}", command.join(" ")))?;
        Ok(state.exec_results.get_mut(id).and_then(VecDeque::pop_front).unwrap_or_default())
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        Err(Error::Unimplemented(format!("the fake runtime cannot stream to {}", request.container_id)))
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        Err(Error::Unimplemented(format!("the fake runtime cannot stream to {}", request.container_id)))
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        Err(Error::Unimplemented(format!("the fake runtime cannot stream to {}", request.pod_sandbox_id)))
    }

    async fn container_stats(&self, id: &str) -> Result<Option<v1::ContainerStats>> {
        let state = self.state.lock();
        let (_, status) = state.containers.get(id).ok_or_else(|| missing("container", id))?;
        let name = status.metadata.as_ref().map(|metadata| metadata.name.as_str()).unwrap_or_default();
        let bytes = v1::UInt64Value { value: state.memory.get(name).copied().unwrap_or(0) };
        let memory = v1::MemoryUsage { usage_bytes: Some(bytes), ..Default::default() };
        Ok(Some(v1::ContainerStats { memory: Some(memory), ..Default::default() }))
    }

    async fn list_container_stats(&self, _filter: Option<v1::ContainerStatsFilter>) -> Result<Vec<v1::ContainerStats>> {
        let state = self.state.lock();
        let running = state.containers.values().filter(|(_, s)| s.state() == v1::ContainerState::ContainerRunning);
        let stats = running.filter_map(|(_, status)| {
            let bytes = *state.memory.get(status.metadata.as_ref()?.name.as_str())?;
            let bytes = Some(v1::UInt64Value { value: bytes });
            let attributes = v1::ContainerAttributes {
                id: status.id.clone(),
                metadata: status.metadata.clone(),
                labels: status.labels.clone(),
                ..Default::default()
            };
            let memory = v1::MemoryUsage { usage_bytes: bytes, working_set_bytes: bytes, ..Default::default() };
            Some(v1::ContainerStats { attributes: Some(attributes), memory: Some(memory), ..Default::default() })
        });
        Ok(stats.collect())
    }

    async fn pod_sandbox_stats(&self, _id: &str) -> Result<Option<v1::PodSandboxStats>> {
        Ok(None)
    }

    async fn list_pod_sandbox_stats(
        &self,
        _filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>> {
        Ok(vec![])
    }

    async fn list_images(&self, _filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>> {
        Ok(self.state.lock().images.values().cloned().collect())
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        let state = self.state.lock();
        let found = state.images.get(&image.image).or_else(|| state.images.values().find(|i| i.id == image.image));
        Ok(found.cloned())
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        _auth: Option<v1::AuthConfig>,
        _sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        self.hold("pull_image", &image.image).await;
        let size = {
            let mut state = self.state.lock();
            state.call("pull_image", &image.image)?;
            state.pullable.get(&image.image).copied()
        };
        let Some(size) = size else {
            return Err(Error::NotFound(format!(
                "rpc error: code = NotFound desc = failed to pull and unpack image {:?}: not found",
                image.image
            )));
        };
        self.add_image(&image.image, size);
        let _ = self.events.send(RuntimeEvent::ImagesChanged);
        Ok(format!("sha256:{}", image.image))
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        let mut state = self.state.lock();
        state.call("remove_image", &image.image)?;
        state.images.retain(|name, i| *name != image.image && i.id != image.image);
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        self.state.lock().refusal("image_fs_info")?;
        Ok(v1::ImageFsInfoResponse::default())
    }

    async fn events(&self) -> Result<EventStream> {
        let stream = BroadcastStream::new(self.events.subscribe());
        Ok(stream.filter_map(|event| async move { event.ok().map(Ok) }).boxed())
    }
}
