//! A whole cluster in simulated time: what it consists of and how it starts.
//! `clients` connects its processes and observers, `accidents` takes them down and brings them back.
//! Every process is a part of the world of its own, so that it can crash alone.

mod accidents;
mod clients;
#[cfg(test)]
mod identity_tests;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

use client::Client;
use env::Env;
use parking_lot::Mutex;
use store::{MemoryStore, Record, Revision, Store, Transaction};

use crate::{
    START,
    checkers::{history::History, leadership::Candidate, oracle::Oracle},
    cluster::{
        api_server::ApiServerProcess,
        bootstrapped::Bootstrapped,
        control_plane::{self, MANAGER_LEASE, SCHEDULER_LEASE},
        hollow_node::HollowNode,
        simulated_store::SimulatedStore,
    },
    network::Network,
};

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
    /// The clock of the last restore.
    restored_ms: AtomicU64,
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
    pub async fn start(seed: u64, topology: Topology, bootstrapped: &Bootstrapped) -> Self {
        let env = Env::simulated(START.parse().expect("a constant time"), seed);
        let (memory, network) = (Arc::new(MemoryStore::new(env.clone())), Network::default());
        let first = Transaction { compare: Vec::new(), operations: bootstrapped.operations() };
        memory.transact(first).await.expect("the store is in memory");
        let oracle = Oracle::new(&env, &*memory).await;
        let store: Arc<dyn Store> = simulated_store(&memory, &env, &network);
        let server =
            |number| ApiServerProcess::new(number, env.clone(), store.clone(), bootstrapped.signing_key.clone());
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
            admin: clients::admin(&servers, &env),
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
            restored_ms: AtomicU64::default(),
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
        let node = HollowNode::new(name, zone.into(), client, env.clone(), self.addresses.clone());
        move || drop(env.spawn(node.run()))
    }
}

fn simulated_store(memory: &Arc<MemoryStore>, env: &Env, network: &Network) -> Arc<SimulatedStore> {
    let (inner, env, injector) = (memory.clone(), env.clone(), network.injector.clone());
    Arc::new(SimulatedStore { inner, env, injector })
}
