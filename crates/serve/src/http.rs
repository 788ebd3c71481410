//! HTTP over accepted connections: HTTP/2 where a TLS client asks for it, else HTTP/1.1, with upgrades.
//! Used by every HTTP listener of ours; what is asked goes to a `Handler`.
//! A connection is a task of its own; nothing that happens on it ends the listener.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc};

use env::Env;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Limits, Slot, Slots, accept,
    activity::{Activity, TrackedStream},
    deadlines,
    framing_guard::{FramingGuard, GuardedStream},
    limits::{ERROR_RESET_STREAMS_MAX, RESET_STREAMS_PENDING_MAX},
    replayed_stream::{ReplayedStream, http2_preface},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const H2: &[u8] = b"h2";

/// Who is at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: Option<SocketAddr>,
    /// The certificates it has shown, its own first; the handshake has proven that it has the key.
    pub certificates: Option<Vec<CertificateDer<'static>>>,
}

/// Marks an answer that has an end, though its body does not know its length: who does not read it is cut off.
#[derive(Clone)]
pub struct Finite;

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    type Body: Body<Data: Send, Error: Into<BoxError>> + Send + 'static;

    fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: &Arc<Peer>,
    ) -> BoxFuture<'static, Response<Self::Body>>;

    fn handshake_failed(&self) {}

    /// What the next handshake goes by, where that is no longer what the listener began with. Made by `offering_http`.
    fn tls_now(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    /// May look at a connection before its TLS handshake; gives it back at once, or says later how it goes on. `None`
    /// then means that it has been served.
    fn before_tls(
        self: &Arc<Self>,
        stream: TcpStream,
    ) -> Result<BoxFuture<'static, Option<ReplayedStream>>, TcpStream> {
        Err(stream)
    }
}

/// With the protocols that a client may choose from.
pub fn offering_http(mut tls: ServerConfig) -> Arc<ServerConfig> {
    tls.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
    Arc::new(tls)
}

/// Serves TLS until `stop`, then lets requests under way finish for a moment.
pub async fn serve_https<H: Handler>(
    listener: TcpListener,
    tls: ServerConfig,
    handler: Arc<H>,
    limits: Limits,
    env: Env,
    stop: CancellationToken,
) {
    serve(listener, Some(TlsAcceptor::from(offering_http(tls))), handler, limits, env, stop).await;
}

/// Serves plain HTTP until `stop`, then lets requests under way finish for a moment.
pub async fn serve_http<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    limits: Limits,
    env: Env,
    stop: CancellationToken,
) {
    serve(listener, None, handler, limits, env, stop).await;
}

async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    handler: Arc<H>,
    limits: Limits,
    env: Env,
    stop: CancellationToken,
) {
    let (slots, drain_timeout) = (Slots::with_limits(&limits), limits.drain_timeout);
    let server = Arc::new(Server { tls, handler, limits, env: env.clone(), stop: stop.clone() });
    let connections = TaskTracker::new();
    while let Some((stream, peer, slot)) = stop.run_until_cancelled(accept(&listener, &slots, &env)).await {
        env.spawn(connections.track_future(server.clone().accepted(stream, peer, slot)));
    }
    drop(listener);
    connections.close();
    if env.timeout(drain_timeout, connections.wait()).await.is_none() {
        tracing::debug!(connections = connections.len(), "closing connections that are still in use");
    }
}

struct Server<H> {
    tls: Option<TlsAcceptor>,
    handler: Arc<H>,
    limits: Limits,
    env: Env,
    stop: CancellationToken,
}

impl<H: Handler> Server<H> {
    /// Looks at the first bytes of a connection where that matters.
    async fn accepted(self: Arc<Self>, stream: TcpStream, address: Option<SocketAddr>, slot: Slot) {
        if self.tls.is_some() {
            match self.handler.before_tls(stream) {
                Err(stream) => self.connection(stream, address, slot).await,
                Ok(looking) => {
                    if let Some(stream) = looking.await {
                        self.connection(stream, address, slot).await;
                    }
                }
            }
        } else if self.limits.prior_knowledge_http2 {
            let reading = self.env.timeout(self.limits.header_timeout, http2_preface(stream));
            if let Some(Some(Some((stream, multiplexed)))) = self.stop.run_until_cancelled(reading).await {
                self.http(stream, slot, Peer { address, certificates: None }, multiplexed).await;
            }
        } else {
            self.connection(stream, address, slot).await;
        }
    }

    async fn connection<S>(self: Arc<Self>, stream: S, address: Option<SocketAddr>, slot: Slot)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else {
            let peer = Peer { address, certificates: None };
            return self.http(stream, slot, peer, false).await;
        };
        let tls = self.handler.tls_now().map_or_else(|| tls.clone(), TlsAcceptor::from);
        let stream = match self.env.timeout(self.limits.handshake_timeout, tls.accept(stream)).await {
            Some(Ok(stream)) => stream,
            failed => {
                let error = failed.and_then(Result::err).unwrap_or_else(|| std::io::ErrorKind::TimedOut.into());
                tracing::debug!(?address, %error, "a TLS handshake failed");
                return self.handler.handshake_failed();
            }
        };
        let session = stream.get_ref().1;
        let shown = session.peer_certificates();
        let certificates = shown.map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect());
        let multiplexed = session.alpn_protocol() == Some(H2);
        self.http(stream, slot, Peer { address, certificates }, multiplexed).await;
    }

    async fn http<S>(&self, stream: S, slot: Slot, peer: Peer, multiplexed: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Activity::new(self.env.clone());
        let guard = (self.limits.strict_framing && !multiplexed).then(FramingGuard::new);
        let stream = GuardedStream { stream, guard };
        let stream = TokioIo::new(TrackedStream::new(stream, activity.clone(), slot));
        let (handler, peer, began) = (self.handler.clone(), Arc::new(peer), activity.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let begun = began.begin();
            let answer = handler.handle(request, &peer);
            async move {
                let mut answer = answer.await;
                let finite = answer.extensions_mut().remove::<Finite>().is_some();
                Ok::<_, Infallible>(answer.map(|body| begun.answer(body, finite)))
            }
        });
        let (limits, env, stop) = (&self.limits, &self.env, &self.stop);
        if multiplexed {
            let mut http2 = conn::http2::Builder::new(TokioExecutor::new());
            http2
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.streams_per_connection)
                .max_header_list_size(limits.header_bytes)
                .max_pending_accept_reset_streams(RESET_STREAMS_PENDING_MAX)
                .max_local_error_reset_streams(ERROR_RESET_STREAMS_MAX)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .keep_alive_interval(limits.ping_interval)
                .keep_alive_timeout(limits.ping_timeout);
            let connection = pin!(http2.serve_connection(stream, service));
            let drain = |connection: std::pin::Pin<&mut conn::http2::Connection<_, _, _>>| {
                connection.graceful_shutdown();
            };
            deadlines::drive(connection, drain, true, &activity, limits, env, stop).await;
        } else {
            let mut http1 = conn::http1::Builder::new();
            // `deadlines` tells the wait for a request from a head that is slow; hyper's own does not.
            http1.timer(TokioTimer::new()).header_read_timeout(None).max_header_size(limits.header_bytes as usize);
            let connection = pin!(http1.serve_connection(stream, service).with_upgrades());
            let drain = |connection: std::pin::Pin<&mut conn::http1::UpgradeableConnection<_, _>>| {
                connection.graceful_shutdown();
            };
            deadlines::drive(connection, drain, false, &activity, limits, env, stop).await;
        }
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
