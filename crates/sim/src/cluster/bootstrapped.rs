//! What every cluster has after its first seconds: made once by a real server and its controllers, and handed to each run.
//! Made by `runner` before the first run; read by `Simulation`.
//! Written to a file and read back, so that the process of a run has done nothing before it.

use std::{path::Path, sync::Arc, time::Duration};

use client::Client;
use env::Env;
use serde::{Deserialize, Serialize};
use store::{Operation, Range, Store};

use super::{api_server::ApiServerProcess, control_plane};
use crate::{START, determinism, network::in_process::InProcessTransport, runner};

#[derive(Clone, Serialize, Deserialize)]
pub struct Bootstrapped {
    /// Keys and values; these are objects, and so texts.
    records: Vec<(String, String)>,
    pub signing_key: String,
}

impl Bootstrapped {
    pub fn make() -> Self {
        // A thread and a seed of its own, so that it makes no difference to what follows.
        let bootstrap = std::thread::spawn(|| {
            determinism::fix(SEED);
            runner::runtime().block_on(bootstrap())
        });
        bootstrap.join().expect("a server starts")
    }

    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, serde_json::to_vec(self)?)
    }

    pub fn read(path: &Path) -> std::io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    pub fn operations(&self) -> Vec<Operation> {
        let put = |(key, value): &(String, String)| Operation::Put {
            key: key.clone(),
            value: value.clone().into(),
            ttl_seconds: None,
        };
        self.records.iter().map(put).collect()
    }
}

/// No run has it: the run of the same seed would give its objects the uids that these have.
const SEED: u64 = u64::MAX;

async fn bootstrap() -> Bootstrapped {
    let env = Env::simulated(START.parse().expect("a constant time"), SEED);
    let signing_key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServerProcess::new(0, env.clone(), store.clone(), signing_key.clone());
    server.start().await;
    let client = |user: &str, group: Option<&str>| {
        let groups = group.into_iter().map(str::to_string).collect();
        Client::new(InProcessTransport { server: server.clone(), user: user.into(), groups })
    };
    control_plane::make_admins(&client("admin", Some("system:masters"))).await;
    control_plane::start_controllers(client("system:kube-controller-manager", None), env.clone(), None);
    env.sleep(Duration::from_secs(5)).await;
    let everything = Range { start: "/".into(), end: store::prefix_end("/"), limit: 0, revision: None };
    let records = store.range(everything).await.expect("the store is in memory").records;
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).expect("objects are texts");
    Bootstrapped { records: records.into_iter().map(|r| (r.key, text(&r.value))).collect(), signing_key }
}
