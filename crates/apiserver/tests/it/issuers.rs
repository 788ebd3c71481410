//! OpenID Connect tokens of a real issuer over TLS: discovery, keys that rotate, configuration that changes while we run.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use apiserver::{
    authn::{PeerCertificates, service_account::public_keys_pem},
    config::Oidc,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use env::Env;
use futures::FutureExt;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{
    harness::{Server, server_on},
    listening::Authority,
    outside::{json_response, serve},
};

struct Issuer {
    url: OnceLock<String>,
    /// By their ids.
    keys: Mutex<Vec<(String, KeyPair)>>,
    fetches: AtomicUsize,
    /// What lies at `/claims` for whoever shows `Bearer f005ba11`.
    claims: Mutex<String>,
}

impl Issuer {
    /// With its authority. Its discovery document is also at `/elsewhere`, as another issuer's.
    async fn start() -> (Arc<Self>, String) {
        let issuer = Arc::new(Self {
            url: OnceLock::new(),
            keys: Mutex::default(),
            fetches: AtomicUsize::new(0),
            claims: Mutex::default(),
        });
        let answering = issuer.clone();
        let handler = Arc::new(move |request: http::Request<bytes::Bytes>| {
            let (code, value) = answering.answer(request.uri().path());
            let may = request.headers().get("authorization").is_some_and(|a| a == "Bearer f005ba11");
            let claims = answering.claims.lock().unwrap().clone();
            let response = match request.uri().path() {
                "/claims" if may => http::Response::new(http_body_util::Full::from(claims)),
                _ => json_response(code, &value),
            };
            async move { response }.boxed()
        });
        let (port, ca) = serve("issuer", None, handler).await;
        issuer.url.set(format!("https://127.0.0.1:{port}")).unwrap();
        issuer.rotate("one");
        (issuer, ca)
    }

    fn url(&self) -> &str {
        self.url.get().unwrap()
    }

    fn answer(&self, path: &str) -> (u16, Value) {
        let document = |issuer: &str| json!({ "issuer": issuer, "jwks_uri": format!("{}/keys", self.url()) });
        match path {
            "/.well-known/openid-configuration" => (200, document(self.url())),
            "/elsewhere" => (200, document("https://other.example")),
            "/keys" => {
                self.fetches.fetch_add(1, Ordering::SeqCst);
                let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
                let keys: Vec<Value> = self.keys.lock().unwrap().iter().map(|(id, key)| {
                    let point = key.der_bytes();
                    json!({
                        "kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": encode(&point[1..33]), "y": encode(&point[33..]),
                    })
                }).collect();
                (200, json!({ "keys": keys }))
            }
            _ => (404, json!({})),
        }
    }

    /// From now on there is only this key.
    fn rotate(&self, id: &str) {
        *self.keys.lock().unwrap() = vec![(id.to_string(), KeyPair::generate().unwrap())];
    }

    fn token(&self, claims: Value) -> String {
        let keys = self.keys.lock().unwrap();
        let (id, key) = keys.first().unwrap();
        sign(id, key, self.url(), claims)
    }
}

fn sign(id: &str, key: &KeyPair, issuer: &str, claims: Value) -> String {
    let now = Env::real().now().as_second();
    let mut all = json!({ "iss": issuer, "aud": "cluster", "exp": now + 600, "sub": "ada" });
    for (name, value) in claims.as_object().unwrap() {
        all[name] = value.clone();
    }
    let header = Header { kid: Some(id.to_string()), ..Header::new(Algorithm::ES256) };
    jsonwebtoken::encode(&header, &all, &EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap()).unwrap()
}

/// Who the server takes the bearer for, or the status.
async fn who(server: &Server, token: &str) -> String {
    let bearer = format!("Bearer {token}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = server.anonymous().send("POST", path, &headers, b"{}".to_vec()).await;
    match answer.code {
        201 => {
            let info = &answer.value["status"]["userInfo"];
            format!("{} {} {}", info["username"].as_str().unwrap(), info["groups"], info["extra"])
        }
        code => code.to_string(),
    }
}

fn configuration(issuer: &Issuer, ca: &str, prefix: &str) -> String {
    let mappings = json!({
        "username": { "claim": "sub", "prefix": prefix },
        "groups": { "expression": "claims.?roles.orValue([])" },
        "extra": [{ "key": "example.com/tenant", "valueExpression": "claims.?tenant.orValue('')" }],
    });
    let rules = json!([{ "expression": "!user.username.startsWith('system:')", "message": "reserved" }]);
    let one = |url: &str, discovery: Option<String>| {
        let mut of = json!({ "url": url, "audiences": ["cluster"], "certificateAuthority": ca });
        if let Some(url) = discovery {
            of["discoveryURL"] = url.into();
        }
        json!({ "issuer": of, "claimMappings": mappings, "userValidationRules": rules })
    };
    // JSON is YAML.
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [
            one(issuer.url(), None), one("https://other.example", Some(format!("{}/elsewhere", issuer.url()))),
        ],
        "anonymous": { "enabled": true, "conditions": [{ "path": "/livez" }] },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_an_issuer() {
    let (issuer, ca) = Issuer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("authentication.yaml");
    std::fs::write(&file, configuration(&issuer, &ca, "oidc:")).unwrap();
    let env = Env::real();
    let path = file.clone();
    let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.authentication.oidc = Some(Oidc::File(path));
    })
    .await;
    let check = async |claims: Value, expected: &str| assert_eq!(who(&s, &issuer.token(claims)).await, expected);
    check(json!({}), r#"oidc:ada ["system:authenticated"] null"#).await;
    let full = json!({ "roles": ["dev"], "tenant": "t", "jti": "7" });
    let shown = r#"oidc:ada ["dev","system:authenticated"] {"authentication.kubernetes.io/credential-id":["JTI=7"],"example.com/tenant":["t"]}"#;
    check(full, shown).await;
    check(json!({ "aud": "another" }), "401").await;
    check(json!({ "exp": 1 }), "401").await;
    check(json!({ "sub": 7 }), "401").await;
    // By another discovery document, with the same keys.
    check(json!({ "iss": "https://other.example" }), r#"oidc:ada ["system:authenticated"] null"#).await;
    check(json!({ "iss": "https://nobody.example" }), "401").await;
    let page = String::from_utf8(s.get("/metrics").await.bytes.to_vec()).unwrap();
    for shown in [
        "jwt_authenticator_latency_seconds_count{result=\"success\",jwt_issuer_hash=\"sha256:",
        "jwt_authenticator_latency_seconds_count{result=\"failure\",jwt_issuer_hash=\"sha256:",
        "jwt_authenticator_jwks_fetch_last_timestamp_seconds{result=\"success\",jwt_issuer_hash=\"sha256:",
        "jwt_authenticator_jwks_fetch_last_key_set_info{jwt_issuer_hash=\"sha256:",
    ] {
        assert!(page.contains(&format!("apiserver_authentication_{shown}")), "{shown}: {page}");
    }
    let review = json!({ "spec": { "token": issuer.token(json!({})) } });
    let review = s.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.value;
    assert_eq!(review["status"]["user"]["username"], "oidc:ada", "{review}");

    // A key of the same name that is not the issuer's, and keys nobody has: refused, and the issuer is left alone.
    let before = issuer.fetches.load(Ordering::SeqCst);
    for n in 0..50 {
        let id = if n % 2 == 0 { "one".to_string() } else { format!("unknown-{n}") };
        let forged = sign(&id, &KeyPair::generate().unwrap(), issuer.url(), json!({ "n": n }));
        assert_eq!(who(&s, &forged).await, "401");
    }
    let asked = issuer.fetches.load(Ordering::SeqCst) - before;
    assert!(asked <= 10, "the issuer was asked {asked} times");

    // Requests without credentials go to one path only.
    assert_eq!(s.anonymous().get("/livez").await.code, 200);
    assert_eq!(s.anonymous().get("/version").await.code, 401);

    // A file that can't be used changes nothing; one that can does, without a restart.
    let metric = async |status: &str| {
        let page = s.get("/metrics").await;
        let text = String::from_utf8_lossy(&page.bytes).into_owned();
        let name = "apiserver_authentication_config_controller_automatic_reloads_total";
        text.lines().any(|line| line.starts_with(name) && line.contains(&format!("status=\"{status}\"")))
    };
    std::fs::write(&file, configuration(&issuer, &ca, "new:").replace("claims.?roles", "claims.(")).unwrap();
    while !metric("failure").await {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    check(json!({ "n": 1 }), r#"oidc:ada ["system:authenticated"] null"#).await;
    std::fs::write(&file, configuration(&issuer, &ca, "new:")).unwrap();
    while !metric("success").await {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    check(json!({ "n": 1 }), r#"new:ada ["system:authenticated"] null"#).await;

    // Keys rotate under us: the first token with the new one makes us ask.
    issuer.rotate("two");
    check(json!({ "n": 2 }), r#"new:ada ["system:authenticated"] null"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_lie_elsewhere_are_fetched() {
    let ((issuer, ca), folder) = (Issuer::start().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("authentication.yaml");
    let of = json!({ "url": issuer.url(), "audiences": ["cluster"], "certificateAuthority": ca });
    let mappings =
        json!({ "username": { "claim": "sub", "prefix": "" }, "groups": { "claim": "groups", "prefix": "g:" } });
    let text = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{ "issuer": of, "claimMappings": mappings }],
    });
    std::fs::write(&file, text.to_string()).unwrap();
    let env = Env::real();
    let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.authentication.oidc = Some(Oidc::File(file.clone()));
    })
    .await;
    let n = AtomicUsize::new(0);
    // What lies at the source, what the token says of sources, and who its bearer is.
    let check = async |lies: String, more: Value, expected: &str| {
        *issuer.claims.lock().unwrap() = lies;
        let source = json!({ "endpoint": format!("{}/claims", issuer.url()), "access_token": "f005ba11" });
        let mut claims = json!({ "_claim_names": { "groups": "one" }, "_claim_sources": { "one": source } });
        // No two are alike, so that none is remembered.
        claims["n"] = n.fetch_add(1, Ordering::SeqCst).into();
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        assert_eq!(who(&s, &issuer.token(claims)).await, expected, "{more}");
    };
    let plain = json!({});
    let (dev, none) = (r#"ada ["g:dev","system:authenticated"] null"#, r#"ada ["system:authenticated"] null"#);
    check(issuer.token(json!({ "groups": ["dev"] })), plain.clone(), dev).await;
    check(format!("{}\n", issuer.token(json!({ "groups": "dev" }))), plain.clone(), dev).await;
    // Claims that the token has itself, or that come along with it, are not looked for.
    check(String::new(), json!({ "groups": ["dev"] }), dev).await;
    check(String::new(), json!({ "_claim_sources": { "one": { "JWT": "x" } } }), none).await;
    check(String::new(), json!({ "_claim_names": { "other": "one" } }), none).await;
    // Whatever can't be verified makes nobody of the bearer.
    check(String::new(), plain.clone(), "401").await;
    check("no token".into(), plain.clone(), "401").await;
    check(issuer.token(json!({})), plain.clone(), "401").await;
    check(issuer.token(json!({ "groups": ["dev"], "aud": "another" })), plain.clone(), "401").await;
    check(issuer.token(json!({ "groups": ["dev"], "exp": 1 })), plain.clone(), "401").await;
    check(issuer.token(json!({ "groups": ["dev"], "iss": "http://127.0.0.1:1" })), plain.clone(), "401").await;
    check(issuer.token(json!({ "groups": ["dev"], "iss": "https://127.0.0.1:1" })), plain.clone(), "401").await;
    let forged = sign("one", &KeyPair::generate().unwrap(), issuer.url(), json!({ "groups": ["system:masters"] }));
    check(forged, plain.clone(), "401").await;
    let good = issuer.token(json!({ "groups": ["dev"] }));
    let without_secret = json!({ "one": { "endpoint": format!("{}/claims", issuer.url()) } });
    check(good.clone(), json!({ "_claim_sources": without_secret }), "401").await;
    let unsafe_source = json!({ "one": { "endpoint": issuer.url().replace("https", "http") } });
    check(good.clone(), json!({ "_claim_sources": unsafe_source }), "401").await;
    check(good.clone(), json!({ "_claim_sources": {} }), "401").await;
    check(good.clone(), json!({ "_claim_names": ["groups"] }), "401").await;
    check(good, plain, dev).await;
}

#[tokio::test]
async fn certificates_name_the_credential() {
    let s = crate::harness::server().await;
    let review = s.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.value;
    let id = &review["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0];
    let digest = id.as_str().and_then(|id| id.strip_prefix("X509SHA256=")).unwrap_or_else(|| panic!("{review}"));
    assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_identities_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (first, second) = (Authority::new(), Authority::new());
    std::fs::write(at("tokens"), "t0ken,carol,1\n").unwrap();
    std::fs::write(at("ca.pem"), &first.pem).unwrap();
    let env = Env::real();
    let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.authentication.token_file = Some(at("tokens"));
        config.client_ca_file = Some(at("ca.pem"));
    })
    .await;
    let (certificate, _) = second.issue("dora", "dev", false);
    let peer = PeerCertificates(vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()]);
    let by_certificate = async || {
        let mut request = s.anonymous().request("GET", "/version", &[], Vec::new());
        request.extensions_mut().insert(peer.clone());
        s.api.handle(request).await.status().as_u16()
    };
    assert_eq!(who(&s, "t0ken").await, r#"carol ["system:authenticated"] null"#);
    assert_eq!((who(&s, "n3w").await.as_str(), by_certificate().await), ("401", 401));
    std::fs::write(at("ca.pem"), format!("{}{}", first.pem, second.pem)).unwrap();
    while by_certificate().await != 200 {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    // One that can't be read keeps everybody in who was.
    std::fs::write(at("tokens"), "t0ken\n").unwrap();
    let failed = "apiserver_identity_files_automatic_reloads_total";
    s.until("/metrics", |page| {
        let text = String::from_utf8_lossy(&page.bytes).into_owned();
        text.lines().any(|line| line.starts_with(failed) && line.contains("failure"))
    })
    .await;
    assert_eq!(who(&s, "t0ken").await, r#"carol ["system:authenticated"] null"#);
    std::fs::write(at("tokens"), "n3w,erin,2\n").unwrap();
    while who(&s, "n3w").await == "401" {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(who(&s, "t0ken").await, "401");
}

#[tokio::test]
async fn service_account_keys_and_issuers_change() {
    let store = Arc::new(MemoryStore::new(Env::real()));
    let old = KeyPair::generate().unwrap().serialize_pem();
    let key = old.clone();
    let before = server_on(store.clone(), Env::real(), move |config| {
        config.service_accounts.signing_key_pem = key;
        config.service_accounts.issuer = "https://old.example".into();
    })
    .await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    before.post(accounts, json!({ "metadata": { "name": "robot" } })).await.expect(201);
    let request = json!({ "spec": { "audiences": ["https://kubernetes.default.svc.cluster.local"] } });
    let token = before.post(&format!("{accounts}/robot/token"), request).await.expect(201);
    let token = token["status"]["token"].as_str().unwrap().to_string();
    let check = async |issuers: &[&str], keys: &[&str], expected: bool| {
        let keys: Vec<String> = keys.iter().flat_map(|key| public_keys_pem(key.as_bytes()).unwrap()).collect();
        let issuers: Vec<String> = issuers.iter().map(ToString::to_string).collect();
        let (shown, jwks) = (issuers.clone(), keys.clone());
        let s = server_on(store.clone(), Env::real(), move |config| {
            config.service_accounts.issuer = "https://new.example".into();
            config.service_accounts.former_issuers = issuers;
            config.service_accounts.verification_keys_pem = keys;
            config.service_accounts.jwks_uri = Some("https://keys.example/jwks".into());
        })
        .await;
        let believed = who(&s, &token).await.starts_with("system:serviceaccount:default:robot");
        assert_eq!(believed, expected, "{shown:?}");
        let document = s.get("/.well-known/openid-configuration").await.value;
        assert_eq!(document["jwks_uri"], "https://keys.example/jwks");
        let published = s.get("/openid/v1/jwks").await.value;
        assert_eq!(published["keys"].as_array().unwrap().len(), 1 + jwks.len());
    };
    check(&[], &[], false).await;
    check(&["https://old.example"], &[], false).await;
    check(&[], &[&old], false).await;
    check(&["https://old.example"], &[&old], true).await;
}
