//! The one task that owns the scheduler's state: applies changes, tries pods, sends bindings on their way.
//! Fed by `watches` and by binding tasks; decides with `cycle` and `preemption`.
//! Invariant: sleeps only when nothing is ready; wakes by a change, an outcome or a deadline.

pub mod observe;

use std::{collections::BTreeMap, collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, InformerFactory, LeaderElection, lead};
use env::Env;
use futures::future::BoxFuture;
use metrics::Metrics;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Error, binding,
    claim_waits::ClaimWaits,
    class::{self, Choice, Classes},
    cluster::Cluster,
    cycle::{self, Candidates},
    diagnosis::Diagnosis,
    eviction,
    extender::Extenders,
    framework::{ClusterEvent, Profile},
    pod_info::{PodInfo, WaitingPod},
    preemption::{Candidate, Preemption},
    queue::{Queue, Queued},
    reports::Reports,
    scheduler_metrics::{ATTEMPTS, DURATION, INCOMING, PENDING, PREEMPTIONS, SLI, TRIES, VICTIMS},
    volumes, watches,
};

/// Bindings on their way at once; more wait their turn.
const MAX_BINDINGS: usize = 256;
/// Changes applied before the next pod is tried.
const MAX_CHANGES_PER_TURN: usize = 512;
/// While there is always a pod to try, the queue is counted every so often only.
const TURNS_BETWEEN_COUNTS: u64 = 64;

/// Runs until `shutdown`; with leader election, whenever it leads.
pub fn run(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(run_until(config, client, informers, env, shutdown))
}

async fn run_until(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    config.profiles()?;
    let work = |term: CancellationToken| {
        let (config, client, env, informers) = (&config, client.clone(), env.clone(), &informers);
        async move {
            let Ok(profiles) = config.profiles() else { return };
            tokio::select! {
                biased;
                () = Scheduler::new(config, profiles, client, env).run(informers) => {}
                () = term.cancelled() => {}
            }
        }
    };
    match config.leader_election.as_ref().filter(|election| election.leader_elect) {
        None => work(shutdown).await,
        Some(election) => {
            watches::begin(&informers);
            lead(&leader_election(election, &env), &client, &env, &shutdown, work).await;
        }
    }
    Ok(())
}

fn leader_election(config: &crate::LeaderElectionConfig, env: &Env) -> LeaderElection {
    let identity = config.identity.clone().unwrap_or_else(|| format!("minke_{}", env.uuid()));
    let mut election = LeaderElection::new(&config.resource_name, identity);
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
    stage: Stage,
    result: Result<(), ApiError>,
}

enum Stage {
    /// The claims have been asked for.
    Claims,
    Bound(Arc<str>, Attempt),
    /// The victims have been told to go.
    Preemption,
}

/// Which attempt to schedule a pod it is, and when it began; and when the first could have.
#[derive(Clone, Copy)]
struct Attempt {
    number: u32,
    began: Duration,
    first: Duration,
}

/// After so many attempts it no longer matters how many more it took.
const ATTEMPTS_APART: u32 = 15;

impl Attempt {
    fn label(self) -> String {
        if self.number >= ATTEMPTS_APART { format!("{ATTEMPTS_APART}+") } else { self.number.to_string() }
    }
}

/// A pod decided and on its way to its node.
struct InFlight {
    pod: Queued,
    attempt: Attempt,
    node: Arc<str>,
    /// Volumes held for its claims.
    promised: Vec<String>,
}

struct Scheduler {
    profiles: BTreeMap<String, Profile>,
    cluster: Cluster,
    classes: Classes,
    queue: Queue,
    /// Pods decided and being bound.
    in_flight: HashMap<String, InFlight>,
    /// Those of them that wait for their claims.
    claim_waits: ClaimWaits,
    /// Where the next round of filtering begins.
    start: usize,
    /// When the attempt at hand began.
    began: Duration,
    reports: Reports,
    metrics: Metrics,
    diagnoses: crate::Diagnoses,
    extenders: Extenders,
    client: Client,
    env: Env,
    bindings: Arc<Semaphore>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    finished: mpsc::UnboundedReceiver<Outcome>,
}

impl Scheduler {
    fn new(config: &Config, profiles: BTreeMap<String, Profile>, client: Client, env: Env) -> Self {
        let (outcomes, finished) = mpsc::unbounded_channel();
        let reports = Reports::new(client.clone(), env.clone(), profiles.keys());
        Self {
            profiles,
            cluster: Cluster::default(),
            classes: Classes::default(),
            queue: Queue::new(config.pod_initial_backoff, config.pod_max_backoff),
            in_flight: HashMap::new(),
            claim_waits: ClaimWaits::default(),
            start: 0,
            began: Duration::ZERO,
            reports,
            metrics: config.metrics.clone(),
            diagnoses: config.diagnoses.clone(),
            extenders: Extenders::new(config.extenders.clone(), env.clone()),
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
        for turn in 0u64.. {
            for _ in 0..MAX_CHANGES_PER_TURN {
                let Ok(observed) = changes.try_recv() else { break };
                self.apply(observed);
            }
            while let Ok(outcome) = self.finished.try_recv() {
                self.settle(outcome);
            }
            self.queue.tick(self.env.monotonic());
            self.expire_claims();
            if let Some(pod) = self.queue.pop() {
                if turn.is_multiple_of(TURNS_BETWEEN_COUNTS) {
                    self.count_pending();
                }
                self.began = self.env.monotonic();
                self.try_pod(pod).await;
                tokio::task::yield_now().await;
                continue;
            }
            self.count_pending();
            let deadline = self.queue.next_deadline().into_iter().chain(self.claim_waits.next_deadline()).min();
            let deadline = deadline.map(|at| at.saturating_sub(self.env.monotonic()));
            tokio::select! {
                biased;
                observed = changes.recv() => match observed {
                    Some(observed) => self.apply(observed),
                    None => return,
                },
                Some(outcome) = self.finished.recv() => self.settle(outcome),
                () = env.sleep(deadline.unwrap_or(Duration::MAX)), if deadline.is_some() => {}
            }
        }
    }

    fn count_pending(&mut self) {
        for (part, size) in self.queue.sizes() {
            self.metrics.set(&PENDING, &[part], size as f64);
        }
        for ((part, (resource, action)), count) in self.queue.take_incoming() {
            self.metrics.add(&INCOMING, &[part, &format!("{resource}{action}")], count as f64);
        }
    }

    /// An attempt that began at `began` has come to this.
    fn count_attempt(&self, result: &str, profile: &str, began: Duration) {
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.count(&ATTEMPTS, &[result, profile]);
        self.metrics.observe(&DURATION, &[result, profile], took);
    }

    async fn try_pod(&mut self, pod: Queued) {
        let Some(profile) = self.profiles.get(pod.info.scheduler_name()) else { return };
        if pod.info.is_terminating() {
            return;
        }
        if self.extenders.is_empty() {
            match self.classes.choose(&self.cluster, profile, &pod.info, &self.env) {
                Choice::Node(node) => return self.place(pod, node),
                Choice::Refused(diagnosis, withdraw) => {
                    return self.park(pod, diagnosis, withdraw.then(String::new));
                }
                Choice::Unknown => {}
            }
        }
        self.cluster.cache.prepare_order();
        let feasible = match cycle::candidates(&self.cluster, profile, &pod.info, &mut self.start, &self.env) {
            Candidates::Feasible(feasible) => feasible,
            Candidates::Refused(diagnosis, preemption) => return self.refuse(pod, *diagnosis, preemption),
        };
        if self.extenders.is_empty() {
            let node = cycle::best(&self.cluster, profile, &pod.info, &feasible, &[], &self.env);
            return self.place(pod, node);
        }
        let mut diagnosis = Diagnosis::new(self.cluster.cache.len());
        match self.extenders.filter(&self.cluster, &pod.info, feasible, &mut diagnosis).await {
            Ok(feasible) if feasible.is_empty() => self.refuse(pod, diagnosis, None),
            Ok(feasible) => {
                let extra = self.extenders.scores(&self.cluster, &pod.info, &feasible).await;
                let node = cycle::best(&self.cluster, profile, &pod.info, &feasible, &extra, &self.env);
                self.place(pod, node);
            }
            Err(error) => {
                self.count_attempt("error", pod.info.scheduler_name(), self.began);
                self.reports.failed(&pod.info, "SchedulerError", &error, None);
                self.queue.retry_later(pod, self.env.monotonic());
            }
        }
    }

    /// Sends the victims away and holds their node for the pod; returns its name.
    fn preempt(&mut self, pod: &Queued, candidate: Candidate) -> String {
        let Candidate { node, victims, .. } = candidate;
        self.metrics.count(&PREEMPTIONS, &[]);
        self.metrics.observe(&VICTIMS, &[], victims.len() as f64);
        // Those that were to have this room and matter less look for another.
        let below = |other: &&Arc<PodInfo>| other.priority < pod.info.priority;
        let lower: Vec<_> = self.cluster.cache.nominated_on(&node).iter().filter(below).cloned().collect();
        for other in lower {
            self.cluster.cache.withdraw_nomination(&other.key);
            self.reports.withdraw_nomination(&other);
            self.queue.activate(&other.key, self.env.monotonic());
        }
        self.cluster.cache.nominate(pod.info.info(), &node);
        let (reports, outcomes, by, at) = (self.reports.clone(), self.outcomes.clone(), pod.info.clone(), node.clone());
        self.env.spawn(async move {
            let gone = victims.iter().map(|victim| eviction::evict(&reports, victim, &by, &at));
            let result = futures::future::try_join_all(gone).await.map(drop);
            let (key, uid) = (by.key.clone(), by.uid().to_string());
            outcomes.send(Outcome { key, uid, stage: Stage::Preemption, result }).ok();
        });
        node.to_string()
    }

    /// Counts the pod on its node and starts what it takes to get it there.
    fn place(&mut self, pod: Queued, node: Arc<str>) {
        let info = pod.info.clone();
        let attempt = Attempt { number: pod.attempts, began: self.began, first: pod.first.unwrap_or(self.began) };
        let mut flight = InFlight { pod, attempt, node: node.clone(), promised: Vec::new() };
        let steps = match self.cluster.cache.node(&node) {
            Some(target) if !info.claims.is_empty() => volumes::steps(&self.cluster, &info, target).unwrap_or_default(),
            _ => Vec::new(),
        };
        let requests = binding::claim_requests(&self.cluster, &steps, &node);
        for step in &steps {
            if let volumes::Step::Bind { claim, volume } = step {
                self.cluster.promised_volumes.insert(volume.clone(), claim.clone());
                flight.promised.push(volume.clone());
            }
        }
        self.cluster.cache.assume(info.info(), &node);
        self.cluster.cache.withdraw_nomination(&info.key);
        self.diagnoses.forget(&info.key);
        if steps.is_empty() {
            self.in_flight.insert(info.key.clone(), flight);
            return self.bind(info, node, attempt);
        }
        // It may take minutes: whoever adds or removes nodes is told which one is taken.
        self.reports.nominate(&info, &node);
        let wait = self.profiles.get(info.scheduler_name()).map(|profile| profile.bind_timeout).unwrap_or_default();
        self.claim_waits.add(&info.key, &info.claims, self.env.monotonic() + wait);
        self.in_flight.insert(info.key.clone(), flight);
        let (client, outcomes) = (self.client.clone(), self.outcomes.clone());
        self.env.spawn(async move {
            let result = binding::prepare_claims(&client, requests).await;
            let (key, uid) = (info.key.clone(), info.uid().to_string());
            outcomes.send(Outcome { key, uid, stage: Stage::Claims, result }).ok();
        });
    }

    fn bind(&self, info: Arc<WaitingPod>, node: Arc<str>, attempt: Attempt) {
        let (client, outcomes, bindings) = (self.client.clone(), self.outcomes.clone(), self.bindings.clone());
        let (extenders, env) = (self.extenders.clone(), self.env.clone());
        self.env.spawn(async move {
            let Ok(_permit) = bindings.acquire().await else { return };
            let result = match extenders.bind(&info, &node).await {
                Some(result) => result.map_err(ApiError::internal),
                None => binding::bind(&client, &env, &info, &node).await,
            };
            let (key, uid) = (info.key.clone(), info.uid().to_string());
            // The scheduler has stopped when nobody listens; then there is nothing left to settle.
            outcomes.send(Outcome { key, uid, stage: Stage::Bound(node, attempt), result }).ok();
        });
    }

    /// Binds the pods that waited for this claim and have all of theirs.
    fn bind_ready(&mut self, claim: &str) {
        for key in self.claim_waits.waiting_for(claim) {
            self.bind_if_ready(&key);
        }
    }

    fn bind_if_ready(&mut self, key: &str) {
        let Some(flight) = self.in_flight.get(key).filter(|_| self.claim_waits.contains(key)) else { return };
        if volumes::all_bound(&self.cluster, &flight.pod.info) {
            let (info, node, attempt) = (flight.pod.info.clone(), flight.node.clone(), flight.attempt);
            self.claim_waits.remove(key);
            self.bind(info, node, attempt);
        }
    }

    fn expire_claims(&mut self) {
        for key in self.claim_waits.late(self.env.monotonic()) {
            self.give_up(&key, "binding volumes: timed out waiting for the condition");
        }
    }

    /// The pod is where it was going, or gone: what was held for it is free.
    fn landed(&mut self, key: &str) -> Option<InFlight> {
        let flight = self.in_flight.remove(key)?;
        self.claim_waits.remove(key);
        for volume in &flight.promised {
            self.cluster.promised_volumes.remove(volume);
        }
        Some(flight)
    }

    fn settle(&mut self, outcome: Outcome) {
        let Outcome { key, uid, stage, result } = outcome;
        let current = self.in_flight.get(&key).is_some_and(|flight| flight.pod.info.uid() == uid);
        match (stage, result) {
            (Stage::Preemption, Ok(())) => {}
            (Stage::Preemption, Err(error)) => {
                tracing::warn!(pod = key, %error, "couldn't remove a pod to make room");
                self.queue.activate(&key, self.env.monotonic());
            }
            (Stage::Claims, Ok(())) if current => self.bind_if_ready(&key),
            (Stage::Claims, Err(error)) if current => {
                self.give_up(&key, &format!("binding volumes: {}", error.message))
            }
            (Stage::Claims, _) => {}
            (Stage::Bound(node, attempt), Ok(())) => {
                let info = match current {
                    true => self.landed(&key).map(|flight| flight.pod.info.info()),
                    // The watch was faster than the answer.
                    false => self.cluster.cache.pod(&key).filter(|info| info.uid() == uid).cloned(),
                };
                if let Some(info) = info {
                    self.count_attempt("scheduled", info.scheduler_name(), attempt.began);
                    self.metrics.observe(&TRIES, &[], attempt.number.into());
                    let took = self.env.monotonic().saturating_sub(attempt.first).as_secs_f64();
                    self.metrics.observe(&SLI, &[&attempt.label()], took);
                    self.reports.scheduled(&info, &node);
                }
            }
            (Stage::Bound(..), Err(error)) if current => {
                let why = format!("binding rejected: running Bind plugin \"DefaultBinder\": {}", error.message);
                self.give_up(&key, &why);
            }
            (Stage::Bound(..), Err(_)) => {}
        }
    }

    /// Takes a decision back; the pod is tried again later, unless it turns out to be gone or bound meanwhile.
    fn give_up(&mut self, key: &str, why: &str) {
        let Some(flight) = self.landed(key) else { return };
        let InFlight { pod, attempt, .. } = flight;
        self.count_attempt("error", pod.info.scheduler_name(), attempt.began);
        if self.cluster.cache.forget(key, pod.info.uid()) {
            self.wake(&ClusterEvent::PodGone(pod.info.info()));
        }
        // The one that was said when its claims were asked for is not in the version we know.
        if !pod.info.claims.is_empty() {
            self.reports.withdraw_nomination(&pod.info);
        }
        self.reports.failed(&pod.info, "SchedulerError", why, Some(""));
        self.queue.retry_later(pod, self.env.monotonic());
    }

    /// No node will do: makes room if that helps, says why, and waits for something that does.
    fn refuse(&mut self, pod: Queued, mut diagnosis: Diagnosis, preemption: Option<Preemption>) {
        let (nominated, pointless) = match preemption {
            None => (None, true),
            Some(Preemption::Nominate(candidate)) => (Some(self.preempt(&pod, candidate)), false),
            Some(Preemption::Pointless { message, withdraw }) => {
                diagnosis.post_filter = format!("preemption: {message}");
                if withdraw {
                    self.cluster.cache.withdraw_nomination(&pod.info.key);
                }
                (withdraw.then(String::new), true)
            }
        };
        let diagnosis = Arc::new(diagnosis);
        if pointless && self.extenders.is_empty() {
            self.classes.refused(&self.cluster, &pod.info, diagnosis.clone(), nominated.is_some());
        }
        self.park(pod, diagnosis, nominated);
    }

    fn park(&mut self, pod: Queued, diagnosis: Arc<Diagnosis>, nominated: Option<String>) {
        self.count_attempt("unschedulable", pod.info.scheduler_name(), self.began);
        self.reports.failed(&pod.info, "Unschedulable", &diagnosis.message(), nominated.as_deref());
        let rejected_by = diagnosis.rejected_by;
        self.diagnoses.keep(&pod.info.key, diagnosis);
        let class = class::of(&self.cluster, &pod.info);
        self.queue.park(pod, rejected_by, class, self.env.monotonic());
    }
}
