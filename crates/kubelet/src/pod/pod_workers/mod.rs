//! One task per pod UID: each brings its own pod to what is wanted, so one that hangs delays no other.
//! Fed by `sync_loop`; uses every other module of the node.
//! Invariant: a pod goes from syncing to terminating to terminated and never back; its worker ends only when nothing
//! of the pod is left here.

mod admit;
mod resize;
mod sync;
mod terminate;

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::{Client, EventRecorder, Informer};
use env::Env;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus, Service};
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    images::image_manager::ImageManager,
    node::node_metrics::{POD_START_DURATION, POD_START_SLI_DURATION, POD_START_TOTAL_DURATION, POD_WORKER_DURATION},
    pod::{
        pod_manager::PodManager,
        pod_spec::{self, Kind},
        pod_start,
        pod_status::{self, WaitingReason},
        probe_manager::ProbeManager,
        status_manager::StatusManager,
    },
    resources::{
        allocation_manager::AllocationManager, container_manager::ContainerManager, eviction::Pressures,
        resizes::Resizes,
    },
    runtime::{
        backoff::Backoff, container_config::resources::PodLimits, runtime_manager::RuntimeManager,
        runtime_status::PodRuntimeStatus,
    },
    volumes::{referenced_objects::ReferencedObjects, volume_manager::VolumeManager},
};

/// How long work on a pod goes on after it was told to end.
const LAST_WORK: Duration = Duration::from_secs(2);
/// How long a container that is just being started is waited for after that.
const LONGEST_START: Duration = Duration::from_secs(30);

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
    pub crash_backoff: Backoff,
    pub allocations: AllocationManager,
    pub metrics: Metrics,
}

/// Why a pod must end although nobody deleted it.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    pub reason: String,
    pub message: String,
    pub grace_period_seconds: i64,
}

struct HandleState {
    pod: Arc<Pod>,
    /// No source has it any more.
    removed: bool,
    eviction: Option<Eviction>,
}

pub struct Handle {
    wake: Notify,
    /// Cancelled once the pod is to end, whatever is being done for it.
    ending: CancellationToken,
    /// Cancelled once nothing of it runs or will run.
    terminated: CancellationToken,
    state: Mutex<HandleState>,
    task: Mutex<Option<tokio::task::AbortHandle>>,
}

impl Handle {
    fn pod(&self) -> Arc<Pod> {
        self.state.lock().pod.clone()
    }

    fn removed(&self) -> bool {
        self.state.lock().removed
    }

    fn eviction(&self) -> Option<Eviction> {
        self.state.lock().eviction.clone()
    }

    /// Whether the pod is to end at once. The API lets go of a pod only for a grace period of zero, which may have come
    /// while nobody watched.
    fn has_no_grace(&self) -> bool {
        let state = self.state.lock();
        let meta = &state.pod.metadata;
        let zero = meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds.is_some_and(|s| s <= 0);
        zero || (state.removed && !pod_spec::is_static(&state.pod))
    }
}

pub struct PodWorkers {
    pub shared: Arc<Shared>,
    handles: Arc<Mutex<HashMap<String, Arc<Handle>>>>,
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
            if pod.metadata.deletion_timestamp.is_some() {
                handle.ending.cancel();
            }
            handle.state.lock().pod = pod;
            handle.wake.notify_one();
            return;
        }
        let earlier = namesakes(&handles, &pod);
        let state = HandleState { pod, removed: false, eviction: None };
        let handle = Arc::new(Handle {
            wake: Notify::new(),
            ending: CancellationToken::new(),
            terminated: CancellationToken::new(),
            state: Mutex::new(state),
            task: Mutex::default(),
        });
        handles.insert(uid.clone(), handle.clone());
        let mut worker = Worker::new(self.shared.clone(), handle.clone(), uid.clone());
        worker.fresh = fresh;
        let workers = Self { shared: self.shared.clone(), handles: self.handles.clone() };
        let own = handle.clone();
        let task = self.shared.env.spawn(async move {
            for other in earlier {
                other.cancelled().await;
            }
            worker.run().await;
            own.terminated.cancel();
            workers.handles.lock().remove(&uid);
            // A manifest that came back while its pod ended makes the same pod once more.
            if let Some(pod) = workers.shared.pods.get(&uid).filter(|pod| own.removed() && pod_spec::is_static(pod)) {
                workers.update(pod, false);
            }
        });
        *handle.task.lock() = Some(task.abort_handle());
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
            handle.state.lock().pod = pod;
        }
    }

    /// No source has the pod any more.
    pub fn remove(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.state.lock().removed = true;
            handle.ending.cancel();
            handle.wake.notify_one();
        }
    }

    /// Ends a pod that nobody deleted; it stays in the API as failed.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.state.lock().eviction.get_or_insert(eviction);
            handle.ending.cancel();
            handle.wake.notify_one();
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

    pub fn is_terminated(&self, uid: &str) -> bool {
        self.handles.lock().get(uid).is_none_or(|handle| handle.terminated.is_cancelled())
    }
}

/// The ends of static pods of the same name, which a new one must not run beside: an edited manifest makes another
/// pod. One that is removed before its turn waits all the same, so that none behind it overtakes what still ends.
fn namesakes(handles: &HashMap<String, Arc<Handle>>, pod: &Pod) -> Vec<CancellationToken> {
    if !pod_spec::is_static(pod) {
        return vec![];
    }
    let same = |other: &Pod| pod_spec::is_static(other) && pod_spec::display(other) == pod_spec::display(pod);
    handles.values().filter(|handle| same(&handle.pod())).map(|handle| handle.terminated.clone()).collect()
}

struct Worker {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    uid: String,
    /// Why containers wait, by name.
    reasons: HashMap<String, WaitingReason>,
    /// Monotonic time of the next look without a wake-up.
    next: Option<Duration>,
    /// Reason and message that go with a terminal phase of our own making.
    verdict: Option<(String, String)>,
    admitted: bool,
    /// The node can't run the pod, and never tried.
    refused: bool,
    /// The pod's own work is over.
    completed: bool,
    /// Consecutive failures to make the pod's surroundings.
    failures: u32,
    last: PodRuntimeStatus,
    /// The runtime's handler for the pod, once it was looked up; a RuntimeClass never changes it.
    handler: Option<String>,
    /// The resources that running containers were given, by id.
    applied: HashMap<String, resize::Applied>,
    resizes: Resizes,
    /// The limits of the pod's group; set at the first look.
    group: Option<PodLimits>,
    /// The runtime has nothing of the pod, and need not be asked.
    fresh: bool,
    /// All that the runtime has of a pod that is being made, as long as we know it from making it.
    followed: Option<PodRuntimeStatus>,
    /// When the node heard of the pod, until it was Running for the first time.
    starting_since: Option<Duration>,
    /// Until all its containers ran for the first time.
    starting: bool,
    /// Held while the runtime makes and starts a container.
    at_work: Arc<tokio::sync::Mutex<()>>,
}

impl Worker {
    fn new(shared: Arc<Shared>, handle: Arc<Handle>, uid: String) -> Self {
        let resizes = Resizes::reported(&handle.pod(), shared.env.now());
        Self {
            at_work: Arc::default(),
            fresh: false,
            followed: None,
            starting_since: Some(shared.env.monotonic()),
            starting: true,
            shared,
            handle,
            uid,
            reasons: HashMap::new(),
            next: None,
            verdict: None,
            admitted: false,
            refused: false,
            completed: false,
            failures: 0,
            last: PodRuntimeStatus::default(),
            handler: None,
            applied: HashMap::new(),
            resizes,
            group: None,
        }
    }

    async fn run(mut self) {
        let mut operation = "create";
        loop {
            let pod = self.handle.pod();
            if self.must_end(&pod) {
                break;
            }
            let began = self.shared.env.monotonic();
            self.sync_until_ending(&pod).await;
            self.took(std::mem::replace(&mut operation, "sync"), began);
            if self.must_end(&self.handle.pod()) {
                break;
            }
            self.wait().await;
        }
        self.end().await;
    }

    /// Counts a round of work on the pod.
    fn took(&self, operation: &str, began: Duration) {
        let took = self.shared.env.monotonic().saturating_sub(began);
        self.shared.metrics.observe(&POD_WORKER_DURATION, &[operation], took.as_secs_f64());
    }

    /// Counts how long the pod took to run, once. A pod that ran before we were started has nothing to count.
    fn note_start(&mut self, pod: &Pod, status: &PodStatus) {
        if status.phase.as_deref() != Some("Running") {
            return;
        }
        if self.starting && pod_start::has_started(status) {
            self.starting = false;
            let pulling = self.shared.images.pulling_time(&self.uid);
            if let Some(seconds) = pod_start::indicator(pod, status, pulling, self.shared.env.now()) {
                self.shared.metrics.observe(&POD_START_SLI_DURATION, &[], seconds);
            }
        }
        let (Some(since), env) = (self.starting_since.take(), &self.shared.env) else { return };
        let seconds = env.monotonic().saturating_sub(since).as_secs_f64();
        self.shared.metrics.observe(&POD_START_DURATION, &[], seconds);
        if let Some(created) = &pod.metadata.creation_timestamp {
            let age = (env.now().as_millisecond() - created.0.as_millisecond()).max(0);
            self.shared.metrics.observe(&POD_START_TOTAL_DURATION, &[], age as f64 / 1000.0);
        }
    }

    /// What is being done for a pod that is to end is let finish for a moment: a hook, a pull or a mount may never.
    /// A container that is just being started takes no longer than the runtime does, and is waited for.
    async fn sync_until_ending(&mut self, pod: &Arc<Pod>) {
        let (env, handle, at_work) = (self.shared.env.clone(), self.handle.clone(), self.at_work.clone());
        let cut_off = async {
            handle.ending.cancelled().await;
            if !handle.has_no_grace() {
                env.sleep(LAST_WORK).await;
            }
            env.timeout(LONGEST_START, at_work.lock()).await;
        };
        let cut_short = tokio::select! {
            () = self.sync(pod) => false,
            () = cut_off => true,
        };
        if cut_short {
            tracing::info!(pod = pod_spec::display(pod), "giving up what was being done for a pod that ends");
        }
    }

    async fn wait(&mut self) {
        let env = &self.shared.env;
        match self.next.take() {
            Some(at) => {
                let wait = at.saturating_sub(env.monotonic());
                env.timeout(wait, self.handle.wake.notified()).await;
            }
            None => self.handle.wake.notified().await,
        }
    }

    /// Looks again no later than after `wait`.
    fn look_again_in(&mut self, wait: Duration) {
        let at = self.shared.env.monotonic() + wait;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn must_end(&mut self, pod: &Pod) -> bool {
        if let Some(eviction) = self.handle.eviction() {
            self.verdict.get_or_insert((eviction.reason, eviction.message));
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        self.completed
            || self.verdict.is_some()
            || self.handle.removed()
            || pod.metadata.deletion_timestamp.is_some()
            || (phase.is_some_and(pod_status::is_terminal) && !pod_spec::is_static(pod))
    }

    fn kinds(pod: &Pod) -> HashMap<String, Kind> {
        let named = |list: Vec<String>, kind| list.into_iter().map(move |name| (name, kind));
        let names = |list: &[k8s_openapi::api::core::v1::Container]| list.iter().map(|c| c.name.clone()).collect();
        named(names(pod_spec::init_containers(pod)), Kind::Init)
            .chain(named(names(&pod_spec::ephemeral_containers(pod)), Kind::Ephemeral))
            .chain(named(names(pod_spec::containers(pod)), Kind::App))
            .collect()
    }

    async fn snapshot(&mut self, pod: &Pod) -> cri::Result<PodRuntimeStatus> {
        let status = self.shared.runtime.snapshot(&self.uid, &Self::kinds(pod)).await?;
        self.last = status.clone();
        Ok(status)
    }

    /// Whether what runs the pod can make mounts read-only all the way down.
    fn recursive_read_only(&self) -> bool {
        let features = self.handler.as_deref().and_then(|handler| self.shared.runtime.features.of_handler(handler));
        features.is_some_and(|features| features.recursive_read_only)
    }

    /// Computes the pod's status and hands it on.
    fn report(&self, pod: &Arc<Pod>, runtime: &PodRuntimeStatus, terminal: bool) -> PodStatus {
        let shared = &self.shared;
        let pod = &shared.allocations.granted(pod);
        let previous = shared.statuses.get(&self.uid).or_else(|| pod.status.clone()).unwrap_or_default();
        let no_resizes = Resizes::default();
        let mut status = pod_status::generate(&pod_status::Input {
            pod,
            runtime,
            previous: &previous,
            readiness: shared.probes.results(),
            reasons: &self.reasons,
            in_effect: &|id| self.applied.get(id).map(|applied| applied.declared.clone()),
            resizes: if terminal { &no_resizes } else { &self.resizes },
            runtime_name: &shared.runtime_name,
            host_ips: &shared.runtime.host_ips,
            recursive_read_only: self.recursive_read_only(),
            terminal,
            verdict: self.verdict.as_ref(),
            refused: self.refused,
            now: shared.env.now(),
        });
        if let Some(eviction) = self.handle.eviction() {
            pod_status::mark_disrupted(&mut status, &previous, &eviction.message, shared.env.now());
        }
        shared.statuses.set(pod, status.clone());
        status
    }
}
