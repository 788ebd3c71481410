//! An etcd of three members: a store that knows all of their URLs goes on when one of them ends.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use env::Env;
use store::{
    Change, Compare, EtcdStore, Outcome, Revision, Store, StoreError, Transaction, WatchStream,
    contract::{next_events, put},
    prefix_end,
};
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

pub async fn until_done<T>(mut attempt: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
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

/// Over the version of the write before, and so never twice: what nobody knows the end of is sent again.
pub async fn write_over(store: &EtcdStore, last: Revision, value: &str) -> Revision {
    until_done(async || {
        let compare = vec![Compare { key: "/w/a".into(), mod_revision: last }];
        match store.transact(Transaction { compare, operations: vec![put("/w/a", value)] }).await? {
            Outcome::Done { revision, .. } => Ok(revision),
            Outcome::Conflict { current, .. } => {
                let found = current.into_iter().next().flatten().expect("the key");
                assert_eq!(&found.value[..], value.as_bytes(), "it came through and its answer did not");
                Ok(found.mod_revision)
            }
        }
    })
    .await
}

/// What a watch of `/w/` tells, in its order, up to a revision.
pub async fn told_until(stream: &mut WatchStream, last: Revision) -> Vec<(Revision, String)> {
    let mut seen: Vec<(Revision, String)> = Vec::new();
    while seen.last().is_none_or(|(revision, _)| *revision < last) {
        for event in next_events(stream).await {
            let Change::Put { value, .. } = event.change else { panic!("nothing was deleted") };
            seen.push((event.revision, String::from_utf8_lossy(&value).into_owned()));
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_with_the_members_that_are_left() {
    let mut members = Members::start();
    let urls = members.urls.clone();
    let store = until_done(async || EtcdStore::connect(&urls, "", None, Env::real()).await).await;
    let mut stream = until_done(async || store.watch("/w/", &prefix_end("/w/"), 0).await).await;
    let (mut last, mut written) = (0, Vec::new());
    for member in 0..3 {
        for n in 0..5 {
            let value = format!("{member}.{n}");
            last = write_over(&store, last, &value).await;
            written.push((last, value));
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
    assert_eq!(told_until(&mut stream, last).await, written);
}
