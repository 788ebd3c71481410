//! Encryption at rest: what lies on disk, keys that rotate, keys that are lost, and a key service over its socket.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use apiserver::{
    config::EncryptionProviders,
    storage::encryption::kms_protocol::{
        DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, STATUS, StatusRequest,
        StatusResponse,
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use store::{EmbeddedStore, MemoryStore, Store};
use tonic::{Response, Status, server::Grpc};
use tonic_prost::ProstCodec;

use crate::harness::{Server, server_on};

const MARKER: &str = "a-text-that-must-never-lie-on-disk";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn key(byte: u8) -> String {
    BASE64_STANDARD.encode([byte; 32])
}

fn file(entries: &[(&[&str], Vec<Value>)]) -> String {
    let entries: Vec<Value> =
        entries.iter().map(|(names, providers)| json!({ "resources": names, "providers": providers })).collect();
    json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": entries })
        .to_string()
}

fn provider(kind: &str, keys: &[(&str, u8)]) -> Value {
    let keys: Vec<Value> = keys.iter().map(|(name, byte)| json!({ "name": name, "secret": key(*byte) })).collect();
    json!({ kind: { "keys": keys } })
}

async fn start(store: Arc<dyn Store>, path: &Path) -> Server {
    let providers = EncryptionProviders { file: path.to_path_buf(), automatic_reload: true };
    server_on(store, Env::real(), |config| config.encryption_providers = Some(providers)).await
}

fn secret(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "stringData": { "password": MARKER } })
}

/// How the value of a secret begins in the store.
async fn prefix(store: &dyn Store, name: &str) -> String {
    let record = store.get(&format!("/registry/secrets/default/{name}")).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&record.value).into_owned();
    text.match_indices(':').nth(4).map_or_else(|| text.chars().take(8).collect(), |(at, _)| text[..at].to_string())
}

async fn reloads(s: &Server, status: &str) -> u64 {
    let page = s.get("/metrics").await;
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    let name = "apiserver_encryption_config_controller_automatic_reloads_total";
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(status)).map(str::to_string);
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

async fn replace(s: &Server, path: &Path, text: String, status: &str) {
    let before = reloads(s, status).await;
    std::fs::write(path, text).unwrap();
    while reloads(s, status).await == before {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
}

fn holds_marker(path: &Path) -> bool {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().any(|entry| holds_marker(&entry.unwrap().path()));
    }
    let encoded = BASE64_STANDARD.encode(MARKER);
    let bytes = std::fs::read(path).unwrap();
    [MARKER, &encoded[..20]].iter().any(|text| bytes.windows(text.len()).any(|w| w == text.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_lies_on_disk_in_the_clear() {
    let folder = tempfile::tempdir().unwrap();
    let (data, path) = (folder.path().join("store"), folder.path().join("encryption.yaml"));
    std::fs::write(&path, file(&[(&["secrets"], vec![provider("secretbox", &[("one", 1)])])])).unwrap();
    let store = Arc::new(EmbeddedStore::open(&data, Env::real()).unwrap());
    let s = start(store.clone(), &path).await;
    s.post(SECRETS, secret("a")).await.expect(201);
    let found = s.get(&format!("{SECRETS}/a")).await.expect(200);
    assert_eq!(found["data"]["password"], BASE64_STANDARD.encode(MARKER));
    assert_eq!(prefix(&*store, "a").await, "k8s:enc:secretbox:v1:one");
    let copy = folder.path().join("backup");
    store::files::backup(&data, &copy).unwrap();
    assert!(!holds_marker(&data) && !holds_marker(&copy));
    // The test would see it: other resources are in the clear.
    let map = json!({ "metadata": { "name": "m" }, "data": { "k": MARKER } });
    s.post("/api/v1/namespaces/default/configmaps", map).await.expect(201);
    assert!(holds_marker(&data));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rotate_and_lost_keys_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("encryption.yaml");
    let store = Arc::new(MemoryStore::new(Env::real()));
    let identity = || json!({ "identity": {} });
    std::fs::write(&path, file(&[(&["secrets"], vec![identity()])])).unwrap();
    let s = start(store.clone(), &path).await;
    s.post(SECRETS, secret("a")).await.expect(201);
    assert!(prefix(&*store, "a").await.starts_with('{'));
    let written = async |s: &Server| {
        let object = s.get(&format!("{SECRETS}/a")).await.expect(200);
        let version = s.put(&format!("{SECRETS}/a"), object.clone()).await.expect(200);
        version["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]
    };
    assert!(!written(&s).await, "what is written as it should be is not written again");
    for (providers, expected) in [
        (vec![provider("aescbc", &[("k", 1)]), identity()], "k8s:enc:aescbc:v1:k"),
        (vec![provider("aesgcm", &[("g", 2)]), provider("aescbc", &[("k", 1)])], "k8s:enc:aesgcm:v1:g"),
        (vec![provider("aesgcm", &[("h", 3), ("g", 2)])], "k8s:enc:aesgcm:v1:h"),
    ] {
        replace(&s, &path, file(&[(&["secrets"], providers)]), "success").await;
        assert!(written(&s).await, "{expected}: unchanged, but written with a new key");
        assert_eq!(prefix(&*store, "a").await, expected);
        assert!(!written(&s).await, "{expected}");
    }
    replace(&s, &path, "resources: [".into(), "failure").await;
    assert_eq!(s.get(&format!("{SECRETS}/a")).await.code, 200);

    // A value that lies under another key than it was written for is not believed.
    let record = store.get("/registry/secrets/default/a").await.unwrap().unwrap();
    let put =
        store::Operation::Put { key: "/registry/secrets/default/moved".into(), value: record.value, ttl_seconds: None };
    store.transact(store::Transaction { compare: vec![], operations: vec![put] }).await.unwrap();
    let moved = s.until(&format!("{SECRETS}/moved"), |answer| answer.code == 500).await;
    assert!(moved["message"].as_str().unwrap().contains("unable to transform key"), "{moved}");
    assert_eq!(s.get(SECRETS).await.code, 500, "a list without it would be a lie");

    // A server without the key: errors, not absences.
    std::fs::write(&path, file(&[(&["secrets"], vec![provider("aesgcm", &[("other", 9)]), identity()])])).unwrap();
    let s = start(store.clone(), &path).await;
    for path in [&format!("{SECRETS}/a"), SECRETS, "/api/v1/secrets"] {
        assert_eq!(s.get(path).await.code, 500, "{path}");
    }
    assert_eq!(s.post(SECRETS, secret("a")).await.code, 500);
    assert_eq!(s.put(&format!("{SECRETS}/a"), secret("a")).await.code, 500);
    assert_eq!(s.get("/api/v1/namespaces/default/configmaps").await.code, 200);
}

/// A key service of our own: it encrypts by flipping bits, and can be told to be unwell.
#[derive(Default)]
struct Plugin {
    state: Mutex<PluginState>,
}

#[derive(Default)]
struct PluginState {
    key_id: String,
    healthz: String,
    lies: bool,
    echoes: bool,
    hangs: bool,
    decryptions: usize,
}

type Answer = Result<http::Response<tonic::body::Body>, std::convert::Infallible>;

impl Plugin {
    async fn start(socket: &Path) -> Arc<Self> {
        let plugin = Arc::new(Self::default());
        *plugin.lock() = PluginState { key_id: "1".into(), healthz: "ok".into(), ..PluginState::default() };
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let serving = plugin.clone();
        env::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let plugin = serving.clone();
                env::spawn(async move {
                    let service = hyper::service::service_fn(move |request| plugin.clone().answer(request));
                    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    connection.serve_connection(TokioIo::new(stream), service).await.ok();
                });
            }
        });
        plugin
    }

    fn lock(&self) -> MutexGuard<'_, PluginState> {
        self.state.lock().unwrap()
    }

    fn answer(self: Arc<Self>, request: http::Request<Incoming>) -> BoxFuture<'static, Answer> {
        async move {
            if self.lock().hangs {
                std::future::pending::<()>().await;
            }
            Ok(match request.uri().path() {
                STATUS => {
                    let service = tower::service_fn(move |_: tonic::Request<StatusRequest>| {
                        let state = self.lock();
                        let (healthz, key_id) = (state.healthz.clone(), state.key_id.clone());
                        let answer = StatusResponse { version: "v2".into(), healthz, key_id };
                        std::future::ready(Ok::<_, Status>(Response::new(answer)))
                    });
                    Grpc::new(ProstCodec::default()).unary(service, request).await
                }
                ENCRYPT => {
                    let service = tower::service_fn(move |asked: tonic::Request<EncryptRequest>| {
                        let state = self.lock();
                        let flipped = if state.echoes { 0 } else { 0xff };
                        let ciphertext = asked.into_inner().plaintext.iter().map(|byte| byte ^ flipped).collect();
                        let key_id = if state.lies { "another".to_string() } else { state.key_id.clone() };
                        let annotations = [("version.example.com".to_string(), b"1".to_vec())].into();
                        let answer = EncryptResponse { ciphertext, key_id, annotations };
                        std::future::ready(Ok::<_, Status>(Response::new(answer)))
                    });
                    Grpc::new(ProstCodec::default()).unary(service, request).await
                }
                DECRYPT => {
                    let service = tower::service_fn(move |asked: tonic::Request<DecryptRequest>| {
                        self.lock().decryptions += 1;
                        let asked = asked.into_inner();
                        let good = asked.annotations.contains_key("version.example.com") && !asked.key_id.is_empty();
                        let plaintext = asked.ciphertext.iter().map(|byte| !byte).collect();
                        let answer = Ok(Response::new(DecryptResponse { plaintext }));
                        std::future::ready(if good { answer } else { Err(Status::invalid_argument("no annotation")) })
                    });
                    Grpc::new(ProstCodec::default()).unary(service, request).await
                }
                _ => http::Response::new(tonic::body::Body::empty()),
            })
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_service_over_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let (path, socket) = (folder.path().join("encryption.yaml"), folder.path().join("kms.sock"));
    let plugin = Plugin::start(&socket).await;
    let kms = json!({ "kms": {
        "apiVersion": "v2", "name": "ours", "endpoint": format!("unix://{}", socket.display()), "timeout": "2s",
    } });
    std::fs::write(&path, file(&[(&["secrets"], vec![kms.clone(), json!({ "identity": {} })])])).unwrap();
    let store = Arc::new(MemoryStore::new(Env::real()));
    let s = start(store.clone(), &path).await;
    assert_eq!(s.get("/healthz/kms-providers").await.code, 200);
    for name in ["a", "b", "c"] {
        s.post(SECRETS, secret(name)).await.expect(201);
        assert_eq!(prefix(&*store, name).await, "k8s:enc:kms:v2:ours");
        let record = store.get(&format!("/registry/secrets/default/{name}")).await.unwrap().unwrap();
        assert!(!record.value.windows(MARKER.len()).any(|w| w == MARKER.as_bytes()));
    }
    assert_eq!(plugin.lock().decryptions, 0, "what we wrote ourselves needs no question");
    // Another server has to ask, once for the seed that all three have in common.
    let other = start(store.clone(), &path).await;
    assert_eq!(other.get(&format!("{SECRETS}/c")).await.code, 200);
    assert_eq!(plugin.lock().decryptions, 1);
    drop(other);

    // A new key of the service: a server that starts then writes old values again when they are updated.
    plugin.lock().key_id = "2".into();
    let s = start(store.clone(), &path).await;
    let object = s.get(&format!("{SECRETS}/a")).await.expect(200);
    let again = s.put(&format!("{SECRETS}/a"), object.clone()).await.expect(200);
    assert_ne!(again["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    // Unwell, lying and hanging services: nothing is written, and nothing in the clear.
    let refused = async |break_it: fn(&mut PluginState)| {
        let before = plugin.lock().key_id.clone();
        break_it(&mut plugin.lock());
        let s = start(store.clone(), &path).await;
        assert_eq!(s.get("/healthz/kms-providers").await.code, 500);
        assert_eq!(s.post(SECRETS, secret("never")).await.code, 500);
        assert!(store.get("/registry/secrets/default/never").await.unwrap().is_none());
        *plugin.lock() = PluginState { key_id: before, healthz: "ok".into(), ..PluginState::default() };
    };
    refused(|state| state.healthz = "the vault is closed".into()).await;
    refused(|state| state.lies = true).await;
    refused(|state| state.key_id.clear()).await;
    refused(|state| state.echoes = true).await;
    refused(|state| state.hangs = true).await;
}

/// A server that starts while the service is away knows no secrets, and knows them once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_service_could_not_decrypt_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, socket) = (folder.path().join("encryption.yaml"), folder.path().join("kms.sock"));
    let plugin = Plugin::start(&socket).await;
    let kms = json!({ "kms": {
        "apiVersion": "v2", "name": "ours", "endpoint": format!("unix://{}", socket.display()), "timeout": "1s",
    } });
    std::fs::write(&path, file(&[(&["secrets"], vec![kms])])).unwrap();
    let store = Arc::new(MemoryStore::new(Env::real()));
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let s = start(store.clone(), &path).await;
    for name in &names {
        s.post(SECRETS, secret(name)).await.expect(201);
    }
    drop(s);
    plugin.lock().hangs = true;
    let (env, asked) = (Env::real(), std::time::Duration::from_secs(30));
    // One question for the seed that all of them have in common, and one for how the service is.
    let s = env.timeout(asked, start(store.clone(), &path)).await.expect("it does not wait for each secret");
    for path in [SECRETS, &format!("{SECRETS}/s0"), &format!("{SECRETS}?watch=1")] {
        assert_eq!(s.get(path).await.code, 500, "{path}");
    }
    assert_eq!(s.put(&format!("{SECRETS}/s0"), secret("s0")).await.code, 500);
    plugin.lock().hangs = false;
    let list = s.until(SECRETS, |answer| answer.code == 200).await;
    assert_eq!(list["items"].as_array().unwrap().len(), names.len());
    let found = s.get(&format!("{SECRETS}/s7")).await.expect(200);
    assert_eq!(found["data"]["password"], BASE64_STANDARD.encode(MARKER));
}
