//! The node's own HTTPS server: logs, exec, attach, port-forward, pods, stats, metrics; health on loopback.
//! Reached by the API server for `kubectl logs` and the like; sees the node through `View`.
//! Every request is authenticated and authorized.

mod auth;
mod byte_ranges;
mod checkpoint;
mod debug;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod logs;
mod manifest_server;
mod node_log_query;
mod pages;
mod port_channels;
mod ranges;
mod request_metrics;
pub(crate) mod server_view;
mod spdy;
mod streaming;
mod websocket;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use api::ApiError;
use async_trait::async_trait;
use bytes::Bytes;
use client::Client;
use cri::{Runtime, v1};
use env::Env;
use futures::{TryStreamExt, future::BoxFuture};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use k8s_openapi::api::core::v1::Pod;
use metrics::Metrics;
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use serde_json::Value;
use serve::{Handler, Peer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config, configuration::feature_gates::CONTAINER_CHECKPOINT, endpoint_drain::EndpointDrain,
    runtime::container_exits::ContainerExit, sources::submission::Submissions,
};
use auth::Auth;
use logs::LogOptions;
use manifest_server::ManifestServer;
use node_log_query::NodeLogQuery;
use streaming::Protocol;
use websocket::Streams;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// One container as the server needs it.
#[derive(Debug, Clone)]
pub struct ContainerView {
    /// The runtime's id, without the `containerd://`.
    pub id: String,
    pub log_path: PathBuf,
    pub running: bool,
}

/// What the server may know of the node.
#[async_trait]
pub trait View: Send + Sync + 'static {
    /// Every pod of this node, with its present status.
    fn pods(&self) -> Vec<Arc<Pod>>;
    /// The container of that name: the present one, or the one before it.
    async fn container(&self, pod: &Pod, name: &str, previous: bool) -> Result<ContainerView, ApiError>;
    /// The end of a container (by the runtime's id), to wait for.
    fn exit(&self, container_id: &str) -> ContainerExit;
    /// Whether a container (by the runtime's id) still runs.
    async fn is_running(&self, container_id: &str) -> bool;
    /// The id of the pod's sandbox.
    async fn sandbox(&self, pod: &Pod) -> Result<String, ApiError>;
    /// What the runtime runs, the newest first, whether it is wanted or not.
    async fn running_pods(&self) -> Result<Vec<Pod>, ApiError>;
    /// `/stats/summary`, or as much of it as says what processors and memory are used.
    async fn stats_summary(&self, only_cpu_and_memory: bool) -> Result<Value, ApiError>;
    /// `/spec`: what the machine is, in cAdvisor's form.
    async fn machine(&self) -> Result<Value, ApiError>;
    /// A page of metrics in Prometheus text: `metrics`, `resource`, `cadvisor`, `probes` or `slis`.
    async fn metrics(&self, page: &str) -> Result<String, ApiError>;
    /// Whether the node's loop turns.
    fn is_alive(&self) -> bool;
    /// Notes how a health check went.
    fn observe_health(&self, check: &str, passed: bool);
}

pub struct Server {
    pub view: Arc<dyn View>,
    pub runtime: Arc<dyn Runtime>,
    pub client: Client,
    pub env: Env,
    pub config: Arc<Config>,
    pub serving_certificate: Arc<dyn ResolvesServerCert>,
    /// PEM of the authorities whose client certificates are believed.
    pub client_ca_pem: Vec<u8>,
    pub endpoint_drain: Option<Arc<dyn EndpointDrain>>,
    pub metrics: Metrics,
    pub connections: serve::Limits,
}

struct Shared {
    view: Arc<dyn View>,
    runtime: Arc<dyn Runtime>,
    auth: Arc<Auth>,
    env: Env,
    endpoint_drain: Option<Arc<dyn EndpointDrain>>,
    config: Arc<Config>,
    metrics: Metrics,
}

impl Server {
    /// Serves what is submitted on this machine until shutdown, with the certificate and the checks of `serve`.
    pub async fn serve_manifests(
        self,
        listener: TcpListener,
        submissions: Arc<Submissions>,
        shutdown: CancellationToken,
    ) -> Result<(), ApiError> {
        let (tls, env) = (self.tls()?, self.env.clone());
        let auth = Auth::new(self.client, self.env, self.config);
        let server = Arc::new(ManifestServer { auth, submissions });
        serve::serve_https(listener, tls, server, serve::Limits::COMPONENT, env, shutdown).await;
        Ok(())
    }

    /// Serves until shutdown.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), ApiError> {
        let (tls, env) = (self.tls()?, self.env.clone());
        let shared = Arc::new(Shared {
            auth: Auth::new(self.client, self.env.clone(), self.config.clone()),
            config: self.config,
            view: self.view,
            runtime: self.runtime,
            env: self.env,
            endpoint_drain: self.endpoint_drain,
            metrics: self.metrics,
        });
        serve::serve_https(listener, tls, shared, self.connections, env, shutdown).await;
        Ok(())
    }

    fn tls(&self) -> Result<rustls::ServerConfig, ApiError> {
        let bad = |e: &dyn std::fmt::Display| ApiError::internal(format!("the node's TLS is not usable: {e}"));
        let mut roots = rustls::RootCertStore::empty();
        for certificate in client::certificates(&self.client_ca_pem).map_err(|e| bad(&e))? {
            roots.add(certificate).map_err(|e| bad(&e))?;
        }
        let (cipher_suites, tls_13_only) = (self.config.tls_cipher_suites.clone(), self.config.tls_13_only);
        let options = serve::TlsOptions { cipher_suites, tls_13_only };
        let (builder, provider) = options.builder().map_err(|e| bad(&e))?;
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().map_err(|e| bad(&e))?)
        };
        Ok(builder.with_cert_resolver(self.serving_certificate.clone()))
    }
}

impl Handler for Shared {
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, peer: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        let (shared, peer) = (self.clone(), peer.clone());
        Box::pin(async move {
            let certificate = peer.certificates.as_ref().and_then(|chain| chain.first());
            shared.answer(request, certificate.map(|certificate| certificate.as_ref())).await
        })
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>, certificate: Option<&[u8]>) -> Response<Body> {
        let path = request.uri().path().to_string();
        let _metrics =
            request_metrics::RequestMetrics::begin(&self.metrics, &self.env, request.method(), &path, "readwrite");
        let allowed = self.auth.check(certificate, request.headers(), request.method(), &path).await;
        if let Err(error) = allowed {
            return refusal(&error);
        }
        self.route(request, &path).await.unwrap_or_else(|error| refusal(&error))
    }

    async fn route(&self, request: Request<Incoming>, path: &str) -> Result<Response<Body>, ApiError> {
        let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        let query = query(request.uri().query().unwrap_or_default());
        match segments.as_slice() {
            ["pods" | "healthz" | "stats" | "metrics", ..] => read_only(&*self.view, &segments, &query).await,
            ["containerLogs" | "exec" | "attach" | "portForward" | "run" | "runningpods" | "logs", ..]
                if !self.config.debugging_handlers =>
            {
                Err(ApiError::new(api::Reason::MethodNotAllowed, "Debug endpoints are disabled."))
            }
            ["configz"] if self.config.debugging_handlers => Ok(pages::configz(&self.config)),
            ["debug", rest @ ..] => debug::answer(&self.config, request, rest).await,
            ["runningpods"] => pages::running_pods(&*self.view).await,
            ["logs", ..] if self.config.system_log_query => self.machine_logs(&request, path, &query).await,
            ["logs", ..] => pages::machine_logs(&self.config, &self.env, path, request.headers()).await,
            ["checkpoint", namespace, name, container]
                if request.method() == Method::POST && self.config.feature_gates.enabled(CONTAINER_CHECKPOINT) =>
            {
                let pod = self.pod(namespace, name, None)?;
                checkpoint::checkpoint(self, &pod, container, &query).await
            }
            ["containerLogs", namespace, name, container] => {
                let pod = self.pod(namespace, name, None)?;
                self.logs(request, &pod, container, &query).await
            }
            ["exec", namespace, name, container] => {
                self.exec(request, self.pod(namespace, name, None)?, container, &query).await
            }
            ["exec", namespace, name, uid, container] => {
                self.exec(request, self.pod(namespace, name, Some(uid))?, container, &query).await
            }
            ["attach", namespace, name, container] => {
                self.attach(request, self.pod(namespace, name, None)?, container, &query).await
            }
            ["attach", namespace, name, uid, container] => {
                self.attach(request, self.pod(namespace, name, Some(uid))?, container, &query).await
            }
            ["portForward", namespace, name] => {
                self.port_forward(request, self.pod(namespace, name, None)?, &query).await
            }
            ["portForward", namespace, name, uid] => {
                self.port_forward(request, self.pod(namespace, name, Some(uid))?, &query).await
            }
            ["run", namespace, name, container] if request.method() == Method::POST => {
                self.run(self.pod(namespace, name, None)?, container, &query).await
            }
            ["withdrawn", pod_uid] => self.withdrawn(pod_uid, &query).await,
            _ => Err(ApiError::new(api::Reason::NotFound, "404 page not found")),
        }
    }

    async fn machine_logs<B>(
        &self,
        request: &Request<B>,
        path: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        match NodeLogQuery::parse(query).map_err(ApiError::bad_request)? {
            Some(query) => node_log_query::answer(&self.config, &self.env, &query, path, request.headers()).await,
            None => pages::machine_logs(&self.config, &self.env, path, request.headers()).await,
        }
    }

    fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Arc<Pod>, ApiError> {
        let same = |pod: &Pod| {
            let meta = &pod.metadata;
            meta.namespace.as_deref() == Some(namespace)
                && meta.name.as_deref() == Some(name)
                && uid.is_none_or(|uid| meta.uid.as_deref() == Some(uid))
        };
        let found = self.view.pods().into_iter().find(|pod| same(pod));
        found.ok_or_else(|| ApiError::new(api::Reason::NotFound, "pod does not exist"))
    }

    async fn logs<B>(
        &self,
        request: Request<B>,
        pod: &Pod,
        container: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        let options =
            LogOptions::parse(query, self.env.now()).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let view = self.view.container(pod, container, options.previous).await?;
        let (nodes, id) = (self.view.clone(), view.id.clone());
        let running = async move || nodes.is_running(&id).await;
        // Listened for before the first look, so that no end falls in between.
        let exit = self.view.exit(&view.id);
        let lines = logs::read(&view.log_path, options, !view.running, running, exit, &self.env).await;
        let lines = lines
            .map_err(|e| ApiError::internal(format!("failed to open log file {}: {e}", view.log_path.display())))?;
        if streaming::wants_websocket(request.headers()) {
            return streaming::send_over_websocket(request, lines);
        }
        let frames = lines.map_ok(Frame::data).map_err(BoxError::from);
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(response)
    }

    async fn exec<B>(
        &self,
        request: Request<B>,
        pod: Arc<Pod>,
        container: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        let streams = streams(query)?;
        let command: Vec<String> = query.iter().filter(|(n, _)| n == "command").map(|(_, v)| v.clone()).collect();
        let view = self.view.container(&pod, container, false).await?;
        let url = self.runtime.exec(v1::ExecRequest {
            container_id: view.id,
            cmd: command,
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr && !streams.tty,
        });
        streaming::relay(request, &url.await.map_err(runtime_error)?, streams).await
    }

    async fn attach<B>(
        &self,
        request: Request<B>,
        pod: Arc<Pod>,
        container: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        let streams = streams(query)?;
        let view = self.view.container(&pod, container, false).await?;
        let url = self.runtime.attach(v1::AttachRequest {
            container_id: view.id,
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr && !streams.tty,
        });
        streaming::relay(request, &url.await.map_err(runtime_error)?, streams).await
    }

    async fn port_forward<B>(
        &self,
        request: Request<B>,
        pod: Arc<Pod>,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        let ports = ports(query)?;
        if ports.is_empty() && matches!(streaming::protocol(request.headers())?, Protocol::Channels(_)) {
            return Err(ApiError::bad_request("query parameter \"port\" is required"));
        }
        let url = self.runtime.port_forward(v1::PortForwardRequest {
            pod_sandbox_id: self.view.sandbox(&pod).await?,
            port: ports.iter().copied().map(i32::from).collect(),
        });
        streaming::relay_ports(request, &url.await.map_err(runtime_error)?, ports).await
    }

    /// Another node asks before it stops a pod; the answer comes when this node's rules no longer use it.
    async fn withdrawn(&self, pod_uid: &str, query: &[(String, String)]) -> Result<Response<Body>, ApiError> {
        let version = query.iter().find(|(name, _)| name == "resourceVersion").and_then(|(_, v)| v.parse().ok());
        match &self.endpoint_drain {
            Some(drain) if drain.drained_here(pod_uid, version.unwrap_or_default()).await => Ok(text("ok".into())),
            Some(_) => Err(ApiError::new(api::Reason::Timeout, "the pod is still an endpoint")),
            None => Err(ApiError::new(api::Reason::NotFound, "no service proxy runs with this kubelet")),
        }
    }

    /// Runs a command and answers with all that it printed.
    async fn run(
        &self,
        pod: Arc<Pod>,
        container: &str,
        query: &[(String, String)],
    ) -> Result<Response<Body>, ApiError> {
        let command = query.iter().find(|(n, _)| n == "cmd").map(|(_, v)| v.split(' ').map(str::to_string).collect());
        let view = self.view.container(&pod, container, false).await?;
        let done = self.runtime.exec_sync(&view.id, command.unwrap_or_default(), 0).await.map_err(runtime_error)?;
        Ok(text(String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()))
    }
}

fn runtime_error(error: cri::Error) -> ApiError {
    match error {
        cri::Error::NotFound(text) => ApiError::new(api::Reason::NotFound, text),
        other => ApiError::internal(other.to_string()),
    }
}

/// Both spellings: the API server's (`stdin=true`) and the old `input=1`.
fn streams(query: &[(String, String)]) -> Result<Streams, ApiError> {
    let flag = |names: [&str; 2]| query.iter().any(|(n, v)| names.contains(&n.as_str()) && is_true(v));
    let streams = Streams {
        stdin: flag(["stdin", "input"]),
        stdout: flag(["stdout", "output"]),
        stderr: flag(["stderr", "error"]),
        tty: flag(["tty", "tty"]),
    };
    if !streams.stdin && !streams.stdout && !streams.stderr {
        return Err(ApiError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(streams)
}

/// Ports by number, one or several in a value.
fn ports(query: &[(String, String)]) -> Result<Vec<u16>, ApiError> {
    let mut ports = Vec::new();
    for (_, values) in query.iter().filter(|(name, _)| name == "port" || name == "ports") {
        for value in values.split(',') {
            let refuse = |why: &str| Err(ApiError::bad_request(format!("unable to parse {value:?} as a port: {why}")));
            match value.parse() {
                Ok(0) => return refuse("it must be > 0"),
                Ok(port) => ports.push(port),
                Err(_) => return refuse("it is not a number of a port"),
            }
        }
    }
    match ports.len() > port_channels::PORTS_MAX {
        true => Err(ApiError::bad_request(format!("at most {} ports can be forwarded", port_channels::PORTS_MAX))),
        false => Ok(ports),
    }
}

/// Every spelling that clients of Go's parser may use; the Python client says `True`.
fn is_true(value: &str) -> bool {
    api::codec::parse_bool(value) == Some(true)
}

/// Decoded pairs of a URL query.
fn query(text: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        let plain = part.replace('+', " ");
        percent_encoding::percent_decode_str(&plain).decode_utf8_lossy().into_owned()
    };
    let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

pub(crate) fn empty() -> Body {
    Full::default().map_err(|never| match never {}).boxed_unsync()
}

fn text(body: String) -> Response<Body> {
    let mut response = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn json_answer(value: &Value) -> Response<Body> {
    let mut response = text(value.to_string());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refusal(error: &ApiError) -> Response<Body> {
    let mut response = text(format!("{}\n", error.message));
    *response.status_mut() = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// What everyone on the machine may see where there is a read-only port.
async fn read_only(view: &dyn View, segments: &[&str], query: &[(String, String)]) -> Result<Response<Body>, ApiError> {
    match segments {
        ["pods"] => Ok(pages::pod_list(&view.pods())),
        ["stats", "summary"] => {
            let mut values = query.iter().filter(|(name, _)| name == "only_cpu_and_memory").map(|(_, value)| value);
            let only = values.next().is_some_and(|value| value == "true") && values.next().is_none();
            Ok(json_answer(&view.stats_summary(only).await?))
        }
        ["metrics"] => Ok(text(view.metrics("metrics").await?)),
        ["metrics", page @ ("resource" | "cadvisor" | "probes" | "slis")] => Ok(text(view.metrics(page).await?)),
        ["healthz", named @ ..] => {
            let checks = [("ping", true), ("log", true), ("syncloop", view.is_alive())];
            health::answer(&checks, named, query, |check, passed| view.observe_health(check, passed))
        }
        _ => Err(ApiError::new(api::Reason::NotFound, "404 page not found")),
    }
}

/// Plain HTTP for pods and metrics, without asking who asks.
pub async fn serve_read_only(
    address: SocketAddr,
    view: Arc<dyn View>,
    env: Env,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let task_env = env.clone();
    serve_plain(address, env, shutdown, move |request| {
        let (view, env, metrics) = (view.clone(), task_env.clone(), metrics.clone());
        async move { answer_read_only(&*view, &request, &env, &metrics).await.unwrap_or_else(|e| refusal(&e)) }
    })
    .await
}

async fn answer_read_only(
    view: &dyn View,
    request: &Request<()>,
    env: &Env,
    metrics: &Metrics,
) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path();
    let _metrics = request_metrics::RequestMetrics::begin(metrics, env, request.method(), path, "readonly");
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(ApiError::new(api::Reason::MethodNotAllowed, "405: Method Not Allowed"));
    }
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    match segments.as_slice() {
        ["spec"] => Ok(json_answer(&view.machine().await?)),
        segments => read_only(view, segments, &query(request.uri().query().unwrap_or_default())).await,
    }
}

/// Plain HTTP that says `ok` while the node's loop turns.
pub async fn serve_health(
    address: SocketAddr,
    healthy: impl Fn() -> bool + Send + Sync + 'static,
    env: Env,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    serve_plain(address, env, shutdown, move |_| {
        let alive = healthy();
        let mut response = text(if alive { "ok".into() } else { "the sync loop does not turn".into() });
        if !alive {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        std::future::ready(response)
    })
    .await
}

/// Answers plain requests, of which no body is read.
struct Plain<F>(F);

impl<F, A> Handler for Plain<F>
where
    F: Fn(Request<()>) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, _: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        Box::pin((self.0)(request.map(|_| ())))
    }
}

async fn serve_plain<F, A>(address: SocketAddr, env: Env, shutdown: CancellationToken, answer: F) -> std::io::Result<()>
where
    F: Fn(Request<()>) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind(metrics::http::everywhere(address)).await?;
    serve_plain_at(listener, env, shutdown, Plain(answer)).await;
    Ok(())
}

async fn serve_plain_at<H: Handler>(listener: TcpListener, env: Env, shutdown: CancellationToken, handler: H) {
    serve::serve_http(listener, Arc::new(handler), serve::Limits::COMPONENT, env, shutdown).await;
}

#[cfg(test)]
mod listening_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_one_by_one() {
        let check = |text: &str, expected: Result<&[u16], &str>| {
            let found = ports(&query(text));
            match expected {
                Ok(expected) => assert_eq!(found.unwrap(), expected, "{text}"),
                Err(part) => assert!(found.unwrap_err().message.contains(part), "{text}"),
            }
        };
        check("", Ok(&[]));
        check("port=80&port=81", Ok(&[80, 81]));
        check("port=80%2C81&ports=82", Ok(&[80, 81, 82]));
        check("port=0", Err("must be > 0"));
        check("port=http", Err("unable to parse \"http\" as a port"));
        check("port=70000", Err("unable to parse"));
    }

    #[test]
    fn queries_are_decoded_and_streams_checked() {
        let pairs = query("command=sh&command=-c&command=echo%20a+b&stdout=true&tty=1");
        let commands: Vec<_> = pairs.iter().filter(|(n, _)| n == "command").map(|(_, v)| v.as_str()).collect();
        assert_eq!(commands, ["sh", "-c", "echo a b"]);
        let streams = streams(&pairs).unwrap();
        assert!(streams.stdout && streams.tty && !streams.stdin);
        assert!(super::streams(&query("stdin=True")).unwrap().stdin, "the Python client's spelling");
        assert!(super::streams(&query("tty=1")).unwrap_err().message.contains("at least 1 of stdin"));
    }
}
