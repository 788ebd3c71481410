//! Probes running containers and keeps what they said.
//! Told by `pod_workers` what runs; its results feed `pod_actions` and `pod_status`, and a changed result wakes the pod.
//! A result belongs to one incarnation of a container; a new one starts from the beginning, and one that ran before
//! this process goes on from what was told of it.

mod attempt;
mod schedule;
mod worker;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use client::EventRecorder;
use cri::Runtime;
use env::Env;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use metrics::Metrics;
use parking_lot::Mutex;
use worker::Worker;

use crate::{
    node::node_metrics::PROBES,
    pod::{
        pod_actions::{ProbeResult, Probes},
        pod_spec,
        pod_status::Readiness,
        pod_wakes::PodWakes,
    },
    runtime::runtime_status::{PodRuntimeStatus, State},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        }
    }

    fn probe(self, container: &Container) -> Option<&Probe> {
        match self {
            ProbeKind::Startup => container.startup_probe.as_ref(),
            ProbeKind::Liveness => container.liveness_probe.as_ref(),
            ProbeKind::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// What holds before the probe has spoken. A container that ran before we did stays as it was `told` to be.
    fn initial(self, told: Option<&ContainerStatus>) -> Option<ProbeResult> {
        match self {
            ProbeKind::Startup => told.and_then(|told| told.started)?.then_some(ProbeResult::Success),
            ProbeKind::Liveness => Some(ProbeResult::Success),
            ProbeKind::Readiness if told.is_some_and(|told| told.ready) => Some(ProbeResult::Success),
            ProbeKind::Readiness => Some(ProbeResult::Failure),
        }
    }
}

const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

type Key = (String, ProbeKind);

struct Running {
    pod_uid: String,
    task: tokio::task::JoinHandle<()>,
}

/// What the probes said, by container id.
#[derive(Default)]
pub struct Results {
    results: Mutex<HashMap<Key, Option<ProbeResult>>>,
    changed: tokio::sync::Notify,
}

impl Results {
    /// `None` when the container has no such probe.
    fn get(&self, id: &str, kind: ProbeKind) -> Option<Option<ProbeResult>> {
        self.results.lock().get(&(id.to_string(), kind)).copied()
    }

    /// True when it changed.
    fn set(&self, id: &str, kind: ProbeKind, result: ProbeResult) -> bool {
        let before = self.results.lock().insert((id.to_string(), kind), Some(result));
        self.changed.notify_waiters();
        before != Some(Some(result))
    }
}

impl Probes for Results {
    fn liveness(&self, id: &str) -> Option<ProbeResult> {
        self.get(id, ProbeKind::Liveness).flatten()
    }

    fn startup(&self, id: &str) -> Option<ProbeResult> {
        self.get(id, ProbeKind::Startup).flatten()
    }
}

impl Readiness for Results {
    fn started(&self, id: &str) -> bool {
        self.get(id, ProbeKind::Startup).is_none_or(|result| result == Some(ProbeResult::Success))
    }

    fn ready(&self, id: &str) -> bool {
        self.get(id, ProbeKind::Readiness).is_none_or(|result| result == Some(ProbeResult::Success))
    }
}

/// What the API server was told of this incarnation of a container, maybe by a kubelet before us.
fn told<'a>(pod: &'a Pod, id: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten();
    let own = |told: &&ContainerStatus| told.container_id.as_deref().and_then(|id| id.split("://").nth(1)) == Some(id);
    all.into_iter().find(own)
}

pub struct ProbeManager {
    runtime: Arc<dyn Runtime>,
    env: Env,
    recorder: EventRecorder,
    results: Arc<Results>,
    running: Mutex<HashMap<Key, Running>>,
    /// Told of pods whose results changed.
    wakes: PodWakes,
    /// Shown on a page of their own.
    pub metrics: Metrics,
}

impl ProbeManager {
    pub fn new(runtime: Arc<dyn Runtime>, env: Env, recorder: EventRecorder, wakes: PodWakes) -> Self {
        Self {
            runtime,
            env,
            recorder,
            results: Arc::default(),
            running: Mutex::default(),
            wakes,
            metrics: Metrics::default(),
        }
    }

    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Starts probing what runs and stops probing what does not.
    pub fn update(&self, pod: &Arc<Pod>, status: &PodRuntimeStatus, host_ips: &[String], terminating: bool) {
        let uid = pod_spec::uid(pod);
        let ip = status.ips(pod, host_ips).first().cloned().unwrap_or_default();
        let mut wanted: HashSet<Key> = HashSet::new();
        let sidecars = pod_spec::init_containers(pod).iter().filter(|c| pod_spec::is_sidecar(c));
        for container in pod_spec::containers(pod).iter().chain(sidecars) {
            let Some(found) = status.find(&container.name).filter(|c| c.state == State::Running) else { continue };
            for kind in KINDS {
                // A pod that is going away is not restarted, but it may still become unready.
                if kind.probe(container).is_none() || (terminating && kind != ProbeKind::Readiness) {
                    continue;
                }
                let key = (found.id.clone(), kind);
                wanted.insert(key.clone());
                let mut running = self.running.lock();
                if running.contains_key(&key) {
                    continue;
                }
                let told = told(pod, &found.id);
                self.results.results.lock().insert(key.clone(), kind.initial(told));
                let worker = Worker {
                    runtime: self.runtime.clone(),
                    env: self.env.clone(),
                    recorder: self.recorder.clone(),
                    results: self.results.clone(),
                    wakes: self.wakes.clone(),
                    pod: pod.clone(),
                    container: container.clone(),
                    container_id: found.id.clone(),
                    started_at: found.started_at,
                    just_started: told.is_none(),
                    pod_ip: ip.clone(),
                    kind,
                    metrics: self.metrics.clone(),
                };
                running.insert(key, Running { pod_uid: uid.into(), task: self.env.spawn(worker.run()) });
            }
        }
        self.stop(|key, running| running.pod_uid != uid || wanted.contains(key));
    }

    pub fn forget(&self, uid: &str) {
        self.stop(|_, running| running.pod_uid != uid);
        // The last of a probe's labels is the pod's UID.
        self.metrics.retain(&PROBES, |labels| labels.last().is_none_or(|last| &**last != uid));
    }

    pub fn stop_all(&self) {
        self.stop(|_, _| false);
    }

    fn stop(&self, keep: impl Fn(&Key, &Running) -> bool) {
        let mut gone = Vec::new();
        self.running.lock().retain(|key, running| {
            let keep = keep(key, running);
            if !keep {
                running.task.abort();
                gone.push(key.clone());
            }
            keep
        });
        let mut results = self.results.results.lock();
        for key in gone {
            results.remove(&key);
        }
    }
}
