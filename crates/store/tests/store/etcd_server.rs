//! A real etcd for one test: free loopback ports, a temporary directory, killed at the end.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use env::Env;
use store::EtcdStore;
use tempfile::TempDir;

pub struct EtcdServer {
    directory: TempDir,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl EtcdServer {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut server = Self { directory, client_port: free_port(), peer_port: free_port(), process: None };
        server.launch();
        server.connect("").await;
        server
    }

    /// Starts etcd on the data it left.
    pub fn launch(&mut self) {
        let client = format!("http://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            // What a killed process wrote is still there; only a busy disk's syncs are not waited for.
            .args(["--name", "one", "--log-level", "error", "--unsafe-no-fsync"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.unwrap_or_else(|error| {
            panic!("failed to start etcd: {error}; install it: apt-get install etcd-server");
        }));
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("etcd was running");
            process.wait().expect("etcd was our child");
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub async fn connect(&self, prefix: &str) -> EtcdStore {
        let endpoints = [self.endpoint()];
        let mut last = None;
        for _ in 0..1200 {
            match EtcdStore::connect(&endpoints, prefix, None, Env::real()).await {
                Ok(store) => return store,
                Err(error) => last = Some(error),
            }
            env::sleep(Duration::from_millis(50)).await;
        }
        panic!("etcd did not come up: {last:?}");
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Below the ports of outgoing connections: one of those could take it before etcd does, or while etcd is away.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(16);
    let mut ports = (0..10_000).map(|_| 20_000 + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000);
    let port = ports.find_map(|port| u16::try_from(port).ok().filter(|port| is_free(*port)));
    port.expect("a free port")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
