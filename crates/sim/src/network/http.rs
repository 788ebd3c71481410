//! The transport to an API server as another process has it: HTTP/2, JSON bodies, one connection for all requests.
//! Stands in for `client::https` (without TLS) and for the server's listener; runs over `pipe`.
//! The server knows a connection's user from the connection, as from a client certificate; a request ends with the
//! server that carries it out.

use std::{convert::Infallible, sync::Arc};

use api::ApiError;
use apiserver::{InProcess, authn::User, body::BoxError};
use bytes::Bytes;
use client::StreamingTransport;
use env::Env;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::DuplexStream;

use super::{
    CONNECT_TIMEOUT,
    pipe::{self, Link},
    unreachable,
};
use crate::cluster::api_server::{ApiServerProcess, Running};

/// Tasks of a connection end with the process they belong to.
#[derive(Clone)]
struct ProcessExecutor(Env);

impl<F> hyper::rt::Executor<F> for ProcessExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

pub struct HttpTransport {
    server: Arc<ApiServerProcess>,
    user: User,
    /// Of the client's process.
    env: Env,
    link: Link,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl HttpTransport {
    pub fn new(server: Arc<ApiServerProcess>, user: User, env: Env, link: Link) -> Self {
        Self { server, user, env, link, connection: Mutex::default() }
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, ApiError> {
        let open = self.connection.lock().clone().filter(|open| !open.is_closed());
        if let Some(open) = open {
            return Ok(open);
        }
        if self.link.network.is_cut(&self.link.client, self.link.server) {
            self.env.sleep(CONNECT_TIMEOUT).await;
            return Err(unreachable("connection timed out"));
        }
        let running = self.server.running().ok_or_else(|| unreachable("connection refused"))?;
        let (near, far) = pipe::open(self.link.clone());
        running.env.spawn(serve(far, running.clone(), self.user.clone()));
        // h2 would remember streams that were given up for a second of real time, which no seed decides.
        let mut http2 = http2::Builder::new(ProcessExecutor(self.env.clone()));
        let handshake = http2.max_concurrent_reset_streams(0).handshake(TokioIo::new(near));
        let (sender, connection) = handshake.await.map_err(|e| unreachable(&e.to_string()))?;
        self.env.spawn(async move { connection.await.ok() });
        *self.connection.lock() = Some(sender.clone());
        Ok(sender)
    }
}

/// The server's side of one connection.
async fn serve(stream: DuplexStream, running: Running, user: User) {
    let executor = ProcessExecutor(running.env.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| body.map_err(|e| Box::new(e) as BoxError).boxed_unsync());
        request.extensions_mut().insert(InProcess(user.clone()));
        let server = running.server.clone();
        async move { Ok::<_, Infallible>(server.handle(request).await) }
    });
    let mut http2 = hyper::server::conn::http2::Builder::new(executor);
    // The real date would change how many bytes an answer has.
    let connection = http2.auto_date_header(false).serve_connection(TokioIo::new(stream), service);
    // How the connection ended is the client's to notice.
    connection.await.ok();
}

impl StreamingTransport for HttpTransport {
    async fn stream(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, ApiError> {
        let uri = format!("https://server-{}{}", self.link.server, request.uri());
        *request.uri_mut() = uri.parse::<Uri>().expect("a path of ours");
        let headers = request.headers_mut();
        headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        self.server.count(&request);
        let answer = self.connection().await?.send_request(request.map(Full::new)).await;
        answer.map_err(|e| unreachable(&e.to_string()))
    }

    fn unreachable(why: &str) -> ApiError {
        unreachable(why)
    }
}
