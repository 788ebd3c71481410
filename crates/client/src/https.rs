//! The transport to an API server in another process: HTTP/2 or HTTP/1.1 over TLS. Where there are several servers
//! (`server_list`), another is asked when one does not answer.
//! Made from flags or a kubeconfig; used wherever a component runs apart.
//! The server's certificate is always checked; the client's can change without a restart.

use std::{sync::Arc, time::Duration};

use ::api::{ApiError, Reason, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::RwLock;
use rustls::{client::ResolvesClientCert, pki_types::CertificateDer, sign::CertifiedKey};

use crate::{
    ListParams, ObjectList, Transport, WatchStream,
    answers::{read_events, read_list},
    api::{push_query, with_query},
    server_list::ServerList,
};

/// Who we are to the server.
#[derive(Clone, Default)]
pub struct Identity {
    /// Changed in place when the certificate is renewed.
    pub certificate: Option<Arc<RwLock<Arc<CertifiedKey>>>>,
    pub bearer_token: Option<Arc<RwLock<String>>>,
}

pub struct HttpsConfig {
    /// `https://127.0.0.1:6443`
    pub server: String,
    pub ca: Vec<CertificateDer<'static>>,
    pub identity: Identity,
    pub user_agent: String,
}

type HyperClient = hyper_util::client::legacy::Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>;

pub struct HttpsTransport {
    servers: Arc<ServerList>,
    identity: Identity,
    user_agent: HeaderValue,
    tls: rustls::ClientConfig,
    pool: RwLock<Pool>,
}

/// Connections, all made with the same certificate.
struct Pool {
    timeouts: Timeouts,
    certificate: Option<Arc<CertifiedKey>>,
    client: HyperClient,
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

/// A connection over a network that was cut is given up for a new one, as by client-go: TCP alone would wait for as long
/// again as the cut took.
const ONLY_SERVER: Timeouts = Timeouts {
    ping_interval: Duration::from_secs(30),
    ping_timeout: Duration::from_secs(15),
    connect: Duration::from_secs(10),
};
/// Where another server would answer, a silent one is not waited for as long.
const SEVERAL_SERVERS: Timeouts = Timeouts {
    ping_interval: Duration::from_secs(1),
    ping_timeout: Duration::from_secs(1),
    connect: Duration::from_secs(1),
};

#[derive(Clone, Copy, PartialEq, Eq)]
struct Timeouts {
    ping_interval: Duration,
    ping_timeout: Duration,
    connect: Duration,
}

fn connections(tls: &rustls::ClientConfig, timeouts: Timeouts) -> HyperClient {
    let mut tls = tls.clone();
    // A session that is resumed would bring back the certificate it began with.
    tls.resumption = rustls::client::Resumption::default();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(timeouts.connect));
    let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls);
    let connector = builder.https_only().enable_all_versions().wrap_connector(tcp);
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(timeouts.ping_interval)
        .http2_keep_alive_timeout(timeouts.ping_timeout)
        .http2_keep_alive_while_idle(true)
        .build(connector)
}

impl HttpsTransport {
    pub fn new(config: HttpsConfig) -> Result<Self, ApiError> {
        let bad = |what: &str, e: &dyn std::fmt::Display| ApiError::bad_request(format!("{what}: {e}"));
        let mut roots = rustls::RootCertStore::empty();
        for certificate in config.ca {
            roots.add(certificate).map_err(|e| bad("certificate authority is not usable", &e))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| bad("TLS is not usable", &e))?
            .with_root_certificates(roots);
        let tls = match &config.identity.certificate {
            Some(certificate) => builder.with_client_cert_resolver(Arc::new(CurrentCertificate(certificate.clone()))),
            None => builder.with_no_client_auth(),
        };
        let pool = RwLock::new(Pool {
            timeouts: ONLY_SERVER,
            certificate: config.identity.current_certificate(),
            client: connections(&tls, ONLY_SERVER),
        });
        let user_agent =
            HeaderValue::from_str(&config.user_agent).map_err(|e| bad("user agent is not a header value", &e))?;
        Ok(Self {
            servers: Arc::new(ServerList::new(&config.server)),
            identity: config.identity,
            user_agent,
            tls,
            pool,
        })
    }

    /// Where this transport sends its requests: to be kept fresh by whoever knows of more servers.
    pub fn servers(&self) -> Arc<ServerList> {
        self.servers.clone()
    }

    /// The server knows a connection by the certificate it was made with, for as long as that is good: so a renewed one
    /// needs new connections. What is under way on the old ones goes on there.
    fn client(&self) -> HyperClient {
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
            *pool = Pool { timeouts, certificate: current.clone(), client: connections(&self.tls, timeouts) };
        }
        pool.client.clone()
    }

    /// Sends a request and returns the answer with its body still to come. A server that was never reached is left for
    /// the next one; what may have been carried out is not sent again.
    pub async fn stream(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, ApiError> {
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

    /// Who asks.
    fn complete(&self, headers: &mut http::HeaderMap) {
        headers.insert(header::USER_AGENT, self.user_agent.clone());
        if let Some(token) = &self.identity.bearer_token
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.read()))
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
        self.client().request(request.map(Full::new)).await.map_err(|e| {
            let mut text = e.to_string();
            let mut source = std::error::Error::source(&e);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            (ApiError::new(Reason::ServiceUnavailable, format!("couldn't reach {server}: {text}")), !e.is_connect())
        })
    }

    async fn get(&self, uri: String) -> Result<Response<Incoming>, ApiError> {
        let request = Request::get(uri)
            .header(header::ACCEPT, "application/json")
            .body(Bytes::new())
            .map_err(|e| ApiError::bad_request(format!("couldn't make a request: {e}")))?;
        let response = self.stream(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        Err(ApiError::from_status(status, &collect(response.into_body()).await?))
    }
}

async fn collect(body: Incoming) -> Result<Bytes, ApiError> {
    let whole = body.collect().await;
    Ok(whole.map_err(|e| ApiError::new(Reason::ServiceUnavailable, format!("the answer broke off: {e}")))?.to_bytes())
}

#[async_trait]
impl Transport for HttpsTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (parts, body) = self.stream(request).await?.into_parts();
        Ok(Response::from_parts(parts, collect(body).await?))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let response = self.get(with_query(resource.path(namespace, None), &params.query())).await?;
        read_list(resource, &collect(response.into_body()).await?)
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let mut query = ListParams { resource_version: Some(resource_version.to_string()), ..params.clone() }.query();
        push_query(&mut query, "watch", "true");
        push_query(&mut query, "allowWatchBookmarks", "true");
        let response = self.get(with_query(resource.path(namespace, None), &query)).await?;
        let chunks = response
            .into_body()
            .into_data_stream()
            .map_err(|e| ApiError::new(Reason::ServiceUnavailable, format!("the watch broke off: {e}")));
        Ok(read_events(chunks.boxed()))
    }
}
