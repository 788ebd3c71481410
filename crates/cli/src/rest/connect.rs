//! Connections to the API server over TLS or plain HTTP, with whatever credentials the kubeconfig resolved to.
//! Made by `session`; carries what `rest` asks for.
//! Errors keep what Go's client would say about a refused connection or a bad certificate.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::LocalBoxFuture};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{SignatureScheme, pki_types::ServerName, sign::CertifiedKey};
use tokio::net::TcpStream;

use super::{Body, Transport, Upgrade, tls_error};
use crate::failure::{Failure, Result};

/// What a kubeconfig and the flags come to.
#[derive(Default, Clone)]
pub struct Connection {
    /// `https://127.0.0.1:6443`, perhaps with a path.
    pub server: String,
    /// PEM; empty is the machine's own.
    pub certificate_authority: Vec<u8>,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: Option<String>,
    pub certificate: Option<Arc<CertifiedKey>>,
    /// Authorization, impersonation, user agent.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

pub struct HttpTransport {
    connection: Connection,
    tls: Arc<rustls::ClientConfig>,
    client: Client<Connector, Full<Bytes>>,
}

#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl rustls::client::ResolvesClientCert for OneCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub fn tls_config(connection: &Connection) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Failure::message(e.to_string()))?;
    let builder = if connection.insecure_skip_tls_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(client::AnyCertificate(provider)))
    } else {
        let mut roots = rustls::RootCertStore::empty();
        if connection.certificate_authority.is_empty() {
            roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
        } else {
            let certificates = client::certificates(&connection.certificate_authority).unwrap_or_default();
            if certificates.is_empty() {
                return Err(Failure::message("unable to load root certificates: unable to parse bytes as PEM block"));
            }
            roots.add_parsable_certificates(certificates);
        }
        builder.with_root_certificates(roots)
    };
    Ok(match &connection.certificate {
        Some(certificate) => builder.with_client_cert_resolver(Arc::new(OneCertificate(certificate.clone()))),
        None => builder.with_no_client_auth(),
    })
}

impl HttpTransport {
    pub fn new(connection: Connection) -> Result<Self> {
        let tls = tls_config(&connection)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let connector = match &connection.tls_server_name {
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(|e| Failure::message(e.to_string()))?;
                builder
                    .with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name))
                    .enable_all_versions()
                    .wrap_connector(tcp)
            }
            None => builder.enable_all_versions().wrap_connector(tcp),
        };
        let client =
            Client::builder(TokioExecutor::new()).timer(TokioTimer::new()).http2_adaptive_window(true).build(connector);
        Ok(Self { connection, tls: Arc::new(tls), client })
    }

    fn failure(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let host = host_of(&self.connection.server);
        let name = name_of(&host);
        let mut text = error.to_string();
        let mut of_tls = None;
        let mut refused = false;
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if let Some(io) = cause.downcast_ref::<std::io::Error>() {
                refused |= io.kind() == std::io::ErrorKind::ConnectionRefused;
                of_tls = within(io).or(of_tls);
            }
            of_tls = cause.downcast_ref::<rustls::Error>().or(of_tls);
            text = cause.to_string();
            source = cause.source();
        }
        let asked = self.connection.tls_server_name.as_deref().unwrap_or(name);
        let certificate = of_tls.and_then(|error| tls_error::words(error, asked));
        Failure::Connection { cause: certificate.unwrap_or_else(|| worded(&text, name)), refused, server: host }
    }
}

/// An I/O error may hold another, and that the one of TLS.
fn within(error: &std::io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    match inner.downcast_ref::<rustls::Error>() {
        Some(found) => Some(found),
        None => within(inner.downcast_ref::<std::io::Error>()?),
    }
}

pub fn host_of(server: &str) -> String {
    let behind = server.split_once("://").map_or(server, |(_, rest)| rest);
    behind.split('/').next().unwrap_or_default().to_string()
}

/// Without the port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']'])
}

/// A port that is none would be taken for the scheme's own.
fn checked_port(server: &str) -> Result<()> {
    let host = host_of(server);
    let behind = host.rsplit_once(']').map_or(host.as_str(), |(_, behind)| behind);
    match behind.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_err() => Err(Failure::Connection {
            cause: format!("dial tcp: address {port}: invalid port"),
            refused: false,
            server: host,
        }),
        _ => Ok(()),
    }
}

/// The system's words as Go's.
fn worded(text: &str, name: &str) -> String {
    if text.contains("failed to lookup address") {
        return format!("dial tcp: lookup {name}: no such host");
    }
    if text.contains("InvalidContentType") || text.contains("corrupt message") {
        return "http: server gave HTTP response to HTTPS client".to_string();
    }
    text.to_string()
}

impl Transport for HttpTransport {
    fn server(&self) -> &str {
        &self.connection.server
    }

    fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.connection.headers
    }

    fn send(&self, mut request: Request<Bytes>) -> LocalBoxFuture<'_, Result<Response<Body>>> {
        async move {
            let target = format!("{}{}", self.connection.server, request.uri());
            checked_port(&self.connection.server)?;
            *request.uri_mut() =
                target.parse::<Uri>().map_err(|e| Failure::message(format!("parse {target:?}: {e}")))?;
            for (name, value) in &self.connection.headers {
                request.headers_mut().append(name.clone(), value.clone());
            }
            let answer = self.client.request(request.map(Full::new)).await;
            let answer = answer.map_err(|e| self.failure(&e))?;
            Ok(answer.map(|body| body.into_data_stream().map(|c| c.map_err(std::io::Error::other)).boxed()))
        }
        .boxed_local()
    }

    fn connect(&self) -> LocalBoxFuture<'_, Result<Upgrade>> {
        async move {
            let uri: Uri =
                self.connection.server.parse().map_err(|e| Failure::message(format!("server address: {e}")))?;
            let secure = uri.scheme_str() != Some("http");
            let host = uri.host().unwrap_or_default().to_string();
            let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
            let tcp = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|e| self.failure(&e))?;
            let _ = tcp.set_nodelay(true);
            let stream: std::pin::Pin<Box<dyn super::ByteStream>> = if secure {
                let mut tls = (*self.tls).clone();
                tls.alpn_protocols = vec![b"http/1.1".to_vec()];
                let name = self.connection.tls_server_name.clone().unwrap_or(host.trim_matches(['[', ']']).to_string());
                let name = ServerName::try_from(name).map_err(|e| Failure::message(e.to_string()))?;
                let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
                let stream = connector.connect(name, tcp).await.map_err(|e| self.failure(&e))?;
                Box::pin(stream)
            } else {
                Box::pin(tcp)
            };
            Ok(Upgrade { stream, host: host_of(&self.connection.server), headers: self.connection.headers.clone() })
        }
        .boxed_local()
    }
}
