//! What access control costs, as ratios: `cargo run --release --example access_figures [ROUNDS]`.
//! Run by `make bench`; prints each figure beside its limit. Flow control, a flood beside another flow, auditing, encryption
//! and a token of an OpenID Connect issuer of its own over TLS.
//! Measures whole requests in this process, over a store in memory; what is compared is run in turns, so that a busy machine
//! slows both.

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use apiserver::{
    ApiServer, Body, Config,
    authn::User,
    body,
    config::{EncryptionProviders, Oidc},
};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use env::Env;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};

type Failure = Box<dyn Error + Send + Sync>;

const ROUNDS: usize = 20_000;
const MAP: &str = "/api/v1/namespaces/default/configmaps/c";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Requests of the flood that wait or run at any moment, for each seat of the server's.
const FLOOD_FACTOR: usize = 10;
const SEATS: usize = 40;
const HEARTBEATS: usize = 20;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |text| text.parse())?;
    let env = Env::real();
    let directory = std::env::temp_dir().join(format!("minke-access-figures-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let result = figures(&env, &directory, rounds).await;
    std::fs::remove_dir_all(&directory)?;
    result
}

async fn figures(env: &Env, directory: &Path, rounds: usize) -> Result<(), Failure> {
    let plain = start(env, |_| ()).await?;
    let without = start(env, |config| config.limits.priority_and_fairness = false).await?;
    let (base, with) = in_turns(env, rounds, &without, &plain, |_| get(MAP)).await?;
    share("flow control, of a GET", base, with, "< 5 %");

    let policy = directory.join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")?;
    let log = directory.join("audit.log");
    let audited = start(env, |config| {
        config.audit.policy_file = Some(policy);
        config.audit.log.path = Some(log);
    })
    .await?;
    let (base, with) = in_turns(env, rounds, &plain, &audited, |_| get(MAP)).await?;
    share("auditing at level Metadata, of a GET", base, with, "< 10 %");

    let file = directory.join("encryption.yaml");
    let key = BASE64_STANDARD.encode([7; 32]);
    let providers = json!([{ "secretbox": { "keys": [{ "name": "k", "secret": key }] } }]);
    let encryption = json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{ "resources": ["secrets"], "providers": providers }] });
    std::fs::write(&file, encryption.to_string())?;
    let encrypted = start(env, |config| {
        config.encryption_providers = Some(EncryptionProviders { file, automatic_reload: false });
    })
    .await?;
    let secret = |number: usize| {
        let data = json!({ "password": BASE64_STANDARD.encode("x".repeat(512)) });
        post(SECRETS, json!({ "metadata": { "name": format!("s{number}") }, "data": data }))
    };
    let (base, with) = in_turns(env, rounds / 4, &plain, &encrypted, secret).await?;
    share("secretbox, of the write of a Secret", base, with, "< 10 %");

    token(env, directory, rounds).await?;
    flood(env, rounds / 10).await
}

async fn start(env: &Env, configure: impl FnOnce(&mut Config)) -> Result<Arc<ApiServer>, Failure> {
    let mut config = Config::in_process(KeyPair::generate()?.serialize_pem());
    configure(&mut config);
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(config, store, env.clone()).await.map_err(|e| e.to_string())?;
    let object = json!({ "metadata": { "name": "c" }, "data": { "text": "x".repeat(1024) } });
    handle(&server, "admin", &["system:masters"], post("/api/v1/namespaces/default/configmaps", object)).await?;
    // Masters are exempt from flow control; these are of a level that is limited.
    bind(&server, "cluster-admin", &["figures", "calm", "flood"]).await?;
    server.cluster.cache.wait_until_fresh().await.map_err(|e| e.to_string())?;
    Ok(server)
}

async fn bind(server: &Arc<ApiServer>, role: &str, users: &[&str]) -> Result<(), Failure> {
    let subject = |user: &&str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user });
    let subjects: Vec<Value> = users.iter().map(subject).collect();
    let role_ref = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role });
    let binding =
        json!({ "metadata": { "name": format!("figures-{role}") }, "roleRef": role_ref, "subjects": subjects });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    handle(server, "admin", &["system:masters"], post(path, binding)).await
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(body::empty()).expect("a request")
}

fn post(path: &str, object: Value) -> Request<Body> {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    request.body(body::full(object.to_string())).expect("a request")
}

/// The status of the answer, which is read to its end.
async fn send(server: &Arc<ApiServer>, request: Request<Body>) -> Result<u16, Failure> {
    let response = server.handle(request).await;
    let status = response.status().as_u16();
    body::read_all(response.into_body(), 1 << 22).await.map_err(|e| e.to_string())?;
    Ok(status)
}

async fn handle(server: &Arc<ApiServer>, user: &str, groups: &[&str], request: Request<Body>) -> Result<(), Failure> {
    let request = ApiServer::in_process_request(User::new(user, groups), request);
    match send(server, request).await? {
        200..=299 => Ok(()),
        status => Err(format!("answered {status}").into()),
    }
}

/// Half of the times is below: that of the first server, and that of the second.
async fn in_turns(
    env: &Env,
    rounds: usize,
    first: &Arc<ApiServer>,
    second: &Arc<ApiServer>,
    make: impl Fn(usize) -> Request<Body>,
) -> Result<(Duration, Duration), Failure> {
    let (mut one, mut other) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..rounds.max(10) {
        for (server, times) in [(first, &mut one), (second, &mut other)] {
            let request = make(round);
            let start = env.monotonic();
            handle(server, "figures", &["system:authenticated"], request).await?;
            times.push(env.monotonic() - start);
        }
    }
    Ok((percentile(&mut one, 50), percentile(&mut other, 50)))
}

/// An issuer with one key, over TLS.
async fn issuer(env: &Env) -> Result<(String, String, KeyPair), Failure> {
    let key = KeyPair::generate()?;
    let tls = KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_string()])?.self_signed(&tls)?;
    let private = PrivateKeyDer::from_pem_slice(tls.serialize_pem().as_bytes())?;
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], private)?;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}", listener.local_addr()?);
    let point: Vec<u8> = key.der_bytes().to_vec();
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
    let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "x": x, "y": y }] });
    let discovery = json!({ "issuer": url, "jwks_uri": format!("{url}/keys") });
    env.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let (keys, discovery) = (keys.clone(), discovery.clone());
            let answer = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let value = if request.uri().path() == "/keys" { &keys } else { &discovery };
                let answer = Response::new(Full::new(Bytes::from(value.to_string())));
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            env::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    Ok((url, certificate.pem(), key))
}

/// What a cached token adds to a request.
async fn token(env: &Env, directory: &Path, rounds: usize) -> Result<(), Failure> {
    let (url, ca, key) = issuer(env).await?;
    let file = directory.join("authentication.yaml");
    let of = json!({ "url": url, "audiences": ["cluster"], "certificateAuthority": ca });
    let mappings = json!({ "username": { "claim": "sub", "prefix": "" } });
    let configuration = json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{ "issuer": of, "claimMappings": mappings }] });
    std::fs::write(&file, configuration.to_string())?;
    let server = start(env, |config| config.authentication.oidc = Some(Oidc::File(file))).await?;
    bind(&server, "view", &["ada"]).await?;
    let claims = json!({ "iss": url, "aud": "cluster", "exp": env.now().as_second() + 3600, "sub": "ada" });
    let header = Header { kid: Some("k".into()), ..Header::new(Algorithm::ES256) };
    let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ec_pem(key.serialize_pem().as_bytes())?)?;
    let bearer = || {
        let request = Request::get(MAP).header("authorization", format!("Bearer {token}"));
        request.body(body::empty()).expect("a request")
    };
    // The issuer's keys are fetched in the background.
    for _ in 0..200 {
        if send(&server, bearer()).await? == 200 {
            break;
        }
        env.sleep(Duration::from_millis(50)).await;
    }
    let (mut known, mut by_token) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds.max(10) {
        let request = ApiServer::in_process_request(User::new("ada", &["system:authenticated"]), get(MAP));
        for (request, times) in [(request, &mut known), (bearer(), &mut by_token)] {
            let start = env.monotonic();
            let status = send(&server, request).await?;
            times.push(env.monotonic() - start);
            if status != 200 {
                return Err(format!("a GET by token answered {status}").into());
            }
        }
    }
    let added = percentile(&mut by_token, 50).saturating_sub(percentile(&mut known, 50));
    println!(
        "{:<60} {:>10}   < 10 us",
        "a cached OIDC token adds to a GET",
        format!("{:.1} us", added.as_secs_f64() * 1e6)
    );
    Ok(())
}

/// One flow floods with ten times what the server has seats for; another goes on, and so do nodes.
async fn flood(env: &Env, rounds: usize) -> Result<(), Failure> {
    let server = start(env, |config| {
        config.limits.requests_in_flight = SEATS / 2;
        config.limits.mutating_requests_in_flight = SEATS / 2;
    })
    .await?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    for node in 0..HEARTBEATS {
        let lease = json!({ "metadata": { "name": format!("n{node}") }, "spec": { "leaseDurationSeconds": 40 } });
        handle(&server, "admin", &["system:masters"], post(leases, lease)).await?;
    }
    let calm = async || -> Result<Duration, Failure> {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds.max(10) {
            let request = ApiServer::in_process_request(User::new("calm", &["system:authenticated"]), get(MAP));
            let start = env.monotonic();
            if send(&server, request).await? != 200 {
                return Err("the calm flow was refused".into());
            }
            times.push(env.monotonic() - start);
        }
        Ok(percentile(&mut times, 99))
    };
    let before = calm().await?;
    let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..SEATS * FLOOD_FACTOR {
        let (server, stop) = (server.clone(), stop.clone());
        tasks.push(env.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let request = get("/api/v1/namespaces/default/configmaps");
                let user = User::new("flood", &["system:authenticated"]);
                let _ = send(&server, ApiServer::in_process_request(user, request)).await;
            }
        }));
    }
    for node in 0..HEARTBEATS {
        let (server, stop, lost, env_of) = (server.clone(), stop.clone(), lost.clone(), env.clone());
        tasks.push(env.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let body = body::full(json!({ "spec": { "leaseDurationSeconds": 40 } }).to_string());
                let request =
                    Request::patch(format!("{leases}/n{node}")).header("content-type", "application/merge-patch+json");
                let user = User::new(&format!("system:node:n{node}"), &["system:nodes", "system:authenticated"]);
                let request = ApiServer::in_process_request(user, request.body(body).expect("a request"));
                if !send(&server, request).await.is_ok_and(|status| status == 200) {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                env_of.sleep(Duration::from_millis(100)).await;
            }
        }));
    }
    let during = calm().await?;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    let grows = during.saturating_sub(before).as_secs_f64() * 1e3;
    println!("{:<60} {:>10}   < 20 ms", "beside a flood of 10x, another flow's p99 grows by", format!("{grows:.1} ms"));
    println!("{:<60} {:>10}   0", "heartbeats lost in it", lost.load(Ordering::Relaxed));
    Ok(())
}

fn share(what: &str, base: Duration, with: Duration, limit: &str) {
    let share = (with.as_secs_f64() / base.as_secs_f64() - 1.0) * 100.0;
    println!("{what:<60} {:>10}   {limit}", format!("{share:+.1} %"));
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
