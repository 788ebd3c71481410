//! The transport to an API server in another process: HTTP/2 or HTTP/1.1 over TLS. Where there are several servers
//! (`server_list`), another is asked when one does not answer.
//! Made from flags or a kubeconfig; used wherever a component runs apart.
//! The server's certificate is checked unless the kubeconfig says otherwise; the client's can change without a restart.

use std::sync::Arc;

use ::api::{ApiError, Reason};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use parking_lot::{Mutex, RwLock};
use rustls::{client::ResolvesClientCert, pki_types::CertificateDer, sign::CertifiedKey};

use crate::{
    AnyCertificate,
    connections::{Connections, ONLY_SERVER, Route, SEVERAL_SERVERS, Timeouts},
    exec_identity::ExecIdentity,
    server_list::ServerList,
    streaming_transport::StreamingTransport,
};

/// Who we are to the server.
#[derive(Clone, Default)]
pub struct Identity {
    /// Changed in place when the certificate is renewed.
    pub certificate: Option<Arc<RwLock<Arc<CertifiedKey>>>>,
    /// Not sent while it is empty.
    pub bearer_token: Option<Arc<RwLock<String>>>,
    /// A program that gives either of them.
    pub exec: Option<Arc<ExecIdentity>>,
}

#[derive(Clone, Default)]
pub struct HttpsConfig {
    /// `https://127.0.0.1:6443`
    pub server: String,
    pub ca: Vec<CertificateDer<'static>>,
    /// Whom the system believes is believed too.
    pub system_roots: bool,
    pub insecure_skip_tls_verify: bool,
    /// In place of the server's own name in TLS.
    pub tls_server_name: Option<String>,
    /// `http://` or `socks5://`.
    pub proxy_url: Option<String>,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub identity: Identity,
    pub user_agent: String,
}

/// Whether the last request got through, and why not.
#[derive(Clone, Default)]
pub struct Reachability(Arc<Mutex<Option<String>>>);

impl Reachability {
    /// Why the API server could not be asked the last time; `None` where it could, or nobody has tried.
    pub fn problem(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn set(&self, server: &str, problem: Option<String>) {
        let mut known = self.0.lock();
        match (&*known, &problem) {
            (None, Some(problem)) => tracing::warn!(server, problem, "the API server can't be asked; trying on"),
            (Some(_), None) => tracing::info!(server, "the API server answers again"),
            _ => {}
        }
        *known = problem;
    }
}

pub struct HttpsTransport {
    servers: Arc<ServerList>,
    identity: Identity,
    user_agent: HeaderValue,
    headers: Vec<(HeaderName, HeaderValue)>,
    tls: rustls::ClientConfig,
    route: Route,
    pool: RwLock<Pool>,
    reachability: Reachability,
}

/// Connections, all made with the same certificate.
struct Pool {
    timeouts: Timeouts,
    certificate: Option<Arc<CertifiedKey>>,
    client: Connections,
}

#[derive(Debug)]
struct CurrentCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl ResolvesClientCert for CurrentCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl Identity {
    fn current_certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.certificate.as_ref().map(|certificate| certificate.read().clone())
    }
}

impl HttpsTransport {
    pub fn new(config: HttpsConfig) -> Result<Self, ApiError> {
        let bad = |what: &str, e: &dyn std::fmt::Display| ApiError::bad_request(format!("{what}: {e}"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| bad("TLS is not usable", &e))?;
        let builder = match config.insecure_skip_tls_verify {
            true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            false => {
                let mut roots = rustls::RootCertStore::empty();
                if config.system_roots {
                    roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
                }
                for certificate in config.ca {
                    roots.add(certificate).map_err(|e| bad("certificate authority is not usable", &e))?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let tls = match &config.identity.certificate {
            Some(certificate) => builder.with_client_cert_resolver(Arc::new(CurrentCertificate(certificate.clone()))),
            None => builder.with_no_client_auth(),
        };
        let route = Route::new(config.proxy_url.as_deref(), config.tls_server_name.as_deref());
        let route = route.map_err(ApiError::bad_request)?;
        let pool = RwLock::new(Pool {
            timeouts: ONLY_SERVER,
            certificate: config.identity.current_certificate(),
            client: Connections::new(&tls, &route, ONLY_SERVER),
        });
        let user_agent =
            HeaderValue::from_str(&config.user_agent).map_err(|e| bad("user agent is not a header value", &e))?;
        Ok(Self {
            servers: Arc::new(ServerList::new(&config.server)),
            identity: config.identity,
            user_agent,
            headers: config.headers,
            tls,
            route,
            pool,
            reachability: Reachability::default(),
        })
    }

    /// Where this transport sends its requests: to be kept fresh by whoever knows of more servers.
    pub fn servers(&self) -> Arc<ServerList> {
        self.servers.clone()
    }

    pub fn reachability(&self) -> Reachability {
        self.reachability.clone()
    }

    /// The server knows a connection by the certificate it was made with, for as long as that is good: so a renewed one
    /// needs new connections. What is under way on the old ones goes on there.
    fn client(&self) -> Connections {
        let current = self.identity.current_certificate();
        let timeouts = if self.servers.count() > 1 { SEVERAL_SERVERS } else { ONLY_SERVER };
        let is_same = |pool: &Pool| match (&pool.certificate, &current) {
            (Some(used), Some(current)) => Arc::ptr_eq(used, current),
            (used, current) => used.is_none() && current.is_none(),
        };
        let is_current = |pool: &Pool| pool.timeouts == timeouts && is_same(pool);
        {
            let pool = self.pool.read();
            if is_current(&pool) {
                return pool.client.clone();
            }
        }
        let mut pool = self.pool.write();
        if !is_current(&pool) {
            let client = Connections::new(&self.tls, &self.route, timeouts);
            *pool = Pool { timeouts, certificate: current.clone(), client };
        }
        pool.client.clone()
    }

    /// Who asks.
    fn complete(&self, headers: &mut http::HeaderMap) {
        headers.insert(header::USER_AGENT, self.user_agent.clone());
        for (name, value) in &self.headers {
            headers.append(name.clone(), value.clone());
        }
        if let Some(token) = &self.identity.bearer_token
            && let token = token.read()
            && !token.is_empty()
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}"))
        {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
    }

    /// An error tells whether the request may have been read.
    async fn stream_from(
        &self,
        server: &str,
        mut request: Request<Bytes>,
    ) -> Result<Response<Incoming>, (ApiError, bool)> {
        let uri = format!("{server}{}", request.uri());
        *request.uri_mut() =
            uri.parse::<Uri>().map_err(|e| (ApiError::bad_request(format!("{uri} is not an address: {e}")), true))?;
        let answer = self.client().request(request).await.map_err(|e| {
            let mut text = e.to_string();
            let mut source = std::error::Error::source(&e);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            (ApiError::new(Reason::ServiceUnavailable, format!("couldn't reach {server}: {text}")), !e.is_connect())
        });
        let problem = match &answer {
            Err((error, _)) => Some(error.message.clone()),
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                if let Some(exec) = &self.identity.exec {
                    exec.refused();
                }
                Some("the API server does not know who we are (401 Unauthorized)".into())
            }
            Ok(_) => None,
        };
        self.reachability.set(server, problem);
        answer
    }
}

impl StreamingTransport for HttpsTransport {
    /// Sends a request and returns the answer with its body still to come. A server that was never reached is left for
    /// the next one; what may have been carried out is not sent again.
    async fn stream(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, ApiError> {
        if let Some(exec) = &self.identity.exec
            && let Err(error) = exec.refresh(&self.identity).await
        {
            self.reachability.set(&self.servers.current(), Some(error.to_string()));
            return Err(ApiError::new(Reason::ServiceUnavailable, error.to_string()));
        }
        self.complete(request.headers_mut());
        let mut others = self.servers.count() - 1;
        loop {
            let server = self.servers.current();
            match self.stream_from(&server, request.clone()).await {
                Ok(response) => {
                    if response.status().is_server_error() {
                        self.servers.leave(&server);
                    }
                    return Ok(response);
                }
                Err((error, was_reached)) => {
                    self.servers.leave(&server);
                    if was_reached || others == 0 {
                        return Err(error);
                    }
                    others -= 1;
                }
            }
        }
    }

    fn unreachable(why: &str) -> ApiError {
        ApiError::new(Reason::ServiceUnavailable, why)
    }
}
