//! The whole control plane under simulated time, with nodes that only pretend to run pods and faults drawn from a seed.
//! Real API server, controllers and scheduler over the memory store; used by `tests/seeds.rs`.
//! Invariant: the same seed gives the same run, as far as the scheduler of tasks allows; a failing seed becomes a test.

mod checks;
mod faults;
mod node;

use std::{sync::Arc, time::Duration};

use apiserver::{ApiServer, Config};
use client::{Client, InformerFactory};
use env::Env;
use tokio_util::sync::CancellationToken;

pub use checks::{Violation, violations};
pub use faults::Faults;

/// A cluster that lives in simulated time. Dropping it stops everything.
pub struct Simulation {
    pub env: Env,
    /// Works always: for workloads and checkers.
    pub admin: Client,
    shutdown: CancellationToken,
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Simulation {
    pub async fn start(seed: u64, nodes: usize, faults: Faults) -> Self {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a constant time"), seed);
        let shutdown = CancellationToken::new();
        let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(Config::in_process(key), store, env.clone()).await.expect("the API server starts");
        let component = |user: &str, groups: &[&str]| faults.between(local::client(&server, user, groups), env.clone());
        let informers = |client: &Client| InformerFactory::new(client.clone(), env.clone(), shutdown.clone());

        let client = component("system:kube-controller-manager", &["system:masters"]);
        let config = controllers::Config {
            cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a constant range")],
            ..controllers::Config::default()
        };
        env.spawn(controllers::run(config, client.clone(), informers(&client), env.clone(), shutdown.clone()));
        let client = component("system:kube-scheduler", &["system:masters"]);
        let scheduling = scheduler::run(
            scheduler::Config::default(),
            client.clone(),
            informers(&client),
            env.clone(),
            shutdown.clone(),
        );
        env.spawn(async move { scheduling.await.map_err(|e| e.to_string()).expect("the scheduler runs") });
        for number in 0..nodes {
            let client = component(&format!("system:node:node-{number}"), &["system:masters"]);
            let node = node::PretendNode::new(format!("node-{number}"), client.clone(), env.clone());
            env.spawn(node.run(informers(&client)));
        }
        Self { admin: local::client(&server, "admin", &["system:masters"]), env, shutdown }
    }

    /// Lets the cluster go on for a while; with tokio's clock paused this takes no real time.
    pub async fn pass(&self, seconds: u64) {
        self.env.sleep(Duration::from_secs(seconds)).await;
    }
}
