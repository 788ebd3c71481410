//! An etcd of three members: a store that knows all of their URLs goes on when one of them ends.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use env::Env;
use store::{Change, EtcdStore, Store, StoreError, Transaction, contract::next_events, contract::put, prefix_end};
use tempfile::TempDir;

use crate::etcd_server::free_port;

struct Members {
    _directory: TempDir,
    urls: Vec<String>,
    processes: Vec<Child>,
}

impl Members {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = |_| format!("http://127.0.0.1:{}", free_port());
        let (urls, peers): (Vec<_>, Vec<_>) = (0..3).map(|n| (url(n), url(n))).unzip();
        let all: Vec<String> = peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}")).collect();
        let start = |n: usize| {
            Command::new("etcd")
                .arg("--data-dir")
                .arg(directory.path().join(n.to_string()))
                .args(["--name", &format!("m{n}"), "--log-level", "error", "--unsafe-no-fsync"])
                .args(["--listen-client-urls", &urls[n], "--advertise-client-urls", &urls[n]])
                .args(["--listen-peer-urls", &peers[n], "--initial-advertise-peer-urls", &peers[n]])
                .args(["--initial-cluster", &all.join(",")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("failed to start etcd: {error}"))
        };
        let processes = (0..3).map(start).collect();
        Self { _directory: directory, urls, processes }
    }

    fn kill(&mut self, member: usize) {
        self.processes[member].kill().expect("etcd was running");
        self.processes[member].wait().expect("etcd was our child");
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

async fn until_done<T>(mut attempt: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let asking = async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(_) => env::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    env::timeout(Duration::from_secs(120), asking).await.expect("etcd answers in the end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_with_the_members_that_are_left() {
    let mut members = Members::start();
    let urls = members.urls.clone();
    let store = until_done(async || EtcdStore::connect(&urls, "", None, Env::real()).await).await;
    let mut stream = store.watch("/w/", &prefix_end("/w/"), 0).await.unwrap();
    for member in 0..3 {
        // Whatever came through before the answer was lost says the same.
        for n in 0..5 {
            let transaction =
                Transaction { compare: Vec::new(), operations: vec![put("/w/a", &format!("{member}.{n}"))] };
            until_done(async || store.transact(transaction.clone()).await).await;
        }
        assert_eq!(
            &until_done(async || store.get("/w/a").await).await.unwrap().value[..],
            format!("{member}.4").as_bytes()
        );
        if member == 0 {
            // Two of three are a majority.
            members.kill(0);
        }
    }
    let mut seen: Vec<String> = Vec::new();
    while seen.last().is_none_or(|last| last != "2.4") {
        for event in next_events(&mut stream).await {
            let Change::Put { value, .. } = event.change else { panic!("nothing was deleted") };
            seen.push(String::from_utf8_lossy(&value).into_owned());
        }
    }
    seen.dedup();
    let wanted: Vec<String> = (0..3).flat_map(|member| (0..5).map(move |n| format!("{member}.{n}"))).collect();
    assert_eq!(seen, wanted);
}
