//! Connections to the API server over TLS or plain HTTP, with whatever credentials the kubeconfig resolved to.
//! Made by `session`; carries what `rest` asks for.
//! Errors keep what Go's client would say about a refused connection or a bad certificate.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::LocalBoxFuture};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use rustls::{SignatureScheme, pki_types::ServerName, sign::CertifiedKey};

use super::{Body, Transport, Upgrade, proxy_environment, tls_error};
use crate::failure::{Failure, Result};

const RESOLVER_FILE: &str = "/etc/resolv.conf";

/// What a kubeconfig and the flags come to.
#[derive(Default, Clone)]
pub struct Connection {
    /// `https://127.0.0.1:6443`, perhaps with a path.
    pub server: String,
    /// PEM; empty is the machine's own.
    pub certificate_authority: Vec<u8>,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: Option<String>,
    /// The kubeconfig's; without it the environment's counts.
    pub proxy_url: Option<String>,
    pub certificate: Option<Arc<CertifiedKey>>,
    /// Authorization, impersonation, user agent.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

pub struct HttpTransport {
    connection: Connection,
    tls: Arc<rustls::ClientConfig>,
    route: client::Route,
    client: client::Connections,
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
        let environment = || proxy_environment::proxy_of(&connection.server, |name| std::env::var(name).ok());
        let proxy = connection.proxy_url.clone().or_else(environment);
        let route = client::Route::new(proxy.as_deref(), connection.tls_server_name.as_deref());
        let route = route.map_err(Failure::Message)?;
        let client = client::Connections::new(&tls, &route, client::COMMAND_LINE);
        Ok(Self { connection, tls: Arc::new(tls), route, client })
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

fn checked_scheme(server: &str) -> Result<()> {
    match server.split_once("://") {
        Some((scheme, _)) if !["http", "https"].contains(&scheme) => Err(Failure::Connection {
            cause: format!("unsupported protocol scheme {scheme:?}"),
            refused: false,
            server: host_of(server),
        }),
        _ => Ok(()),
    }
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

/// The server that Go asks first, and names.
fn name_server(file: &str) -> Option<String> {
    let mut words = file.lines().find(|line| line.starts_with("nameserver"))?.split_whitespace();
    let address = words.nth(1)?;
    Some(if address.contains(':') { format!("[{address}]") } else { address.to_string() })
}

/// The system's words as Go's.
fn worded(text: &str, name: &str) -> String {
    if text.contains("failed to lookup address") {
        let asked = std::fs::read_to_string(RESOLVER_FILE).ok().and_then(|file| name_server(&file));
        let asked = asked.map(|server| format!(" on {server}:53")).unwrap_or_default();
        return format!("dial tcp: lookup {name}{asked}: no such host");
    }
    if text.contains("deadline has elapsed") {
        return format!("dial tcp: connecting to {name}: i/o timeout");
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
            checked_scheme(&self.connection.server)?;
            checked_port(&self.connection.server)?;
            *request.uri_mut() =
                target.parse::<Uri>().map_err(|e| Failure::message(format!("parse {target:?}: {e}")))?;
            for (name, value) in &self.connection.headers {
                request.headers_mut().append(name.clone(), value.clone());
            }
            let answer = self.client.request(request).await;
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
            let tcp =
                self.route.dial(&host, port, &self.tls, client::COMMAND_LINE).await.map_err(|e| self.failure(&*e))?;
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

#[cfg(test)]
mod tests {
    use futures::future::join;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    fn through(proxy_url: Option<String>, server: String) -> HttpTransport {
        let transport = HttpTransport::new(Connection { server, proxy_url, ..Connection::default() });
        transport.unwrap_or_else(|failure| panic!("{}", failure.text()))
    }

    /// Requests and upgrades alike.
    #[tokio::test]
    async fn a_proxy_of_the_kubeconfig_is_gone_through() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy_url = Some(format!("http://{}", listener.local_addr().expect("an address")));
        let server = "https://server.test:6443".to_string();
        let transport = through(proxy_url, server);
        // The proxy hears where to, and goes away.
        let heard = async || {
            let (mut stream, _) = listener.accept().await.expect("somebody connects");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_string()
        };
        let request = Request::get("/version").body(Bytes::new()).expect("a request");
        let (answer, line) = join(transport.send(request), heard()).await;
        assert_eq!((answer.is_err(), line.as_str()), (true, "CONNECT server.test:6443 HTTP/1.1"));
        let (stream, line) = join(transport.connect(), heard()).await;
        assert_eq!((stream.is_err(), line.as_str()), (true, "CONNECT server.test:6443 HTTP/1.1"));
    }

    #[tokio::test]
    async fn a_proxy_may_want_tls_itself() {
        const HANDSHAKE: u8 = 22;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy_url = Some(format!("https://{}", listener.local_addr().expect("an address")));
        let transport = through(proxy_url, "https://server.test:6443".to_string());
        let heard = async || {
            let (mut stream, _) = listener.accept().await.expect("somebody connects");
            stream.read_u8().await.expect("a record")
        };
        let request = Request::get("/version").body(Bytes::new()).expect("a request");
        let (answer, first) = join(transport.send(request), heard()).await;
        assert_eq!((answer.is_err(), first), (true, HANDSHAKE));
        let (stream, first) = join(transport.connect(), heard()).await;
        assert_eq!((stream.is_err(), first), (true, HANDSHAKE));
    }

    #[test]
    fn a_name_server_is_named() {
        let check = |file: &str, wanted: Option<&str>| assert_eq!(name_server(file).as_deref(), wanted, "{file}");
        check("# x\nsearch a.test\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n", Some("10.0.0.2"));
        check("nameserver fd00::1", Some("[fd00::1]"));
        check("search a.test\n", None);
    }

    #[tokio::test]
    async fn a_server_of_another_scheme_is_refused() {
        let connection = Connection { server: "ftp://server.test".to_string(), ..Connection::default() };
        let transport = HttpTransport::new(connection).unwrap_or_else(|failure| panic!("{}", failure.text()));
        let request = Request::get("/version").body(Bytes::new()).expect("a request");
        let failure = transport.send(request).await.err().map(|failure| failure.text());
        assert_eq!(failure.as_deref(), Some("unsupported protocol scheme \"ftp\""));
    }
}
