//! The one task that owns the scheduler's state: applies changes, tries pods, sends bindings on their way.
//! Fed by `watches` and by binding tasks; decides with `cycle` and `preemption`.
//! Invariant: sleeps only when nothing is ready; wakes by a change, an outcome or a deadline.

use std::{collections::BTreeMap, collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::{Change, Client, EventRecorder, InformerFactory, LeaderElection, run_as_leader};
use env::Env;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Error, binding,
    cluster::{Cluster, put},
    cycle,
    diagnosis::Diagnosis,
    framework::{ClusterEvent, NodeChange, Profile},
    pod_info::PodInfo,
    queue::{Queue, Queued},
    reports::Reports,
    watches::{self, Observed},
};

/// Bindings on their way at once; more wait their turn.
const MAX_BINDINGS: usize = 256;
/// Changes applied before the next pod is tried.
const MAX_CHANGES_PER_TURN: usize = 512;

/// Runs until `shutdown`. With leader election it waits to lead first, and returns an error when leadership is lost.
pub async fn run(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let profiles = config.profiles()?;
    let work = async {
        tokio::select! {
            () = Scheduler::new(&config, profiles, client.clone(), env.clone()).run(&informers) => {}
            () = shutdown.cancelled() => {}
        }
    };
    match &config.leader_election {
        None => work.await,
        Some(election) => {
            let election = leader_election(election, &env);
            tokio::select! {
                led = run_as_leader(&election, &client, &env, work) => led.map_err(Error::Leadership)?,
                () = shutdown.cancelled() => {}
            }
        }
    }
    Ok(())
}

fn leader_election(config: &crate::LeaderElectionConfig, env: &Env) -> LeaderElection {
    let mut election = LeaderElection::new(&config.resource_name, format!("minke_{}", env.uuid()));
    election.namespace = config.resource_namespace.clone();
    election.lease_duration = crate::config::duration(&config.lease_duration).unwrap_or(election.lease_duration);
    election.renew_deadline = crate::config::duration(&config.renew_deadline).unwrap_or(election.renew_deadline);
    election.retry_period = crate::config::duration(&config.retry_period).unwrap_or(election.retry_period);
    election
}

/// What came of carrying out a decision.
struct Outcome {
    key: String,
    uid: String,
    node: Arc<str>,
    result: Result<(), ApiError>,
}

struct Scheduler {
    profiles: BTreeMap<String, Profile>,
    cluster: Cluster,
    queue: Queue,
    /// Pods decided and being bound.
    in_flight: HashMap<String, Queued>,
    /// Where the next round of filtering begins.
    start: usize,
    reports: Reports,
    diagnoses: crate::Diagnoses,
    client: Client,
    env: Env,
    bindings: Arc<Semaphore>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    finished: mpsc::UnboundedReceiver<Outcome>,
}

impl Scheduler {
    fn new(config: &Config, profiles: BTreeMap<String, Profile>, client: Client, env: Env) -> Self {
        let (outcomes, finished) = mpsc::unbounded_channel();
        let component = profiles.keys().next().map_or("default-scheduler", String::as_str);
        let recorder = EventRecorder::new(client.clone(), env.clone(), component, "");
        Self {
            profiles,
            cluster: Cluster::default(),
            queue: Queue::new(config.pod_initial_backoff, config.pod_max_backoff),
            in_flight: HashMap::new(),
            start: 0,
            reports: Reports { client: client.clone(), recorder, env: env.clone() },
            diagnoses: config.diagnoses.clone(),
            client,
            env,
            bindings: Arc::new(Semaphore::new(MAX_BINDINGS)),
            outcomes,
            finished,
        }
    }

    async fn run(mut self, informers: &InformerFactory) {
        let env = self.env.clone();
        let mut changes = watches::start(informers, &env, |observed| self.apply(observed)).await;
        tracing::info!(nodes = self.cluster.cache.len(), pods = self.queue.len(), "scheduler is ready");
        loop {
            for _ in 0..MAX_CHANGES_PER_TURN {
                let Ok(observed) = changes.try_recv() else { break };
                self.apply(observed);
            }
            while let Ok(outcome) = self.finished.try_recv() {
                self.settle(outcome);
            }
            self.queue.tick(self.env.monotonic());
            if let Some(pod) = self.queue.pop() {
                self.try_pod(pod);
                tokio::task::yield_now().await;
                continue;
            }
            let deadline = self.queue.next_deadline().map(|at| at.saturating_sub(self.env.monotonic()));
            tokio::select! {
                observed = changes.recv() => match observed {
                    Some(observed) => self.apply(observed),
                    None => return,
                },
                Some(outcome) = self.finished.recv() => self.settle(outcome),
                () = env.sleep(deadline.unwrap_or(Duration::MAX)), if deadline.is_some() => {}
            }
        }
    }

    fn apply(&mut self, observed: Observed) {
        let cluster = &mut self.cluster;
        match observed {
            Observed::Pod(change) => self.apply_pod(change),
            Observed::Node(change) => self.apply_node(change),
            Observed::Namespace(change) => {
                let relabelled = change.old.as_ref().and_then(|n| n.metadata.labels.as_ref())
                    != change.new.as_ref().and_then(|n| n.metadata.labels.as_ref());
                put(&mut cluster.namespaces, &change.key, change.new);
                if relabelled {
                    self.wake(&ClusterEvent::Namespace);
                }
            }
            Observed::Claim(change) => {
                put(&mut cluster.claims, &change.key, change.new);
                self.wake(&ClusterEvent::Claim(change.key));
            }
            Observed::Volume(change) => {
                put(&mut cluster.volumes, &change.key, change.new);
                self.wake(&ClusterEvent::Volume);
            }
            Observed::StorageClass(change) => {
                put(&mut cluster.storage_classes, &change.key, change.new);
                self.wake(&ClusterEvent::StorageClass);
            }
            Observed::CsiNode(change) => {
                put(&mut cluster.csi_nodes, &change.key, change.new);
                self.wake(&ClusterEvent::CsiNode);
            }
            Observed::Service(change) => put(&mut cluster.services, &change.key, change.new),
            Observed::ReplicaSet(change) => put(&mut cluster.replica_sets, &change.key, change.new),
            Observed::ReplicationController(change) => {
                put(&mut cluster.replication_controllers, &change.key, change.new);
            }
            Observed::StatefulSet(change) => put(&mut cluster.stateful_sets, &change.key, change.new),
            Observed::DisruptionBudget(change) => put(&mut cluster.disruption_budgets, &change.key, change.new),
        }
    }

    fn apply_node(&mut self, change: Change<Node>) {
        let Some(new) = change.new else {
            self.cluster.cache.remove_node(&change.key);
            return;
        };
        let differences = match &change.old {
            None => NodeChange::ADDED,
            Some(old) => node_change(old, &new),
        };
        self.cluster.cache.set_node(new);
        if differences.any() {
            self.wake(&ClusterEvent::Node { name: change.key, change: differences });
        }
    }

    fn apply_pod(&mut self, change: Change<Pod>) {
        let uid = |pod: &Arc<Pod>| pod.metadata.uid.clone();
        let Some(new) = change.new else { return self.pod_gone(&change.key) };
        if change.old.as_ref().is_some_and(|old| uid(old) != uid(&new)) {
            self.pod_gone(&change.key);
        }
        let info = Arc::new(PodInfo::new(new));
        if info.is_finished() {
            return self.pod_gone(&info.key);
        }
        if info.node_name().is_some() {
            return self.pod_placed(info);
        }
        let Some(profile) = self.profiles.get(info.scheduler_name()) else { return };
        // While a binding is on its way the decision stands; its outcome says what follows.
        if self.in_flight.contains_key(&info.key) || self.cluster.cache.is_assumed(&info.key) {
            return;
        }
        let gated = profile.gates && info.has_gates();
        if let Some(node) = info.nominated_node_name() {
            self.cluster.cache.nominate(info.clone(), node);
        }
        self.queue.add(info, gated, self.env.monotonic());
    }

    fn pod_placed(&mut self, info: Arc<PodInfo>) {
        self.queue.remove(&info.key);
        self.in_flight.remove(&info.key);
        self.cluster.cache.withdraw_nomination(&info.key);
        let before = self.cluster.cache.pod(&info.key).cloned();
        let confirmed = before.is_some() && !self.cluster.cache.is_assumed(&info.key);
        self.cluster.cache.set_pod(info.clone());
        match before {
            Some(before) if confirmed => {
                if before.labels() != info.labels() || before.requests != info.requests {
                    self.wake(&ClusterEvent::PodChanged(info));
                }
            }
            _ => self.wake(&ClusterEvent::PodPlaced(info)),
        }
    }

    fn pod_gone(&mut self, key: &str) {
        self.diagnoses.forget(key);
        self.in_flight.remove(key);
        let nominated = self.cluster.cache.nomination(key).is_some();
        self.cluster.cache.withdraw_nomination(key);
        let waiting = self.queue.remove(key);
        let placed = self.cluster.cache.remove_pod(key);
        // One that only held a place by nomination makes room too.
        if let Some(gone) = placed.or(waiting.filter(|_| nominated)) {
            self.wake(&ClusterEvent::PodGone(gone));
        }
    }

    fn wake(&mut self, event: &ClusterEvent) {
        if !self.queue.has_unschedulable() {
            return;
        }
        let (profiles, cluster) = (&self.profiles, &self.cluster);
        self.queue.wake(self.env.monotonic(), |pod| {
            let profile = profiles.get(pod.info.scheduler_name());
            profile.is_some_and(|p| p.helps(cluster, &pod.info, pod.rejected_by, event))
        });
    }

    fn try_pod(&mut self, pod: Queued) {
        let Some(profile) = self.profiles.get(pod.info.scheduler_name()) else { return };
        if pod.info.is_terminating() {
            return;
        }
        self.cluster.cache.prepare_order();
        match cycle::decide(&self.cluster, profile, &pod.info, &mut self.start, &self.env) {
            Ok(node) => self.bind(pod, node),
            Err(diagnosis) => self.refuse(pod, diagnosis),
        }
    }

    fn bind(&mut self, pod: Queued, node: Arc<str>) {
        let info = pod.info.clone();
        self.cluster.cache.assume(info.clone(), &node);
        self.cluster.cache.withdraw_nomination(&info.key);
        self.diagnoses.forget(&info.key);
        self.in_flight.insert(info.key.clone(), pod);
        let (client, outcomes, bindings) = (self.client.clone(), self.outcomes.clone(), self.bindings.clone());
        self.env.spawn(async move {
            let Ok(_permit) = bindings.acquire().await else { return };
            let result = binding::bind(&client, &info, &node).await;
            let (key, uid) = (info.key.clone(), info.uid().to_string());
            // The scheduler has stopped when nobody listens; then there is nothing left to settle.
            outcomes.send(Outcome { key, uid, node, result }).ok();
        });
    }

    fn settle(&mut self, outcome: Outcome) {
        let pod = match self.in_flight.get(&outcome.key) {
            Some(pod) if pod.info.uid() == outcome.uid => self.in_flight.remove(&outcome.key),
            _ => None,
        };
        let Err(error) = outcome.result else {
            let info = pod.map(|p| p.info).or_else(|| self.cluster.cache.pod(&outcome.key).cloned());
            if let Some(info) = info.filter(|info| info.uid() == outcome.uid) {
                self.reports.scheduled(&info, &outcome.node);
            }
            return;
        };
        let Some(pod) = pod else { return };
        if self.cluster.cache.forget(&outcome.key, &outcome.uid) {
            self.wake(&ClusterEvent::PodGone(pod.info.clone()));
        }
        if error.is_not_found() {
            // The pod or its namespace is gone; if only the node was, the pod's next version queues it again.
            tracing::debug!(pod = outcome.key, %error, "binding was refused");
        } else {
            let message = format!("binding rejected: running Bind plugin \"DefaultBinder\": {}", error.message);
            self.reports.failed(&pod.info, "SchedulerError", &message, None);
        }
        self.queue.retry_later(pod, self.env.monotonic());
    }

    fn refuse(&mut self, pod: Queued, diagnosis: Diagnosis) {
        let message = diagnosis.message();
        self.reports.failed(&pod.info, "Unschedulable", &message, None);
        let rejected_by = diagnosis.rejected_by;
        self.diagnoses.keep(&pod.info.key, diagnosis);
        self.queue.park(pod, rejected_by, self.env.monotonic());
    }
}

fn node_change(old: &Node, new: &Node) -> NodeChange {
    let (old_spec, new_spec) = (old.spec.as_ref(), new.spec.as_ref());
    let unschedulable = |spec: Option<&k8s_openapi::api::core::v1::NodeSpec>| spec.and_then(|s| s.unschedulable);
    NodeChange {
        added: false,
        labels: old.metadata.labels != new.metadata.labels,
        taints: old_spec.and_then(|s| s.taints.as_ref()) != new_spec.and_then(|s| s.taints.as_ref()),
        unschedulable: unschedulable(old_spec) != unschedulable(new_spec),
        allocatable: old.status.as_ref().and_then(|s| s.allocatable.as_ref())
            != new.status.as_ref().and_then(|s| s.allocatable.as_ref()),
    }
}
