//! Feature gates that switch what the server does to a request: each is seen on and off.
//! Those that serve kinds are in `feature_gates`.

use std::sync::Arc;

use api::feature_gates::FeatureGates;
use apiserver::{authn::PeerCertificates, config::RequestHeader};
use env::Env;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use store::MemoryStore;

use crate::harness::{Server, config_map, default_account, pod, server_on};

const SWITCHES: [&str; 7] = [
    "APIResponseCompression",
    "APIServerIdentity",
    "AuthorizePodWebsocketUpgradeCreatePermission",
    "PodTopologyLabelsAdmission",
    "ServiceAccountNodeAudienceRestriction",
    "StorageVersionHash",
    "TokenRequestServiceAccountUIDValidation",
];
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn start(on: bool) -> Server {
    let env = Env::real();
    let pairs: Vec<String> = SWITCHES.iter().map(|name| format!("{name}={on}")).collect();
    let gates = FeatureGates::parse(pairs.iter().map(String::as_str)).unwrap();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.feature_gates = gates;
        config.enable_admission_plugins = vec!["NodeRestriction".into()];
        config.authorization_modes = vec!["RBAC".into()];
    })
    .await
}

/// Lets users do what the rule says.
async fn allow(s: &Server, name: &str, (resource, verb): (&str, &str), users: &[&str]) {
    let rule = json!({ "apiGroups": [""], "resources": [resource], "verbs": [verb] });
    let role = json!({ "metadata": { "name": name }, "rules": [rule] });
    s.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let subject = |user: &&str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user });
    let binding = json!({ "metadata": { "name": name }, "subjects": Vec::from_iter(users.iter().map(subject)),
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name } });
    s.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    // The authorizer hears of it a moment later.
    let (resource, subresource) = resource.split_once('/').unwrap();
    let may = json!({ "spec": { "user": users[0], "resourceAttributes": {
        "verb": verb, "resource": resource, "subresource": subresource, "namespace": "default",
    } } });
    let allowed = async {
        while s.post(REVIEWS, may.clone()).await.expect(201)["status"]["allowed"] != json!(true) {
            tokio::task::yield_now().await;
        }
    };
    Env::real().timeout(PATIENCE, allowed).await.expect("the rule counts");
}

/// What each of `SWITCHES` changes, in a word or a code.
async fn seen(s: &Server) -> Vec<String> {
    default_account(s).await;
    let mut large = config_map("large");
    large["data"]["k"] = "x".repeat(200 << 10).into();
    s.post(MAPS, large).await.expect(201);
    let list = s.send("GET", MAPS, &[("accept-encoding", "gzip")], Vec::new()).await;
    let compressed = list.headers.contains_key("content-encoding");

    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let has_lease = s.get(leases).await.value["items"].as_array().is_some_and(|items| !items.is_empty());

    allow(s, "exec", ("pods/exec", "get"), &["reader"]).await;
    let exec = s.send("GET", &format!("{PODS}/none/exec"), &[("impersonate-user", "reader")], Vec::new()).await.code;

    let labels = json!({ "topology.kubernetes.io/zone": "z" });
    s.post("/api/v1/nodes", json!({ "metadata": { "name": "n1", "labels": labels } })).await.expect(201);
    s.until("/api/v1/nodes?resourceVersion=0", |answer| answer.value.to_string().contains("n1")).await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n1".into();
    let bound = s.post(PODS, bound).await.expect(201);
    let zone = bound["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().unwrap_or("none").to_string();

    allow(s, "tokens", ("serviceaccounts/token", "create"), &["system:node:n1"]).await;
    let reference = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": bound["metadata"]["uid"] });
    let request = json!({ "spec": { "audiences": ["elsewhere"], "boundObjectRef": reference } });
    let node = [
        ("impersonate-user", "system:node:n1"),
        ("impersonate-group", "system:nodes"),
        ("content-type", "application/json"),
    ];
    let audience = s.send("POST", TOKENS, &node, request.to_string().into_bytes()).await.code;

    let hash = s.get("/api/v1").await.value.to_string().contains("storageVersionHash");
    let stale = json!({ "metadata": { "uid": "of-another" }, "spec": { "audiences": [] } });
    let stale = s.post(TOKENS, stale).await.code;
    vec![
        compressed.to_string(),
        has_lease.to_string(),
        exec.to_string(),
        zone,
        audience.to_string(),
        hash.to_string(),
        stale.to_string(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_switch_changes_what_it_is_for() {
    let (on, off) = (start(true).await, start(false).await);
    assert_eq!(seen(&on).await, ["true", "true", "403", "z", "403", "true", "409"]);
    assert_eq!(seen(&off).await, ["false", "false", "404", "none", "201", "false", "201"]);
}

#[tokio::test]
async fn a_front_proxy_says_uids_where_it_may() {
    let key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = ca.self_signed(&key).unwrap().pem().into_bytes();
    let mut front = CertificateParams::new(Vec::new()).unwrap();
    front.distinguished_name.push(DnType::CommonName, "front");
    let front = front.signed_by(&KeyPair::generate().unwrap(), &Issuer::new(ca, key)).unwrap().der().clone();
    for (gate, expected) in
        [("RemoteRequestHeaderUID=true", json!("u-1")), ("RemoteRequestHeaderUID=false", Value::Null)]
    {
        let env = Env::real();
        let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
            config.feature_gates = FeatureGates::parse([gate]).unwrap();
            config.authentication.request_header = Some(RequestHeader::usual(pem.clone(), "front"));
        })
        .await;
        let headers = [("x-remote-user", "ada"), ("x-remote-uid", "u-1"), ("content-type", "application/json")];
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let mut request = s.anonymous().request("POST", path, &headers, b"{}".to_vec());
        request.extensions_mut().insert(PeerCertificates(vec![front.clone()]));
        let answer = s.api.handle(request).await;
        let bytes = apiserver::body::read_all(answer.into_body(), 1 << 20).await.unwrap();
        let found: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(found["status"]["userInfo"]["username"], "ada", "{found}");
        assert_eq!(found["status"]["userInfo"]["uid"], expected, "{gate}");
    }
}
