//! The port of a controller manager or scheduler that runs alone: health for everybody, metrics for whoever may see them.
//! Started by `commands`. Who asks (`callers`), and whether they may, is the API server's to say.
//! Nothing but health is told without the API server's word.

mod callers;
mod health;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use api::ApiError;
use apiserver::{ProofOfKey, authn::PeerCertificates};
use client::Client;
use env::Env;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReviewSpec};
use metrics::{CONTENT_TYPE, Metrics, http as listening};
use parking_lot::RwLock;
use rustls::{ServerConfig, pki_types::CertificateDer, server::ResolvesServerCert};
use serde_json::Value;
use serve::{Handler, Limits, Peer, TlsOptions, serve_https};
use tokio_util::sync::CancellationToken;

use crate::certificates::pki::Current;
use callers::Callers;
pub use health::Health;

struct Port {
    client: Client,
    callers: Callers,
    pages: Pages,
    health: Health,
    always_allow_paths: Vec<String>,
}

/// Where a port is, and whom it asks about callers.
pub struct PortSettings {
    /// Port 0 is none.
    pub address: SocketAddr,
    pub authentication: Client,
    pub authorization: Client,
    /// Authorities of callers' certificates, in place of the API server's.
    pub client_ca_file: Option<PathBuf>,
    /// For everybody; one that ends in `/*` stands for all below it.
    pub always_allow_paths: Vec<String>,
    pub tls: TlsOptions,
    /// None: one of its own making.
    pub certificate: Option<Arc<dyn ResolvesServerCert>>,
}

/// What is shown to whoever may see it.
#[derive(Default)]
pub struct Pages {
    pub metrics: Metrics,
    /// What `/configz` says; null where there is nothing to say.
    pub configz: Value,
}

/// Answers until `shutdown`. A port in use is taken when it is free.
pub fn start(
    settings: PortSettings,
    pages: Pages,
    health: Health,
    env: &Env,
    shutdown: &CancellationToken,
) -> Result<()> {
    let address = settings.address;
    if address.port() == 0 {
        return Ok(());
    }
    let client_ca_pem = settings
        .client_ca_file
        .map(|file| std::fs::read(&file).with_context(|| format!("failed to read --client-ca-file {}", file.display())))
        .transpose()?;
    let callers = Callers::new(settings.authentication, env.clone(), client_ca_pem).map_err(anyhow::Error::msg)?;
    let certificate = match settings.certificate {
        Some(certificate) => certificate,
        None => self_signed()?.0,
    };
    let tls = tls(&settings.tls, certificate)?;
    let (client, always_allow_paths) = (settings.authorization, settings.always_allow_paths);
    let port = Arc::new(Port { client, callers, pages, health, always_allow_paths });
    let (env, shutdown) = (env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        let refused = |error: &std::io::Error| {
            tracing::warn!(%address, %error, "failed to serve health and metrics: choose another --secure-port");
        };
        let listening = listening::listen(&env, address, refused);
        let Some(listener) = shutdown.run_until_cancelled(listening).await else { return };
        serve_https(listener, tls, port, Limits::COMPONENT, env, shutdown).await;
    });
    Ok(())
}

fn tls(options: &TlsOptions, certificate: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig> {
    let (builder, provider) = options.builder()?;
    let builder = builder.with_client_cert_verifier(Arc::new(ProofOfKey::new(Vec::new(), provider)));
    Ok(builder.with_cert_resolver(certificate))
}

/// A certificate of its own making, as upstream's components have where none is given.
fn self_signed() -> Result<(Arc<dyn ResolvesServerCert>, CertificateDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string(), "127.0.0.1".to_string()])
        .context("failed to make a serving certificate")?;
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certified = client::certified_key(chain.as_bytes(), key.as_bytes()).map_err(anyhow::Error::msg)?;
    Ok((Arc::new(Current(Arc::new(RwLock::new(Arc::new(certified))))), made.cert.der().clone()))
}

impl Handler for Port {
    type Body = Full<Bytes>;

    fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: &Arc<Peer>,
    ) -> BoxFuture<'static, Response<Full<Bytes>>> {
        let (port, mut request) = (self.clone(), request.into_parts().0);
        if let Some(shown) = &peer.certificates {
            request.extensions.insert(PeerCertificates(shown.clone()));
        }
        Box::pin(async move { port.answer(&request).await })
    }
}

impl Port {
    async fn answer(&self, request: &Parts) -> Response<Full<Bytes>> {
        let path = request.uri.path();
        let health = || self.health.answer(path, request.uri.query().unwrap_or_default());
        let is_public = self.is_always_allowed(path);
        if is_public && let Some((code, verdict)) = health() {
            return text(code, verdict);
        }
        if !is_public && let Err(error) = self.check(request).await {
            let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return text(code, format!("{}\n", error.message));
        }
        if let Some((code, verdict)) = health() {
            return text(code, verdict);
        }
        match path {
            "/metrics" => text(StatusCode::OK, self.pages.metrics.page()),
            "/metrics/slis" => text(StatusCode::OK, self.health.slis.page()),
            "/configz" if !self.pages.configz.is_null() => text(StatusCode::OK, self.pages.configz.to_string()),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n".into()),
        }
    }

    fn is_always_allowed(&self, path: &str) -> bool {
        let below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        self.always_allow_paths.iter().any(|allowed| allowed == path || allowed.strip_suffix("/*").is_some_and(below))
    }

    async fn check(&self, request: &Parts) -> Result<(), ApiError> {
        let path = request.uri.path();
        let user = self.callers.user(&request.headers, &request.extensions).await?;
        let attributes = NonResourceAttributes { path: Some(path.into()), verb: Some("get".into()) };
        let what = SubjectAccessReviewSpec { non_resource_attributes: Some(attributes), ..Default::default() };
        match user.may(&self.client, what).await? {
            true => Ok(()),
            false => Err(ApiError::forbidden("", "", "", &format!("User {:?} cannot get path {path:?}", user.name))),
        }
    }
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(CONTENT_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use client::{HttpsConfig, HttpsTransport, Identity, InformerFactory};
    use http::HeaderValue;
    use k8s_openapi::api::{
        core::v1::{Pod, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    };
    use metrics::Family;
    use serde_json::{Value, json};
    use std::time::Duration;
    use tokio::net::TcpListener;

    use super::*;

    fn public() -> Vec<String> {
        ["/healthz", "/readyz", "/livez"].map(str::to_string).to_vec()
    }

    static COUNTED: Family = Family::counter("counted_total", &[], "Something.");

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn health_is_for_everybody_and_metrics_for_those_who_may() {
        let env = Env::real();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let mut config = apiserver::Config::in_process(key);
        let (authority, stranger) = (authority(), authority());
        config.client_ca_pem = authority.0.clone().into_bytes();
        let server = apiserver::ApiServer::new(config, store, env.clone()).await.unwrap();
        let admin = in_process::client(&server, "admin", &["system:masters"]);
        let accounts = admin.namespaced::<ServiceAccount>("default");
        let mut tokens = Vec::new();
        for name in ["prometheus", "nobody"] {
            accounts.create(&object(json!({ "metadata": { "name": name } }))).await.unwrap();
            let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
            let made: Value = accounts.create_subresource(name, "token", &request).await.unwrap();
            tokens.push(made["status"]["token"].as_str().unwrap().to_string());
        }
        let rules = json!([{ "nonResourceURLs": ["/metrics", "/metrics/slis"], "verbs": ["get"] }]);
        let role = json!({ "metadata": { "name": "scraper" }, "rules": rules });
        admin.api::<ClusterRole>().create(&object(role)).await.unwrap();
        let account = json!({ "kind": "ServiceAccount", "name": "prometheus", "namespace": "default" });
        let group = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "scrapers" });
        let binding = json!({ "metadata": { "name": "scraper" }, "subjects": [account, group],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scraper" } });
        admin.api::<ClusterRoleBinding>().create(&object(binding)).await.unwrap();
        let metrics = Metrics::default();
        metrics.count(&COUNTED, &[]);
        let (shutdown, client) = (CancellationToken::new(), in_process::client(&server, "system:kube-scheduler", &[]));
        let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
        let health = Health::of_scheduler(true, &shutdown, informers.clone(), Default::default());
        let callers = Callers::new(client.clone(), env.clone(), None).unwrap();
        let (pages, always_allow_paths) = (Pages { metrics, ..Pages::default() }, public());
        let mut port = Port { client: client.clone(), callers, pages, health, always_allow_paths };
        let request = |path: &str, token: &str| {
            let mut request = Request::get(path).body(()).unwrap().into_parts().0;
            if !token.is_empty() {
                let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
                request.headers.insert(header::AUTHORIZATION, bearer);
            }
            request
        };
        let ask = async |path: &str, token: &str| {
            let answer = port.answer(&request(path, token)).await;
            let code = answer.status().as_u16();
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            (code, String::from_utf8(body.to_vec()).unwrap())
        };
        for path in ["/healthz", "/livez"] {
            assert_eq!(ask(path, "").await, (200, "ok".to_string()), "{path}");
        }
        assert_eq!(ask("/readyz", "").await.0, 500, "nobody has asked for anything");
        let pods = informers.informer::<Pod>();
        env::timeout(Duration::from_secs(120), pods.synced()).await.expect("a list of pods");
        assert_eq!(ask("/readyz", "").await, (200, "ok".to_string()));
        assert_eq!(ask("/readyz/sched-handler-sync", "").await.0, 403, "why it is not ready is not for everybody");
        for (token, code) in [("", 403), ("forged", 401), (tokens[1].as_str(), 403)] {
            assert_eq!(ask("/metrics", token).await.0, code, "{token}");
        }
        // The server learns of the role and its binding by watching.
        let allowed = async {
            loop {
                match ask("/metrics", &tokens[0]).await {
                    (200, body) => return body,
                    _ => env::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let body = env::timeout(Duration::from_secs(120), allowed).await.expect("the role allows it");
        assert!(body.contains("counted_total 1\n") && body.contains("process_resident_memory_bytes"), "{body}");
        let (code, slis) = ask("/metrics/slis", &tokens[0]).await;
        let passed = "kubernetes_healthcheck{name=\"sched-handler-sync\",type=\"readyz\"} 1\n";
        assert!(code == 200 && slis.contains(passed), "{slis}");
        assert_eq!(ask("/configz", &tokens[0]).await.0, 403);

        // By certificate, of the API server's own authorities or of one that a flag names in their place.
        let shows = async |port: &Port, certificate: CertificateDer<'static>, token: &str| {
            let mut request = request("/metrics", token);
            request.extensions.insert(PeerCertificates(vec![certificate]));
            port.answer(&request).await.status().as_u16()
        };
        let leaf = |by: &Authority, group: &str| signed(by, group).0.der().clone();
        assert_eq!(shows(&port, leaf(&authority, "scrapers"), "").await, 200);
        assert_eq!(shows(&port, leaf(&authority, "others"), "").await, 403);
        assert_eq!(shows(&port, leaf(&stranger, "scrapers"), "").await, 401);
        assert_eq!(shows(&port, leaf(&stranger, "scrapers"), &tokens[0]).await, 200, "the token still counts");
        let named = Some(stranger.0.clone().into_bytes());
        port.callers = Callers::new(client, env, named).unwrap();
        assert_eq!(shows(&port, leaf(&stranger, "scrapers"), "").await, 200);
        assert_eq!(shows(&port, leaf(&authority, "scrapers"), "").await, 401);
    }

    /// Its certificate as PEM, and what signs.
    type Authority = (String, rcgen::Issuer<'static, rcgen::KeyPair>);

    fn authority() -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, rcgen::Issuer::new(params, key))
    }

    fn signed((_, by): &Authority, group: &str) -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "somebody");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        (params.signed_by(&key, by).unwrap(), key)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_shakes_no_hands_is_closed() {
        use tokio::io::AsyncReadExt;
        let env = Env::real();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let transport = HttpsTransport::new(HttpsConfig {
            server: "https://127.0.0.1:1".into(),
            ca: Vec::new(),
            identity: Identity::default(),
            user_agent: "test".into(),
            ..HttpsConfig::default()
        });
        let client = Client::new(transport.unwrap());
        let callers = Callers::new(client.clone(), env.clone(), None).unwrap();
        let health = Health::of_controllers(true, &CancellationToken::new(), Default::default(), Default::default());
        let port = Arc::new(Port { client, callers, pages: Pages::default(), health, always_allow_paths: public() });
        let tls = tls(&TlsOptions::default(), self_signed().unwrap().0).unwrap();
        let task = env::spawn(serve_https(listener, tls, port, Limits::COMPONENT, env, CancellationToken::new()));
        let mut silent = tokio::net::TcpStream::connect(address).await.unwrap();
        let ended = env::timeout(Duration::from_secs(24 * 3600), silent.read(&mut [0])).await;
        assert_eq!(ended.expect("the port closes it").unwrap_or(0), 0);
        task.abort();
    }

    #[tokio::test]
    async fn the_port_speaks_tls() {
        let env = Env::real();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (resolver, certificate) = self_signed().unwrap();
        let tls = tls(&TlsOptions::default(), resolver).unwrap();
        let to = |server: String, identity: Identity| {
            let ca = vec![certificate.clone()];
            let config = HttpsConfig { server, ca, identity, user_agent: "test".into(), ..HttpsConfig::default() };
            Client::new(HttpsTransport::new(config).unwrap())
        };
        let health = Health::of_controllers(true, &CancellationToken::new(), Default::default(), Default::default());
        let client = to("https://127.0.0.1:1".into(), Identity::default());
        let (known, stranger) = (authority(), authority());
        let callers = Callers::new(client.clone(), env.clone(), Some(known.0.clone().into_bytes())).unwrap();
        let port = Port { client, callers, pages: Pages::default(), health, always_allow_paths: public() };
        let stop = CancellationToken::new();
        let task = env::spawn(serve_https(listener, tls, Arc::new(port), Limits::COMPONENT, env, stop));
        let ask = async |path: &str, identity: Identity| {
            let asking = to(format!("https://{address}"), identity);
            asking.request(Request::get(path).body(Bytes::new()).unwrap()).await
        };
        assert_eq!(&ask("/healthz", Identity::default()).await.unwrap()[..], b"ok");
        // Whoever shows a certificate of the right authority is known; nobody here can say what they may.
        for (by, is_known) in [(&known, true), (&stranger, false)] {
            let (certificate, key) = signed(by, "scrapers");
            let key = client::certified_key(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
            let certificate = Some(Arc::new(parking_lot::RwLock::new(Arc::new(key))));
            let identity = Identity { certificate, ..Identity::default() };
            let refusal = ask("/metrics", identity).await.expect_err("no API server to ask");
            assert_eq!(refusal.code != 401, is_known, "{refusal}");
        }
        task.abort();
    }
}
