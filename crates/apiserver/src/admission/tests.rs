//! Admission against a whole server, with real webhooks over TLS on loopback.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use env::Env;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};

use crate::{ApiServer, Config, authn::User, config::RuntimeConfig, request::body};

pub struct Fixture(pub Arc<ApiServer>);

pub async fn fixture(enable: &[&str]) -> Fixture {
    let plugins = enable.iter().map(|p| p.to_string()).collect();
    configured(|config| {
        config.enable_admission_plugins = plugins;
        config.runtime_config = RuntimeConfig::parse(["admissionregistration.k8s.io/v1beta1=true"]).unwrap();
    })
    .await
}

pub async fn configured(change: impl FnOnce(&mut Config)) -> Fixture {
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    change(&mut config);
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let f = Fixture(ApiServer::new(config, store, env).await.unwrap());
    f.ok(Method::POST, "/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } }))
        .await;
    f
}

impl Fixture {
    pub async fn send(&self, user: &User, method: Method, path: &str, object: Value) -> (u16, Value, Vec<String>) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        // Without it lists are handed over as objects.
        let request = request.header("accept", "application/json");
        let body = if object.is_null() { body::empty() } else { body::full(object.to_string()) };
        let request = ApiServer::in_process_request(user.clone(), request.body(body).unwrap());
        let response = self.0.handle(request).await;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_string()).collect();
        let bytes = body::read_all(response.into_body(), 1 << 22).await.unwrap();
        self.0.cluster.cache.wait_until_fresh().await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default(), warnings)
    }

    pub async fn admin(&self, method: Method, path: &str, object: Value) -> (u16, Value, Vec<String>) {
        self.send(&User::new("admin", &["system:masters"]), method, path, object).await
    }

    pub async fn ok(&self, method: Method, path: &str, object: Value) -> Value {
        let (code, answer, _) = self.admin(method, path, object).await;
        assert!(code < 300, "{path}: {answer}");
        answer
    }

    /// The message with which a creation is refused.
    pub async fn refused(&self, code: u16, path: &str, object: Value) -> String {
        let (found, answer, _) = self.admin(Method::POST, path, object).await;
        assert_eq!(found, code, "{path}: {answer}");
        answer["message"].as_str().unwrap_or_default().to_string()
    }
}

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";

pub fn pod(name: &str, resources: Value) -> Value {
    let container = json!({ "name": "c", "image": "i", "resources": resources });
    json!({ "metadata": { "name": name }, "spec": { "containers": [container] } })
}

pub fn config_map(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "a": "b" } })
}

#[tokio::test]
async fn pods_are_completed_and_bounded() {
    let f = fixture(&[]).await;
    let made = f.ok(Method::POST, PODS, pod("plain", json!({}))).await;
    assert_eq!(made["spec"]["tolerations"].as_array().map(Vec::len), Some(2), "{made}");
    assert_eq!(made["spec"]["priority"], 0);

    let limits = json!({ "metadata": { "name": "l" }, "spec": { "limits": [
        { "type": "Container", "default": { "cpu": "200m" }, "defaultRequest": { "cpu": "100m" }, "max": { "cpu": "1" } },
    ] } });
    f.ok(Method::POST, "/api/v1/namespaces/default/limitranges", limits).await;
    let made = f.ok(Method::POST, PODS, pod("defaulted", json!({}))).await;
    assert_eq!(made["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");
    let big = json!({ "limits": { "cpu": "2" } });
    let expected = "pods \"big\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    assert_eq!(f.refused(403, PODS, pod("big", big)).await, expected);
    f.ok(Method::DELETE, "/api/v1/namespaces/default/limitranges/l", Value::Null).await;

    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota =
        json!({ "metadata": { "name": "q" }, "spec": { "hard": { "count/configmaps": "1", "requests.cpu": "1" } } });
    let mut quota = f.ok(Method::POST, quotas, quota).await;
    quota["status"] =
        json!({ "hard": quota["spec"]["hard"], "used": { "count/configmaps": "0", "requests.cpu": "0" } });
    f.ok(Method::PUT, &format!("{quotas}/q/status"), quota).await;
    f.ok(Method::POST, CONFIGMAPS, config_map("one")).await;
    let expected = "configmaps \"two\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: \
                    count/configmaps=1, limited: count/configmaps=1";
    assert_eq!(f.refused(403, CONFIGMAPS, config_map("two")).await, expected);
    let expected = "pods \"x\" is forbidden: failed quota: q: must specify requests.cpu for: c";
    assert_eq!(f.refused(403, PODS, pod("x", json!({}))).await, expected);
    let half = || json!({ "requests": { "cpu": "600m" } });
    f.ok(Method::POST, PODS, pod("half", half())).await;
    let expected = "pods \"more\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: \
                    requests.cpu=600m, limited: requests.cpu=1";
    assert_eq!(f.refused(403, PODS, pod("more", half())).await, expected);
}

#[tokio::test]
async fn a_quota_is_never_passed_however_many_come_at_once() {
    let f = fixture(&[]).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "configmaps": "5" } } });
    let mut quota = f.ok(Method::POST, quotas, quota).await;
    quota["status"] = json!({ "hard": { "configmaps": "5" }, "used": { "configmaps": "0" } });
    f.ok(Method::PUT, &format!("{quotas}/q/status"), quota).await;
    let names: Vec<_> = (0..20).map(|i| format!("c{i}")).collect();
    let made = futures::future::join_all(names.iter().map(|n| f.admin(Method::POST, CONFIGMAPS, config_map(n)))).await;
    assert_eq!(made.iter().filter(|(code, ..)| *code == 201).count(), 5);
    let quota = f.ok(Method::GET, &format!("{quotas}/q"), Value::Null).await;
    assert_eq!(quota["status"]["used"]["configmaps"], "5");
}

/// One that comes under a quota by a change is counted, and then there is no room for another.
#[tokio::test]
async fn a_quota_counts_what_comes_under_it_by_an_update() {
    let f = fixture(&[]).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let spec = json!({ "hard": { "pods": "1" }, "scopes": ["Terminating"] });
    let mut quota = f.ok(Method::POST, quotas, json!({ "metadata": { "name": "q" }, "spec": spec })).await;
    quota["status"] = json!({ "hard": { "pods": "1" }, "used": { "pods": "0" } });
    f.ok(Method::PUT, &format!("{quotas}/q/status"), quota).await;
    let mut first = f.ok(Method::POST, PODS, pod("first", json!({}))).await;
    first["spec"]["activeDeadlineSeconds"] = json!(3600);
    f.ok(Method::PUT, &format!("{PODS}/first"), first.clone()).await;
    let used = || async { f.ok(Method::GET, &format!("{quotas}/q"), Value::Null).await["status"]["used"].clone() };
    assert_eq!(used().await["pods"], "1");
    let mut second = pod("second", json!({}));
    second["spec"]["activeDeadlineSeconds"] = json!(3600);
    let message = f.refused(403, PODS, second).await;
    assert!(message.contains("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), "{message}");
    // Another change of what is counted already counts nothing.
    let mut first = f.ok(Method::GET, &format!("{PODS}/first"), Value::Null).await;
    first["spec"]["activeDeadlineSeconds"] = json!(1800);
    f.ok(Method::PUT, &format!("{PODS}/first"), first).await;
    assert_eq!(used().await["pods"], "1");
}

#[tokio::test]
async fn pod_security_follows_the_namespace() {
    let f = fixture(&[]).await;
    let labels = json!({ "metadata": { "labels": {
        "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted",
    } } });
    let user = User::new("admin", &["system:masters"]);
    let request = Request::patch("/api/v1/namespaces/default").header("content-type", "application/merge-patch+json");
    let request = ApiServer::in_process_request(user, request.body(body::full(labels.to_string())).unwrap());
    assert_eq!(f.0.handle(request).await.status(), 200);
    f.0.cluster.cache.wait_until_fresh().await.unwrap();
    let (code, _, warnings) = f.admin(Method::POST, PODS, pod("a", json!({}))).await;
    assert_eq!(code, 201);
    let expected = "would violate PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation != false";
    assert!(warnings.iter().any(|w| w.contains(expected)), "{warnings:?}");
    let mut bad = pod("b", json!({}));
    bad["spec"]["hostNetwork"] = true.into();
    let expected =
        "pods \"b\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
    assert_eq!(f.refused(403, PODS, bad).await, expected);
}

#[tokio::test]
async fn a_kubelet_keeps_to_its_node() {
    let f = fixture(&["NodeRestriction"]).await;
    let node = User::new("system:node:n1", &["system:nodes"]);
    let object = |name: &str, label: &str| json!({ "metadata": { "name": name, "labels": { label: "x" } } });
    for (name, label, code) in
        [("n2", "a", 403), ("n1", "node-role.kubernetes.io/control-plane", 403), ("n1", "kubernetes.io/hostname", 201)]
    {
        let (found, answer, _) = f.send(&node, Method::POST, "/api/v1/nodes", object(name, label)).await;
        assert_eq!(found, code, "{name} {label}: {answer}");
    }
    let (_, made, _) = f.admin(Method::GET, "/api/v1/nodes/n1", Value::Null).await;
    assert_eq!(made["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready");
    let (code, answer, _) = f.send(&node, Method::POST, PODS, pod("p", json!({}))).await;
    assert_eq!(code, 403, "{answer}");
}

#[tokio::test]
async fn certificates_are_asked_for_in_ones_own_name() {
    let f = fixture(&[]).await;
    let request = |organization: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({
            "metadata": { "name": "alice" },
            "spec": {
                "request": BASE64_STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["client auth"], "username": "somebody-else", "groups": ["system:masters"],
            },
        })
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let message = f.refused(403, path, request("system:masters")).await;
    assert!(message.contains("with system:masters group is not allowed"), "{message}");
    let made = f.ok(Method::POST, path, request("dev")).await;
    assert_eq!(made["spec"]["username"], "admin", "{made}");
    assert_eq!(made["spec"]["groups"], json!(["system:masters", "system:authenticated"]));
    let approver = User::new("approver", &[]);
    let role = json!({ "metadata": { "name": "approver" }, "rules": [{
        "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["update"],
    }] });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    f.ok(Method::POST, &format!("{rbac}/clusterroles"), role).await;
    let binding = |name: &str, role: &str| {
        json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "approver" }],
        })
    };
    f.ok(Method::POST, &format!("{rbac}/clusterrolebindings"), binding("a", "approver")).await;
    let mut approved = made.clone();
    approved["metadata"]["annotations"] = json!({ "noted": "yes" });
    approved["status"] = json!({ "conditions": [
        { "type": "Approved", "status": "True", "reason": "Test", "message": "fine" },
    ] });
    let approval = format!("{path}/alice/approval");
    let (code, answer, _) = f.send(&approver, Method::PUT, &approval, approved.clone()).await;
    assert_eq!(code, 403, "{answer}");
    let expected = "user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\"";
    assert!(answer["message"].as_str().unwrap_or_default().contains(expected), "{answer}");
    let may = "system:certificates.k8s.io:kube-apiserver-client-approver";
    f.ok(Method::POST, &format!("{rbac}/clusterrolebindings"), binding("b", may)).await;
    let (code, answer, _) = f.send(&approver, Method::PUT, &approval, approved).await;
    assert_eq!((code, &answer["metadata"]["annotations"]["noted"]), (200, &json!("yes")), "{answer}");
}

pub type Answer = Arc<dyn Fn(&Value) -> Option<Value> + Send + Sync>;

/// A webhook on loopback; `None` makes it hang. Returns its port, its authority and what it was asked, with the
/// `authorization` that it was shown.
pub async fn webhook(answer: Answer) -> (u16, String, Arc<Mutex<Vec<Value>>>) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".into(), "hook.default.svc".into()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    env::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer, seen) = (acceptor.clone(), answer.clone(), seen.clone());
            env::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let (answer, seen) = (answer.clone(), seen.clone());
                    async move {
                        let shown = request.headers().get("authorization").cloned();
                        let bytes = request.into_body().collect().await.unwrap().to_bytes();
                        let mut review: Value = serde_json::from_slice(&bytes).unwrap();
                        if let Some(shown) = shown {
                            review["authorization"] = shown.to_str().unwrap().into();
                        }
                        seen.lock().unwrap().push(review.clone());
                        match answer(&review) {
                            Some(answer) => Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(
                                answer.to_string(),
                            )))),
                            None => std::future::pending().await,
                        }
                    }
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, BASE64_STANDARD.encode(ca_pem), asked)
}

pub fn review(request: &Value, response: Value) -> Option<Value> {
    let mut response = response;
    response["uid"] = request["request"]["uid"].clone();
    Some(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}

pub fn configuration(name: &str, port: u16, ca: &str, policy: &str, timeout: u64) -> Value {
    json!({
        "metadata": { "name": name },
        "webhooks": [{
            "name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": policy, "timeoutSeconds": timeout,
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/hook"), "caBundle": ca },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }],
            "matchConditions": [{ "name": "marked", "expression": "object.metadata.name.startsWith('hook')" }],
        }],
    })
}

#[tokio::test]
async fn webhooks_change_and_refuse() {
    let f = fixture(&[]).await;
    let patch = BASE64_STANDARD.encode(r#"[{"op":"add","path":"/data/patched","value":"yes"}]"#);
    let mutate: Answer = Arc::new(move |r| {
        review(r, json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["mind the gap"] }))
    });
    let (port, ca, asked) = webhook(mutate).await;
    let path = format!("{REGISTRATION}/mutatingwebhookconfigurations");
    f.ok(Method::POST, &path, configuration("m", port, &ca, "Fail", 30)).await;
    let (code, made, warnings) = f.admin(Method::POST, CONFIGMAPS, config_map("hook-1")).await;
    assert_eq!((code, &made["data"]["patched"]), (201, &json!("yes")), "{made}");
    assert!(warnings.iter().any(|w| w.contains("mind the gap")), "{warnings:?}");
    f.ok(Method::POST, CONFIGMAPS, config_map("other")).await;
    {
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 1, "the condition kept the other one out");
        let request = &asked[0]["request"];
        assert_eq!(request["operation"], "CREATE");
        assert_eq!(request["userInfo"]["username"], "admin");
        assert_eq!(request["object"]["metadata"]["name"], "hook-1");
        assert_eq!(request["resource"], json!({ "group": "", "version": "v1", "resource": "configmaps" }));
    }
    let validate: Answer = Arc::new(|r| match r["request"]["object"]["data"]["patched"] == "yes" {
        true => review(r, json!({ "allowed": false, "status": { "message": "no patches here", "code": 403 } })),
        false => review(r, json!({ "allowed": true })),
    });
    let (port, ca, _) = webhook(validate).await;
    let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
    f.ok(Method::POST, &path, configuration("v", port, &ca, "Fail", 30)).await;
    let expected = "admission webhook \"v.example.com\" denied the request: no patches here";
    assert_eq!(f.refused(403, CONFIGMAPS, config_map("hook-2")).await, expected);
}

#[tokio::test]
async fn what_webhooks_add_is_pruned_before_the_next_one_sees_it() {
    let f = fixture(&[]).await;
    let schema = json!({ "type": "object", "properties": { "data": { "type": "object", "properties": {
        "first": { "type": "string" }, "filled": { "type": "string", "default": "in" },
    } } } });
    let definition = json!({ "metadata": { "name": "widgets.example.com" }, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
    } });
    f.ok(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let patches = json!([
        { "op": "add", "path": "/data", "value": { "first": "yes", "second": "yes" } },
    ]);
    let patch = BASE64_STANDARD.encode(patches.to_string());
    let mutate: Answer =
        Arc::new(move |r| review(r, json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })));
    let (port, ca, _) = webhook(mutate).await;
    let (watching, watching_ca, asked) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    for (name, port, ca) in [("m1", port, &ca), ("m2", watching, &watching_ca)] {
        let mut configuration = configuration(name, port, ca, "Fail", 30);
        configuration["webhooks"][0]["rules"] = json!([
            { "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"] },
        ]);
        f.ok(Method::POST, &format!("{REGISTRATION}/mutatingwebhookconfigurations"), configuration).await;
    }
    let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "hook" } });
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let mut made = f.admin(Method::POST, path, widget.clone()).await;
    while made.0 == 404 {
        env::sleep(Duration::from_millis(20)).await;
        made = f.admin(Method::POST, path, widget.clone()).await;
    }
    let expected = json!({ "first": "yes", "filled": "in" });
    assert_eq!((made.0, &made.1["data"]), (201, &expected), "{}", made.1);
    assert_eq!(asked.lock().unwrap()[0]["request"]["object"]["data"], expected);
}

#[tokio::test]
async fn unknown_plugins_stop_the_start() {
    let check = |enable: &[&str], disable: &[&str], expected: &str| {
        let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
        config.enable_admission_plugins = enable.iter().map(|p| p.to_string()).collect();
        config.disable_admission_plugins = disable.iter().map(|p| p.to_string()).collect();
        let (env, expected) = (Env::real(), expected.to_string());
        async move {
            let store = Arc::new(store::MemoryStore::new(env.clone()));
            let found = ApiServer::new(config, store, env).await.err().map(|e| e.to_string()).unwrap_or_default();
            assert!(if expected.is_empty() { found.is_empty() } else { found.contains(&expected) }, "{found}");
        }
    };
    check(&["AlwaysPullImages", "MutatingAdmissionWebhook"], &["Priority", "MutatingAdmissionPolicy"], "").await;
    check(&["AlwaysPull"], &[], "enable-admission-plugins plugin \"AlwaysPull\" is unknown").await;
    check(&[], &["Prioriti"], "disable-admission-plugins plugin \"Prioriti\" is unknown").await;
}

#[tokio::test]
async fn webhooks_that_hang_or_lie_are_survived() {
    let f = fixture(&[]).await;
    let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
    let other = webhook(Arc::new(|_| None)).await.1;
    let cases: Vec<(&str, Answer, bool, &str)> = vec![
        ("hangs", Arc::new(|_| None), true, "/hook?timeout=1s\": context deadline exceeded"),
        ("junk", Arc::new(|_| Some(json!("junk"))), true, "expected webhook response of admission.k8s.io/v1"),
        (
            "uid",
            Arc::new(|_| {
                Some(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                    "response": { "uid": "other", "allowed": true } }))
            }),
            true,
            "expected response.uid=",
        ),
        (
            "nothing",
            Arc::new(|_| Some(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" }))),
            true,
            "absent",
        ),
        (
            "silent",
            Arc::new(|r| review(r, json!({ "allowed": false }))),
            true,
            "denied the request without explanation",
        ),
        ("foreign", Arc::new(|r| review(r, json!({ "allowed": true }))), false, "failed to call webhook"),
    ];
    for (name, answer, own, expected) in cases {
        let (port, ca, _) = webhook(answer).await;
        let ca = if own { &ca } else { &other };
        // Only the one that hangs is to run out of time, however slow the machine is.
        let seconds = if name == "hangs" { 1 } else { 30 };
        f.ok(Method::POST, &path, configuration(name, port, ca, "Fail", seconds)).await;
        let started = env::instant_now();
        let (code, answer, _) = f.admin(Method::POST, CONFIGMAPS, config_map("hook")).await;
        assert!(started.elapsed() < Duration::from_secs(60));
        let message = answer["message"].as_str().unwrap_or_default();
        assert!((400..=500).contains(&code) && message.contains(expected), "{name}: {code} {answer}");
        f.ok(Method::DELETE, &format!("{path}/{name}"), Value::Null).await;
        if !matches!(name, "silent") {
            f.ok(Method::POST, &path, configuration(name, port, ca, "Ignore", seconds)).await;
            f.ok(Method::POST, CONFIGMAPS, config_map(&format!("hook-{name}"))).await;
            f.ok(Method::DELETE, &format!("{path}/{name}"), Value::Null).await;
        }
    }
}
