//! The port of a controller manager or scheduler that runs alone: health for everybody, metrics for whoever may see them.
//! Started by `commands`. Who asks, and whether they may, is the API server's to say (`client::User`).
//! Invariant: nothing but health is told without the API server's word.

mod health;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use api::ApiError;
use client::{Client, User, bearer_token};
use env::Env;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReviewSpec};
use metrics::{CONTENT_TYPE, Metrics, Text, http as listening, process};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use health::Health;

const HANDSHAKE: Duration = Duration::from_secs(10);

struct Port {
    client: Client,
    metrics: Metrics,
    health: Health,
}

/// Answers at `address` until `shutdown`; port 0 is none. A port in use is taken when it is free.
pub fn start(
    address: SocketAddr,
    client: Client,
    metrics: Metrics,
    health: Health,
    env: &Env,
    shutdown: &CancellationToken,
) -> Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    let (tls, _) = self_signed()?;
    let (port, env, shutdown) = (Arc::new(Port { client, metrics, health }), env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        let refused = |error: &std::io::Error| {
            tracing::warn!(%address, %error, "failed to serve health and metrics: choose another --secure-port");
        };
        let serving = async {
            let listener = listening::listen(&env, address, refused).await;
            serve(listener, tls, port, &env).await;
        };
        tokio::select! {
            () = serving => {}
            () = shutdown.cancelled() => {}
        }
    });
    Ok(())
}

/// TLS with a certificate of its own making, as upstream's components have where none is given.
fn self_signed() -> Result<(TlsAcceptor, CertificateDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string(), "127.0.0.1".to_string()])
        .context("failed to make a serving certificate")?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let certificate = made.cert.der().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, port: Arc<Port>, env: &Env) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(env.spawn(connection(stream, tls.clone(), port.clone(), env.clone()))),
            Err(error) => {
                // Out of file descriptors and the like: the next one may fit again.
                tracing::warn!(%error, "failed to accept a connection");
                env.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, port: Arc<Port>, env: Env) {
    let Some(Ok(stream)) = env.timeout(HANDSHAKE, tls.accept(stream)).await else { return };
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let port = port.clone();
        async move { Ok::<_, Infallible>(port.answer(request.uri(), request.headers()).await) }
    });
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended badly");
    }
}

impl Port {
    async fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let path = uri.path();
        let health = || self.health.answer(path, uri.query().unwrap_or_default());
        if health::PUBLIC.contains(&path)
            && let Some((code, verdict)) = health()
        {
            return text(code, verdict);
        }
        if let Err(error) = self.check(path, headers).await {
            let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return text(code, format!("{}\n", error.message));
        }
        if let Some((code, verdict)) = health() {
            return text(code, verdict);
        }
        if path != "/metrics" {
            return text(StatusCode::NOT_FOUND, "404 page not found\n".into());
        }
        let mut out = Text::default();
        self.metrics.render(&mut out);
        process(&mut out);
        text(StatusCode::OK, out.finish())
    }

    async fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        let user = match bearer_token(headers) {
            Some(token) => User::of_token(&self.client, token).await?,
            None => User::anonymous(),
        };
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

    use super::*;

    static COUNTED: Family = Family::counter("counted_total", &[], "Something.");

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn health_is_for_everybody_and_metrics_for_those_who_may() {
        let env = Env::real();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let config = apiserver::Config::in_process(key);
        let server = apiserver::ApiServer::new(config, store, env.clone()).await.unwrap();
        let admin = local::client(&server, "admin", &["system:masters"]);
        let accounts = admin.namespaced::<ServiceAccount>("default");
        let mut tokens = Vec::new();
        for name in ["prometheus", "nobody"] {
            accounts.create(&object(json!({ "metadata": { "name": name } }))).await.unwrap();
            let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
            let made: Value = accounts.create_subresource(name, "token", &request).await.unwrap();
            tokens.push(made["status"]["token"].as_str().unwrap().to_string());
        }
        let rules = json!([{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }]);
        let role = json!({ "metadata": { "name": "scraper" }, "rules": rules });
        admin.api::<ClusterRole>().create(&object(role)).await.unwrap();
        let subject = json!({ "kind": "ServiceAccount", "name": "prometheus", "namespace": "default" });
        let binding = json!({ "metadata": { "name": "scraper" }, "subjects": [subject],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scraper" } });
        admin.api::<ClusterRoleBinding>().create(&object(binding)).await.unwrap();
        let metrics = Metrics::default();
        metrics.count(&COUNTED, &[]);
        let (shutdown, client) = (CancellationToken::new(), local::client(&server, "system:kube-scheduler", &[]));
        let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
        let health = Health::of_scheduler(true, &shutdown, informers.clone());
        let port = Port { client, metrics, health };
        let ask = async |path: &str, token: &str| {
            let mut headers = HeaderMap::new();
            if !token.is_empty() {
                headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
            }
            let answer = port.answer(&path.parse().unwrap(), &headers).await;
            let code = answer.status().as_u16();
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            (code, String::from_utf8(body.to_vec()).unwrap())
        };
        for path in ["/healthz", "/livez"] {
            assert_eq!(ask(path, "").await, (200, "ok".to_string()), "{path}");
        }
        assert_eq!(ask("/readyz", "").await.0, 500, "nobody has asked for anything");
        let pods = informers.informer::<Pod>();
        tokio::time::timeout(Duration::from_secs(120), pods.synced()).await.expect("a list of pods");
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
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let body = tokio::time::timeout(Duration::from_secs(120), allowed).await.expect("the role allows it");
        assert!(body.contains("counted_total 1\n") && body.contains("process_resident_memory_bytes"), "{body}");
        assert_eq!(ask("/configz", &tokens[0]).await.0, 403);
    }

    #[tokio::test]
    async fn the_port_speaks_tls() {
        let env = Env::real();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tls, certificate) = self_signed().unwrap();
        let to = |server: String| {
            let ca = vec![certificate.clone()];
            let config = HttpsConfig { server, ca, identity: Identity::default(), user_agent: "test".into() };
            Client::new(HttpsTransport::new(config).unwrap())
        };
        let health = Health::of_controllers(true, &CancellationToken::new(), Default::default());
        let port = Port { client: to("https://127.0.0.1:1".into()), metrics: Metrics::default(), health };
        let task = tokio::spawn(async move { serve(listener, tls, Arc::new(port), &env).await });
        let asking = to(format!("https://{address}"));
        let answer = asking.request(Request::get("/healthz").body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!(&answer[..], b"ok");
        task.abort();
    }
}
