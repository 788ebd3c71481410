//! One API server of a simulation: it can crash and come back, and clients notice as they would.
//! Reached through `network::{http, in_process}`; several share the `SimulatedStore`.
//! What runs for it ends with it.

use std::{net::IpAddr, sync::Arc};

use apiserver::{ApiServer, Config, storage::StorageMediaType};
use env::Env;
use http::Request;
use jiff::Timestamp;
use parking_lot::Mutex;
use store::Store;
use tokio_util::sync::CancellationToken;

pub struct ApiServerProcess {
    number: usize,
    env: Env,
    store: Mutex<Arc<dyn Store>>,
    signing_key: String,
    /// The part of the world of a start that is under way.
    starting: Mutex<Option<Env>>,
    running: Mutex<Option<Running>>,
    /// When the last request came, and how many came at that moment.
    pace: Mutex<(Timestamp, usize)>,
}

/// More requests than this at one moment of simulated time: somebody goes round in circles, and would for ever.
const REQUESTS_PER_INSTANT_MAX: usize = 20_000;

#[derive(Clone)]
pub struct Running {
    pub env: Env,
    pub server: Arc<ApiServer>,
    pub crashed: CancellationToken,
}

impl ApiServerProcess {
    pub fn new(number: usize, env: Env, store: Arc<dyn Store>, signing_key: String) -> Arc<Self> {
        let store = Mutex::new(store);
        let (starting, running, pace) = Default::default();
        Arc::new(Self { number, env, store, signing_key, starting, running, pace })
    }

    fn config(&self) -> Config {
        let mut config = Config::in_process(self.signing_key.clone());
        // Each is an endpoint of the `kubernetes` Service.
        config.advertise_address = IpAddr::from([192, 0, 2, 1 + self.number as u8]);
        // A dual-stack Service holds two addresses, written in one transaction.
        config.service_cidrs.push("fd02::/112".parse().expect("a constant network"));
        // The checkers read what is committed.
        config.storage_media_type = Some(StorageMediaType::Json);
        config
    }

    /// Returns when it serves, or has crashed before it could.
    pub async fn start(&self) {
        if self.is_up() || self.starting.lock().is_some() {
            return;
        }
        let (env, store) = (self.env.part(), self.store.lock().clone());
        *self.starting.lock() = Some(env.clone());
        let (config, part) = (self.config(), env.clone());
        let starting = env.spawn(async move { ApiServer::new(config, store, part).await });
        let Ok(started) = starting.await else { return };
        let server = started.map_err(|error| error.to_string()).expect("the API server starts");
        *self.starting.lock() = None;
        *self.running.lock() = Some(Running { env, server, crashed: CancellationToken::new() });
    }

    pub fn crash(&self) {
        if let Some(env) = self.starting.lock().take() {
            env.crash();
        }
        if let Some(running) = self.running.lock().take() {
            running.env.crash();
            running.crashed.cancel();
        }
    }

    /// The store that the next start is on.
    pub fn replace_store(&self, store: Arc<dyn Store>) {
        *self.store.lock() = store;
    }

    /// Ends the process of this run when time stands still: no check would ever be reached.
    pub fn count<B>(&self, request: &Request<B>) {
        let mut pace = self.pace.lock();
        let now = self.env.now();
        *pace = if pace.0 == now { (now, pace.1 + 1) } else { (now, 1) };
        if pace.1 > REQUESTS_PER_INSTANT_MAX {
            eprintln!("a hot loop at {now}: {} requests, the last {} {}", pace.1, request.method(), request.uri());
            std::process::exit(1);
        }
    }

    pub fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    pub fn is_up(&self) -> bool {
        self.running.lock().is_some()
    }
}
