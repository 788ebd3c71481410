//! The device manager: takes in device plugins, follows their devices, and asks them for what pods need.
//! Used by the kubelet's admission, its container configuration and the node's status; `state` decides.
//! Every call of a plugin has a deadline; what was given is on disk before a container is made with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use env::Env;
use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceStatus};
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    checkpoint::{self, Checkpoint},
    messages::{
        ALLOCATE, AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
        ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, GET_DEVICE_PLUGIN_OPTIONS,
        GET_PREFERRED_ALLOCATION, LIST_AND_WATCH, ListAndWatchResponse, PRE_START_CONTAINER, PreStartContainerRequest,
        PreferredAllocationRequest, PreferredAllocationResponse, REGISTER, RegisterRequest, VERSION,
    },
    pod_devices::DeviceRunContainerOptions,
    state::{AllocationError, Choice, DeviceCapacity, DeviceIds, DeviceRequest, DeviceState, device_limits},
};
use crate::{
    HealthListener,
    checkpoint_file::CheckpointFile,
    grpc::{
        PluginChannel,
        service::{GrpcService, bind},
    },
    plugin_metrics::{DEVICE_PLUGIN_ALLOC_DURATION, DEVICE_PLUGIN_REGISTRATIONS},
    registration::{PluginHandler, messages::PluginInfo},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);
/// A plugin may have to reset its device first.
const ALLOCATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Plugins that register at the same time; more wait for an answer.
const REGISTRATIONS_MAX: usize = 64;
const SOCKET_NAME: &str = "kubelet.sock";

/// A plugin whose devices are to be followed.
struct Connected {
    resource: String,
    registration: u64,
    channel: PluginChannel,
    replaced: CancellationToken,
}

struct Endpoint {
    channel: PluginChannel,
    registration: u64,
    replaced: CancellationToken,
}

#[derive(Default)]
struct Plugins {
    state: DeviceState,
    /// By resource; of those that are connected.
    endpoints: BTreeMap<String, Endpoint>,
}

pub struct DeviceManager {
    env: Env,
    metrics: Metrics,
    directory: PathBuf,
    file: CheckpointFile,
    /// Whether nothing is known of a kubelet that was here before.
    is_first_start: bool,
    plugins: Arc<Mutex<Plugins>>,
    registrations: AtomicU64,
    connected: mpsc::Sender<Connected>,
    to_follow: Mutex<Option<mpsc::Receiver<Connected>>>,
    /// Told whenever the node's status has something new to say.
    changed: Arc<Notify>,
    health_listener: Option<HealthListener>,
}

impl DeviceManager {
    /// Reads what was given out before a restart. `changed` is told whenever there are other devices.
    pub fn open(env: Env, metrics: Metrics, root_dir: &Path, changed: Arc<Notify>) -> Self {
        let directory = root_dir.join("device-plugins");
        let file = CheckpointFile::new(directory.join(checkpoint::FILE_NAME));
        let is_first_start = fs::read_dir(&directory).map_or(true, |mut entries| entries.next().is_none());
        let found = read(&file).unwrap_or_else(|error| {
            tracing::error!(error, "continuing without the checkpoint of devices: what pods have of them is not known");
            Checkpoint::default()
        });
        let state = DeviceState::restored(found, env.monotonic());
        let (connected, to_follow) = mpsc::channel(REGISTRATIONS_MAX);
        Self {
            env,
            metrics,
            directory,
            file,
            is_first_start,
            plugins: Arc::new(Mutex::new(Plugins { state, endpoints: BTreeMap::new() })),
            registrations: AtomicU64::new(0),
            connected,
            to_follow: Mutex::new(Some(to_follow)),
            changed,
            health_listener: None,
        }
    }

    pub fn with_health_listener(self, health_listener: Option<HealthListener>) -> Self {
        Self { health_listener, ..self }
    }

    fn tell_health(&self, users: &BTreeSet<String>) {
        if let Some(listener) = &self.health_listener {
            users.iter().for_each(|uid| listener(uid));
        }
    }

    /// How the devices of a container are; nothing where nobody wants to know.
    pub fn resource_health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        match self.health_listener {
            Some(_) => self.plugins.lock().state.health(uid, container),
            None => Vec::new(),
        }
    }

    /// Whether extended resources that the Node object has can only be of a machine that was here before.
    pub fn is_first_start(&self) -> bool {
        self.is_first_start
    }

    /// Serves registrations and follows plugins for as long as the node runs.
    pub async fn run(self: Arc<Self>) {
        let Some(mut to_follow) = self.to_follow.lock().take() else { return };
        let mut followed = FuturesUnordered::new();
        let serve = self.serve();
        tokio::pin!(serve);
        loop {
            tokio::select! {
                () = &mut serve => return,
                Some(plugin) = to_follow.recv() => followed.push(self.follow(plugin)),
                Some(()) = followed.next() => {}
            }
        }
    }

    async fn serve(self: &Arc<Self>) {
        let mut backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let path = self.directory.join(SOCKET_NAME);
        let listener = loop {
            match remove_sockets(&self.directory).and_then(|()| bind(&path)) {
                Ok(listener) => break listener,
                Err(error) => tracing::error!(%error, socket = %path.display(), "failed to listen for device plugins"),
            }
            self.env.sleep(backoff.next_delay()).await;
        };
        let manager = self.clone();
        let service = GrpcService::default().unary(REGISTER, move |request: RegisterRequest| {
            let manager = manager.clone();
            async move { manager.register(request).await.map(|()| Empty {}).map_err(Status::unknown) }
        });
        service.serve(listener).await;
    }

    async fn register(&self, request: RegisterRequest) -> Result<(), String> {
        let resource = &request.resource_name;
        self.metrics.count(&DEVICE_PLUGIN_REGISTRATIONS, &[resource]);
        if request.version != VERSION {
            return Err(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
                request.version
            ));
        }
        check_resource(resource)?;
        self.connect(resource, &self.directory.join(&request.endpoint).to_string_lossy()).await
    }

    async fn connect(&self, resource: &str, endpoint: &str) -> Result<(), String> {
        let channel = PluginChannel::new(&format!("device plugin {resource}"), endpoint, self.env.clone());
        let channel = channel.map_err(|error| format!("failed to dial device plugin: {error}"))?;
        let options: Result<DevicePluginOptions, _> =
            channel.call(GET_DEVICE_PLUGIN_OPTIONS, Empty {}, CONNECT_TIMEOUT).await;
        let options = options.map_err(|error| format!("failed to get device plugin options: {error}"))?;
        let registration = self.registrations.fetch_add(1, Ordering::Relaxed) + 1;
        let replaced = CancellationToken::new();
        let follow =
            Connected { resource: resource.into(), registration, channel: channel.clone(), replaced: replaced.clone() };
        {
            let mut plugins = self.plugins.lock();
            plugins.state.connected(resource, registration, options);
            let endpoint = Endpoint { channel, registration, replaced };
            if let Some(before) = plugins.endpoints.insert(resource.into(), endpoint) {
                before.replaced.cancel();
            }
        }
        tracing::info!(resource, "a device plugin has registered");
        self.connected.send(follow).await.map_err(|_| "the kubelet is shutting down".into())
    }

    /// Follows the plugin's devices until it ends or another takes its place.
    async fn follow(&self, plugin: Connected) {
        let Connected { resource, registration, channel, replaced } = plugin;
        let devices = async {
            let mut stream =
                channel.stream::<_, ListAndWatchResponse>(LIST_AND_WATCH, Empty {}, CONNECT_TIMEOUT).await?;
            while let Some(update) = stream.message().await? {
                let updated = self.plugins.lock().state.updated(&resource, registration, update.devices);
                let Some(users) = updated else { break };
                self.tell_health(&users);
                self.changed.notify_one();
                if let Err(error) = self.write().await {
                    tracing::error!(%error, "failed to write the checkpoint of devices");
                }
            }
            Ok::<_, crate::grpc::RpcError>(())
        };
        let ended = tokio::select! {
            () = replaced.cancelled() => return,
            ended = devices => ended,
        };
        let why = ended.err().map_or_else(|| "the stream has ended".into(), |error| error.to_string());
        tracing::warn!(resource, why, "a device plugin has gone");
        self.disconnect(&resource, registration).await;
    }

    async fn disconnect(&self, resource: &str, registration: u64) {
        let now = self.env.monotonic();
        let users = {
            let mut plugins = self.plugins.lock();
            let Some(users) = plugins.state.disconnected(resource, registration, now) else { return };
            plugins.endpoints.retain(|_, endpoint| endpoint.registration != registration);
            users
        };
        self.tell_health(&users);
        self.changed.notify_one();
        if let Err(error) = self.write().await {
            tracing::error!(%error, "failed to write the checkpoint of devices");
        }
    }

    /// What the node's status is to say; a resource is 0 once its plugin has been gone for long.
    pub async fn capacity(&self) -> DeviceCapacity {
        let (expired, shown) = {
            let state = &mut self.plugins.lock().state;
            (state.expire(self.env.monotonic()), state.capacity())
        };
        if expired && let Err(error) = self.write().await {
            tracing::error!(%error, "failed to write the checkpoint of devices");
        }
        shown
    }

    /// How many devices each resource must have at least for a pod that has its devices already.
    pub fn allocated_counts(&self, uid: &str) -> BTreeMap<String, usize> {
        let plugins = self.plugins.lock();
        if plugins.state.pods.has_pod(uid) { plugins.state.allocated_counts() } else { BTreeMap::new() }
    }

    /// Gives all containers of a pod their devices, or none. `affinity` has the NUMA nodes that the topology
    /// manager wants, by container.
    pub async fn allocate_pod(
        &self,
        pod: &Pod,
        affinity: &BTreeMap<String, BTreeSet<i64>>,
    ) -> Result<(), AllocationError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut changed = false;
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            match self.allocate_container(pod, uid, container, affinity.get(&container.name)).await {
                Ok(allocated) => changed |= allocated,
                Err(error) => {
                    self.release(uid).await;
                    return Err(error);
                }
            }
        }
        if changed {
            self.write().await.map_err(|error| AllocationError::Checkpoint(error.to_string()))
        } else {
            Ok(())
        }
    }

    /// True when it was given something.
    async fn allocate_container(
        &self,
        pod: &Pod,
        uid: &str,
        container: &Container,
        affinity: Option<&BTreeSet<i64>>,
    ) -> Result<bool, AllocationError> {
        let mut changed = false;
        for (resource, required) in device_limits(container) {
            let reusable = {
                let state = &self.plugins.lock().state;
                if !state.is_device_plugin_resource(resource) {
                    continue;
                }
                state.reusable(pod, &container.name, resource)
            };
            let request = DeviceRequest { uid, container: &container.name, resource, required, reusable, affinity };
            changed |= self.allocate(&request).await?;
        }
        Ok(changed)
    }

    async fn allocate(&self, request: &DeviceRequest<'_>) -> Result<bool, AllocationError> {
        let mut preferred = None;
        let reservation = loop {
            let (available, must_include, size) = {
                let state = &mut self.plugins.lock().state;
                match state.choose(request, preferred.as_ref())? {
                    Choice::Nothing => return Ok(false),
                    Choice::Ask { available, must_include, size } => (available, must_include, size),
                    Choice::Devices(devices) => {
                        state.reserve(request.resource, &devices);
                        let resource = request.resource.to_string();
                        break Reservation { plugins: &self.plugins, resource, devices };
                    }
                }
            };
            preferred = Some(self.preferred_allocation(request.resource, available, must_include, size).await?);
        };
        let began = self.env.monotonic();
        let answer = self.call_allocate(request.resource, &reservation.devices).await;
        let took = (self.env.monotonic() - began).as_secs_f64();
        self.metrics.observe(&DEVICE_PLUGIN_ALLOC_DURATION, &[request.resource], took);
        let answer = answer?;
        self.plugins.lock().state.allocated(request, &reservation.devices, answer);
        Ok(true)
    }

    fn channel(&self, resource: &str) -> Result<PluginChannel, AllocationError> {
        let plugins = self.plugins.lock();
        let found = plugins.endpoints.get(resource).map(|endpoint| endpoint.channel.clone());
        found.ok_or_else(|| AllocationError::EndpointStopped(resource.into()))
    }

    async fn preferred_allocation(
        &self,
        resource: &str,
        available: DeviceIds,
        must_include: DeviceIds,
        size: usize,
    ) -> Result<DeviceIds, AllocationError> {
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: available.into_iter().collect(),
            must_include_device_ids: must_include.into_iter().collect(),
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let answer: Result<PreferredAllocationResponse, _> =
            self.channel(resource)?.call(GET_PREFERRED_ALLOCATION, request, ALLOCATE_TIMEOUT).await;
        let answer = answer.map_err(|error| AllocationError::PreferredAllocation(error.to_string()))?;
        Ok(answer.container_responses.into_iter().next().unwrap_or_default().device_ids.into_iter().collect())
    }

    async fn call_allocate(
        &self,
        resource: &str,
        devices: &DeviceIds,
    ) -> Result<ContainerAllocateResponse, AllocationError> {
        let request = ContainerAllocateRequest { devices_ids: devices.iter().cloned().collect() };
        let request = AllocateRequest { container_requests: vec![request] };
        let answer: Result<AllocateResponse, _> =
            self.channel(resource)?.call(ALLOCATE, request, ALLOCATE_TIMEOUT).await;
        let answer = answer.map_err(|error| AllocationError::Allocate(error.to_string()))?;
        answer.container_responses.into_iter().next().ok_or_else(|| AllocationError::NoContainers(resource.into()))
    }

    /// What a container that is about to be made needs for its devices, once its plugins have made them ready.
    pub async fn run_container_options(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Option<DeviceRunContainerOptions>, AllocationError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut missing = false;
        for (resource, required) in device_limits(container) {
            let (is_ours, pre_start, devices) = {
                let state = &self.plugins.lock().state;
                let devices = state.pods.devices(uid, &container.name, resource);
                (state.is_device_plugin_resource(resource), state.options(resource).pre_start_required, devices)
            };
            if !is_ours || required == 0 {
                continue;
            }
            match devices {
                Some(devices) if pre_start => self.pre_start(resource, devices).await?,
                Some(_) => {}
                None if pre_start => {
                    let (uid, container, resource) = (uid.into(), container.name.clone(), resource.into());
                    return Err(AllocationError::NotAllocated { uid, container, resource });
                }
                None => missing = true,
            }
        }
        // Its pod was admitted when nothing was known of the resource.
        if missing && self.allocate_container(pod, uid, container, None).await? {
            self.write().await.map_err(|error| AllocationError::Checkpoint(error.to_string()))?;
        }
        Ok(self.plugins.lock().state.pods.run_options(uid, &container.name))
    }

    async fn pre_start(&self, resource: &str, devices: DeviceIds) -> Result<(), AllocationError> {
        let request = PreStartContainerRequest { devices_ids: devices.into_iter().collect() };
        let answer: Result<Empty, _> =
            self.channel(resource)?.call(PRE_START_CONTAINER, request, PRE_START_TIMEOUT).await;
        answer.map(drop).map_err(|error| AllocationError::PreStart(error.to_string()))
    }

    /// Nothing of the pod runs any more: its devices are free.
    pub async fn release(&self, uid: &str) {
        let had = self.plugins.lock().state.pods.remove_pod(uid);
        if had && let Err(error) = self.write().await {
            tracing::error!(%error, "failed to write the checkpoint of devices");
        }
    }

    /// Frees what pods have that ended while nobody looked.
    pub async fn release_unknown(&self, is_known: impl Fn(&str) -> bool) {
        let unknown: Vec<String> = {
            let plugins = self.plugins.lock();
            plugins.state.pods.pod_uids().filter(|uid| !is_known(uid)).map(String::from).collect()
        };
        for uid in unknown {
            self.release(&uid).await;
        }
    }

    /// Looks at the bookkeeping.
    pub fn with_state<T>(&self, look: impl FnOnce(&DeviceState) -> T) -> T {
        look(&self.plugins.lock().state)
    }

    /// Changes the bookkeeping of what is reserved.
    pub fn with_state_mut<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> T {
        change(&mut self.plugins.lock().state)
    }

    /// After every write that has begun.
    pub(super) async fn write(&self) -> io::Result<()> {
        let plugins = self.plugins.clone();
        self.file
            .write(move || {
                let checkpoint = plugins.lock().state.checkpoint();
                checkpoint::encode(&checkpoint)
            })
            .await
    }
}

/// Devices that are being asked for, given back when the asking ends in whatever way.
struct Reservation<'a> {
    plugins: &'a Mutex<Plugins>,
    resource: String,
    devices: DeviceIds,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.plugins.lock().state.unreserve(&self.resource, &self.devices);
    }
}

#[async_trait]
impl PluginHandler for DeviceManager {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        let versions = &info.supported_versions;
        if !versions.iter().any(|version| version == VERSION) {
            let versions = versions.join(" ");
            return Err(format!("manager version, {VERSION}, is not among plugin supported versions [{versions}]"));
        }
        check_resource(&info.name).map_err(|why| format!("invalid name of device plugin socket: {why}"))
    }

    async fn register(&self, info: &PluginInfo, endpoint: &str) -> Result<(), String> {
        self.connect(&info.name, endpoint).await
    }

    async fn deregister(&self, name: &str, _endpoint: &str, is_last: bool) -> Result<(), String> {
        let registration = self.plugins.lock().endpoints.get(name).map(|endpoint| {
            if is_last {
                endpoint.replaced.cancel();
            }
            endpoint.registration
        });
        if let Some(registration) = registration.filter(|_| is_last) {
            self.disconnect(name, registration).await;
        }
        Ok(())
    }
}

fn read(file: &CheckpointFile) -> Result<Checkpoint, String> {
    match file.read().map_err(|error| error.to_string())? {
        Some(text) => checkpoint::decode(&text).map_err(|error| error.to_string()),
        None => Ok(Checkpoint::default()),
    }
}

fn check_resource(name: &str) -> Result<(), String> {
    let domain = name.split('/').next().unwrap_or_default();
    let is_extended = name.contains('/')
        && !domain.ends_with("kubernetes.io")
        && !name.starts_with("requests.")
        && api::names::qualified_name(&format!("requests.{name}")).is_empty();
    if is_extended { Ok(()) } else { Err(format!("the ResourceName {name:?} is invalid")) }
}

/// Plugins of before the restart see by this that they have to register again.
fn remove_sockets(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
