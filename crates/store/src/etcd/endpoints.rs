//! The servers of one etcd, of which one is in use until it does not answer: then the next is.
//! Asked by the store and its watches for every request; a watch starts again elsewhere when its server is left.
//! What may have been carried out is never sent again.

use std::{future::Future, time::Duration};

use env::Env;
use etcd_client::{Client, Error, GetOptions};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{REQUEST_TIMEOUT, convert};
use crate::StoreError;

/// A server that takes longer is asked whether it is there at all.
const PATIENCE: Duration = Duration::from_millis(700);
const PING_TIMEOUT: Duration = Duration::from_millis(800);
/// One that did not say that it is there is not asked for so long, if there is another.
const AVOIDANCE: Duration = Duration::from_secs(10);
/// Changes over are told once in so long: while there is no majority, every request makes some.
const TOLD_INTERVAL: Duration = Duration::from_secs(10);
/// How long servers are asked that choose a leader among them, and how often.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(5);
const ELECTION_PAUSE: Duration = Duration::from_millis(50);

/// Of gRPC: cancelled, unknown, deadline exceeded, internal, unavailable. The rest is said of a request that arrived.
const TRANSPORT_CODES: [i32; 5] = [1, 2, 4, 13, 14];
/// A server apart from the others says so before it does anything.
const NO_LEADER: &str = "etcdserver: no leader";

pub(super) struct Endpoints {
    clients: Vec<Client>,
    current: watch::Sender<usize>,
    /// Until when (monotonic) each is avoided.
    avoided: Mutex<Vec<Duration>>,
    /// How long the server in use may take for an answer, where there are others.
    patience: Duration,
    /// When (monotonic) somebody was last told of a change-over.
    told: Mutex<Option<Duration>>,
    env: Env,
}

/// Whether a request can be sent again when nobody knows what became of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    Write,
}

/// Why there is no answer.
enum Failure {
    /// The server's own word about the request.
    Refused(Error),
    /// It was not carried out: there was no connection.
    NotSent(Error),
    /// It was not carried out: the servers have no leader at this moment, or this one is apart from the others.
    NoLeader(Error),
    /// The server is there, but nobody knows what came of the request.
    Unknown(StoreError),
    /// The server does not answer anything.
    Silent(StoreError),
}

impl Endpoints {
    pub fn new(clients: Vec<Client>, env: Env) -> Self {
        let (avoided, told) = (Mutex::new(vec![Duration::ZERO; clients.len()]), Mutex::default());
        Self { clients, current: watch::Sender::new(0), avoided, patience: PATIENCE, told, env }
    }

    /// The one in use.
    pub fn client(&self) -> Client {
        self.clients[*self.current.borrow()].clone()
    }

    /// How long a stream is waited for.
    pub fn connect_timeout(&self) -> Duration {
        if self.clients.len() > 1 { self.patience + PING_TIMEOUT } else { REQUEST_TIMEOUT }
    }

    /// Hears when another comes into use.
    pub fn subscribe(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// The next one comes into use, unless somebody has seen to it already.
    pub fn leave(&self, place: usize) {
        let (count, now) = (self.clients.len(), self.env.monotonic());
        let left = self.current.send_if_modified(|current| {
            let leaves = *current == place && count > 1;
            if leaves {
                let avoided = self.avoided.lock();
                let mut others = (1..count).map(|offset| (place + offset) % count);
                *current = others.find(|other| avoided[*other] <= now).unwrap_or((place + 1) % count);
            }
            leaves
        });
        if left && self.is_news() {
            tracing::warn!(place, servers = self.clients.len(), "an etcd server does not answer; changing over");
        }
    }

    fn is_news(&self) -> bool {
        let (now, mut told) = (self.env.monotonic(), self.told.lock());
        let is_news = told.is_none_or(|told| now >= told + TOLD_INTERVAL);
        if is_news {
            *told = Some(now);
        }
        is_news
    }

    fn avoid(&self, place: usize) {
        self.avoided.lock()[place] = self.env.monotonic() + AVOIDANCE;
    }

    /// Waits for an answer, but not for ever; asks each server at most once, unless they choose a leader.
    pub async fn call<T, F>(&self, effect: Effect, request: impl Fn(Client) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let start = self.env.monotonic();
        let mut others = self.clients.len() - 1;
        loop {
            let place = *self.current.borrow();
            let client = self.clients[place].clone();
            let left = REQUEST_TIMEOUT.saturating_sub(self.env.monotonic() - start);
            let failure = match self.ask(&client, left, request(client.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let passed = self.env.monotonic() - start;
            let (error, again) = match failure {
                Failure::Refused(error) => return Err(convert::error(&error)),
                Failure::NoLeader(_) if passed < ELECTION_TIMEOUT && self.clients.len() > 1 => {
                    self.leave(place);
                    self.env.sleep(ELECTION_PAUSE).await;
                    continue;
                }
                Failure::NoLeader(error) => (convert::error(&error), false),
                Failure::NotSent(error) => {
                    self.avoid(place);
                    (convert::error(&error), true)
                }
                Failure::Unknown(error) => (error, effect == Effect::Read),
                Failure::Silent(error) => {
                    self.avoid(place);
                    (error, effect == Effect::Read)
                }
            };
            self.leave(place);
            if !again || others == 0 {
                return Err(error);
            }
            others -= 1;
        }
    }

    async fn ask<T>(
        &self,
        client: &Client,
        limit: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let silent = || Failure::Silent(StoreError::Unavailable(format!("etcd did not answer within {limit:?}")));
        let mut request = std::pin::pin!(request);
        if self.clients.len() > 1 {
            if let Some(answer) = self.env.timeout(self.patience.min(limit), &mut request).await {
                return answer.map_err(failure);
            }
            // A large answer takes its time; a server that is gone does not answer anything.
            // Of what it has itself: it may wait for a leader like the others.
            let options = GetOptions::new().with_count_only().with_serializable();
            let ping = async { client.kv_client().get("\0", Some(options)).await };
            let mut ping = std::pin::pin!(self.env.timeout(PING_TIMEOUT, ping));
            tokio::select! {
                answer = &mut request => return answer.map_err(failure),
                pong = &mut ping => if !matches!(pong, Some(Ok(_))) {
                    return Err(silent());
                },
            }
        }
        match self.env.timeout(limit, request).await {
            Some(answer) => answer.map_err(failure),
            None => Err(Failure::Unknown(StoreError::Unavailable(format!("etcd did not answer within {limit:?}")))),
        }
    }
}

fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::GRpcStatus(status) => status,
        // Before anything was sent.
        Error::TransportError(_) => return Failure::NotSent(error),
        _ => return Failure::Refused(error),
    };
    let (has_no_leader, is_unsent) = (status.message().contains(NO_LEADER), is_connect(status));
    match TRANSPORT_CODES.contains(&(status.code() as i32)) {
        true if has_no_leader => Failure::NoLeader(error),
        true if is_unsent => Failure::NotSent(error),
        true => Failure::Unknown(convert::error(&error)),
        false => Failure::Refused(error),
    }
}

/// Whether there was no connection to send anything over.
fn is_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("connect error") {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody listens there.
    fn endpoints(count: usize, env: &Env) -> Endpoints {
        let client = |_| {
            let connect = Client::connect(["http://127.0.0.1:1"], None);
            futures::executor::block_on(connect).expect("it connects when it is used")
        };
        Endpoints::new((0..count).map(client).collect(), env.clone())
    }

    #[tokio::test]
    async fn each_server_is_asked_once_and_a_write_that_may_have_been_done_is_not_sent_again() {
        let env = Env::real();
        let refused = || Error::InvalidArgs("x".into());
        for (effect, hangs, expected) in [
            // A connection that is refused is tried elsewhere, whatever the request is.
            (Effect::Read, false, 3),
            (Effect::Write, false, 3),
            (Effect::Read, true, 3),
            (Effect::Write, true, 1),
        ] {
            let mut endpoints = endpoints(3, &env);
            if !hangs {
                // A machine may take its time to refuse a connection.
                endpoints.patience = Duration::from_secs(60);
            }
            let asked = std::sync::atomic::AtomicUsize::new(0);
            let request = |client: Client| {
                asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                async move {
                    if hangs {
                        return std::future::pending().await;
                    }
                    client.kv_client().get("k", None).await.map(drop)
                }
            };
            assert!(endpoints.call(effect, request).await.is_err());
            assert_eq!(asked.into_inner(), expected, "hangs: {hangs}");
        }
        let endpoints = endpoints(2, &env);
        let mut changed = endpoints.subscribe();
        assert!(endpoints.call(Effect::Read, |_| async { Err::<(), _>(refused()) }).await.is_err());
        assert!(!changed.has_changed().unwrap(), "the server answered");
        endpoints.leave(0);
        endpoints.leave(0);
        assert_eq!(*changed.borrow_and_update(), 1, "left once");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_over_without_end_are_told_now_and_then() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let endpoints = endpoints(2, &env);
        assert!(endpoints.is_news() && !endpoints.is_news());
        env.sleep(TOLD_INTERVAL).await;
        assert!(endpoints.is_news() && !endpoints.is_news());
    }
}
