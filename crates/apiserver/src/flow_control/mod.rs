//! API priority and fairness: a request is classified by the cluster's FlowSchemas and gets a seat of its priority level, at
//! once, after a while in a queue, or not at all.
//! Asked by `pipeline` before a request is authorized; configured by the row `priority-and-fairness-config-producer` of
//! `post_start_hooks`; the seats of all levels together are `--max-requests-inflight` plus `--max-mutating-requests-inflight`.
//! Where nobody has to wait, a request costs one lock of its level when it comes and one when it goes.

mod classify;
mod concurrency;
mod debug;
mod fair_queue;
mod metrics;
mod timing;
mod work_estimate;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue};
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde_json::Value;
use tokio::sync::oneshot;

use api::{ApiError, Object, kinds::flow_control_bootstrap};
use env::Env;

use self::{
    classify::FlowSchema,
    concurrency::{Demand, SeatLimits, Shares},
    fair_queue::{Arrival, QueueFigures, QueueSet, QueueSettings, Rejection, Ticket},
    metrics::{FlowStats, Phase, ReadsAndWrites},
};
use work_estimate::Estimate;
pub use work_estimate::{OpenWatch, WatchTracker};

use crate::{request::call::Call, server::config::Limits, storage::cluster::Cluster};

/// How often seats are lent anew.
const BORROWING_INTERVAL: Duration = Duration::from_secs(10);
/// A request waits at most this part of what it may take.
const WAIT_PART: u32 = 4;
/// More seats than anybody uses; beyond this their arithmetic would lose its precision.
const SEATS_MAX: usize = 1 << 30;
const SCHEMA_HEADER: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL_HEADER: &str = "x-kubernetes-pf-prioritylevel-uid";

/// A schema with all that its requests need.
pub struct Flow {
    schema: FlowSchema,
    level: Arc<Level>,
    stats: Arc<FlowStats>,
    schema_uid: Option<HeaderValue>,
    level_uid: Option<HeaderValue>,
}

impl Flow {
    /// Tells the client under what its request fell.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, uid) in [(SCHEMA_HEADER, &self.schema_uid), (LEVEL_HEADER, &self.level_uid)] {
            if let Some(uid) = uid {
                headers.insert(name, uid.clone());
            }
        }
    }
}

/// What is in force, in the order in which schemas are asked.
#[derive(Default)]
struct Configuration {
    flows: Vec<Arc<Flow>>,
    levels: BTreeMap<String, Arc<Level>>,
}

struct Level {
    name: String,
    is_exempt: bool,
    queues: Mutex<QueueSet<Waiter>>,
    state: Mutex<LevelState>,
    /// What one request may take.
    request_max: AtomicUsize,
}

#[derive(Clone, Copy, Default)]
struct LevelState {
    limits: SeatLimits,
    demand: Demand,
    seats: usize,
}

impl LevelState {
    fn target(&self) -> f64 {
        self.demand.smoothed.max(self.limits.lower as f64)
    }
}

struct Waiter {
    wake: oneshot::Sender<()>,
    flow: Arc<Flow>,
    distinguisher: String,
}

pub struct FlowControl {
    configuration: RwLock<Arc<Configuration>>,
    /// Of every schema there has been, so that counters only grow.
    stats: Mutex<BTreeMap<(String, String), Arc<FlowStats>>>,
    fair_part: Mutex<f64>,
    reads_and_writes: Arc<ReadsAndWrites>,
    pub watches: Arc<WatchTracker>,
    cluster: Arc<Cluster>,
    total: usize,
    lists_by_size: bool,
    wait_max: Duration,
    hash_seed: u64,
    env: Env,
}

impl Level {
    fn state(&self) -> MutexGuard<'_, LevelState> {
        self.state.lock()
    }

    fn virtual_time(&self) -> f64 {
        self.queues.lock().virtual_time()
    }

    /// Active queues, requests that wait, requests that are handled.
    fn figures(&self) -> (usize, usize, usize) {
        let queues = self.queues.lock();
        (queues.active_queues(), queues.waiting(), queues.executing())
    }

    fn queue_figures(&self) -> Vec<QueueFigures> {
        self.queues.lock().figures().collect()
    }

    fn waiters(&self, env: &Env) -> Vec<Vec<String>> {
        let (now, wall) = (env.monotonic(), env.now());
        let queues = self.queues.lock();
        let rows = queues.waiters().map(|(queue, place, waiter, width, arrived_at)| {
            let ago = now.saturating_sub(arrived_at);
            vec![
                self.name.clone(),
                waiter.flow.schema.name.clone(),
                queue.to_string(),
                place.to_string(),
                waiter.distinguisher.clone(),
                (wall - ago).to_string(),
                width.initial.to_string(),
                width.final_seats.to_string(),
                format!("{:?}", width.additional),
                "0001-01-01T00:00:00.000000000Z".into(),
            ]
        });
        rows.collect()
    }

    /// `total`: of the server.
    fn set_seats(&self, seats: usize, total: usize, now: Duration) {
        self.state.lock().seats = seats;
        let mut queues = self.queues.lock();
        queues.set_seats(seats);
        // A level without seats of its own is shown by what it takes of the server's.
        let all = if seats > 0 { seats } else { (total as f64 / 10.0).round() as usize };
        queues.set_denominator(now, all);
        dispatch(&mut queues, now);
    }
}

/// Hands free seats on. A waiter keeps its end of the channel for as long as it waits.
fn dispatch(queues: &mut QueueSet<Waiter>, now: Duration) {
    let stuck = queues.dispatch(now, |waiter, waited| {
        waiter.flow.stats.waited[1].observe(waited.as_secs_f64());
        waiter.wake.send(()).is_ok()
    });
    if let Some(waiter) = stuck {
        waiter.flow.stats.not_accommodated.fetch_add(1, Ordering::Relaxed);
    }
}

impl FlowControl {
    /// `lists_by_size`: whether lists weigh what they hold, not how many they are.
    pub fn new(limits: &Limits, lists_by_size: bool, cluster: &Arc<Cluster>) -> Arc<Self> {
        let total = limits.requests_in_flight.saturating_add(limits.mutating_requests_in_flight).min(SEATS_MAX);
        let env = cluster.env.clone();
        let found = Self {
            configuration: RwLock::default(),
            stats: Mutex::default(),
            fair_part: Mutex::default(),
            reads_and_writes: Arc::new(ReadsAndWrites::new(env.monotonic())),
            watches: Arc::default(),
            cluster: cluster.clone(),
            total,
            lists_by_size,
            wait_max: limits.request_timeout / WAIT_PART,
            hash_seed: env.random_u64(),
            env,
        };
        let found = Arc::new(found);
        found.configure(&[], &[]);
        found
    }

    /// Lends seats from time to time, for as long as somebody holds the flow control.
    pub fn start(self: &Arc<Self>) {
        let (weak, env) = (Arc::downgrade(self), self.env.clone());
        self.env.spawn(async move {
            loop {
                env.sleep(BORROWING_INTERVAL).await;
                let Some(flow_control) = weak.upgrade() else { return };
                flow_control.lend();
            }
        });
    }

    fn configuration(&self) -> Arc<Configuration> {
        self.configuration.read().clone()
    }

    fn all_stats(&self) -> Vec<Arc<FlowStats>> {
        self.stats.lock().values().cloned().collect()
    }

    fn fair_part(&self) -> f64 {
        *self.fair_part.lock()
    }

    /// Takes over what the cluster says. Levels that stay keep their queues; a schema without its level is passed over.
    pub fn configure(&self, schemas: &[Arc<Object>], levels: &[Arc<Object>]) {
        let [schemas, levels] =
            [(schemas, "FlowSchema"), (levels, "PriorityLevelConfiguration")].map(|(found, kind)| {
                let mut found: Vec<Value> = found.iter().map(|object| object.value()).collect();
                found.extend(missing_mandatory(&found, kind));
                found
            });
        let shares: Vec<_> = levels.iter().map(|level| Shares::new(&level["spec"])).collect();
        let limits = concurrency::limits(self.total, &shares);
        let (now, before) = (self.env.monotonic(), self.configuration());
        let mut kept = BTreeMap::new();
        for ((object, shares), limits) in levels.iter().zip(shares).zip(limits) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let level = match before.levels.get(name).filter(|level| level.is_exempt == shares.is_exempt) {
                Some(level) => level.clone(),
                None => Arc::new(Level {
                    name: name.to_string(),
                    is_exempt: shares.is_exempt,
                    queues: Mutex::new(QueueSet::new(settings(&object["spec"]), limits.nominal, now)),
                    state: Mutex::new(LevelState { limits, demand: Demand::default(), seats: limits.nominal }),
                    request_max: AtomicUsize::default(),
                }),
            };
            level.queues.lock().configure(now, settings(&object["spec"]));
            level.request_max.store(limits.request_max(), Ordering::Relaxed);
            let changed = std::mem::replace(&mut level.state.lock().limits, limits) != limits;
            if changed || !before.levels.contains_key(name) {
                level.set_seats(limits.nominal, self.total, now);
            }
            kept.insert(name.to_string(), (level, object["metadata"]["uid"].as_str()));
        }
        let mut flows: Vec<_> = schemas
            .iter()
            .map(FlowSchema::new)
            .filter_map(|schema| {
                let (level, level_uid) = kept.get(&schema.level)?;
                let header = |uid: &str| HeaderValue::from_str(uid).ok().filter(|uid| !uid.is_empty());
                let (schema_uid, level_uid) = (header(&schema.uid), level_uid.and_then(header));
                let stats = self.stats_of(&level.name, &schema.name);
                Some(Arc::new(Flow { schema, level: level.clone(), stats, schema_uid, level_uid }))
            })
            .collect();
        flows.sort_by(|a, b| a.schema.order().cmp(&b.schema.order()));
        let places = levels.iter().map(|level| settings(&level["spec"])).map(|s| s.queues.saturating_mul(s.length_max));
        let places = places.fold(0, usize::saturating_add);
        self.reads_and_writes.set_denominators(now, places, self.total);
        let levels = kept.into_iter().map(|(name, (level, _))| (name, level)).collect();
        *self.configuration.write() = Arc::new(Configuration { flows, levels });
    }

    fn stats_of(&self, level: &str, schema: &str) -> Arc<FlowStats> {
        let mut stats = self.stats.lock();
        let new = || Arc::new(FlowStats::new(level, schema));
        stats.entry((level.to_string(), schema.to_string())).or_insert_with(new).clone()
    }

    /// Moves seats from levels that do not need them to those that do.
    fn lend(&self) {
        let (now, configuration) = (self.env.monotonic(), self.configuration());
        let levels: Vec<_> = configuration.levels.values().collect();
        let wanted: Vec<_> = levels
            .iter()
            .map(|level| {
                let observed = level.queues.lock().take_demand(now);
                let mut state = level.state.lock();
                state.demand.observe(observed);
                (level.is_exempt, state.limits, state.demand)
            })
            .collect();
        let (seats, fair_part) = concurrency::lend(&wanted);
        *self.fair_part.lock() = fair_part;
        levels.iter().zip(seats).for_each(|(level, seats)| level.set_seats(seats, self.total, now));
    }

    fn classify(&self, call: &Call) -> Option<Arc<Flow>> {
        let configuration = self.configuration.read();
        configuration.flows.iter().find(|flow| flow.schema.matches(&call.user, &call.info)).cloned()
    }

    /// Waits for a seat. Remembers in `call` what it fell under.
    pub async fn admit(&self, call: &Call) -> Result<Seat, ApiError> {
        let Some(flow) = call.flow.get().cloned().or_else(|| self.classify(call)) else { return Err(too_many()) };
        let _ = call.flow.set(flow.clone());
        let request_max = flow.level.request_max.load(Ordering::Relaxed);
        let estimate = Estimate { cluster: &self.cluster, lists_by_size: self.lists_by_size, request_max };
        let (width, woken_watches) = estimate.of(call, &self.watches);
        if let Some(count) = woken_watches {
            flow.stats.watches.observe(count as f64);
        }
        flow.stats.seats.observe(width.max_seats() as f64);
        let distinguisher = flow.schema.flow(&call.user, &call.info);
        let mut hasher = DefaultHasher::new();
        (self.hash_seed, &flow.schema.name, distinguisher).hash(&mut hasher);
        let mut woken = None;
        let make = || {
            let (wake, receiver) = oneshot::channel();
            woken = Some(receiver);
            Waiter { wake, flow: flow.clone(), distinguisher: distinguisher.to_string() }
        };
        let (now, hash) = (self.env.monotonic(), hasher.finish());
        let arrival = match flow.level.is_exempt {
            true => {
                let ticket = flow.level.queues.lock().enter(now, width);
                Arrival::Dispatched(ticket)
            }
            false => flow.level.queues.lock().arrive(now, hash, width, make),
        };
        match (arrival, woken) {
            (Arrival::Rejected(why), _) => {
                flow.stats.reject(match why {
                    Rejection::QueueFull => "queue-full",
                    Rejection::ConcurrencyLimit => "concurrency-limit",
                });
                Err(too_many())
            }
            (Arrival::Waiting(ticket), Some(woken)) => {
                self.wait(WaitingSeat::new(self.place(call, flow, ticket), woken)).await
            }
            (Arrival::Dispatched(ticket) | Arrival::Waiting(ticket), _) => {
                Ok(Seat::new(self.place(call, flow, ticket)))
            }
        }
    }

    fn place(&self, call: &Call, flow: Arc<Flow>, ticket: Ticket) -> Place {
        let (reads_and_writes, env) = (self.reads_and_writes.clone(), self.env.clone());
        Place { flow, ticket, since: env.monotonic(), is_mutating: call.info.is_mutating(), reads_and_writes, env }
    }

    async fn wait(&self, mut waiting: WaitingSeat) -> Result<Seat, ApiError> {
        let woken = self.env.timeout(self.wait_max, waiting.woken()).await;
        match woken.is_some() || !waiting.abandon() {
            true => Ok(waiting.seat()),
            false => {
                waiting.place.flow.stats.reject("time-out");
                Err(too_many())
            }
        }
    }
}

/// The exempt and the catch-all are there even before they are stored.
fn missing_mandatory(found: &[Value], kind: &str) -> Vec<Value> {
    let is_there = |name: &Value| found.iter().any(|object| object["metadata"]["name"] == *name);
    let mandatory = flow_control_bootstrap::objects().into_iter().map(|(_, object)| object).filter(|object| {
        let name = &object["metadata"]["name"];
        object["kind"] == kind
            && flow_control_bootstrap::is_mandatory(name.as_str().unwrap_or_default())
            && !is_there(name)
    });
    mandatory.collect()
}

fn settings(spec: &Value) -> QueueSettings {
    let response = &spec["limited"]["limitResponse"];
    let number = |field: &str, otherwise: u64| {
        usize::try_from(response["queuing"][field].as_u64().unwrap_or(otherwise)).unwrap_or(usize::MAX)
    };
    match response["type"] == "Queue" {
        true => QueueSettings {
            queues: number("queues", 64),
            hand_size: number("handSize", 8),
            length_max: number("queueLengthLimit", 50),
        },
        false => QueueSettings { queues: 0, hand_size: 0, length_max: 0 },
    }
}

pub fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

/// Of one request: where it waits or has a seat.
#[derive(Clone)]
struct Place {
    flow: Arc<Flow>,
    ticket: Ticket,
    since: Duration,
    is_mutating: bool,
    reads_and_writes: Arc<ReadsAndWrites>,
    env: Env,
}

impl Place {
    fn count(&self, now: Duration, phase: Phase, by: isize) {
        self.reads_and_writes.change(now, phase, self.is_mutating, by);
    }
}

/// Held while a request is handled.
pub struct Seat(Place);

impl Seat {
    fn new(place: Place) -> Self {
        let stats = &place.flow.stats;
        stats.dispatched.fetch_add(1, Ordering::Relaxed);
        stats.executing.fetch_add(1, Ordering::Relaxed);
        stats.executing_seats.fetch_add(place.ticket.width.max_seats() as i64, Ordering::Relaxed);
        place.count(place.since, Phase::Executing, 1);
        Self(place)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Place { flow, ticket, since, env, .. } = &self.0;
        let (now, stats, ticket) = (env.monotonic(), &flow.stats, *ticket);
        let took = now.saturating_sub(*since);
        stats.executing.fetch_sub(1, Ordering::Relaxed);
        stats.executing_seats.fetch_sub(ticket.width.max_seats() as i64, Ordering::Relaxed);
        stats.execution.observe(took.as_secs_f64());
        self.0.count(now, Phase::Executing, -1);
        let lingers = {
            let mut queues = flow.level.queues.lock();
            let lingers = queues.finish(now, ticket, took);
            dispatch(&mut queues, now);
            lingers
        };
        if let Some(additional) = lingers {
            let (level, later) = (flow.level.clone(), env.clone());
            env.spawn(async move {
                later.sleep(additional).await;
                let (now, mut queues) = (later.monotonic(), level.queues.lock());
                queues.release(now, ticket);
                dispatch(&mut queues, now);
            });
        }
    }
}

/// A place in a queue. Dropped, it is given up; a seat that came meanwhile is given on.
struct WaitingSeat {
    place: Place,
    /// Alive as long as the place: a wake-up always arrives.
    woken: oneshot::Receiver<()>,
    is_settled: bool,
}

impl WaitingSeat {
    fn new(place: Place, woken: oneshot::Receiver<()>) -> Self {
        let stats = &place.flow.stats;
        stats.waiting.fetch_add(1, Ordering::Relaxed);
        stats.waiting_seats.fetch_add(place.ticket.width.max_seats() as i64, Ordering::Relaxed);
        stats.queue_length.observe(stats.waiting.load(Ordering::Relaxed) as f64);
        place.count(place.since, Phase::Waiting, 1);
        Self { place, woken, is_settled: false }
    }

    async fn woken(&mut self) {
        // The sender goes only with the level's queues, which this holds.
        let _ = (&mut self.woken).await;
    }

    /// False: the seat had already come.
    fn abandon(&mut self) -> bool {
        let Place { flow, ticket, since, env, .. } = &self.place;
        let now = env.monotonic();
        let left = flow.level.queues.lock().abandon(now, *ticket);
        if left {
            self.is_settled = true;
            flow.stats.waited[0].observe(now.saturating_sub(*since).as_secs_f64());
        }
        left
    }

    fn seat(mut self) -> Seat {
        self.is_settled = true;
        let since = self.place.env.monotonic();
        Seat::new(Place { since, ..self.place.clone() })
    }
}

impl Drop for WaitingSeat {
    fn drop(&mut self) {
        let (now, stats, ticket) = (self.place.env.monotonic(), self.place.flow.stats.clone(), self.place.ticket);
        stats.waiting.fetch_sub(1, Ordering::Relaxed);
        stats.waiting_seats.fetch_sub(ticket.width.max_seats() as i64, Ordering::Relaxed);
        self.place.count(now, Phase::Waiting, -1);
        if self.is_settled {
            return;
        }
        stats.reject("cancelled");
        if !self.abandon() {
            let mut queues = self.place.flow.level.queues.lock();
            queues.finish(now, ticket.without_effects(), Duration::ZERO);
            dispatch(&mut queues, now);
        }
    }
}
