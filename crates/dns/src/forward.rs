//! Asks upstream name servers about names that are not ours.
//! Used by `server`; remembers in `cache`.
//! Invariant: at most `FORWARDS_MAX` questions are under way; beyond that the answer is SERVFAIL at once (test:
//! `one_pod_has_so_many_forwarded_questions`).

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use env::Env;
use hickory_proto::{
    ProtoError,
    op::{Edns, Message, MessageType, OpCode, Query},
};
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
};

use crate::{
    cache::{Cache, Key},
    customization::{Customization, SharedCustomization},
    dns_metrics::{
        CACHE_ENTRIES, CACHE_HITS, CACHE_MISSES, CACHE_PREFETCH, CACHE_REQUESTS, FORWARD_DURATION, FORWARD_REJECTED,
        ROOT, SERVER, code_name,
    },
    upstreams::Upstreams,
};

const FORWARDS_MAX: usize = 1000;
const CACHE_ENTRIES_MAX: usize = 10_000;
const FORWARD_TIMEOUT: Duration = Duration::from_secs(2);
/// What fits through every path without fragments.
pub const UDP_PAYLOAD_BYTES: u16 = 1232;

#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("no upstream name server is configured")]
    NoUpstream,
    #[error("too many questions are under way")]
    Overloaded,
    #[error("no answer from {0}")]
    Silence(SocketAddr),
    #[error("failed to ask {0}: {1}")]
    Io(SocketAddr, std::io::Error),
    #[error("failed to encode or decode a message: {0}")]
    Wire(#[from] ProtoError),
}

pub struct Forwarder {
    env: Env,
    upstreams: Upstreams,
    /// The one that answered last; others are asked only when it fails.
    preferred: AtomicUsize,
    slots: Semaphore,
    cache: Mutex<Cache>,
    customization: SharedCustomization,
    metrics: Metrics,
}

impl Forwarder {
    pub fn new(env: Env, upstreams: Upstreams, longest: Duration) -> Self {
        let cache = Mutex::new(Cache::new(CACHE_ENTRIES_MAX, longest));
        let slots = Semaphore::new(FORWARDS_MAX);
        let (customization, metrics) = (SharedCustomization::default(), Metrics::default());
        Self { env, upstreams, preferred: AtomicUsize::new(0), slots, cache, customization, metrics }
    }

    pub fn customization(&self) -> &SharedCustomization {
        &self.customization
    }

    /// Other servers may have other answers.
    pub fn customize(&self, customization: Customization) {
        if self.customization.store(customization) {
            self.cache.lock().clear();
        }
    }

    /// What the whole server counts.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Upstream's answer to `query`, from memory where possible. One that many ask for is renewed before it ends.
    pub async fn ask(self: &Arc<Self>, query: &Query, dnssec: bool) -> Result<Message, ForwardError> {
        let key = (query.name().to_lowercase(), query.query_type(), dnssec);
        self.metrics.count(&CACHE_REQUESTS, &[SERVER, ROOT, ""]);
        let known = {
            let (now, mut cache) = (self.env.monotonic(), self.cache.lock());
            cache.get(&key, now).map(|message| (message, cache.begin_refresh(&key, now)))
        };
        if let Some((message, refresh)) = known {
            let of = if message.answers.is_empty() { "denial" } else { "success" };
            self.metrics.count(&CACHE_HITS, &[SERVER, of, ROOT, ""]);
            if refresh {
                self.metrics.count(&CACHE_PREFETCH, &[SERVER, ROOT, ""]);
                let (forwarder, query) = (self.clone(), query.clone());
                self.env.spawn(async move {
                    if let Err(error) = forwarder.ask_others(key, &query, dnssec).await {
                        tracing::debug!(name = %query.name(), %error, "failed to renew an answer");
                    }
                });
            }
            return Ok(message);
        }
        self.metrics.count(&CACHE_MISSES, &[SERVER, ROOT, ""]);
        self.ask_others(key, query, dnssec).await
    }

    async fn ask_others(&self, key: Key, query: &Query, dnssec: bool) -> Result<Message, ForwardError> {
        let _slot = self.slots.try_acquire().map_err(|_| {
            self.metrics.count(&FORWARD_REJECTED, &[]);
            ForwardError::Overloaded
        })?;
        let chosen = self.customization.load().servers(query.name()).map(|servers| self.upstreams.others(&servers));
        let is_chosen = chosen.is_some();
        let upstreams = chosen.unwrap_or_else(|| self.upstreams.current());
        let first = if is_chosen { 0 } else { self.preferred.load(Ordering::Relaxed) };
        let mut failure = ForwardError::NoUpstream;
        for offset in 0..upstreams.len() {
            let index = (first + offset) % upstreams.len();
            let began = self.env.monotonic();
            match self.ask_one(upstreams[index], query, dnssec).await {
                Ok(message) => {
                    let now = self.env.monotonic();
                    let labels = ["forward", &upstreams[index].to_string(), code_name(message.metadata.response_code)];
                    self.metrics.observe(&FORWARD_DURATION, &labels, (now - began).as_secs_f64());
                    if !is_chosen {
                        self.preferred.store(index, Ordering::Relaxed);
                    }
                    let mut cache = self.cache.lock();
                    cache.put(key, &message, now);
                    self.metrics.set(&CACHE_ENTRIES, &[SERVER, "success", ROOT, ""], cache.len() as f64);
                    return Ok(message);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn ask_one(&self, upstream: SocketAddr, query: &Query, dnssec: bool) -> Result<Message, ForwardError> {
        let mut question = Message::new(self.env.random_u64() as u16, MessageType::Query, OpCode::Query);
        question.metadata.recursion_desired = true;
        question.add_query(query.clone());
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD_BYTES).set_dnssec_ok(dnssec);
        question.set_edns(edns);
        let bytes = question.to_vec()?;
        let exchange = self.over_udp(upstream, &question, &bytes);
        let answer = self.env.timeout(FORWARD_TIMEOUT, exchange).await.ok_or(ForwardError::Silence(upstream))??;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        let exchange = over_tcp(upstream, &bytes);
        self.env.timeout(FORWARD_TIMEOUT, exchange).await.ok_or(ForwardError::Silence(upstream))?
    }

    async fn over_udp(&self, upstream: SocketAddr, question: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
        let failed = |error| ForwardError::Io(upstream, error);
        // A new socket each time: the kernel draws its port, which a forger has to guess with the id.
        let any: SocketAddr =
            if upstream.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(any).await.map_err(failed)?;
        socket.connect(upstream).await.map_err(failed)?;
        socket.send(bytes).await.map_err(failed)?;
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await.map_err(failed)?;
            let Ok(answer) = Message::from_vec(&buffer[..length]) else { continue };
            if answer.metadata.id == question.metadata.id && answer.queries == question.queries {
                return Ok(answer);
            }
        }
    }
}

async fn over_tcp(upstream: SocketAddr, bytes: &[u8]) -> Result<Message, ForwardError> {
    let exchange = async {
        let mut stream = TcpStream::connect(upstream).await?;
        let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    };
    let answer = exchange.await.map_err(|error| ForwardError::Io(upstream, error))?;
    Message::from_vec(&answer).map_err(|error| ForwardError::Io(upstream, std::io::Error::other(error)))
}
