//! Answers gRPC calls on a socket: one row per method.
//! Used for the sockets that plugins and monitors call, and by `example`.
//! Limited in how many callers it has at once; more wait to be accepted.

use std::{
    collections::HashMap,
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{BoxStream, FuturesUnordered},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::{Request, Response, Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;

use super::authority::AnyAuthority;

const CALLERS_MAX: usize = 64;
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const DIRECTORY_MODE: u32 = 0o750;

type Answer = BoxFuture<'static, http::Response<Body>>;
type Method = Box<dyn Fn(http::Request<Incoming>) -> Answer + Send + Sync>;

#[derive(Default)]
pub struct GrpcService {
    /// By the path of the request.
    methods: HashMap<&'static str, Method>,
}

impl GrpcService {
    pub fn unary<Q, R, F, A>(mut self, path: &'static str, answer: F) -> Self
    where
        Q: prost::Message + Default + Send + 'static,
        R: prost::Message + Send + 'static,
        F: Fn(Q) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Result<R, Status>> + Send + 'static,
    {
        let method = move |request| {
            let answer = answer.clone();
            let service = tower::service_fn(move |request: Request<Q>| {
                let answer = answer(request.into_inner());
                async move { answer.await.map(Response::new) }
            });
            async move { Grpc::new(ProstCodec::<R, Q>::default()).unary(service, request).await }.boxed()
        };
        self.methods.insert(path, Box::new(method));
        self
    }

    pub fn server_streaming<Q, R, F, S>(mut self, path: &'static str, answer: F) -> Self
    where
        Q: prost::Message + Default + Send + 'static,
        R: prost::Message + Send + 'static,
        F: Fn(Q) -> S + Clone + Send + Sync + 'static,
        S: Stream<Item = Result<R, Status>> + Send + 'static,
    {
        let method = move |request| {
            let answer = answer.clone();
            let service = tower::service_fn(move |request: Request<Q>| {
                let answers: BoxStream<'static, Result<R, Status>> = answer(request.into_inner()).boxed();
                async move { Ok::<_, Status>(Response::new(answers)) }
            });
            async move { Grpc::new(ProstCodec::<R, Q>::default()).server_streaming(service, request).await }.boxed()
        };
        self.methods.insert(path, Box::new(method));
        self
    }

    /// Serves until it is dropped.
    pub async fn serve(self, listener: UnixListener) {
        let service = Arc::new(self);
        let mut callers = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if callers.len() < CALLERS_MAX => match accepted {
                    Ok((stream, _)) => callers.push(service.clone().answer(stream)),
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a plugin's connection");
                        env::sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(()) = callers.next() => {}
            }
        }
    }

    async fn answer(self: Arc<Self>, stream: UnixStream) {
        let answer = service_fn(move |request: http::Request<Incoming>| {
            let answer = match self.methods.get(request.uri().path()) {
                Some(method) => method(request),
                None => futures::future::ready(Status::unimplemented("unknown method").into_http()).boxed(),
            };
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        if let Err(error) = server.serve_connection(TokioIo::new(AnyAuthority::new(stream)), answer).await {
            tracing::debug!(%error, "a plugin's connection failed");
        }
    }
}

/// Listens on a socket of this name, in place of one that nobody serves any more.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    }
    if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
