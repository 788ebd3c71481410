//! The task of one pod: does what the pod's state asks for, one step after the other, and tells what came of it.
//! Part of `pod_workers`; the steps are in `sync`, `terminate` and their neighbours.
//! Decides nothing about the pod's life; every step ends with an event or a wait.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use tracing::Instrument;

use super::{
    Handle, Handles, Shared,
    state::{PodWorkerEvent, PodWorkerState, Work},
};
use crate::{
    node::{
        node_metrics::{POD_START_DURATION, POD_START_SLI_DURATION, POD_START_TOTAL_DURATION, POD_WORKER_DURATION},
        pod_metrics::{CONTAINERS_PER_POD, FIRST_NETWORK_POD_START, POD_WORKER_START_DURATION},
    },
    pod::{
        admission::Refusal,
        pod_actions::ActuatedResources,
        pod_spec::{self, Kind},
        pod_start,
        pod_status::{self, WaitingReason},
    },
    resources::resizes::Resizes,
    runtime::{
        container_config::resources::PodLimits, runtime_manager::ContainerStarts, runtime_status::PodRuntimeStatus,
    },
};

/// How long a sync goes on after its pod was told to end.
const SYNC_CANCEL_DELAY: Duration = Duration::from_secs(2);
/// How long a container that is just being started is waited for after that.
const CONTAINER_START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: Arc<Handle>,
    /// Of all pods, some of which may have to make room.
    pub(super) handles: Handles,
    pub(super) uid: String,
    /// Why containers wait, by name.
    pub(super) waiting: HashMap<String, WaitingReason>,
    /// Monotonic time of the next sync without a wake-up.
    next_sync: Option<Duration>,
    pub(super) admitted: bool,
    /// Why it may not begin yet.
    pub(super) blocked: Option<Refusal>,
    /// Consecutive failures to make the pod's sandbox or volumes.
    pub(super) failures: u32,
    pub(super) last: PodRuntimeStatus,
    /// The runtime's handler for the pod, once it was looked up; a RuntimeClass never changes it.
    pub(super) handler: Option<String>,
    /// The resources that running containers were given, by id.
    pub(super) actuated: HashMap<String, ActuatedResources>,
    pub(super) resizes: Resizes,
    /// The limits of the pod's control group; set at the first sync.
    pub(super) pod_limits: Option<PodLimits>,
    /// The runtime has nothing of the pod, and need not be asked.
    pub(super) fresh: bool,
    /// All that the runtime has of a pod that is being made, as long as we know it from making it.
    pub(super) followed: Option<PodRuntimeStatus>,
    /// When the node heard of the pod, until it was Running for the first time.
    pub(super) starting_since: Option<Duration>,
    /// Until all its containers ran for the first time.
    pub(super) starting: bool,
    pub(super) container_starts: Arc<ContainerStarts>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, handle: Arc<Handle>, handles: Handles, uid: String, fresh: bool) -> Self {
        let resizes = Resizes::reported(&handle.pod(), shared.env.now());
        Self {
            container_starts: Arc::default(),
            fresh,
            followed: None,
            starting_since: Some(shared.env.monotonic()),
            starting: true,
            shared,
            handle,
            handles,
            uid,
            waiting: HashMap::new(),
            next_sync: None,
            admitted: false,
            blocked: None,
            failures: 0,
            last: PodRuntimeStatus::default(),
            handler: None,
            actuated: HashMap::new(),
            resizes,
            pod_limits: None,
        }
    }

    /// Until nothing of the pod is left.
    pub(super) async fn run(mut self) {
        let mut operation = "create";
        self.observe_beginning();
        loop {
            let (pod, uid) = (self.handle.pod(), self.uid.clone());
            let key = pod_spec::display(&pod);
            match self.handle.work() {
                Work::SyncPod => {
                    let began = self.shared.env.monotonic();
                    self.sync_until_cancelled(&pod).instrument(tracing::info_span!("sync_pod", pod = key, uid)).await;
                    self.observe_duration(std::mem::replace(&mut operation, "sync"), began);
                    if self.handle.work() == Work::SyncPod {
                        self.wait().await;
                    }
                }
                Work::SyncTerminatingPod => {
                    let span = tracing::info_span!("sync_terminating_pod", pod = key, uid);
                    self.sync_terminating_pod().instrument(span).await;
                }
                Work::SyncTerminatedPod => {
                    let span = tracing::info_span!("sync_terminated_pod", pod = key, uid);
                    self.sync_terminated_pod(&pod).instrument(span).await;
                }
                Work::AwaitDeletion => self.handle.wake.notified().await,
                Work::DeleteFromApi => {
                    let span = tracing::info_span!("delete_pod_from_api", pod = key, uid);
                    self.delete_from_api().instrument(span).await;
                }
                Work::RemoveFromRuntime => {
                    let span = tracing::info_span!("remove_pod_from_runtime", pod = key, uid);
                    self.remove_from_runtime(&pod).instrument(span).await;
                }
                Work::Done => return,
            }
        }
    }

    /// Once, when it is the pod's turn.
    fn observe_beginning(&self) {
        let (shared, containers) = (&self.shared, pod_spec::containers(&self.handle.pod()).len());
        shared.metrics.observe(&CONTAINERS_PER_POD, &[], containers as f64);
        if let Some(since) = self.starting_since {
            let waited = shared.env.monotonic().saturating_sub(since);
            shared.metrics.observe(&POD_WORKER_START_DURATION, &[], waited.as_secs_f64());
        }
    }

    pub(super) fn apply(&self, event: PodWorkerEvent) {
        self.handle.apply(event);
    }

    pub(super) fn observe_duration(&self, operation: &str, began: Duration) {
        let took = self.shared.env.monotonic().saturating_sub(began);
        self.shared.metrics.observe(&POD_WORKER_DURATION, &[operation], took.as_secs_f64());
    }

    /// Counts how long the pod took to run, once. A pod that ran before we were started has nothing to count.
    pub(super) fn observe_start(&mut self, pod: &Pod, status: &PodStatus) {
        if status.phase.as_deref() != Some("Running") {
            return;
        }
        if self.starting && pod_start::has_started(status) {
            self.starting = false;
            let pulling = self.shared.images.pulling_time(&self.uid);
            if let Some(seconds) = pod_start::indicator(pod, status, pulling, self.shared.env.now()) {
                self.shared.metrics.observe(&POD_START_SLI_DURATION, &[], seconds);
                // Whoever looks for trouble with the network looks at the first that has one.
                if !pod_spec::host_network(pod) && self.shared.first_network_pod.swap(false, Ordering::Relaxed) {
                    self.shared.metrics.set(&FIRST_NETWORK_POD_START, &[], seconds);
                }
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

    /// A sync of a pod that is to end is let finish for a moment: a hook, a pull or a mount may never. A container that
    /// is just being started takes no longer than the runtime does, and is waited for.
    async fn sync_until_cancelled(&mut self, pod: &Arc<Pod>) {
        let (env, handle, starts) = (self.shared.env.clone(), self.handle.clone(), self.container_starts.clone());
        let cut_off = async {
            handle.cancel_sync.cancelled().await;
            if !handle.state().is_forced() {
                env.sleep(SYNC_CANCEL_DELAY).await;
            }
            env.timeout(CONTAINER_START_TIMEOUT, starts.idle()).await;
        };
        let cut_short = tokio::select! {
            () = self.sync_pod(pod) => false,
            () = cut_off => true,
        };
        if cut_short {
            tracing::info!("sync cut off: the pod is terminating");
        }
    }

    async fn wait(&mut self) {
        let env = &self.shared.env;
        match self.next_sync.take() {
            Some(at) => {
                let wait = at.saturating_sub(env.monotonic());
                let wait = self.shared.config.sync_interval.map_or(wait, |interval| interval.min(wait));
                env.timeout(wait, self.handle.wake.notified()).await;
            }
            None => match self.shared.config.sync_interval {
                Some(interval) => {
                    env.timeout(interval, self.handle.wake.notified()).await;
                }
                None => self.handle.wake.notified().await,
            },
        }
    }

    /// Syncs again no later than after `wait`.
    pub(super) fn sync_again_in(&mut self, wait: Duration) {
        let at = self.shared.env.monotonic() + wait;
        self.next_sync = Some(self.next_sync.map_or(at, |next| next.min(at)));
    }

    pub(super) fn kinds(pod: &Pod) -> HashMap<String, Kind> {
        let named = |list: Vec<String>, kind| list.into_iter().map(move |name| (name, kind));
        let names = |list: &[Container]| list.iter().map(|c| c.name.clone()).collect();
        named(names(pod_spec::init_containers(pod)), Kind::Init)
            .chain(named(names(&pod_spec::ephemeral_containers(pod)), Kind::Ephemeral))
            .chain(named(names(pod_spec::containers(pod)), Kind::App))
            .collect()
    }

    pub(super) async fn snapshot(&mut self, pod: &Pod) -> cri::Result<PodRuntimeStatus> {
        let status = self.shared.runtime.snapshot(&self.uid, &Self::kinds(pod)).await?;
        self.last = status.clone();
        Ok(status)
    }

    /// Whether what runs the pod can make mounts read-only all the way down.
    fn recursive_read_only(&self) -> bool {
        let features = self.handler.as_deref().and_then(|handler| self.shared.runtime.features.of_handler(handler));
        features.is_some_and(|features| features.recursive_read_only)
    }

    /// Reports the status of a pod that is being synced.
    pub(super) fn report_syncing(&self, pod: &Arc<Pod>, runtime: &PodRuntimeStatus) -> PodStatus {
        self.report(pod, runtime, &self.resizes, false, false)
    }

    /// Reports the status of a pod that is being stopped, or with `stopped` its last one.
    pub(super) fn report_terminating(&self, pod: &Arc<Pod>, runtime: &PodRuntimeStatus, stopped: bool) {
        let no_resizes = Resizes::default();
        let resizes = if stopped { &no_resizes } else { &self.resizes };
        self.report(pod, runtime, resizes, true, stopped);
    }

    /// Computes the pod's status and hands it on. A failure is told only once the pod is being stopped for it: a sync
    /// that goes on for a moment knows nothing of it.
    fn report(
        &self,
        pod: &Arc<Pod>,
        runtime: &PodRuntimeStatus,
        resizes: &Resizes,
        terminating: bool,
        stopped: bool,
    ) -> PodStatus {
        let shared = &self.shared;
        let pod = &shared.allocations.granted(pod);
        let previous = shared.statuses.get(&self.uid).or_else(|| pod.status.clone()).unwrap_or_default();
        let (failure, eviction) = match self.handle.state() {
            PodWorkerState::Terminating { failure, eviction, .. } => (failure.filter(|_| terminating), eviction),
            _ => (None, None),
        };
        let mut status = pod_status::generate(&pod_status::Input {
            pod,
            runtime,
            previous: &previous,
            readiness: shared.probes.results(),
            reasons: &self.waiting,
            in_effect: &|id| self.actuated.get(id).map(|actuated| actuated.declared.clone()),
            resource_health: &|container| shared.devices.resource_health(pod, container),
            resizes,
            runtime_name: &shared.runtime_name,
            host_ips: &shared.runtime.host_ips,
            recursive_read_only: self.recursive_read_only(),
            terminal: stopped,
            failure: failure.as_ref(),
            now: shared.env.now(),
        });
        if status.phase.as_deref() == Some("Pending") {
            status.reason = self.blocked.as_ref().map(|refusal| refusal.reason.clone());
            status.message = self.blocked.as_ref().map(|refusal| refusal.message.clone());
        }
        if let Some(message) = eviction.and_then(|eviction| eviction.disruption_message) {
            pod_status::mark_disrupted(&mut status, &previous, &message, shared.env.now());
        }
        shared.statuses.set(pod, status.clone());
        status
    }
}
