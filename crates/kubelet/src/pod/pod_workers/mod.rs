//! One task per pod UID: each brings its own pod to what is wanted, so one that hangs delays no other.
//! Fed by `sync_loop`; uses every other module of the node.
//! What happens to a pod is decided by `state`, which is pure; the tasks only carry out what it says. A worker ends
//! only when nothing of its pod is left here.

mod admit;
mod error;
mod prepare;
mod resize;
mod start;
mod state;
mod sync;
mod terminate;
mod worker;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

use client::{Client, EventRecorder, Informer};
use env::Env;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use metrics::Metrics;
use parking_lot::Mutex;
pub use state::Eviction;
use state::{PodWorkerEvent, PodWorkerState, Presence, Work};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use worker::Worker;

use crate::{
    config::Config,
    images::image_manager::ImageManager,
    node::{
        node_shutdown::ShutdownState,
        pod_metrics::{RESTARTED_PODS, WORKING_PODS},
    },
    pod::{
        admission::hook::PodAdmissionHook, pod_manager::PodManager, pod_spec, probe_manager::ProbeManager,
        status_manager::StatusManager,
    },
    resources::{
        allocation_manager::AllocationManager, container_devices::ContainerDevices,
        container_manager::ContainerManager, eviction::Pressures,
    },
    runtime::{backoff::Backoff, runtime_manager::RuntimeManager},
    volumes::{referenced_objects::ReferencedObjects, volume_manager::VolumeManager},
};

/// What all workers share.
pub struct Shared {
    pub config: Arc<Config>,
    pub env: Env,
    pub client: Client,
    pub recorder: EventRecorder,
    pub runtime: RuntimeManager,
    pub runtime_name: String,
    pub pods: Arc<PodManager>,
    pub statuses: Arc<StatusManager>,
    pub probes: ProbeManager,
    pub volumes: VolumeManager,
    pub references: ReferencedObjects,
    pub images: Arc<ImageManager>,
    pub cgroups: Arc<ContainerManager>,
    pub services: Informer<Service>,
    /// Our own Node object, kept by `node_status`.
    pub node: Arc<Mutex<Node>>,
    pub pressures: Arc<Pressures>,
    pub shutdown: Arc<ShutdownState>,
    pub admission_hook: Option<PodAdmissionHook>,
    pub crash_backoff: Backoff,
    pub allocations: AllocationManager,
    pub devices: Arc<ContainerDevices>,
    pub metrics: Metrics,
    /// No pod with a network of its own has started since this process began.
    pub first_network_pod: AtomicBool,
}

/// A pod's state, shared by whoever tells what happened and the worker that acts on it.
struct Handle {
    wake: Notify,
    /// Cancelled once a sync that is under way is to be cut off.
    cancel_sync: CancellationToken,
    /// Cancelled once another pod may take this one's place.
    released: CancellationToken,
    state: Mutex<PodWorkerState>,
    task: Mutex<Option<tokio::task::AbortHandle>>,
    metrics: Metrics,
}

impl Handle {
    fn new(pod: Arc<Pod>, metrics: Metrics) -> Self {
        let state = PodWorkerState::new(pod);
        metrics.add(&WORKING_PODS, &state.labels(), 1.0);
        Self {
            wake: Notify::new(),
            cancel_sync: CancellationToken::new(),
            released: CancellationToken::new(),
            state: Mutex::new(state),
            task: Mutex::default(),
            metrics,
        }
    }

    fn apply(&self, event: PodWorkerEvent) {
        let mut state = self.state.lock();
        let before = state.labels();
        *state = state.clone().transition(event);
        if state.labels() != before {
            self.metrics.add(&WORKING_PODS, &before, -1.0);
            self.metrics.add(&WORKING_PODS, &state.labels(), 1.0);
        }
        if state.cancels_sync() {
            self.cancel_sync.cancel();
        }
        if state.is_released() {
            self.released.cancel();
        }
    }

    /// What happened needs work.
    fn apply_and_wake(&self, event: PodWorkerEvent) {
        self.apply(event);
        self.wake.notify_one();
    }

    fn state(&self) -> PodWorkerState {
        self.state.lock().clone()
    }

    fn pod(&self) -> Arc<Pod> {
        self.state.lock().pod().clone()
    }

    fn work(&self) -> Work {
        self.state.lock().work()
    }
}

type Handles = Arc<Mutex<HashMap<String, Arc<Handle>>>>;

pub struct PodWorkers {
    pub shared: Arc<Shared>,
    /// By the pods' UIDs.
    handles: Handles,
}

impl PodWorkers {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, handles: Arc::default() }
    }

    /// The pod is new or changed. Of a `fresh` one the runtime can't have anything: nobody started it before us.
    pub fn update(&self, pod: Arc<Pod>, fresh: bool) {
        let uid = pod_spec::uid(&pod).to_string();
        let mut handles = self.handles.lock();
        if let Some(handle) = handles.get(&uid) {
            return handle.apply_and_wake(PodWorkerEvent::Updated(pod));
        }
        let predecessors = predecessors(&handles, &pod);
        let handle = Arc::new(Handle::new(pod, self.shared.metrics.clone()));
        handles.insert(uid.clone(), handle.clone());
        let worker = Worker::new(self.shared.clone(), handle.clone(), self.handles.clone(), uid.clone(), fresh);
        let workers = Self { shared: self.shared.clone(), handles: self.handles.clone() };
        let own = handle.clone();
        let task = self.shared.env.spawn(async move {
            for predecessor in predecessors {
                predecessor.cancelled().await;
            }
            worker.run().await;
            workers.finished(&uid, &own);
        });
        *handle.task.lock() = Some(task.abort_handle());
    }

    /// Forgets a pod of which nothing is left. A manifest that came back while its pod ended makes the same pod once
    /// more.
    fn finished(&self, uid: &str, handle: &Handle) {
        self.handles.lock().remove(uid);
        let state = handle.state();
        self.shared.metrics.add(&WORKING_PODS, &state.labels(), -1.0);
        if let PodWorkerState::Finished { presence: Presence::Recreated(pod), .. } = state {
            self.shared.metrics.count(&RESTARTED_PODS, &["true"]);
            self.update(pod, false);
        }
    }

    /// Ends all work at once; what runs goes on running.
    pub fn stop(&self) {
        for (_, handle) in self.handles.lock().drain() {
            if let Some(task) = handle.task.lock().take() {
                task.abort();
            }
        }
        self.shared.probes.stop_all();
        self.shared.references.stop_all();
    }

    /// The pod's object changed in a way that needs no work.
    pub fn refresh(&self, pod: Arc<Pod>) {
        if let Some(handle) = self.handles.lock().get(pod_spec::uid(&pod)) {
            handle.apply(PodWorkerEvent::Updated(pod));
        }
    }

    /// No source has the pod any more.
    pub fn remove(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.apply_and_wake(PodWorkerEvent::Removed);
        }
    }

    /// Ends a pod that nobody deleted; it stays in the API as failed.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.apply_and_wake(PodWorkerEvent::Evicted(eviction));
        }
    }

    /// Something happened: look again.
    pub fn wake(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.wake.notify_one();
        }
    }

    /// Whether a worker cares for this pod.
    pub fn knows(&self, uid: &str) -> bool {
        self.handles.lock().contains_key(uid)
    }

    /// The ends of static pods of this name that no manifest has any more.
    pub fn ending_static_pods(&self, namespace: &str, name: &str) -> Vec<CancellationToken> {
        let ends = |handle: &&Arc<Handle>| {
            let pod = handle.pod();
            let same = (pod_spec::namespace(&pod), pod_spec::name(&pod)) == (namespace, name);
            same && pod_spec::is_static(&pod) && !self.shared.pods.contains(pod_spec::uid(&pod))
        };
        self.handles.lock().values().filter(ends).map(|handle| handle.released.clone()).collect()
    }

    /// Until nothing of the pod runs and it holds no volumes.
    pub fn wait_terminated(&self, uid: &str) -> impl Future<Output = ()> + use<> {
        let released = self.handles.lock().get(uid).map(|handle| handle.released.clone());
        async move {
            if let Some(released) = released {
                released.cancelled().await;
            }
        }
    }
}

/// The ends of static pods of the same name, which a new one must not run beside: an edited manifest makes another
/// pod. One that is removed before it began waits all the same, so that none behind it overtakes what still ends.
fn predecessors(handles: &HashMap<String, Arc<Handle>>, pod: &Pod) -> Vec<CancellationToken> {
    if !pod_spec::is_static(pod) {
        return vec![];
    }
    let same = |other: &Pod| pod_spec::is_static(other) && pod_spec::display(other) == pod_spec::display(pod);
    handles.values().filter(|handle| same(&handle.pod())).map(|handle| handle.released.clone()).collect()
}
