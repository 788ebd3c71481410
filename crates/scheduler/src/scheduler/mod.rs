//! The one task that owns the scheduler's state: applies changes, tries pods, sends bindings on their way.
//! Fed by `informers` and by binding cycles; `scheduling_cycle` decides, `binding_cycle` carries out, `event_handlers`
//! keeps the picture of the cluster.
//! Sleeps only when nothing is ready; wakes by a change, an outcome, a Permit verdict or a deadline.

mod binding_cycle;
pub mod event_handlers;
mod scheduling_cycle;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use client::{Client, InformerFactory, LeaderElection, lead};
use env::Env;
use futures::future::BoxFuture;
use metrics::Metrics;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::binding_cycle::{InFlight, Outcome};
use crate::{
    Config, Diagnoses, Error,
    cluster::Cluster,
    equivalence_class::EquivalenceClasses,
    extender::Extenders,
    framework::{Handle, Profile, WaitingPods},
    informers,
    queue::Queue,
    reports::Reports,
    scheduler_metrics::{ATTEMPTS, CACHE_SIZE, DURATION, INCOMING, PENDING, UNSCHEDULABLE},
};

/// Bindings on their way at once; more wait their turn.
const BINDINGS_MAX: usize = 256;
/// Outcomes that wait to be settled; beyond this binding cycles wait with theirs. They hold nothing that settling needs.
const OUTCOMES_MAX: usize = 1024;
/// Changes applied before the next pod is tried.
const CHANGES_PER_TURN_MAX: usize = 512;
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
        let (config, client, env, informers) = (&config, client.clone(), env.part(), &informers);
        async move {
            let tasks = TasksOfTerm(env);
            let Some(scheduler) = Scheduler::new(config, client, tasks.0.clone()) else { return };
            tokio::select! {
                biased;
                () = scheduler.run(informers) => {}
                () = term.cancelled() => {}
            }
        }
    };
    match config.leader_election.as_ref().filter(|election| election.leader_elect) {
        None => work(shutdown).await,
        Some(election) => {
            if !config.delay_cache_until_active {
                informers::begin(&informers);
            }
            lead(&leader_election(election, &env), &client, &env, &shutdown, work).await;
        }
    }
    Ok(())
}

/// Binding cycles and reports end with the term: another may schedule the same pods by now.
struct TasksOfTerm(Env);

impl Drop for TasksOfTerm {
    fn drop(&mut self) {
        self.0.crash();
    }
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

struct Scheduler {
    profiles: BTreeMap<String, Arc<Profile>>,
    cluster: Cluster,
    classes: EquivalenceClasses,
    queue: Queue,
    /// Pods decided: held back at Permit, or being bound.
    in_flight: HashMap<String, InFlight>,
    /// Where the next round of filtering begins.
    start: usize,
    /// When the attempt at hand began.
    began: Duration,
    handle: Handle,
    metrics: Metrics,
    diagnoses: Diagnoses,
    extenders: Extenders,
    bindings: Arc<Semaphore>,
    outcomes: mpsc::Sender<Outcome>,
    finished: mpsc::Receiver<Outcome>,
}

impl Scheduler {
    /// `None` without a valid profile.
    fn new(config: &Config, client: Client, env: Env) -> Option<Self> {
        let profiles = config.profiles().ok()?;
        let queue_sort = profiles.values().next()?.queue_sort.clone();
        let (outcomes, finished) = mpsc::channel(OUTCOMES_MAX);
        let reports = Reports::new(client.clone(), env.clone(), profiles.keys());
        Some(Self {
            profiles,
            cluster: Cluster::default(),
            classes: EquivalenceClasses::default(),
            queue: Queue::new(queue_sort, config.pod_initial_backoff, config.pod_max_backoff),
            in_flight: HashMap::new(),
            start: 0,
            began: Duration::ZERO,
            metrics: config.metrics.clone(),
            diagnoses: config.diagnoses.clone(),
            extenders: Extenders::new(config.extenders.clone(), env.clone()),
            handle: Handle { client, env, reports, waiting_pods: WaitingPods::default() },
            bindings: Arc::new(Semaphore::new(BINDINGS_MAX)),
            outcomes,
            finished,
        })
    }

    async fn run(mut self, informers: &InformerFactory) {
        let (env, waiting_pods) = (self.handle.env.clone(), self.handle.waiting_pods.clone());
        let mut changes = informers::start(informers, &env, |event| self.apply(event)).await;
        tracing::info!(nodes = self.cluster.cache.len(), pods = self.queue.len(), "scheduler is ready");
        for turn in 0u64.. {
            for _ in 0..CHANGES_PER_TURN_MAX {
                let Ok(event) = changes.try_recv() else { break };
                self.apply(event);
            }
            while let Ok(outcome) = self.finished.try_recv() {
                self.settle(outcome);
            }
            self.queue.flush(env.monotonic());
            self.settle_permits();
            if let Some(pod) = self.queue.pop() {
                if turn.is_multiple_of(TURNS_BETWEEN_COUNTS) {
                    self.count_pending();
                }
                self.began = env.monotonic();
                let span = tracing::info_span!("scheduling_cycle", pod = pod.info.key, uid = pod.info.uid());
                self.schedule_one(pod).instrument(span).await;
                tokio::task::yield_now().await;
                continue;
            }
            self.count_pending();
            let deadline = self.queue.next_deadline().into_iter().chain(waiting_pods.next_deadline()).min();
            let deadline = deadline.map(|at| at.saturating_sub(env.monotonic()));
            tokio::select! {
                biased;
                event = changes.recv() => match event {
                    Some(event) => self.apply(event),
                    None => return,
                },
                Some(outcome) = self.finished.recv() => self.settle(outcome),
                () = waiting_pods.decided() => {}
                () = env.sleep(deadline.unwrap_or(Duration::MAX)), if deadline.is_some() => {}
            }
        }
    }

    fn count_pending(&mut self) {
        for (part, size) in self.queue.sizes() {
            self.metrics.set(&PENDING, &[part], size as f64);
        }
        let cache = &self.cluster.cache;
        for (kind, count) in
            [("nodes", cache.len()), ("pods", cache.pods_count()), ("assumed_pods", cache.assumed_count())]
        {
            self.metrics.set(&CACHE_SIZE, &[kind], count as f64);
        }
        for ((plugin, profile), count) in self.queue.take_turned_down() {
            if let Some(name) = self.profiles.get(&profile).and_then(|profile| profile.plugin_name(plugin)) {
                self.metrics.set(&UNSCHEDULABLE, &[name, &profile], count as f64);
            }
        }
        for ((part, (resource, action)), count) in self.queue.take_incoming() {
            self.metrics.add(&INCOMING, &[part, &format!("{resource}{action}")], count as f64);
        }
    }

    /// An attempt that began at `began` has come to this.
    fn count_attempt(&self, result: &str, profile: &str, began: Duration) {
        let took = self.handle.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.count(&ATTEMPTS, &[result, profile]);
        self.metrics.observe(&DURATION, &[result, profile], took);
    }
}
