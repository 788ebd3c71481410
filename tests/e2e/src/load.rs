//! A steady stream of HTTP requests from the machine itself, each on a connection of its own.
//! Used by the tests that change a cluster while it serves.
//! Every request counts, and one that fails is kept with its reason.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{Kubectl, eventually};

/// Together they send at most 200 requests a second.
const CLIENTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// Longer than a lost packet takes to be sent again, several times, and than a loaded machine takes to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Replaces every pod of the Deployment `web` while the Service of that name is asked; nothing may fail.
#[track_caller]
pub fn update_under_load(kubectl: &Kubectl, replicas: usize) {
    let address = kubectl.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let address: SocketAddr = format!("{address}:80").parse().expect("an address");
    eventually("the Service answers", || http_get(address).map_err(|e| e.to_string()));
    let load = Load::start(address);
    load.let_pass(100);
    kubectl.run(&["set", "env", "deployment/web", "VERSION=2"]);
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    // The last of the old ones end after the rollout counts as done.
    eventually("the old pods are gone", || {
        let pods = kubectl.run(&["get", "pods", "-l", "app=web", "-o", "name"]).lines().count();
        if pods == replicas { Ok(()) } else { Err(pods) }
    });
    load.let_pass(100);
    let outcome = load.finish();
    let failed = outcome.failures.len();
    assert!(outcome.failures.is_empty(), "{failed} of {} failed: {:?}", outcome.requests, outcome.failures);
    assert!(outcome.requests > 200, "{outcome:?}");
}

struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    requests: u64,
    failures: Vec<String>,
}

/// One request on a connection of its own; the whole answer.
pub fn http_get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.") && answer.contains(" 200 OK\r\n") && answer.contains("\r\n\r\n") {
        return Ok(answer);
    }
    Err(std::io::Error::other(format!("not an answer: {answer:?}")))
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, sent) = (stop.clone(), sent.clone());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = http_get(address) {
                        failures.push(format!("request {number}: {error}"));
                    }
                    std::thread::sleep(PAUSE);
                }
                failures
            })
        };
        Self { clients: (0..CLIENTS).map(client).collect(), stop, sent }
    }

    /// Waits until so many more requests were sent.
    fn let_pass(&self, requests: u64) {
        let until = self.sent.load(Ordering::Relaxed) + requests;
        while self.sent.load(Ordering::Relaxed) < until {
            std::thread::sleep(PAUSE);
        }
    }

    fn finish(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.clients.into_iter().flat_map(|client| client.join().expect("a client ends"));
        let failures = failures.collect();
        Outcome { requests: self.sent.load(Ordering::Relaxed), failures }
    }
}
