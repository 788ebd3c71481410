//! A real etcd for one test: free loopback ports, a temporary directory, killed at the end.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
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
            .args(["--name", "one", "--log-level", "error"])
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
        for _ in 0..200 {
            match EtcdStore::connect(&endpoints, prefix, None, Env::real()).await {
                Ok(store) => return store,
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("etcd did not come up: {last:?}");
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
