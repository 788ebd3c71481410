//! Several candidates and one Lease: never two leaders, and always one again.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use ::api::Resource;
use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::{ListParams, ObjectList, Transport, WatchStream};

/// One Lease with a version, and a line that can be cut.
#[derive(Clone, Default)]
struct OneLease {
    lease: Arc<Mutex<Option<Value>>>,
    cut: Arc<AtomicBool>,
    /// How many more writes somebody else gets ahead of.
    overtaken: Arc<AtomicUsize>,
    /// How long the answer to a write takes to come back.
    answer_delay: Arc<Mutex<Duration>>,
}

impl OneLease {
    fn is_overtaken(&self) -> bool {
        self.overtaken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[async_trait]
impl Transport for OneLease {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let is_write = *request.method() != Method::GET;
        let answer = self.answer(&request);
        if is_write {
            let delay = *self.answer_delay.lock();
            env::sleep(delay).await;
        }
        answer
    }

    async fn list(&self, _: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        Err(ApiError::internal("not served"))
    }

    async fn watch(&self, _: &Resource, _: Option<&str>, _: &ListParams, _: &str) -> Result<WatchStream, ApiError> {
        Err(ApiError::internal("not served"))
    }
}

impl OneLease {
    fn answer(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        if self.cut.load(Ordering::Relaxed) {
            return Err(ApiError::new(::api::Reason::ServiceUnavailable, "no route"));
        }
        let mut lease = self.lease.lock();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let version = |v: &Value| v["metadata"]["resourceVersion"].as_str().unwrap_or("0").parse::<u64>().unwrap();
        let current = lease.as_ref().map_or(0, version);
        match *request.method() {
            Method::GET if lease.is_none() => return Err(ApiError::not_found("coordination.k8s.io", "leases", "l")),
            Method::GET => {}
            Method::POST if lease.is_some() => {
                return Err(ApiError::new(::api::Reason::AlreadyExists, "exists"));
            }
            Method::PUT if version(&body) != current || self.is_overtaken() => {
                return Err(ApiError::conflict("coordination.k8s.io", "leases", "l", "changed"));
            }
            _ => {
                let mut new = body;
                new["metadata"]["resourceVersion"] = json!((current + 1).to_string());
                *lease = Some(new);
            }
        }
        Ok(Response::new(Bytes::from(lease.as_ref().unwrap_or(&Value::Null).to_string())))
    }
}

type Leaders = Arc<Mutex<HashSet<String>>>;

/// A candidate that tries again for ever. Panics when it is not alone at the top.
fn candidate(name: &str, lease: &OneLease, leaders: &Leaders, env: &Env) -> tokio::task::JoinHandle<()> {
    candidate_of(LeaderElection::new("l", name.to_string()), lease, leaders, env)
}

fn candidate_of(
    election: LeaderElection,
    lease: &OneLease,
    leaders: &Leaders,
    env: &Env,
) -> tokio::task::JoinHandle<()> {
    struct Leading(Leaders, String);
    impl Drop for Leading {
        fn drop(&mut self) {
            self.0.lock().remove(&self.1);
        }
    }
    let (client, leaders, env) = (Client::new(lease.clone()), leaders.clone(), env.clone());
    let name = election.identity.clone();
    env::spawn(async move {
        loop {
            let work = async {
                let _leading = Leading(leaders.clone(), name.clone());
                leaders.lock().insert(name.clone());
                assert_eq!(leaders.lock().len(), 1, "two leaders");
                std::future::pending::<()>().await;
            };
            run_as_leader(&election, &client, &env, work).await.ok();
        }
    })
}

#[tokio::test(start_paused = true)]
async fn leadership_passes_on_and_is_never_shared() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (leaders, server) = (Leaders::default(), OneLease::default());
    // Each has a line of its own to the same lease.
    let line = || OneLease { lease: server.lease.clone(), ..OneLease::default() };
    let (one, two) = (line(), line());
    let first = candidate("one", &one, &leaders, &env);
    env.sleep(Duration::from_secs(5)).await;
    let second = candidate("two", &two, &leaders, &env);
    let leading = || leaders.lock().iter().cloned().collect::<Vec<_>>();
    env.sleep(Duration::from_secs(60)).await;
    assert_eq!(leading(), ["one"], "it renews");

    one.cut.store(true, Ordering::Relaxed);
    env.sleep(Duration::from_secs(13)).await;
    assert_eq!(leading(), Vec::<String>::new(), "it stops before the lease can pass on");
    env.sleep(Duration::from_secs(10)).await;
    assert_eq!(leading(), ["two"]);

    one.cut.store(false, Ordering::Relaxed);
    env.sleep(Duration::from_secs(60)).await;
    assert_eq!(leading(), ["two"], "nobody is pushed aside");
    // A crash: the lease is not given back.
    second.abort();
    env.sleep(Duration::from_secs(25)).await;
    assert_eq!(leading(), ["one"]);
    let transitions = server.lease.lock().as_ref().unwrap()["spec"]["leaseTransitions"].clone();
    assert_eq!(transitions, 2);
    first.abort();
}

/// A leader whose renewal was answered late, and who is cut off then, stops before the others take the lease.
#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_before_the_request_was_sent() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (leaders, server) = (Leaders::default(), OneLease::default());
    let line = || OneLease { lease: server.lease.clone(), ..OneLease::default() };
    let (one, two) = (line(), line());
    // Nearly all of the lease's 15 s.
    let election = LeaderElection { renew_deadline: Duration::from_secs(14), ..LeaderElection::new("l", "one".into()) };
    let first = candidate_of(election, &one, &leaders, &env);
    env.sleep(Duration::from_secs(5)).await;
    let second = candidate("two", &two, &leaders, &env);
    env.sleep(Duration::from_secs(5)).await;
    let renewed = || server.lease.lock().as_ref().unwrap()["spec"]["renewTime"].clone();
    *one.answer_delay.lock() = Duration::from_secs(11);
    let before = renewed();
    while renewed() == before {
        env.sleep(Duration::from_millis(100)).await;
    }
    // The renewal is done; its answer is on the way, and nothing else will get through.
    one.cut.store(true, Ordering::Relaxed);
    for tenth in 0..300 {
        assert!(!second.is_finished() && leaders.lock().len() <= 1, "two leaders after {tenth} tenths of a second");
        env.sleep(Duration::from_millis(100)).await;
    }
    assert!(leaders.lock().contains("two"));
    first.abort();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn conflicts_cost_the_lease_only_when_they_do_not_end() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (leaders, line) = (Leaders::default(), OneLease::default());
    let leader = candidate("one", &line, &leaders, &env);
    env.sleep(Duration::from_secs(5)).await;
    line.overtaken.store(3, Ordering::Relaxed);
    for second in 0..30 {
        assert_eq!(leaders.lock().len(), 1, "after {second} s");
        env.sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(line.overtaken.load(Ordering::Relaxed), 0);
    line.overtaken.store(usize::MAX, Ordering::Relaxed);
    env.sleep(Duration::from_secs(13)).await;
    assert_eq!(leaders.lock().len(), 0);
    leader.abort();
}

/// What the work has spawned ends with its term, and a new term begins it anew.
#[tokio::test(start_paused = true)]
async fn terms_end_with_everything_they_started() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (line, shutdown) = (OneLease::default(), CancellationToken::new());
    let (begun, alive) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let task = {
        let (client, env, shutdown) = (Client::new(line.clone()), env.clone(), shutdown.clone());
        let (begun, alive) = (begun.clone(), alive.clone());
        env::spawn(async move {
            let election = LeaderElection::new("l", "one".into());
            let start = |term: CancellationToken| {
                let (begun, alive) = (begun.clone(), alive.clone());
                async move {
                    *begun.lock() += 1;
                    *alive.lock() += 1;
                    let spawned = term.clone();
                    env::spawn(async move {
                        spawned.cancelled().await;
                        *alive.lock() -= 1;
                    });
                    term.cancelled().await;
                }
            };
            lead(&election, &client, &env, &shutdown, start).await;
        })
    };
    let state = || (*begun.lock(), *alive.lock());
    env.sleep(Duration::from_secs(30)).await;
    assert_eq!(state(), (1, 1));
    line.cut.store(true, Ordering::Relaxed);
    env.sleep(Duration::from_secs(14)).await;
    assert_eq!(state(), (1, 0), "the term is over");
    line.cut.store(false, Ordering::Relaxed);
    env.sleep(Duration::from_secs(30)).await;
    assert_eq!(state(), (2, 1));
    shutdown.cancel();
    task.await.unwrap();
    env.sleep(Duration::from_secs(1)).await;
    assert_eq!(state(), (2, 0));
}

/// On one Lease with upstream's: what it left is read as it means it, and what we leave is what it would.
#[tokio::test(start_paused = true)]
async fn the_lease_is_given_back_and_taken_as_upstream_does() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (leaders, server) = (Leaders::default(), OneLease::default());
    let theirs = |holder: &str, seconds: u64| {
        let time = "2025-12-31T23:59:59.000000Z";
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": time,
            "renewTime": time, "leaseTransitions": 3 });
        let metadata = json!({ "name": "l", "namespace": "kube-system", "resourceVersion": "1" });
        Some(json!({ "metadata": metadata, "spec": spec }))
    };
    let spec = |field: &str| server.lease.lock().as_ref().unwrap()["spec"][field].clone();
    // A holder that asked for a minute has it, whatever we ask for.
    *server.lease.lock() = theirs("upstream", 60);
    let waiting = candidate("one", &server, &leaders, &env);
    env.sleep(Duration::from_secs(55)).await;
    assert!(leaders.lock().is_empty(), "its minute is not over");
    env.sleep(Duration::from_secs(15)).await;
    assert_eq!((spec("holderIdentity"), spec("leaseTransitions")), (json!("one"), json!(4)));
    waiting.abort();
    // One that was given back is free at once, and our own is given back at the end.
    *server.lease.lock() = theirs("", 1);
    let (client, shutdown) = (Client::new(server.clone()), CancellationToken::new());
    let led = {
        let (env, shutdown) = (env.clone(), shutdown.clone());
        env::spawn(async move {
            let work = |term: CancellationToken| async move { term.cancelled().await };
            lead(&LeaderElection::new("l", "two".into()), &client, &env, &shutdown, work).await;
        })
    };
    env.sleep(Duration::from_millis(100)).await;
    assert_eq!((spec("holderIdentity"), spec("leaseTransitions")), (json!("two"), json!(4)));
    let renewed = spec("renewTime");
    assert!(renewed.as_str().is_some_and(|time| time.len() == "2026-01-01T00:00:00.000000Z".len()), "{renewed}");
    shutdown.cancel();
    led.await.unwrap();
    assert_eq!((spec("holderIdentity"), spec("leaseDurationSeconds")), (json!(""), json!(1)));
    assert_eq!(spec("leaseTransitions"), 4);
}
