//! Connections to an API server, directly or through a proxy (`proxy-url` of a kubeconfig).
//! Used by `https`, which makes new ones when the client's certificate is renewed, and by `cli`.
//! Knows nothing of requests.

use std::{error::Error as StdError, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::{body::Incoming, service::Service};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client, Error,
        connect::{
            HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection over a network that was cut is given up for a new one, as by client-go: TCP alone would wait for as long
/// again as the cut took.
pub const ONLY_SERVER: Timeouts = Timeouts {
    ping_interval: Duration::from_secs(30),
    ping_timeout: Duration::from_secs(15),
    connect: Duration::from_secs(10),
};
/// Where another server would answer, a silent one is not waited for as long.
pub const SEVERAL_SERVERS: Timeouts = Timeouts {
    ping_interval: Duration::from_secs(1),
    ping_timeout: Duration::from_secs(1),
    connect: Duration::from_secs(1),
};

/// Somebody waits at a terminal: a server far away is waited for as long as client-go waits.
pub const COMMAND_LINE: Timeouts = Timeouts { connect: Duration::from_secs(30), ..ONLY_SERVER };

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    ping_interval: Duration,
    ping_timeout: Duration,
    connect: Duration,
}

/// How the server is reached.
#[derive(Clone)]
pub struct Route {
    proxy: Proxy,
    server_name: Option<ServerName<'static>>,
}

#[derive(Clone)]
enum Proxy {
    None,
    /// In TLS if its address says so.
    Tunnel {
        address: Uri,
        authorization: Option<HeaderValue>,
    },
    Socks {
        address: Uri,
        login: Option<(String, String)>,
    },
}

impl Route {
    pub fn new(proxy_url: Option<&str>, tls_server_name: Option<&str>) -> Result<Self, String> {
        let server_name = match tls_server_name {
            None => None,
            Some(name) => Some(ServerName::try_from(name.to_string()).map_err(|e| format!("tls-server-name: {e}"))?),
        };
        let proxy = proxy_url.map_or(Ok(Proxy::None), proxy)?;
        Ok(Self { proxy, server_name })
    }

    /// A connection to a host that speaks nothing yet, not even TLS. `tls` is for a proxy that wants it.
    pub async fn dial(
        &self,
        host: &str,
        port: u16,
        tls: &rustls::ClientConfig,
        timeouts: Timeouts,
    ) -> Result<Box<dyn Stream>, Box<dyn StdError + Send + Sync>> {
        let to: Uri = format!("https://{host}:{port}").parse()?;
        let tcp = tcp(timeouts);
        Ok(match &self.proxy {
            Proxy::None => Box::new(TowerToHyperService::new(tcp).call(to).await?.into_inner()),
            Proxy::Tunnel { address, authorization } if is_secure(address) => {
                let tunnel = tunnel(address, authorization.as_ref(), to_proxy(tls, tcp));
                Box::new(TokioIo::new(TowerToHyperService::new(tunnel).call(to).await?))
            }
            Proxy::Tunnel { address, authorization } => {
                let tunnel = tunnel(address, authorization.as_ref(), tcp);
                Box::new(TowerToHyperService::new(tunnel).call(to).await?.into_inner())
            }
            Proxy::Socks { address, login } => {
                Box::new(TowerToHyperService::new(socks(address, login.as_ref(), tcp)).call(to).await?.into_inner())
            }
        })
    }
}

/// A connection, through whatever it goes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn is_secure(address: &Uri) -> bool {
    address.scheme_str() == Some("https")
}

/// What the server's certificate is checked against counts for the proxy's too, as in client-go.
fn to_proxy(tls: &rustls::ClientConfig, tcp: HttpConnector) -> HttpsConnector<HttpConnector> {
    let mut tls = tls.clone();
    tls.alpn_protocols.clear();
    HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().wrap_connector(tcp)
}

fn tcp(timeouts: Timeouts) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(timeouts.connect));
    tcp.set_nodelay(true);
    tcp
}

fn tunnel<C>(address: &Uri, authorization: Option<&HeaderValue>, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(address.clone(), connector);
    match authorization {
        Some(login) => tunnel.with_auth(login.clone()),
        None => tunnel,
    }
}

fn socks(address: &Uri, login: Option<&(String, String)>, tcp: HttpConnector) -> SocksV5<HttpConnector> {
    let socks = SocksV5::new(address.clone(), tcp);
    match login {
        Some((user, password)) => socks.with_auth(user.clone(), password.clone()),
        None => socks,
    }
}

fn proxy(url: &str) -> Result<Proxy, String> {
    let invalid = |why: &str| format!("proxy-url {url:?}: {why}");
    let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
    let (login, host) = match rest.trim_end_matches('/').rsplit_once('@') {
        Some((login, host)) => (Some(login.split_once(':').unwrap_or((login, ""))), host),
        None => (None, rest.trim_end_matches('/')),
    };
    let plain = if scheme == "https" { "https" } else { "http" };
    let address = format!("{plain}://{host}").parse().map_err(|_| invalid("its host can't be read"))?;
    match scheme {
        "http" | "https" => {
            use base64::{Engine, prelude::BASE64_STANDARD};
            let basic = |(user, password): (&str, &str)| {
                let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
                HeaderValue::from_str(&format!("Basic {pair}")).map_err(|_| invalid("its login can't be sent"))
            };
            Ok(Proxy::Tunnel { address, authorization: login.map(basic).transpose()? })
        }
        "socks5" | "socks5h" => {
            Ok(Proxy::Socks { address, login: login.map(|(user, password)| (user.into(), password.into())) })
        }
        other => Err(invalid(&format!("unsupported scheme {other:?}, must be http, https, or socks5"))),
    }
}

type Pool<C> = Client<HttpsConnector<C>, Full<Bytes>>;

#[derive(Clone)]
pub enum Connections {
    Direct(Pool<HttpConnector>),
    Tunnel(Pool<Tunnel<HttpConnector>>),
    SecureTunnel(Pool<Tunnel<HttpsConnector<HttpConnector>>>),
    Socks(Pool<SocksV5<HttpConnector>>),
}

impl Connections {
    pub fn new(tls: &rustls::ClientConfig, route: &Route, timeouts: Timeouts) -> Self {
        let mut tls = tls.clone();
        // A session that is resumed would bring back the certificate it began with.
        tls.resumption = rustls::client::Resumption::default();
        let tcp = tcp(timeouts);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        macro_rules! pool {
            ($connector:expr) => {{
                let connector = match &route.server_name {
                    Some(name) => https
                        .with_server_name_resolver(FixedServerNameResolver::new(name.clone()))
                        .enable_all_versions()
                        .wrap_connector($connector),
                    None => https.enable_all_versions().wrap_connector($connector),
                };
                Client::builder(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .http2_adaptive_window(true)
                    .http2_keep_alive_interval(timeouts.ping_interval)
                    .http2_keep_alive_timeout(timeouts.ping_timeout)
                    .http2_keep_alive_while_idle(true)
                    .build(connector)
            }};
        }
        match &route.proxy {
            Proxy::None => Self::Direct(pool!(tcp)),
            Proxy::Tunnel { address, authorization } if is_secure(address) => {
                Self::SecureTunnel(pool!(tunnel(address, authorization.as_ref(), to_proxy(&tls, tcp))))
            }
            Proxy::Tunnel { address, authorization } => {
                Self::Tunnel(pool!(tunnel(address, authorization.as_ref(), tcp)))
            }
            Proxy::Socks { address, login } => Self::Socks(pool!(socks(address, login.as_ref(), tcp))),
        }
    }

    pub async fn request(&self, request: Request<Bytes>) -> Result<Response<Incoming>, Error> {
        let request = request.map(Full::new);
        match self {
            Self::Direct(client) => client.request(request).await,
            Self::Tunnel(client) => client.request(request).await,
            Self::SecureTunnel(client) => client.request(request).await,
            Self::Socks(client) => client.request(request).await,
        }
    }
}
