//! Asks upstream name servers about names that are not ours.
//! Used by `server`; remembers in `cache`.
//! Invariant: at most `CONCURRENT` questions are under way; beyond that the answer is SERVFAIL at once.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use env::Env;
use hickory_proto::{
    ProtoError,
    op::{Edns, Message, MessageType, OpCode, Query},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
};

use crate::cache::Cache;

const CONCURRENT: usize = 1000;
const CACHED: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(2);
/// What fits through every path without fragments.
pub const PAYLOAD: u16 = 1232;

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
    upstreams: Vec<SocketAddr>,
    /// The one that answered last; others are asked only when it fails.
    preferred: AtomicUsize,
    slots: Semaphore,
    cache: Mutex<Cache>,
}

impl Forwarder {
    pub fn new(env: Env, upstreams: Vec<SocketAddr>, longest: Duration) -> Self {
        let cache = Mutex::new(Cache::new(CACHED, longest));
        Self { env, upstreams, preferred: AtomicUsize::new(0), slots: Semaphore::new(CONCURRENT), cache }
    }

    /// Upstream's answer to `query`, from memory where possible.
    pub async fn ask(&self, query: &Query, dnssec: bool) -> Result<Message, ForwardError> {
        let key = (query.name().to_lowercase(), query.query_type(), dnssec);
        if let Some(message) = self.cache.lock().get(&key, self.env.monotonic()) {
            return Ok(message);
        }
        let _slot = self.slots.try_acquire().map_err(|_| ForwardError::Overloaded)?;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = ForwardError::NoUpstream;
        for offset in 0..self.upstreams.len() {
            let index = (first + offset) % self.upstreams.len();
            match self.ask_one(self.upstreams[index], query, dnssec).await {
                Ok(message) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    self.cache.lock().put(key, &message, self.env.monotonic());
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
        edns.set_max_payload(PAYLOAD).set_dnssec_ok(dnssec);
        question.set_edns(edns);
        let bytes = question.to_vec()?;
        let exchange = self.over_udp(upstream, &question, &bytes);
        let answer = self.env.timeout(PATIENCE, exchange).await.ok_or(ForwardError::Silence(upstream))??;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        let exchange = over_tcp(upstream, &bytes);
        self.env.timeout(PATIENCE, exchange).await.ok_or(ForwardError::Silence(upstream))?
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
