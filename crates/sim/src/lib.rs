//! The whole control plane under simulated time, with nodes that only pretend to run pods and faults drawn from a seed.
//! Real API server, controllers and scheduler over the memory store, all in one thread; played by `runner`.
//! Invariant: the same seed gives the same run, alone or among others; a failing seed becomes a test.

pub mod checkers;
mod checks;
pub mod determinism;
mod facts;
mod faults;
mod invariants;
mod node;
mod primed;
pub mod register_client;
mod runner;
mod server;
mod workload;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use client::{Client, InformerFactory};
use env::Env;
use futures::StreamExt;
use invariants::World;
use node::PretendNode;
use parking_lot::Mutex;
use server::Server;
use store::{Store, Transaction, WatchItem};
use tokio_util::sync::CancellationToken;

pub use checks::{Violation, violations};
pub use faults::{Dial, Faults};
pub use primed::Primed;
pub use runner::{Outcome, play_all, play_here};

const START: &str = "2026-01-01T00:00:00Z";
const MASTERS: &[&str] = &["system:masters"];

/// A cluster that lives in simulated time, on a runtime of its own.
pub struct Simulation {
    pub env: Env,
    /// Works while the server does: for workloads and checkers.
    pub admin: Client,
    pub dial: Dial,
    pub world: Arc<Mutex<World>>,
    server: Arc<Server>,
    controllers: Mutex<Env>,
    scheduler: Mutex<Env>,
    nodes: Vec<Mutex<Env>>,
    addresses: Arc<AtomicU64>,
    /// Ends what has to come back.
    pub recovery: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

fn start_controllers(client: Client, env: Env) {
    let config = controllers::Config {
        cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a constant range")],
        root_ca_pem: Some("none".into()),
        ..controllers::Config::default()
    };
    let never = CancellationToken::new();
    let informers = InformerFactory::new(client.clone(), env.clone(), never.clone());
    env.spawn(controllers::run(config, client, informers, env.clone(), never));
}

fn start_scheduler(client: Client, env: Env) {
    let never = CancellationToken::new();
    let informers = InformerFactory::new(client.clone(), env.clone(), never.clone());
    let scheduling = scheduler::run(scheduler::Config::default(), client, informers, env.clone(), never);
    env.spawn(async move { scheduling.await.map_err(|e| e.to_string()).expect("the scheduler runs") });
}

impl Simulation {
    pub async fn start(seed: u64, nodes: usize, primed: &Primed) -> Self {
        let env = Env::simulated(START.parse().expect("a constant time"), seed);
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let first = Transaction { compare: Vec::new(), operations: primed.operations() };
        store.transact(first).await.expect("the store is in memory");
        let world = Arc::new(Mutex::new(World::default()));
        watch(&env, &store, &world).await;
        let server = Server::new(env.clone(), store, primed.signing_key.clone());
        server.start().await;
        let simulation = Self {
            admin: server.client("admin", MASTERS),
            dial: Dial::default(),
            world,
            controllers: Mutex::new(env.part()),
            scheduler: Mutex::new(env.part()),
            nodes: (0..nodes).map(|_| Mutex::new(env.part())).collect(),
            addresses: Arc::new(AtomicU64::new(1)),
            recovery: Mutex::default(),
            server,
            env,
        };
        simulation.component(&simulation.controllers, "system:kube-controller-manager", start_controllers)();
        simulation.component(&simulation.scheduler, "system:kube-scheduler", start_scheduler)();
        for number in 0..nodes {
            simulation.node(number)();
        }
        simulation
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn node_name(number: usize) -> String {
        format!("node-{number}")
    }

    fn client(&self, user: &str, env: &Env) -> Client {
        self.dial.between(&self.server.client(user, MASTERS), &self.admin, env)
    }

    /// How to start a component in the part of the world that `env` now is.
    fn component(&self, env: &Mutex<Env>, user: &str, start: fn(Client, Env)) -> impl FnOnce() + Send + use<> {
        let env = env.lock().clone();
        let client = self.client(user, &env);
        move || start(client, env)
    }

    fn node(&self, number: usize) -> impl FnOnce() + Send + use<> {
        let (env, name) = (self.nodes[number].lock().clone(), Self::node_name(number));
        let client = self.client(&format!("system:node:{name}"), &env);
        let zone = if number.is_multiple_of(2) { "a" } else { "b" };
        let node = PretendNode::new(name, zone.into(), client, env.clone(), self.addresses.clone());
        move || drop(env.spawn(node.run()))
    }

    /// Ends what runs in `env`, puts a fresh part in its place, and starts that after a while.
    fn restart<S: FnOnce() + Send + 'static>(&self, env: &Mutex<Env>, seconds: u64, start: impl FnOnce() -> S) {
        env.lock().crash();
        *env.lock() = self.env.part();
        let (start, part, time) = (start(), env.lock().clone(), self.env.clone());
        // In the part itself: a second crash takes back the first return.
        let back = part.spawn(async move {
            time.sleep(Duration::from_secs(seconds)).await;
            start();
        });
        self.recovery.lock().push(back);
    }

    pub fn stop_node(&self, number: usize, seconds: u64) {
        self.restart(&self.nodes[number], seconds, || self.node(number));
    }

    pub fn crash_controllers(&self, seconds: u64) {
        let start = || self.component(&self.controllers, "system:kube-controller-manager", start_controllers);
        self.restart(&self.controllers, seconds, start);
    }

    pub fn crash_scheduler(&self, seconds: u64) {
        let start = || self.component(&self.scheduler, "system:kube-scheduler", start_scheduler);
        self.restart(&self.scheduler, seconds, start);
    }

    pub fn crash_server(&self, seconds: u64) {
        if !self.server.is_up() {
            return;
        }
        self.server.crash();
        let (server, env) = (self.server.clone(), self.env.clone());
        let back = self.env.spawn(async move {
            env.sleep(Duration::from_secs(seconds)).await;
            server.start().await;
        });
        self.recovery.lock().push(back);
    }

    /// No more faults; returns when everything that was down is back.
    pub async fn heal(&self) {
        self.dial.set(Faults::default());
        let back = std::mem::take(&mut *self.recovery.lock());
        for task in back {
            // Taken back by a later crash, whose own return is in the list too.
            task.await.ok();
        }
    }
}

/// Shows `world` every change in the order of commits.
async fn watch(env: &Env, store: &Arc<store::MemoryStore>, world: &Arc<Mutex<World>>) {
    let mut changes = store.watch("/", &store::prefix_end("/"), 0).await.expect("the store is in memory");
    let (clock, world) = (env.clone(), world.clone());
    env.spawn(async move {
        while let Some(item) = changes.next().await {
            let WatchItem::Events(events) = item.expect("the watcher keeps up") else { continue };
            let mut world = world.lock();
            for event in events {
                world.apply(clock.monotonic(), clock.now(), &event);
            }
        }
    });
}
