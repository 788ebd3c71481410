//! The real API server on its real store, killed with SIGKILL in the middle of work and started again, several times:
//! all that clients were told before and after must be explained by one order of their requests.
//! `MINKE_KILLS=100 cargo test -p minke --test kill` goes on for longer.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use client::{Client, HttpsTransport};
use env::Env;
use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;
use sim::{checkers::history::History, clients::register_client::RegisterClient};
use tokio_util::sync::CancellationToken;

const KILLS: usize = 4;
const CLIENTS: usize = 5;
const OBJECTS: u64 = 8;
/// Between two kills, at most.
const LIFE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);
/// So that a history stays short enough to be judged.
const PAUSE: Duration = Duration::from_millis(20);
const NAMESPACE: &str = "default";

struct Server(Child);

impl Server {
    fn start(data: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minke"));
        // Nothing is ever sent to these ranges.
        command.args(["apiserver", "--port", "0", "--bind-address", "127.0.0.1", "--pod-cidr", "10.253.0.0/16"]);
        command.args(["--service-cidr", "10.254.0.0/16", "--data-dir"]).arg(data);
        let log = std::fs::File::options().create(true).append(true).open(data.with_extension("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// SIGKILL, and waits until it is dead.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// To the server that wrote its address last.
fn connect(data: &Path) -> Option<Client> {
    let config = client::from_kubeconfig(&data.join("admin.kubeconfig"), "kill-test").ok()?;
    Some(Client::new(HttpsTransport::new(config).ok()?))
}

/// Waits until the server answers.
async fn ready(data: &Path, env: &Env) -> Client {
    let start = env.monotonic();
    loop {
        if let Some(client) = connect(data)
            && client.api::<Namespace>().get(NAMESPACE).await.is_ok()
        {
            return client;
        }
        let log = || std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
        assert!(env.monotonic() - start < PATIENCE, "the API server does not answer:\n{}", log());
        env.sleep(Duration::from_millis(50)).await;
    }
}

async fn work(mut client: RegisterClient, data: std::path::PathBuf, stop: CancellationToken) {
    let env = client.env.clone();
    while !stop.is_cancelled() {
        let name = format!("register-{}", env.random_u64() % OBJECTS);
        let answer = client.call(&name).await;
        if answer.is_err_and(|error| error.code == 503) {
            // Killed, perhaps; the next one listens at another port.
            env.sleep(PAUSE * 5).await;
            client.client = connect(&data).unwrap_or(client.client);
        }
        env.sleep(PAUSE.mul_f64(env.random_fraction())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_were_told_holds_under_kill_9() {
    let kills = std::env::var("MINKE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let (directory, env) = (tempfile::tempdir().unwrap(), Env::real());
    let data = directory.path().join("data");
    let mut server = Server::start(&data);
    let (history, stop) = (Arc::new(Mutex::new(History::default())), CancellationToken::new());
    let mut admin = ready(&data, &env).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = RegisterClient::new(admin.clone(), env.clone(), history.clone(), NAMESPACE);
            env::spawn(work(client, data.clone(), stop.clone()))
        })
        .collect();
    for number in 0..kills {
        let before = history.lock().calls();
        env.sleep(LIFE.mul_f64(env.random_fraction())).await;
        let start = env.monotonic();
        while history.lock().calls() < before + CLIENTS {
            assert!(env.monotonic() - start < PATIENCE, "nothing was answered before kill {number}");
            env.sleep(PAUSE).await;
        }
        server.kill();
        server = Server::start(&data);
        admin = ready(&data, &env).await;
    }
    stop.cancel();
    for client in clients {
        client.await.unwrap();
    }
    let mut last = RegisterClient::new(admin, env, history.clone(), NAMESPACE);
    for number in 0..OBJECTS {
        // Absent is an answer too.
        last.get(&format!("register-{number}")).await.ok();
    }
    let mut history = history.lock();
    let found = history.violations();
    assert!(found.is_empty(), "{} calls: {found:#?}", history.calls());
    println!("{} calls under {kills} kills are linearizable", history.calls());
}
