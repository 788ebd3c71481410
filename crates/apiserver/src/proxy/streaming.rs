//! Requests passed on to kubelets, pods and services, with their bodies and upgraded connections as raw bytes.
//! Called by `registry::connect` with a target; kubelets are spoken to with our client certificate.
//! Credentials of the caller never leave this process.

use std::{net::IpAddr, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use api::{ApiError, Reason};

use crate::{
    proxy::{log_refusal, log_websocket, rewrite::Rewriter},
    request::{
        body::{Body, BoxError},
        call::Call,
    },
    server::config::Config,
    transport::{kubelet_tls, tls_config},
};

/// The largest are the OpenAPI documents of extension servers.
const EXCHANGE_BYTES_MAX: usize = 16 << 20;
/// Longer pages are passed on with the links they have.
const REWRITTEN_PAGE_BYTES_MAX: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Target {
    security: Security,
    host: String,
    port: u16,
    /// Where the host was found to be, if that has been looked up.
    address: Option<IpAddr>,
    path_and_query: String,
    /// Put in place of what the client sent under these names.
    headers: HeaderMap,
    /// The path of a `proxy` subresource, under which its answers must work.
    prefix: Option<String>,
    /// What it gives is a log: a WebSocket is for us to speak, and so is a refusal.
    is_log: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Security {
    Plain,
    /// TLS to something that proves nothing to us, as upstream's proxy does.
    Unverified,
    Kubelet,
    /// An extension API server: the name it must have and its authority (base64 PEM; empty: whom this system believes;
    /// none: not verified).
    Extension(String, Option<String>),
}

impl Target {
    fn new(security: Security, host: String, port: u16, path_and_query: String) -> Self {
        Self {
            security,
            host,
            port,
            address: None,
            path_and_query,
            headers: HeaderMap::new(),
            prefix: None,
            is_log: false,
        }
    }

    /// What it answers becomes messages, where the client wants a WebSocket; what it refuses, a Status.
    pub fn of_log(self) -> Self {
        Self { is_log: true, ..self }
    }

    pub fn kubelet(host: String, port: u16, path_and_query: String) -> Self {
        Self::new(Security::Kubelet, host, port, path_and_query)
    }

    pub fn plain(https: bool, host: String, port: u16, path_and_query: String) -> Self {
        let security = if https { Security::Unverified } else { Security::Plain };
        Self::new(security, host, port, path_and_query)
    }

    pub fn extension(host: String, port: u16, path_and_query: String, name: String, authority: Option<String>) -> Self {
        Self::new(Security::Extension(name, authority), host, port, path_and_query)
    }

    /// Goes to this address, whatever the host's name means by then.
    pub fn at(self, address: IpAddr) -> Self {
        Self { address: Some(address), ..self }
    }

    pub fn with_headers(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    /// Answers are made to work under `prefix`.
    pub fn under(self, prefix: String) -> Self {
        Self { prefix: Some(prefix), ..self }
    }

    fn place(&self) -> String {
        match self.host.contains(':') && !self.host.starts_with('[') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// One plain request of our own, and its answer.
pub async fn exchange(config: &Config, target: Target, method: Method) -> Result<Bytes, String> {
    let connection = connect(config, &target).await.map_err(|e| e.to_string())?;
    let handshake = hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(connection));
    let (mut sender, driver) = handshake.await.map_err(|e| e.to_string())?;
    env::spawn(driver);
    let mut request = Request::new(Full::default());
    *request.method_mut() = method;
    *request.uri_mut() = target.path_and_query.parse().map_err(|e| format!("{e}"))?;
    let host = target.place();
    *request.headers_mut() = target.headers;
    request.headers_mut().insert(header::HOST, host.parse().map_err(|e| format!("{e}"))?);
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    if !response.status().is_success() {
        return Err(format!("the server answered {}", response.status().as_u16()));
    }
    let body = response.into_body().map_err(|e| Box::new(e) as BoxError).boxed_unsync();
    crate::request::body::read_all(body, EXCHANGE_BYTES_MAX).await.map_err(|e| e.message.clone())
}

pub async fn forward(call: &Call, config: &Config, target: Target, body: Body) -> Result<Response<Body>, ApiError> {
    let connection = env::timeout(CONNECT_TIMEOUT, connect(config, &target)).await;
    let unreachable = |why: String| {
        let place = target.place();
        ApiError::new(Reason::ServiceUnavailable, format!("error trying to reach service: dial tcp {place}: {why}"))
    };
    let connection = match connection {
        Some(connected) => connected.map_err(|e| unreachable(e.to_string()))?,
        None => return Err(unreachable("i/o timeout".into())),
    };
    let (mut sender, driver) = hyper::client::conn::http1::Builder::new()
        .preserve_header_case(true)
        .handshake::<_, Body>(TokioIo::new(connection))
        .await
        .map_err(|e| unreachable(e.to_string()))?;
    env::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "a proxied connection ended");
        }
    });
    let mut request = outgoing(call, &target, body)?;
    let framed = target.is_log && log_websocket::is_asked_for(call);
    if framed {
        let spoken_here = |name: &HeaderName| name.as_str().starts_with("sec-websocket-");
        let names: Vec<HeaderName> = request.headers().keys().filter(|name| spoken_here(name)).cloned().collect();
        for name in hop_headers(&call.headers).into_iter().chain(names) {
            request.headers_mut().remove(name);
        }
    }
    let response = sender.send_request(request).await.map_err(|e| unreachable(e.to_string()))?;
    if target.is_log && !response.status().is_success() {
        return Err(log_refusal::status_of(call, response).await);
    }
    if framed {
        return log_websocket::answer(call, response);
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(call, response);
    }
    let (mut parts, body) = response.into_parts();
    for name in hop_headers(&parts.headers) {
        parts.headers.remove(name);
    }
    let response = Response::from_parts(parts, body.map_err(|e| Box::new(e) as BoxError).boxed_unsync());
    match &target.prefix {
        Some(prefix) => under_prefix(call, &target, prefix, response).await,
        None => Ok(response),
    }
}

/// The host the client asked for.
fn requested_host(call: &Call) -> String {
    let authority = call.uri.authority().map(|a| a.to_string());
    authority.unwrap_or_else(|| call.header(header::HOST).to_string())
}

/// Redirects and links that lead back through the proxy.
async fn under_prefix(
    call: &Call,
    target: &Target,
    prefix: &str,
    mut response: Response<Body>,
) -> Result<Response<Body>, ApiError> {
    let rewriter = Rewriter { prefix: prefix.to_string(), backend: target.place(), requested: requested_host(call) };
    let headers = response.headers_mut();
    // Which pages may read an answer of the API server is not for what is behind it to say.
    for name in ["allow-origin", "allow-credentials", "allow-methods", "allow-headers", "expose-headers", "max-age"] {
        headers.remove(format!("access-control-{name}"));
    }
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
    let location = text(header::LOCATION);
    if !location.is_empty() {
        if let Ok(value) = rewriter.url(&location).parse() {
            headers.insert(header::LOCATION, value);
        }
        return Ok(response);
    }
    let content = text(header::CONTENT_TYPE);
    let length = text(header::CONTENT_LENGTH).parse().unwrap_or(0usize);
    let is_page = content.split(';').next().unwrap_or_default().trim() == "text/html";
    if !is_page || length > REWRITTEN_PAGE_BYTES_MAX || call.method == Method::HEAD {
        return Ok(response);
    }
    let encoding = text(header::CONTENT_ENCODING);
    let (mut parts, body) = response.into_parts();
    let page = crate::request::body::read_all(body, REWRITTEN_PAGE_BYTES_MAX)
        .await
        .map_err(|e| ApiError::internal(e.message.clone()))?;
    let rewritten = rewriter.page(&encoding, &page, REWRITTEN_PAGE_BYTES_MAX as u64);
    let rewritten = rewritten.map_err(|e| ApiError::internal(format!("failed to read the page of the server: {e}")))?;
    let page = rewritten.map_or(page, Bytes::from);
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, crate::request::body::full(page)))
}

fn outgoing(call: &Call, target: &Target, body: Body) -> Result<Request<Body>, ApiError> {
    let uri: Uri =
        target.path_and_query.parse().map_err(|e| ApiError::bad_request(format!("invalid proxy path: {e}")))?;
    let mut request = Request::new(body);
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    *headers = call.headers.clone();
    if !call.wants_upgrade() {
        for name in hop_headers(&call.headers) {
            headers.remove(name);
        }
    }
    // Impersonation is decided here and must not be asked for again further on.
    let names: Vec<HeaderName> = headers.keys().filter(|n| n.as_str().starts_with("impersonate-")).cloned().collect();
    names.into_iter().for_each(|n| drop(headers.remove(n)));
    headers.remove(header::AUTHORIZATION);
    // Whoever the client says it is, only we say so further on.
    let claims: Vec<HeaderName> = headers.keys().filter(|n| n.as_str().starts_with("x-remote-")).cloned().collect();
    claims.into_iter().for_each(|n| drop(headers.remove(n)));
    for (name, value) in &target.headers {
        headers.append(name.clone(), value.clone());
    }
    headers.remove(header::CONTENT_LENGTH);
    let mut host = target.place();
    if let Some(prefix) = &target.prefix {
        let path = target.path_and_query.split('?').next().unwrap_or_default();
        if let Ok(uri) = format!("{prefix}{path}").parse() {
            headers.insert("x-forwarded-uri", uri);
        }
        host = Some(requested_host(call)).filter(|h| !h.is_empty()).unwrap_or(host);
    }
    headers.insert(header::HOST, host.parse().map_err(|_| ApiError::internal("the target has no valid host name"))?);
    Ok(request)
}

fn hop_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    let fixed = [header::CONNECTION, header::TE, header::TRAILER, header::TRANSFER_ENCODING, header::UPGRADE];
    let values = headers.get_all(header::CONNECTION).iter();
    let named = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let named = named.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    fixed.into_iter().chain(named).collect()
}

/// Both sides agreed to another protocol: from here on bytes go back and forth unread.
fn switch(call: &Call, response: Response<hyper::body::Incoming>) -> Result<Response<Body>, ApiError> {
    let Some(client) = call.upgrade.lock().take() else {
        return Err(ApiError::bad_request("Upgrade request required"));
    };
    let mut answer = Response::new(crate::request::body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    env::spawn(async move {
        let (client, server) = match tokio::join!(client, hyper::upgrade::on(response)) {
            (Ok(client), Ok(server)) => (client, server),
            (Err(error), _) | (_, Err(error)) => return tracing::debug!(%error, "an upgrade failed"),
        };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
            tracing::debug!(%error, "an upgraded connection ended");
        }
    });
    Ok(answer)
}

async fn connect(config: &Config, target: &Target) -> Result<Box<dyn Connection>, BoxError> {
    let host = target.host.trim_matches(['[', ']']);
    let address = target.address.or_else(|| host.parse().ok());
    let stream = match address {
        Some(address) => TcpStream::connect((config.dialed(address), target.port)).await?,
        None => TcpStream::connect((host, target.port)).await?,
    };
    stream.set_nodelay(true)?;
    let tls = match &target.security {
        Security::Plain => return Ok(Box::new(stream)),
        Security::Unverified => tls_config::client_config(None, None)?,
        Security::Extension(_, authority) => {
            let authority = authority.as_ref().map(|text| BASE64_STANDARD.decode(text)).transpose()?;
            // Our client certificate is what makes the identity headers believable to an extension server.
            let shown = config.proxy_client.as_ref().map(|client| client.certificate.current());
            let shown = shown.as_ref().map(|pem| (pem.certificate_pem.as_slice(), pem.key_pem.as_slice()));
            tls_config::client_config(authority.as_deref(), shown)?
        }
        Security::Kubelet => match &config.kubelet_client {
            Some(client) => kubelet_tls::client_config(client)?,
            None => return Err(std::io::Error::other("no credentials for kubelets are configured").into()),
        },
    };
    let name = match &target.security {
        Security::Extension(name, _) => name.clone(),
        _ => host.to_string(),
    };
    let name = ServerName::try_from(name)?;
    Ok(Box::new(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?))
}
