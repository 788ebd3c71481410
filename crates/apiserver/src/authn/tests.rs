//! Tokens, certificates and headers against a whole server, good ones and bad ones.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use env::Env;
use http::{Method, Request};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::{PeerCertificates, User, service_account::Claims};
use crate::{ApiServer, Config, request::body, server::config};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

impl Authority {
    fn leaf(&self, name: &str, group: &str, expired: bool) -> PeerCertificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        if expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap();
        PeerCertificates(vec![certificate.der().clone()])
    }
}

struct Fixture {
    server: Arc<ApiServer>,
    clients: Authority,
    proxies: Authority,
    _files: tempfile::TempDir,
}

async fn fixture() -> Fixture {
    let (clients, proxies) = (authority(), authority());
    let files = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    config.client_ca_pem = clients.pem.clone().into_bytes();
    config.authentication.token_file = Some(write("tokens", "s3cret-token,carol,7,\"dev,ops\"\n"));
    config.authentication.password_file = Some(write("passwords", "s3cret-word,dave,8\n"));
    config.authentication.request_header = Some(config::RequestHeader::usual(proxies.pem.clone(), "front"));
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(config, store, env).await.unwrap();
    Fixture { server, clients, proxies, _files: files }
}

impl Fixture {
    async fn send(&self, request: Request<crate::Body>) -> (u16, Value) {
        let response = self.server.handle(request).await;
        let code = response.status().as_u16();
        let bytes = body::read_all(response.into_body(), 1 << 22).await.unwrap();
        self.server.cluster.cache.wait_until_fresh().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn admin(&self, method: Method, path: &str, object: Value) -> Value {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = if object.is_null() { body::empty() } else { body::full(object.to_string()) };
        let user = User::new("admin", &["system:masters"]);
        let (code, answer) = self.send(ApiServer::in_process_request(user, request.body(body).unwrap())).await;
        assert!(code < 300, "{path}: {answer}");
        answer
    }

    /// Who a request with these headers is; the status code if nobody.
    async fn who(&self, headers: &[(&str, &str)], peer: Option<PeerCertificates>) -> String {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.who_by_bytes(&headers, peer).await
    }

    async fn who_by_bytes(&self, headers: &[(&str, &[u8])], peer: Option<PeerCertificates>) -> String {
        let mut request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("content-type", "application/json")
            .body(body::full("{}"))
            .unwrap();
        for (name, value) in headers {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append(http::HeaderName::try_from(*name).unwrap(), value);
        }
        request.extensions_mut().extend(
            peer.map(|p| {
                let mut extensions = http::Extensions::new();
                extensions.insert(p);
                extensions
            })
            .unwrap_or_default(),
        );
        let (code, answer) = self.send(request).await;
        match code {
            201 => {
                let info = &answer["status"]["userInfo"];
                let groups: Vec<_> =
                    info["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                format!("{} {}", info["username"].as_str().unwrap_or_default(), groups.join(","))
            }
            code => code.to_string(),
        }
    }

    async fn bearer(&self, token: &str) -> String {
        self.who(&[("authorization", &format!("Bearer {token}"))], None).await
    }
}

#[tokio::test]
async fn credentials_of_every_kind() {
    let f = fixture().await;
    let check = async |headers: &[(&str, &str)], peer: Option<PeerCertificates>, expected: &str| {
        assert_eq!(f.who(headers, peer).await, expected, "{headers:?}");
    };
    check(&[], None, "403").await;
    check(&[], Some(f.clients.leaf("alice", "dev", false)), "alice dev,system:authenticated").await;
    check(&[], Some(f.clients.leaf("alice", "dev", true)), "401").await;
    check(&[], Some(authority().leaf("alice", "system:masters", false)), "401").await;
    check(&[("authorization", "Bearer s3cret-token")], None, "carol dev,ops,system:authenticated").await;
    check(&[("authorization", "Bearer s3cret-tokem")], None, "401").await;
    check(&[("authorization", "Basic ZGF2ZTpzM2NyZXQtd29yZA==")], None, "dave system:authenticated").await;
    check(&[("authorization", "Basic ZGF2ZTpzM2NyZXQtd29yZX==")], None, "401").await;
    check(&[("authorization", "Basic %%%")], None, "401").await;
    check(&[("authorization", "Digest x")], None, "401").await;
    let protocol =
        format!("base64url.bearer.authorization.k8s.io.{}, v4.channel.k8s.io", BASE64.encode("s3cret-token"));
    check(&[("sec-websocket-protocol", &protocol)], None, "carol dev,ops,system:authenticated").await;

    // Headers name a user only behind the proxy's own certificate.
    let remote = [("x-remote-user", "erin"), ("x-remote-group", "qa"), ("x-remote-extra-a%2fb", "c")];
    check(&remote, Some(f.proxies.leaf("front", "x", false)), "erin qa,system:authenticated").await;
    check(&remote, Some(f.proxies.leaf("other", "x", false)), "401").await;
    check(&remote, Some(f.clients.leaf("front", "x", false)), "front x,system:authenticated").await;
    check(&remote, None, "403").await;

    // Acting as someone else takes permission for every part.
    let masters = || Some(f.clients.leaf("root", "system:masters", false));
    let acting = [("impersonate-user", "frank"), ("impersonate-group", "g"), ("impersonate-extra-scope", "s")];
    check(&acting, masters(), "frank g,system:authenticated").await;
    check(&acting, Some(f.clients.leaf("alice", "dev", false)), "403").await;
    check(&acting[1..2], masters(), "400").await;
    let account = [("impersonate-user", "system:serviceaccount:a:b")];
    let expected = "system:serviceaccount:a:b system:serviceaccounts,system:serviceaccounts:a,system:authenticated";
    check(&account, masters(), expected).await;
}

#[tokio::test]
async fn impersonation_headers_that_cannot_be_read_are_refused() {
    let f = fixture().await;
    let check = async |headers: &[(&str, &[u8])], expected: &str| {
        let root = Some(f.clients.leaf("root", "system:masters", false));
        assert_eq!(f.who_by_bytes(headers, root).await, expected, "{headers:?}");
    };
    let juergen = "jürgen".as_bytes();
    check(&[("impersonate-user", juergen)], "jürgen system:authenticated").await;
    let group = ("impersonate-group", "Straße".as_bytes());
    check(&[("impersonate-user", juergen), group], "jürgen Straße,system:authenticated").await;
    check(&[("impersonate-user", b"j\xfcrgen")], "400").await;
    for name in ["impersonate-group", "impersonate-uid", "impersonate-extra-scope"] {
        check(&[("impersonate-user", b"frank"), (name, b"\xff")], "400").await;
        check(&[(name, b"x")], "400").await;
        check(&[(name, "ü".as_bytes())], "400").await;
    }
    check(&[("impersonate-user", b"frank"), ("impersonate-extra-%ff", b"x")], "400").await;
    // Named like a service account is not being one: neither its groups nor its permission.
    for name in ["system:serviceaccount:a:b:c", "system:serviceaccount:A:b", "system:serviceaccount::b"] {
        check(&[("impersonate-user", name.as_bytes())], &format!("{name} system:authenticated")).await;
    }
}

#[tokio::test]
async fn impersonation_without_a_user_is_told_in_upstreams_words() {
    let mut headers = http::HeaderMap::new();
    for (name, value) in [("group", "g"), ("uid", "u"), ("extra-scope", "s")] {
        headers.insert(http::HeaderName::try_from(format!("impersonate-{name}")).unwrap(), value.parse().unwrap());
    }
    let error = super::impersonation(&headers).err().unwrap();
    let version = "authentication.k8s.io/v1";
    assert_eq!(
        (error.code, error.message.clone()),
        (
            400,
            format!(
                "requested [{{Group  g    }} {{UserExtra  s  {version}  scope}} {{UID  u  {version}  }}] without impersonating a user"
            )
        )
    );
}

#[tokio::test]
async fn front_proxy_headers_that_cannot_be_read_are_refused() {
    let f = fixture().await;
    let check = async |headers: &[(&str, &[u8])], expected: &str| {
        let proxy = Some(f.proxies.leaf("front", "x", false));
        assert_eq!(f.who_by_bytes(headers, proxy).await, expected, "{headers:?}");
    };
    let erin = ("x-remote-user", "érin".as_bytes());
    check(&[erin, ("x-remote-group", "qü".as_bytes())], "érin qü,system:authenticated").await;
    check(&[("x-remote-user", b"\xe9rin")], "400").await;
    check(&[erin, ("x-remote-group", b"\xff")], "400").await;
    check(&[erin, ("x-remote-extra-a", b"\xff")], "400").await;
}

#[tokio::test]
async fn tokens_that_cannot_be_read_are_refused() {
    let f = fixture().await;
    let prefix = "base64url.bearer.authorization.k8s.io.";
    let good = BASE64.encode("s3cret-token");
    let check = async |name: &str, value: &[u8], expected: &str| {
        assert_eq!(f.who_by_bytes(&[(name, value)], None).await, expected, "{value:?}");
    };
    check("authorization", b"Bearer s3cret-t\xf6ken", "401").await;
    let protocols = "sec-websocket-protocol";
    let carol = "carol dev,ops,system:authenticated";
    check(protocols, format!("{prefix}{good}, v4.channel.k8s.io").as_bytes(), carol).await;
    check(protocols, format!("{prefix}{good}").as_bytes(), "401").await;
    check(protocols, format!("{prefix}%%%, v4.channel.k8s.io").as_bytes(), "401").await;
    check(protocols, format!("{prefix}{good}, {prefix}{good}, v4.channel.k8s.io").as_bytes(), "401").await;
    check(protocols, format!("v4.channel.k8s.io, {prefix}{good}ü").as_bytes(), "401").await;
}

#[tokio::test]
async fn service_account_tokens_and_their_forgeries() {
    let f = fixture().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    f.admin(Method::POST, accounts, json!({ "metadata": { "name": "robot" } })).await;
    let request =
        |spec: Value| json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
    let path = format!("{accounts}/robot/token");
    let issued = f.admin(Method::POST, &path, request(json!({}))).await;
    let token = issued["status"]["token"].as_str().unwrap().to_string();
    let robot = "system:serviceaccount:default:robot system:serviceaccounts,system:serviceaccounts:default,\
                 system:authenticated";
    assert_eq!(f.bearer(&token).await, robot);
    assert_eq!(f.bearer(&token).await, robot, "from the cache");

    let keys = f.server.registry.tokens.keys.clone();
    let body = BASE64.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Claims = serde_json::from_slice(&body).unwrap();
    let now = claims.iat;
    let signed = |change: &dyn Fn(&mut Claims)| {
        let mut claims = claims.clone();
        change(&mut claims);
        keys.sign(&claims).unwrap()
    };
    let parts: Vec<&str> = token.split('.').collect();
    let none = BASE64.encode(r#"{"alg":"none","typ":"JWT"}"#);
    let hmac = BASE64.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
    let mut other = claims.clone();
    other.sub = "system:serviceaccount:kube-system:root".into();
    let other = BASE64.encode(serde_json::to_vec(&other).unwrap());
    let foreign = {
        let mut service_accounts = Config::in_process(KeyPair::generate().unwrap().serialize_pem()).service_accounts;
        service_accounts.issuer = keys.issuer.clone();
        super::service_account::Keys::new(&service_accounts).unwrap().sign(&claims).unwrap()
    };
    for (what, token) in [
        ("expired", signed(&|c| c.exp = now - 1)),
        ("not yet valid", signed(&|c| c.nbf = now + 600)),
        ("issued in the future", signed(&|c| c.iat = now + 600)),
        ("for another audience", signed(&|c| c.aud = vec!["vault".into()])),
        ("of another issuer", signed(&|c| c.iss = "https://elsewhere".into())),
        ("of another subject", signed(&|c| c.sub = "system:serviceaccount:kube-system:root".into())),
        ("of an account of another uid", signed(&|c| c.kubernetes.serviceaccount.uid = "gone".into())),
        (
            "of no account",
            signed(&|c| {
                c.kubernetes.serviceaccount.name = "nobody".into();
                c.sub = "system:serviceaccount:default:nobody".into();
            }),
        ),
        ("without a signature", format!("{none}.{}.", parts[1])),
        ("without a signature but with one", format!("{none}.{}.{}", parts[1], parts[2])),
        ("with a symmetric algorithm", format!("{hmac}.{}.{}", parts[1], parts[2])),
        ("with other claims", format!("{}.{other}.{}", parts[0], parts[2])),
        ("cut off", token[..token.len() - 4].to_string()),
        ("of a foreign key", foreign),
        ("of no form", "a.b.c".into()),
        ("of dots", "...".into()),
    ] {
        assert_eq!(f.bearer(&token).await, "401", "a token {what}");
    }

    // Bound tokens go with what they are bound to.
    let pod = json!({
        "metadata": { "name": "p" },
        "spec": { "serviceAccountName": "robot", "containers": [{ "name": "c", "image": "i" }] },
    });
    let pod = f.admin(Method::POST, "/api/v1/namespaces/default/pods", pod).await;
    let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"] });
    let spec = json!({ "expirationSeconds": 3607, "boundObjectRef": bound });
    let issued = f.admin(Method::POST, &path, request(spec)).await;
    let token = issued["status"]["token"].as_str().unwrap().to_string();
    let claims: Claims = serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
    assert_eq!(claims.kubernetes.warnafter, Some(claims.iat + 3607));
    assert_eq!(claims.exp, claims.iat + 365 * 86400);
    assert_eq!(f.bearer(&token).await, robot);
    assert_eq!(f.bearer(&signed(&|c| c.kubernetes.warnafter = Some(now - 5))).await, robot);
    let page = f.server.registry.tokens.metrics.page();
    for line in ["serviceaccount_valid_tokens_total 1", "serviceaccount_stale_tokens_total 1"] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    f.admin(Method::DELETE, "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", Value::Null).await;
    assert_eq!(f.bearer(&token).await, "401");

    // Others may ask whose token it is.
    let review = |spec: Value| json!({ "spec": spec });
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = f.admin(Method::POST, reviews, review(json!({ "token": signed(&|_| {}) }))).await;
    assert_eq!(answer["status"]["authenticated"], true, "{answer}");
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:default:robot");
    let vault = signed(&|c| c.aud = vec!["vault".into()]);
    let answer = f.admin(Method::POST, reviews, review(json!({ "token": vault, "audiences": ["vault"] }))).await;
    assert_eq!(answer["status"]["audiences"], json!(["vault"]), "{answer}");
    let answer = f.admin(Method::POST, reviews, review(json!({ "token": vault }))).await;
    assert_eq!(answer["status"]["authenticated"], Value::Null, "{answer}");

    let keys = f.admin(Method::GET, "/openid/v1/jwks", Value::Null).await;
    assert_eq!(keys["keys"][0]["kty"], "EC", "{keys}");
}

#[tokio::test]
async fn a_node_joins_with_a_bootstrap_token() {
    let f = fixture().await;
    let secret = json!({
        "metadata": { "name": "bootstrap-token-abcdef" }, "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
        },
    });
    f.admin(Method::POST, "/api/v1/namespaces/kube-system/secrets", secret).await;
    let found = f.bearer("abcdef.0123456789abcdef").await;
    assert_eq!(found, "system:bootstrap:abcdef system:bootstrappers,system:authenticated");
    assert_eq!(f.bearer("abcdef.0123456789abcdee").await, "401");
}

#[tokio::test]
async fn paths_play_no_tricks() {
    let f = fixture().await;
    let role = json!({ "metadata": { "name": "pods" }, "rules": [
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
    ] });
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    f.admin(Method::POST, &format!("{rbac}/roles"), role).await;
    let binding = json!({
        "metadata": { "name": "pods" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "carol" }],
    });
    f.admin(Method::POST, &format!("{rbac}/rolebindings"), binding).await;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "a": "hidden" } });
    f.admin(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
    let get = async |path: &str| {
        let request = Request::get(path).header("authorization", "Bearer s3cret-token").body(body::empty()).unwrap();
        f.send(request).await
    };
    assert_eq!(get("/api/v1/namespaces/default/pods").await.0, 200);
    for path in [
        "/api/v1/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/pods/../secrets/s",
        "/api/v1/namespaces/default/pods/%2e%2e/secrets/s",
        "/api/v1/namespaces/default/pods/%252e%252e/secrets/s",
        "/api/v1/namespaces/default/pods/..%2fsecrets%2fs",
        "/api/v1/namespaces/default%2fsecrets%2fs",
        "/api/v1/namespaces/default/pods%2f..%2fsecrets/s",
        "/api/v1/namespaces/default/secrets%2fs",
        "/api/v1//namespaces//default//secrets//s",
        "//api/v1/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/secrets/s/",
        "/API/v1/namespaces/default/secrets/s",
        "/api/v1/watch/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/./secrets/s",
        "/healthz/../api/v1/namespaces/default/secrets/s",
    ] {
        let (code, answer) = get(path).await;
        assert!(matches!(code, 400 | 403 | 404 | 405), "{path}: {code}");
        assert!(!answer.to_string().contains("aGlkZGVu"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn no_secret_reaches_a_log() {
    #[derive(Clone, Default)]
    struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let _guard = testkit::scoped_log(subscriber);
    tracing::info!("the log works");
    let f = fixture().await;
    f.admin(Method::POST, "/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "robot" } }))
        .await;
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let issued = f.admin(Method::POST, path, json!({ "spec": {} })).await;
    let token = issued["status"]["token"].as_str().unwrap().to_string();
    f.bearer(&token).await;
    f.bearer(&token[..token.len() - 3]).await;
    f.bearer("s3cret-token").await;
    f.bearer("wr0ng-token").await;
    f.who(&[("authorization", "Basic ZGF2ZTpzM2NyZXQtd29yZA==")], None).await;
    f.admin(Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", json!({ "spec": { "token": token } })).await;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "a": "h1dden-value" } });
    f.admin(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(text.contains("the log works"));
    let signature = token.rsplit('.').next().unwrap();
    for secret in ["s3cret", "wr0ng-token", "ZGF2ZTpz", signature, "h1dden-value", "aDFkZGVuLXZhbHVl", "PRIVATE KEY"] {
        assert!(!text.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn too_many_at_once_are_told_to_come_back() {
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    config.limits.requests_in_flight = 0;
    config.limits.priority_and_fairness = false;
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(config, store, env).await.unwrap();
    let request = || Request::get("/version").body(body::empty()).unwrap();
    let response = server.handle(request()).await;
    assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    // Watches are counted apart, writes have their own pool, and those who must mend things always get in.
    let masters = ApiServer::in_process_request(User::new("admin", &["system:masters"]), request());
    assert_eq!(server.handle(masters).await.status(), 200);
    let review = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews").body(body::full("{}")).unwrap();
    assert_eq!(server.handle(review).await.status(), 403);
}

#[tokio::test]
async fn services_outside_identify_and_permit() {
    use crate::admission::tests::{Answer, webhook};
    let reviews: Answer = Arc::new(|review| {
        let spec = &review["spec"];
        let mut answer = review.clone();
        answer["status"] = match (review["kind"].as_str(), spec["token"].as_str()) {
            (Some("TokenReview"), Some("good-token")) => {
                json!({ "authenticated": true, "user": { "username": "gina", "groups": ["remote"] } })
            }
            (Some("TokenReview"), Some("nameless")) => json!({ "authenticated": true, "user": {} }),
            (Some("TokenReview"), _) => json!({ "authenticated": false }),
            _ if spec["user"] == "gina" && spec["resourceAttributes"]["resource"] == "configmaps" => {
                json!({ "allowed": true })
            }
            _ if spec["resourceAttributes"]["resource"] == "secrets" => json!({ "allowed": true, "denied": true }),
            _ if spec["resourceAttributes"]["resource"] == "pods" => json!("junk"),
            _ => json!({ "allowed": false, "reason": "the service says no" }),
        };
        Some(answer)
    });
    let (port, ca, asked) = webhook(reviews).await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("webhook.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{port}/\", \
         certificate-authority-data: {ca}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let minute = std::time::Duration::from_secs(60);
    let hook = config::Webhook { kubeconfig, allowed_for: minute, refused_for: minute };
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    config.authentication.webhook = Some(hook.clone());
    config.authorization.webhook = Some(hook);
    config.authorization_modes = vec!["Webhook".into()];
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(config, store, env).await.unwrap();
    let get = async |token: &str, resource: &str| {
        let request = Request::get(format!("/api/v1/namespaces/default/{resource}"))
            .header("authorization", format!("Bearer {token}"))
            .body(body::empty())
            .unwrap();
        let response = server.handle(request).await;
        let code = response.status().as_u16();
        let bytes = body::read_all(response.into_body(), 1 << 20).await.unwrap();
        (
            code,
            serde_json::from_slice::<Value>(&bytes).unwrap_or_default()["message"]
                .as_str()
                .unwrap_or_default()
                .to_string(),
        )
    };
    assert_eq!(get("good-token", "configmaps").await.0, 200);
    let before = asked.lock().unwrap().len();
    assert_eq!(get("good-token", "configmaps").await.0, 200);
    assert_eq!(asked.lock().unwrap().len(), before, "both answers are remembered");
    assert_eq!(get("bad-token", "configmaps").await.0, 401);
    assert_eq!(get("nameless", "configmaps").await.0, 401);
    assert_eq!(get("good-token", "secrets").await.0, 403, "allowed and denied at once");
    assert_eq!(get("good-token", "pods").await.0, 403, "junk");
    let (code, message) = get("good-token", "services").await;
    assert_eq!(code, 403);
    assert!(message.ends_with(": the service says no"), "{message}");
}

#[tokio::test]
async fn whoever_shows_a_token_that_nobody_asked_for_is_told_of_better_ones() {
    let f = fixture().await;
    let account = json!({ "metadata": { "name": "robot" }, "secrets": [{ "name": "generated" }] });
    let account = f.admin(Method::POST, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let keys = f.server.registry.tokens.keys.clone();
    let warnings = async |name: &str| {
        let claim = |of: &str| format!("kubernetes.io/serviceaccount/{of}");
        let claims = json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
            claim("namespace"): "default", claim("secret.name"): name, claim("service-account.name"): "robot",
            claim("service-account.uid"): account["metadata"]["uid"],
        });
        let token = keys.sign(&claims).unwrap();
        let annotations = json!({ "kubernetes.io/service-account.name": "robot" });
        let secret = json!({
            "metadata": { "name": name, "annotations": annotations },
            "type": "kubernetes.io/service-account-token", "stringData": { "token": token },
        });
        f.admin(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
        let request = Request::get("/version").header("authorization", format!("Bearer {token}"));
        let response = f.server.handle(request.body(body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        let warnings = response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_string());
        warnings.collect::<Vec<_>>()
    };
    let better = "299 - \"Use tokens from the TokenRequest API or manually created secret-based tokens instead of \
                  auto-generated secret-based tokens.\"";
    assert_eq!(warnings("generated").await, [better]);
    assert_eq!(warnings("wanted").await, [""; 0]);
    let page = f.server.registry.tokens.metrics.page();
    for line in ["legacy_auto_token_uses_total 1", "legacy_manual_token_uses_total 1", "legacy_tokens_total 2"] {
        assert!(page.lines().any(|found| found == format!("serviceaccount_{line}")), "{line}\n{page}");
    }
}
