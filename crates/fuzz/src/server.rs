//! Targets that go through the whole pipeline of a server: never an internal error, never half a write.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use apiserver::{ApiServer, Config, authn::User, body};
use env::Env;
use http::Request;
use serde_json::{Value, json};
use store::MemoryStore;
use tokio::runtime::Runtime;

struct Served {
    runtime: Runtime,
    api: Arc<ApiServer>,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let env = Env::real();
        let store = Arc::new(MemoryStore::new(env.clone()));
        let api = runtime.block_on(ApiServer::new(Config::in_process(key), store, env)).unwrap();
        Served { runtime, api }
    })
}

/// One request; the code and the answer. Internal errors are bugs.
fn send(method: &str, uri: &str, content_type: &str, content: &[u8]) -> (u16, Value) {
    let served = served();
    let Ok(mut request) = Request::builder().method(method).uri(uri).body(body::full(content.to_vec())) else {
        return (400, Value::Null);
    };
    request.headers_mut().insert("content-type", content_type.parse().unwrap());
    // Named, so that the answer is bytes like everybody else's.
    request.headers_mut().insert("accept", "application/json".parse().unwrap());
    let user = User::new("fuzzer", &["system:masters"]);
    served.runtime.block_on(async {
        let response = served.api.handle(ApiServer::in_process_request(user, request)).await;
        let code = response.status().as_u16();
        let bytes = body::read_all(response.into_body(), 64 << 20).await.unwrap();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        // Upstream refuses some patches (an unknown field of an apply, a missing merge key) with 500 and no reason, and
        // so do we; an accident has the reason `InternalError`.
        // A moment that has not come yet is waited for a little.
        let late = code == 504 && value["reason"] == "Timeout";
        let refused = late || (code == 500 && value["kind"] == "Status" && value["reason"].is_null());
        assert!(code < 500 || refused, "{method} {uri}: {code} {}", String::from_utf8_lossy(&bytes));
        (code, value)
    })
}

/// The first byte chooses between several ways to send the rest.
fn choose<'i, T: Copy>(input: &'i [u8], ways: &[T]) -> (T, &'i [u8]) {
    match input.split_first() {
        Some((first, rest)) => (ways[usize::from(*first) % ways.len()], rest),
        None => (ways[0], input),
    }
}

const FORMS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

pub fn create(bytes: &[u8]) {
    let ((path, form), rest) = choose(
        bytes,
        &[
            ("/api/v1/namespaces/default/pods", FORMS[0]),
            ("/api/v1/namespaces/default/services", FORMS[0]),
            ("/apis/apps/v1/namespaces/default/deployments", FORMS[1]),
            ("/api/v1/namespaces/default/configmaps", FORMS[1]),
            ("/apis/batch/v1/namespaces/default/cronjobs", FORMS[0]),
            ("/apis/networking.k8s.io/v1/namespaces/default/ingresses", FORMS[0]),
            ("/api/v1/namespaces/default/secrets", FORMS[2]),
        ],
    );
    for query in ["dryRun=All", "dryRun=All&fieldValidation=Strict"] {
        send("POST", &format!("{path}?{query}"), form, rest);
    }
}

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/patched";

fn patched() -> Value {
    let (code, found) = send("GET", DEPLOYMENT, FORMS[0], b"");
    if code == 200 {
        return found;
    }
    let pod =
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let wanted = json!({
        "metadata": { "name": "patched" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "a": "b" } }, "template": pod },
    });
    let path = DEPLOYMENT.trim_end_matches("/patched");
    let (code, made) = send("POST", path, FORMS[0], wanted.to_string().as_bytes());
    assert_eq!(code, 201, "{made}");
    made
}

pub fn patch(bytes: &[u8]) {
    let before = patched();
    let types = ["json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"];
    for kind in types {
        let path = format!("{DEPLOYMENT}?fieldManager=fuzzer&dryRun=All");
        send("PATCH", &path, &format!("application/{kind}"), bytes);
    }
    let (kind, rest) = choose(bytes, &types);
    let (code, _) = send("PATCH", &format!("{DEPLOYMENT}?fieldManager=fuzzer"), &format!("application/{kind}"), rest);
    if code >= 400 {
        let (code, after) = send("GET", DEPLOYMENT, FORMS[0], b"");
        assert!(code == 200 && after == before, "a refused patch changed something");
    }
}

pub fn delete_options(bytes: &[u8]) {
    let path = "/api/v1/namespaces/default/configmaps/doomed";
    let doomed = json!({ "metadata": { "name": "doomed" } }).to_string();
    for form in FORMS {
        send("POST", "/api/v1/namespaces/default/configmaps", FORMS[0], doomed.as_bytes());
        let (code, _) = send("DELETE", path, form, bytes);
        let (left, _) = send("GET", path, FORMS[0], b"");
        assert!(code < 400 || left == 200, "a refused deletion deleted");
    }
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("%{b:02x}")).collect()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A revision that is not the newest, so that lists of then are read from the store, where another namespace's objects lie
/// before the own ones.
fn former_revision() -> i64 {
    static MADE: OnceLock<()> = OnceLock::new();
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    MADE.get_or_init(|| {
        for namespace in ["aaa", "default", "zzz"] {
            send(
                "POST",
                "/api/v1/namespaces",
                FORMS[0],
                json!({ "metadata": { "name": namespace } }).to_string().as_bytes(),
            );
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            let (code, made) =
                send("POST", &path, FORMS[0], json!({ "metadata": { "name": "kept" } }).to_string().as_bytes());
            assert_eq!(code, 201, "{made}");
        }
    });
    let (_, listed) = send("GET", MAPS, FORMS[0], b"");
    let revision = listed["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap();
    let change = json!({ "data": { "n": CHANGES.fetch_add(1, Ordering::Relaxed).to_string() } });
    send("PATCH", &format!("{MAPS}/kept"), "application/merge-patch+json", change.to_string().as_bytes());
    revision
}

/// Whatever a token says, a list of one namespace has nothing of another.
pub fn continue_token(bytes: &[u8]) {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
    let encode = |token: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(token);
    let revision = former_revision();
    let begun = json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": String::from_utf8_lossy(bytes) });
    let mut tokens = vec![escaped(bytes), encode(bytes), encode(begun.to_string().as_bytes())];
    if let Ok(Value::Object(mut token)) = serde_json::from_slice(bytes) {
        token.insert("rv".into(), revision.into());
        tokens.push(encode(Value::Object(token).to_string().as_bytes()));
    }
    for token in tokens {
        let (_, found) = send("GET", &format!("{MAPS}?limit=9&continue={token}"), FORMS[0], b"");
        let strangers = found["items"].as_array().into_iter().flatten();
        let strangers: Vec<_> = strangers.filter(|item| item["metadata"]["namespace"] != "default").collect();
        assert!(strangers.is_empty(), "{token}: {strangers:?}");
    }
}

pub fn query(bytes: &[u8]) {
    // Not a watch: that would go on until its time is up.
    let text = String::from_utf8_lossy(bytes).replace("watch", "wtch");
    send("GET", &format!("/api/v1/namespaces/default/pods?{text}"), FORMS[0], b"");
    let (key, value) = text.split_once('=').unwrap_or((&text, ""));
    let known =
        ["labelSelector", "fieldSelector", "limit", "resourceVersion", "resourceVersionMatch", "timeoutSeconds"];
    let key = known.iter().find(|k| **k == key).unwrap_or(&"labelSelector");
    send("GET", &format!("/api/v1/pods?{key}={}", escaped(value.as_bytes())), FORMS[0], b"");
}

pub fn accept(bytes: &[u8]) {
    let served = served();
    let Ok(value) = http::HeaderValue::from_bytes(bytes) else { return };
    let mut request = Request::builder().uri("/api/v1/namespaces").body(body::empty()).unwrap();
    request.headers_mut().insert("accept", value.clone());
    request.headers_mut().insert("accept-encoding", value);
    let user = User::new("fuzzer", &["system:masters"]);
    served.runtime.block_on(async {
        let response = served.api.handle(ApiServer::in_process_request(user, request)).await;
        assert!(response.status().as_u16() < 500);
        body::read_all(response.into_body(), 64 << 20).await.unwrap();
    });
}

pub fn path(bytes: &[u8]) {
    // Not a watch: that would go on until its time is up.
    let text = String::from_utf8_lossy(bytes).replace("watch", "wtch");
    let encoded: String = text.split('/').map(|part| escaped(part.as_bytes())).collect::<Vec<_>>().join("/");
    for path in [text, encoded, escaped(bytes)] {
        for method in ["GET", "DELETE", "PUT"] {
            send(method, &format!("/{path}"), FORMS[0], b"");
        }
    }
}

/// Who comes with something odd is refused or nobody, and never more.
pub fn credentials(bytes: &[u8]) {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let served = served();
    let tokens = [bytes.to_vec(), [b"Bearer ", bytes].concat(), [b"Basic ", bytes].concat()];
    let basic = format!("Basic {}", BASE64_STANDARD.encode(bytes)).into_bytes();
    let values = tokens.into_iter().chain([basic]).map(|value| ("authorization", value));
    let names = ["impersonate-user", "impersonate-extra-a%2fb", "x-remote-user", "sec-websocket-protocol"];
    for (name, value) in values.chain(names.map(|name| (name, bytes.to_vec()))) {
        let Ok(value) = http::HeaderValue::from_bytes(&value) else { continue };
        let mut request = Request::builder().uri("/api/v1/namespaces").body(body::empty()).unwrap();
        request.headers_mut().insert(name, value);
        if name.starts_with("impersonate-") {
            // Without a user upstream calls the rest an internal error.
            request.headers_mut().entry("impersonate-user").or_insert(http::HeaderValue::from_static("u"));
        }
        let code = served.runtime.block_on(async { served.api.handle(request).await.status().as_u16() });
        assert!([400, 401, 403].contains(&code), "{name}: {code}");
    }
}

pub fn definition(bytes: &[u8]) {
    let (form, rest) = choose(bytes, &FORMS[..2]);
    send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All", form, rest);
}
