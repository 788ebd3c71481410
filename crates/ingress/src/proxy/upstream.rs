//! Connections to endpoints: kept while idle, driven by the request that uses them.
//! Used by `proxy`; a connection goes back when the answer's body has ended.
//! Invariant: a connection that is used again is idle on both sides (test:
//! `connections_to_endpoints_are_used_again`), and none is kept longer than `IDLE_TIMEOUT`.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use env::Env;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::body::RequestBody;
use crate::{backends::Protocol, upstream_tls::UpstreamTls};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Servers that close idle connections soon (Node.js after 5 s) may do so while a request is on its way.
const FRESH_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
const IDLE_PER_ENDPOINT_MAX: usize = 128;
const HTTP2_WINDOW_BYTES: u32 = 1 << 20;
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing was sent; the request is as it was.
    #[error("failed to connect: {1}")]
    Connect(Request<RequestBody>, io::Error),
    #[error("the connection was closed before the request was sent")]
    Unsent(Request<RequestBody>),
    #[error("no answer came: {0}")]
    Broken(hyper::Error),
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_empty() { "no body" } else { "a body" })
    }
}

impl From<TrySendError<Request<RequestBody>>> for SendError {
    fn from(mut error: TrySendError<Request<RequestBody>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(request),
            None => Self::Broken(error.into_error()),
        }
    }
}

/// Whom a connection is to.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    pub address: SocketAddr,
    pub tls: Option<&'a UpstreamTls>,
}

impl Endpoint<'_> {
    fn key(&self) -> EndpointKey {
        (self.address, self.tls.map_or(0, UpstreamTls::id))
    }
}

/// The address, and the id of its TLS settings or 0.
type EndpointKey = (SocketAddr, u64);

type Driver = BoxFuture<'static, hyper::Result<()>>;

/// One HTTP/1.1 connection. Nothing happens on it unless it is polled by who uses it.
pub struct Http1Connection {
    endpoint: EndpointKey,
    sender: http1::SendRequest<RequestBody>,
    /// None once it has ended.
    driver: Option<Driver>,
}

impl Http1Connection {
    /// Moves what can be moved.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if self.driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
            self.driver = None;
        }
    }

    fn is_idle(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }

    pub async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, SendError> {
        let mut sending = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            if self.driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
                self.driver = None;
            }
            sending.as_mut().poll(cx)
        })
        .await
        .map_err(SendError::from)
    }

    /// What is left when its protocol has changed: runs until the connection is handed over.
    pub async fn hand_over(self) {
        if let Some(driver) = self.driver {
            _ = driver.await;
        }
    }
}

struct IdleConnection {
    connection: Http1Connection,
    since: Duration,
}

/// Every connection that no request uses.
pub struct Pool {
    env: Env,
    http1: Mutex<HashMap<EndpointKey, Vec<IdleConnection>>>,
    http2: Mutex<HashMap<EndpointKey, http2::SendRequest<RequestBody>>>,
    sweeping: AtomicBool,
}

impl Pool {
    pub fn new(env: Env) -> Arc<Self> {
        Arc::new(Self { env, http1: Mutex::default(), http2: Mutex::default(), sweeping: AtomicBool::new(false) })
    }

    /// A connection to `endpoint`: the last one that was used, or a new one. `is_repeatable`: a request for which it does
    /// not matter that the endpoint closes the connection just now.
    pub async fn http1(&self, endpoint: Endpoint<'_>, is_repeatable: bool) -> io::Result<Http1Connection> {
        let key = endpoint.key();
        let idle_max = if is_repeatable { IDLE_TIMEOUT } else { FRESH_IDLE_TIMEOUT };
        while let Some(mut idle) = self.http1.lock().get_mut(&key).and_then(Vec::pop) {
            if self.env.monotonic().saturating_sub(idle.since) < idle_max && idle.connection.is_idle() {
                return Ok(idle.connection);
            }
        }
        let stream = self.connect(endpoint, Protocol::Http1).await?;
        let (sender, connection) =
            http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Http1Connection { endpoint: key, sender, driver: Some(Box::pin(connection.with_upgrades())) })
    }

    /// The one connection to `endpoint` that its requests share.
    pub async fn http2(&self, endpoint: Endpoint<'_>) -> io::Result<http2::SendRequest<RequestBody>> {
        let (key, address) = (endpoint.key(), endpoint.address);
        let shared = self.http2.lock().get(&key).filter(|sender| !sender.is_closed()).cloned();
        if let Some(sender) = shared {
            return Ok(sender);
        }
        let stream = self.connect(endpoint, Protocol::Http2).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_WINDOW_BYTES)
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        self.env.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, endpoint = %address, "a connection to an endpoint ended");
            }
        });
        let mut all = self.http2.lock();
        all.retain(|_, sender| !sender.is_closed());
        all.insert(key, sender.clone());
        Ok(sender)
    }

    async fn connect(&self, endpoint: Endpoint<'_>, protocol: Protocol) -> io::Result<UpstreamStream> {
        let connecting = async {
            let stream = TcpStream::connect(endpoint.address).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = endpoint.tls else { return Ok(UpstreamStream::Plain(stream)) };
            let connector = TlsConnector::from(tls.config(protocol).clone());
            let stream = connector.connect(tls.server_name().clone(), stream).await?;
            Ok(UpstreamStream::Tls(Box::new(stream)))
        };
        let connected = self.env.timeout(CONNECT_TIMEOUT, connecting).await;
        connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// A connection of its own, for bytes that are not ours to read.
    pub async fn raw(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let connected = self.env.timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        let stream = connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Keeps a connection whose last answer has ended, if it can be used again.
    fn put_back(self: &Arc<Self>, mut connection: Http1Connection) {
        if !connection.is_idle() {
            return;
        }
        let since = self.env.monotonic();
        {
            let mut all = self.http1.lock();
            let idle = all.entry(connection.endpoint).or_default();
            if idle.len() < IDLE_PER_ENDPOINT_MAX {
                idle.push(IdleConnection { connection, since });
            }
        }
        if !self.sweeping.swap(true, Ordering::Relaxed) {
            let pool = self.clone();
            self.env.spawn(async move { pool.sweep().await });
        }
    }

    /// Closes what is idle for too long, until nothing is.
    async fn sweep(self: Arc<Self>) {
        loop {
            self.env.sleep(IDLE_TIMEOUT / 2).await;
            let now = self.env.monotonic();
            let mut closing = Vec::new();
            let is_empty = {
                let mut all = self.http1.lock();
                all.retain(|_, idle| {
                    // The oldest are at the front.
                    let old = idle.partition_point(|idle| now.saturating_sub(idle.since) >= IDLE_TIMEOUT);
                    closing.extend(idle.drain(..old));
                    !idle.is_empty()
                });
                if all.is_empty() {
                    self.sweeping.store(false, Ordering::Relaxed);
                }
                all.is_empty()
            };
            drop(closing);
            if is_empty {
                return;
            }
        }
    }
}

/// A connection to an endpoint, with or without TLS.
enum UpstreamStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for UpstreamStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The body of an answer over HTTP/1.1: whoever reads it drives its connection.
pub struct UpstreamBody {
    incoming: Incoming,
    connection: Option<Http1Connection>,
    pool: Arc<Pool>,
}

impl UpstreamBody {
    pub fn new(incoming: Incoming, connection: Http1Connection, pool: Arc<Pool>) -> Self {
        Self { incoming, connection: Some(connection), pool }
    }

    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let mut polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if polled.is_pending()
            && let Some(connection) = &mut self.connection
        {
            connection.drive(cx);
            polled = Pin::new(&mut self.incoming).poll_frame(cx);
        }
        if let Poll::Ready(None) = polled {
            self.end();
        }
        polled
    }

    pub fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.put_back(connection);
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // One that broke off takes its connection with it.
        if self.incoming.is_end_stream() {
            self.end();
        }
    }
}
