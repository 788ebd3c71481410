//! One HTTP(S) request to a container, as probes and hooks make it, or for a manifest.
//! Used by `probe_manager`, by the hooks of `runtime_manager` and by `sources::url`.
//! A connection per request, bodies read up to a limit; a container's certificate is not verified, that of a server of
//! manifests always is.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::net::TcpStream;

/// What is read of a body that is only shown to people.
pub const BODY_BYTES_MAX: usize = 10 * 1024;
const REDIRECTS_MAX: usize = 10;
/// What requests call themselves, unless their own headers say otherwise.
pub const PROBE_AGENT: &str = "kube-probe/1.35";
pub const HOOK_AGENT: &str = "kube-lifecycle/1.35";

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("couldn't find port: {0}")]
    PortNotFound(String),
    #[error("invalid port number: {0}")]
    InvalidPort(i32),
    /// TLS was tried with a server that speaks plain HTTP.
    #[error("Get {url:?}: http: server gave HTTP response to HTTPS client")]
    PlainAnswer { url: String },
    #[error("Get {url:?}: {cause}")]
    Request { url: String, cause: String },
    #[error("stopped after 10 redirects")]
    TooManyRedirects,
}

#[derive(Debug, Clone)]
pub struct HttpRequest {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub agent: &'static str,
    pub max_body: usize,
    /// Whether the server must prove who it is, and its answer must be whole.
    pub verified: bool,
}

/// The number behind a port that may be given by name.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, HttpError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse::<i32>() {
            Ok(number) => number,
            Err(_) => container
                .ports
                .iter()
                .flatten()
                .find(|p| p.name.as_deref() == Some(name))
                .map(|p| p.container_port)
                .ok_or_else(|| HttpError::PortNotFound(name.clone()))?,
        },
    };
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or(HttpError::InvalidPort(number))
}

impl HttpRequest {
    pub fn from_action(
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
        agent: &'static str,
    ) -> Result<Self, HttpError> {
        let path = action.path.as_deref().unwrap_or("/");
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: action.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_string()),
            port: resolve_port(&action.port, container)?,
            path: if path.starts_with('/') { path.into() } else { format!("/{path}") },
            headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
            agent,
            max_body: BODY_BYTES_MAX,
            verified: false,
        })
    }

    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn url(&self) -> String {
        format!("{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.path)
    }
}

/// The status code and the beginning of the body, after redirects within the same host.
pub async fn send(request: &HttpRequest) -> Result<(u16, String), HttpError> {
    let mut request = request.clone();
    for _ in 0..REDIRECTS_MAX {
        let (status, location, body) = once(&request).await?;
        match location.filter(|_| (300..400).contains(&status)) {
            Some(location) => match redirected(&request, &location) {
                Some(next) => request = next,
                // A redirect elsewhere is an answer: the container is alive.
                None => return Ok((status, body)),
            },
            None => return Ok((status, body)),
        }
    }
    Err(HttpError::TooManyRedirects)
}

fn redirected(request: &HttpRequest, location: &str) -> Option<HttpRequest> {
    if location.starts_with('/') {
        return Some(HttpRequest { path: location.into(), ..request.clone() });
    }
    let uri: http::Uri = location.parse().ok()?;
    let tls = uri.scheme_str() == Some("https");
    let host = uri.host()?.trim_matches(['[', ']']);
    // What was asked for over TLS is not taken from whoever answers without.
    let unproved = request.verified && request.tls && !tls;
    (host == request.host && !unproved).then(|| HttpRequest {
        tls,
        host: host.into(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: uri.path_and_query().map_or("/".into(), ToString::to_string),
        ..request.clone()
    })
}

async fn once(request: &HttpRequest) -> Result<(u16, Option<String>, String), HttpError> {
    let url = request.url();
    let failed = |cause: String| HttpError::Request { url: url.clone(), cause };
    let authority = request.authority();
    let stream = TcpStream::connect(&authority)
        .await
        .map_err(|error| failed(format!("dial tcp {authority}: connect: {}", io_text(&error))))?;
    if request.tls {
        let name = rustls_pki_types::ServerName::try_from(request.host.clone()).map_err(|e| failed(e.to_string()))?;
        let connector = tokio_rustls::TlsConnector::from(if request.verified { verifying() } else { trusting() });
        let stream = connector.connect(name, stream).await.map_err(|error| match speaks_plain_http(&error) {
            true => HttpError::PlainAnswer { url: url.clone() },
            false => failed(error.to_string()),
        })?;
        exchange(TokioIo::new(stream), request).await.map_err(failed)
    } else {
        exchange(TokioIo::new(stream), request).await.map_err(failed)
    }
}

/// Whoever does not speak TLS mostly speaks plain HTTP.
fn speaks_plain_http(error: &std::io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidMessage(_)))
}

/// As other kubelets word it: what the system calls the error, in lower case.
pub fn io_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        std::io::ErrorKind::TimedOut => "i/o timeout".into(),
        _ => error.to_string(),
    }
}

async fn exchange<S>(stream: S, request: &HttpRequest) -> Result<(u16, Option<String>, String), String>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.map_err(|error| error.to_string())?;
    let driver = env::spawn(connection);
    let result = async {
        let has = |name: &str| request.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        let mut builder = http::Request::get(&request.path);
        for (name, default) in
            [("host", request.authority()), ("user-agent", request.agent.into()), ("accept", "*/*".into())]
        {
            if !has(name) {
                builder = builder.header(name, default);
            }
        }
        for (name, value) in request.headers.iter().filter(|(_, value)| !value.is_empty()) {
            builder = builder.header(name, value);
        }
        let built = builder.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        let response = sender.send_request(built).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_string);
        let body = Limited::new(response.into_body(), request.max_body).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        let text = match text {
            Err(error) if request.verified => return Err(format!("failed to read the answer: {error}")),
            text => text.unwrap_or_default(),
        };
        Ok((status, location, text))
    }
    .await;
    driver.abort();
    result
}

/// Whom this machine believes.
fn verifying() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::LazyLock<Arc<rustls::ClientConfig>> = std::sync::LazyLock::new(|| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider supports the default versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        Arc::new(config)
    });
    CONFIG.clone()
}

/// A probe asks whether something answers, not who.
fn trusting() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::LazyLock<Arc<rustls::ClientConfig>> = std::sync::LazyLock::new(|| {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(client::AnyCertificate(provider)))
            .with_no_client_auth();
        Arc::new(config)
    });
    CONFIG.clone()
}
