//! The whole control plane under simulated time, with nodes that only pretend to run pods and faults drawn from a seed.
//! Real API servers, controllers and schedulers over one memory store, all in one thread; played by `runner`.
//! Invariant: the same seed gives the same run, alone or among others; a failing seed becomes a test.

pub mod checkers;
pub mod clients;
pub mod cluster;
pub mod determinism;
mod facts;
pub mod network;
mod runner;
mod series;
mod workload;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use apiserver::authn::User;
use checkers::{
    history::History,
    leadership::Candidate,
    oracle::{self, Oracle},
    watches::Selection,
};
use client::{Client, Transport};
use clients::{
    registers,
    watch_client::{CurrentView, WatchClient},
};
use cluster::{
    api_server::ApiServerProcess,
    control_plane::{self, ADMINS, MANAGER_LEASE, SCHEDULER_LEASE},
    node::PretendNode,
    simulated_store::SimulatedStore,
};
use env::Env;
use network::{
    Network, audit::Audit, endpoints::Endpoints, faults::Faulty, http::HttpTransport, in_process::InProcessTransport,
    pipe::Link,
};
use parking_lot::Mutex;
use store::{MemoryStore, Record, Revision, Store, Transaction};

pub use checkers::{Violation, convergence::violations};
pub use cluster::primed::Primed;
pub use network::faults::{FaultInjector, Faults};
pub use runner::{Outcome, play_here};
pub use series::play_all;

const START: &str = "2026-01-01T00:00:00Z";

/// How many of each there are.
#[derive(Debug, Clone, Copy)]
pub struct Topology {
    pub nodes: usize,
    pub api_servers: usize,
    /// Controller managers, and as many schedulers; of several one leads.
    pub candidates: usize,
}

impl Topology {
    pub fn single(nodes: usize) -> Self {
        Self { nodes, api_servers: 1, candidates: 1 }
    }
}

/// A process that is a client of the API servers, and can crash on its own.
struct Process {
    /// Of its links.
    name: String,
    user: String,
    group: Option<&'static str>,
    candidate: Option<Candidate>,
    /// Whether it speaks HTTP, or is in one process with a server.
    remote: bool,
    spread: bool,
    endpoint: Arc<AtomicUsize>,
    env: Mutex<Env>,
}

/// A copy of the store at one moment.
#[derive(Clone)]
struct Backup {
    records: Vec<Record>,
    deadlines: Vec<(String, u64)>,
    revision: Revision,
}

/// A cluster that lives in simulated time, on a runtime of its own.
pub struct Simulation {
    pub env: Env,
    /// Works while a server does: for workloads and checkers.
    pub admin: Client,
    pub network: Network,
    pub oracle: Arc<Oracle>,
    /// What register clients were told.
    pub registers: Arc<Mutex<History>>,
    store: Mutex<Arc<MemoryStore>>,
    servers: Vec<Arc<ApiServerProcess>>,
    managers: Vec<Process>,
    schedulers: Vec<Process>,
    nodes: Vec<Process>,
    addresses: Arc<AtomicU64>,
    backup: Mutex<Option<Backup>>,
    /// Ends what has to come back.
    recovery: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl Process {
    fn new(env: &Env, name: String, user: String, group: Option<&'static str>, lease: Option<&'static str>) -> Self {
        let candidate = lease.map(|lease| Candidate { lease, identity: name.clone() });
        let [remote, spread] = [2, 4].map(|one_in| env.random_u64().is_multiple_of(one_in));
        let endpoint = Arc::new(AtomicUsize::new(env.random_u64() as usize % 16));
        Self { name, user, group, candidate, remote, spread, endpoint, env: Mutex::new(env.part()) }
    }

    fn identity(&self) -> Option<String> {
        self.candidate.as_ref().map(|candidate| candidate.identity.clone())
    }
}

impl Simulation {
    pub async fn start(seed: u64, topology: Topology, primed: &Primed) -> Self {
        let env = Env::simulated(START.parse().expect("a constant time"), seed);
        let (memory, network) = (Arc::new(MemoryStore::new(env.clone())), Network::default());
        let first = Transaction { compare: Vec::new(), operations: primed.operations() };
        memory.transact(first).await.expect("the store is in memory");
        let oracle = Oracle::new(&env, &*memory).await;
        let store: Arc<dyn Store> = simulated_store(&memory, &env, &network);
        let server = |number| ApiServerProcess::new(number, env.clone(), store.clone(), primed.signing_key.clone());
        let servers: Vec<_> = (0..topology.api_servers).map(server).collect();
        for server in &servers {
            server.start().await;
        }
        let candidates = |name: &'static str| -> Vec<Process> {
            let lease = (topology.candidates > 1).then_some(name);
            let process =
                |number| Process::new(&env, format!("{name}-{number}"), format!("system:{name}"), None, lease);
            (0..topology.candidates).map(process).collect()
        };
        let node = |number| {
            let name = Self::node_name(number);
            Process::new(&env, name.clone(), format!("system:node:{name}"), Some("system:nodes"), None)
        };
        // Each election has the name of its component.
        let (managers, schedulers) = (candidates(MANAGER_LEASE), candidates(SCHEDULER_LEASE));
        let nodes: Vec<_> = (0..topology.nodes).map(node).collect();
        let simulation = Self {
            admin: admin(&servers, &env),
            network,
            oracle,
            registers: Arc::default(),
            store: Mutex::new(memory),
            servers,
            managers,
            schedulers,
            nodes,
            addresses: Arc::new(AtomicU64::new(1)),
            backup: Mutex::default(),
            recovery: Mutex::default(),
            env,
        };
        for number in 0..topology.candidates {
            simulation.start_manager(number)();
            simulation.start_scheduler(number)();
        }
        for number in 0..topology.nodes {
            simulation.start_node(number)();
        }
        simulation
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn node_name(number: usize) -> String {
        format!("node-{number}")
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.managers.iter().chain(&self.schedulers).chain(&self.nodes)
    }

    /// The transports of a client to each server.
    fn transports(&self, user: &User, name: &str, remote: bool, env: &Env) -> Vec<Arc<dyn Transport>> {
        let transport = |(number, server): (usize, &Arc<ApiServerProcess>)| -> Arc<dyn Transport> {
            if !remote {
                let (server, user, groups) = (server.clone(), user.name.clone(), user.groups.clone());
                return Arc::new(InProcessTransport { server, user, groups });
            }
            let link =
                Link { network: self.network.clone(), client: name.to_string(), server: number, env: self.env.clone() };
            let mut user = user.clone();
            user.groups.push("system:authenticated".into());
            Arc::new(HttpTransport::new(server.clone(), user, env.clone(), link))
        };
        self.servers.iter().enumerate().map(transport).collect()
    }

    /// The client of a process, with everything in between.
    fn client(&self, process: &Process, env: &Env) -> Client {
        let groups = process.group.iter().map(|group| group.to_string()).collect();
        let user = User { name: process.user.clone(), groups, ..User::default() };
        let servers = self.transports(&user, &process.name, process.remote, env);
        let (current, spread) = (process.endpoint.clone(), process.spread);
        let endpoints = Arc::new(Endpoints { servers, current, spread, env: env.clone() });
        let (injector, meddler) = (self.network.injector.clone(), Some(self.admin.clone()));
        let faulty = Arc::new(Faulty { inner: endpoints, injector, meddler, env: env.clone() });
        let (oracle, user, candidate) = (self.oracle.clone(), process.user.clone(), process.candidate.clone());
        Client::new(Audit { inner: faulty, oracle, user, candidate })
    }

    /// A client that looks at everything over HTTP, through any server, with faults.
    pub fn viewer(&self, name: &str, env: &Env) -> Client {
        let user = User { name: name.to_string(), groups: vec![ADMINS.to_string()], ..User::default() };
        let servers = self.transports(&user, name, true, env);
        let endpoints = Arc::new(Endpoints { servers, current: Arc::default(), spread: true, env: env.clone() });
        let injector = self.network.injector.clone();
        Client::new(Faulty { inner: endpoints, injector, meddler: None, env: env.clone() })
    }

    fn start_manager(&self, number: usize) -> impl FnOnce() + Send + use<> {
        let (process, env) = (&self.managers[number], self.managers[number].env.lock().clone());
        let (client, identity) = (self.client(process, &env), process.identity());
        move || control_plane::start_controllers(client, env, identity)
    }

    fn start_scheduler(&self, number: usize) -> impl FnOnce() + Send + use<> {
        let (process, env) = (&self.schedulers[number], self.schedulers[number].env.lock().clone());
        let (client, identity) = (self.client(process, &env), process.identity());
        move || control_plane::start_scheduler(client, env, identity)
    }

    fn start_node(&self, number: usize) -> impl FnOnce() + Send + use<> {
        let (process, env) = (&self.nodes[number], self.nodes[number].env.lock().clone());
        let client = self.client(process, &env);
        let zone = if number.is_multiple_of(2) { "a" } else { "b" };
        let name = process.name.clone();
        let node = PretendNode::new(name, zone.into(), client, env.clone(), self.addresses.clone());
        move || drop(env.spawn(node.run()))
    }

    /// Ends a process, puts a fresh part of the world in its place, and starts that after a while.
    fn restart<S: FnOnce() + Send + 'static>(&self, process: &Process, seconds: u64, start: impl FnOnce() -> S) {
        process.env.lock().crash();
        *process.env.lock() = self.env.part();
        let (start, part, time) = (start(), process.env.lock().clone(), self.env.clone());
        // In the part itself: a second crash takes back the first return.
        let back = part.spawn(async move {
            time.sleep(Duration::from_secs(seconds)).await;
            start();
        });
        self.recovery.lock().push(back);
    }

    pub fn stop_node(&self, number: usize, seconds: u64) {
        self.restart(&self.nodes[number], seconds, || self.start_node(number));
    }

    pub fn crash_manager(&self, number: usize, seconds: u64) {
        let number = number % self.managers.len();
        self.restart(&self.managers[number], seconds, || self.start_manager(number));
    }

    pub fn crash_scheduler(&self, number: usize, seconds: u64) {
        let number = number % self.schedulers.len();
        self.restart(&self.schedulers[number], seconds, || self.start_scheduler(number));
    }

    pub fn crash_server(&self, number: usize, seconds: u64) {
        let server = self.servers[number % self.servers.len()].clone();
        if server.is_up() {
            server.crash();
            self.start_server_in(server, seconds);
        }
    }

    fn start_server_in(&self, server: Arc<ApiServerProcess>, seconds: u64) {
        let env = self.env.clone();
        let back = self.env.spawn(async move {
            env.sleep(Duration::from_secs(seconds)).await;
            server.start().await;
        });
        self.recovery.lock().push(back);
    }

    /// Some process goes to another server with what it asks next; its watches stay where they are.
    pub fn change_over(&self, number: usize) -> String {
        let process = self.processes().nth(number % self.processes().count()).expect("there are processes");
        process.endpoint.fetch_add(1, Ordering::Relaxed);
        process.name.clone()
    }

    /// Cuts some process off from one server, or from all of them, for a while.
    pub fn partition(&self, number: usize, server: Option<usize>, seconds: u64) -> String {
        let process = self.processes().nth(number % self.processes().count()).expect("there are processes");
        let all = 0..self.servers.len();
        let cut: Vec<usize> = server.map_or(all.collect(), |server| vec![server % self.servers.len()]);
        cut.iter().for_each(|server| self.network.cut(&process.name, *server));
        self.oracle.disturb_everything();
        let (name, env, network, oracle) =
            (process.name.clone(), self.env.clone(), self.network.clone(), self.oracle.clone());
        let back = self.env.spawn(async move {
            env.sleep(Duration::from_secs(seconds)).await;
            cut.iter().for_each(|server| network.mend(&name, *server));
            oracle.disturb_everything();
        });
        self.recovery.lock().push(back);
        format!("{} from servers {server:?}", process.name)
    }

    pub async fn back_up(&self) {
        let store = self.store.lock().clone();
        let (records, revision) = oracle::snapshot(&*store).await;
        let deadlines = store.deadlines("/", &store::prefix_end("/")).await.expect("the store is in memory");
        *self.backup.lock() = Some(Backup { records, deadlines, revision });
    }

    /// All servers stop, and start again on the store as it was backed up. Whether there was a backup.
    pub async fn restore(&self, seconds: u64) -> bool {
        let Some(backup) = self.backup.lock().clone() else { return false };
        self.servers.iter().for_each(|server| server.crash());
        self.registers.lock().restore(registers::values(&backup.records));
        let Backup { records, deadlines, revision } = backup;
        let memory = Arc::new(MemoryStore::restored(self.env.clone(), records, deadlines, revision));
        self.oracle.begin_epoch(&*memory).await;
        let store = simulated_store(&memory, &self.env, &self.network);
        *self.store.lock() = memory;
        for server in &self.servers {
            server.replace_store(store.clone());
            self.start_server_in(server.clone(), seconds);
        }
        true
    }

    /// Clients that watch every resource, and some of them by selections; where each of them is.
    pub fn start_watch_clients(&self) -> Vec<CurrentView> {
        let watched = |resource: &&Arc<api::Resource>| resource.stored() && resource.supports("watch");
        let everything = api::kinds::builtin().iter().filter(watched).map(|r| (r.clone(), Selection::default()));
        let some = workload::selections().into_iter().filter_map(|(group, version, plural, selection)| {
            Some((api::kinds::find(group, version, plural)?.clone(), selection))
        });
        let start = |(number, (resource, selection)): (usize, (Arc<api::Resource>, Selection))| {
            let view = CurrentView::default();
            let client = self.viewer(&format!("viewer-{}", number % 8), &self.env);
            let (env, oracle) = (self.env.clone(), self.oracle.clone());
            let watcher = WatchClient { client, env, oracle, resource, selection, view: view.clone() };
            self.env.spawn(watcher.run());
            view
        };
        everything.chain(some).enumerate().map(start).collect()
    }

    /// Clients that read and write a few objects at once, until the part of the world that is returned crashes.
    pub fn start_register_clients(&self, count: usize) -> Env {
        let part = self.env.part();
        for number in 0..count {
            let client = self.viewer(&format!("register-{number}"), &part);
            registers::start(client, &part, self.registers.clone());
        }
        part
    }

    /// No more faults; returns when everything that was down is back.
    pub async fn heal(&self) {
        self.network.injector.set(Faults::default());
        self.network.mend_all();
        let back = std::mem::take(&mut *self.recovery.lock());
        for task in back {
            // Taken back by a later crash, whose own return is in the list too.
            task.await.ok();
        }
    }
}

fn simulated_store(memory: &Arc<MemoryStore>, env: &Env, network: &Network) -> Arc<SimulatedStore> {
    let (inner, env, injector) = (memory.clone(), env.clone(), network.injector.clone());
    Arc::new(SimulatedStore { inner, env, injector })
}

/// In process with all servers, without faults.
fn admin(servers: &[Arc<ApiServerProcess>], env: &Env) -> Client {
    let transport = |server: &Arc<ApiServerProcess>| -> Arc<dyn Transport> {
        let (server, user, groups) = (server.clone(), "admin".to_string(), vec![ADMINS.to_string()]);
        Arc::new(InProcessTransport { server, user, groups })
    };
    let servers = servers.iter().map(transport).collect();
    Client::new(Endpoints { servers, current: Arc::default(), spread: false, env: env.clone() })
}

#[cfg(test)]
mod identity_tests;
