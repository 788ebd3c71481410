//! ClusterTrustBundles and PodCertificateRequests against a whole server: who is shown them, who may write them, and what a
//! signer may say.

use std::time::Duration;

use api::feature_gates::FeatureGates;
use base64::{Engine, prelude::BASE64_STANDARD};
use env::Env;
use http::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData, SigningKey};
use serde_json::{Value, json};

use super::tests::{Fixture, PODS, configured};
use crate::{authn::User, config::RuntimeConfig};

const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
const OLD_BUNDLES: &str = "/apis/certificates.k8s.io/v1alpha1/clustertrustbundles";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GATES: &[&str] = &["ClusterTrustBundle=true", "ClusterTrustBundleProjection=true", "PodCertificateRequest=true"];
const VERSIONS: &[&str] = &["certificates.k8s.io/v1beta1=true", "certificates.k8s.io/v1alpha1=true"];

async fn start(gates: &[&str], versions: &[&str]) -> Fixture {
    configured(|config| {
        config.feature_gates = FeatureGates::parse(gates.iter().copied()).unwrap();
        config.runtime_config = RuntimeConfig::parse(versions.iter().copied()).unwrap();
        config.enable_admission_plugins.push("NodeRestriction".into());
    })
    .await
}

fn user(name: &str) -> User {
    User::new(name, &["system:authenticated"])
}

fn node(name: &str) -> User {
    User::new(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"])
}

impl Fixture {
    /// The code, and the words of a refusal.
    async fn told(&self, user: &User, method: Method, path: &str, object: Value) -> (u16, String) {
        let (code, answer, _) = self.send(user, method, path, object).await;
        (code, answer["message"].as_str().unwrap_or_default().to_string())
    }

    async fn grant(&self, name: &str, user: &str, rule: Value) {
        let role = json!({ "metadata": { "name": name }, "rules": [rule] });
        self.ok(Method::POST, &format!("{RBAC}/clusterroles"), role).await;
        let subject = json!({ "kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io" });
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
        let binding = json!({ "metadata": { "name": name }, "subjects": [subject], "roleRef": role });
        self.ok(Method::POST, &format!("{RBAC}/clusterrolebindings"), binding).await;
    }

    /// A node `n1` with a pod `p` on it; the UIDs of node, pod and ServiceAccount.
    async fn node_with_pod(&self) -> [Value; 3] {
        let made = self.ok(Method::POST, "/api/v1/nodes", json!({ "metadata": { "name": "n1" } })).await;
        let account = self.ok(Method::GET, "/api/v1/namespaces/default/serviceaccounts/default", Value::Null).await;
        let container = json!({ "name": "c", "image": "i" });
        let spec = json!({ "nodeName": "n1", "serviceAccountName": "default", "containers": [container] });
        let pod = self.ok(Method::POST, PODS, json!({ "metadata": { "name": "p" }, "spec": spec })).await;
        [&made, &pod, &account].map(|object| object["metadata"]["uid"].clone())
    }
}

fn rule(resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": ["certificates.k8s.io"], "resources": resources, "resourceNames": names, "verbs": verbs })
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

fn request(key: &KeyPair, [node, pod, account]: &[Value; 3]) -> Value {
    let proof = key.sign(pod.as_str().unwrap().as_bytes()).unwrap();
    json!({ "metadata": { "generateName": "req-" }, "spec": {
        "signerName": "example.com/x", "podName": "p", "podUID": pod, "serviceAccountName": "default",
        "serviceAccountUID": account, "nodeName": "n1", "nodeUID": node,
        "pkixPublicKey": BASE64_STANDARD.encode(key.subject_public_key_info()),
        "proofOfPossession": BASE64_STANDARD.encode(proof),
    } })
}

/// What a signer answers.
fn issued(authority: &Authority, key: &KeyPair) -> Value {
    let now = jiff::Timestamp::from_second(Env::real().now().as_second()).unwrap();
    let at = |minutes: i64| now + jiff::SignedDuration::from_mins(minutes);
    let date = |minutes| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(at(minutes).as_second() as u64);
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (date(0), date(120));
    let leaf = params.signed_by(key, &authority.issuer).unwrap().pem();
    let time = |minutes| json!(at(minutes).to_string());
    let condition =
        json!({ "type": "Issued", "status": "True", "reason": "Signed", "message": "", "lastTransitionTime": time(0) });
    json!({
        "conditions": [condition], "certificateChain": format!("{leaf}{}", authority.pem),
        "notBefore": time(0), "notAfter": time(120), "beginRefreshAt": time(60),
    })
}

#[tokio::test]
async fn both_the_gate_and_the_version_must_be_on() {
    for (gates, versions, expected) in [(GATES, &[][..], 404), (&[][..], VERSIONS, 404), (GATES, &VERSIONS[..1], 200)] {
        let f = start(gates, versions).await;
        for (path, expected) in [(BUNDLES, expected), (REQUESTS, expected), (OLD_BUNDLES, 404)] {
            assert_eq!(f.admin(Method::GET, path, Value::Null).await.0, expected, "{path} {gates:?} {versions:?}");
        }
    }
}

#[tokio::test]
async fn bundles_are_one_in_both_versions_and_attested() {
    let (f, authority, alice) = (start(GATES, VERSIONS).await, authority(), user("alice"));
    let bundle = |name: &str, signer: &str| json!({ "metadata": { "name": name }, "spec": { "signerName": signer, "trustBundle": authority.pem } });
    f.ok(Method::POST, OLD_BUNDLES, bundle("roots", "")).await;
    let seen = f.ok(Method::GET, &format!("{BUNDLES}/roots"), Value::Null).await;
    assert_eq!(
        (&seen["apiVersion"], &seen["spec"]["trustBundle"]),
        (&json!("certificates.k8s.io/v1beta1"), &json!(authority.pem))
    );
    f.ok(Method::POST, BUNDLES, bundle("example.com:x:roots", "example.com/x")).await;
    let path = format!("{OLD_BUNDLES}?fieldSelector=spec.signerName%3Dexample.com/x");
    assert_eq!(f.ok(Method::GET, &path, Value::Null).await["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(f.admin(Method::POST, BUNDLES, bundle("roots-of-x", "example.com/x")).await.0, 422);
    // Who may write bundles may not therefore vouch for a signer.
    f.grant("writer", "alice", rule(&["clustertrustbundles"], &[], &["*"])).await;
    assert_eq!(f.told(&alice, Method::POST, BUNDLES, bundle("of-alice", "")).await.0, 201);
    let of_x = || bundle("example.com:x:alice", "example.com/x");
    let (code, why) = f.told(&alice, Method::POST, BUNDLES, of_x()).await;
    assert!(code == 403 && why.ends_with("user not permitted to attest for signerName \"example.com/x\""), "{why}");
    f.grant("attester", "alice", rule(&["signers"], &["example.com/*"], &["attest"])).await;
    assert_eq!(f.told(&alice, Method::POST, BUNDLES, of_x()).await.0, 201);
    // ServiceAccounts read bundles by default.
    let account = User::new("system:serviceaccount:default:default", &["system:serviceaccounts"]);
    assert_eq!(f.told(&account, Method::GET, BUNDLES, Value::Null).await.0, 200);
    assert_eq!(f.told(&node("n1"), Method::GET, BUNDLES, Value::Null).await.0, 200);
    assert_eq!(f.told(&user("carol"), Method::GET, BUNDLES, Value::Null).await.0, 403);
}

#[tokio::test]
async fn nodes_ask_for_their_own_pods() {
    let f = start(GATES, VERSIONS).await;
    let (uids, key, n1, n2) = (f.node_with_pod().await, KeyPair::generate().unwrap(), node("n1"), node("n2"));
    let (code, made, _) = f.send(&n1, Method::POST, REQUESTS, request(&key, &uids)).await;
    assert_eq!((code, &made["spec"]["maxExpirationSeconds"]), (201, &json!(86400)), "{made}");
    let path = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap());
    let everywhere = "/apis/certificates.k8s.io/v1beta1/podcertificaterequests";
    for (who, path, expected) in [
        (&n1, path.clone(), 200),
        (&n2, path.clone(), 403),
        (&n1, format!("{everywhere}?fieldSelector=spec.nodeName%3Dn1"), 200),
        (&n1, everywhere.to_string(), 403),
        (&n2, format!("{everywhere}?fieldSelector=spec.nodeName%3Dn1"), 403),
    ] {
        assert_eq!(f.told(who, Method::GET, &path, Value::Null).await.0, expected, "{} {path}", who.name);
    }
    assert_eq!(f.told(&n1, Method::DELETE, &path, Value::Null).await.0, 403);
    let check = async |who: &User, field: &str, value: &str, code: u16, words: &str| {
        let mut object = request(&key, &uids);
        object["spec"][field] = value.into();
        let told = f.told(who, Method::POST, REQUESTS, object).await;
        assert!(told.0 == code && told.1.contains(words), "{field}: {told:?}");
    };
    check(&n2, "nodeName", "n1", 403, "which is not the requesting node \"n2\"").await;
    check(&n1, "podUID", "other", 500, "contains pod UID (\"other\") which differs from running pod").await;
    check(&n1, "nodeUID", "other", 500, "inconsistent with the running node").await;
    check(&n1, "podName", "none", 500, "named in the PodCertificateRequest").await;
    check(&n1, "serviceAccountName", "other", 403, "that differs from running pod (\"default\")").await;
    check(&n1, "serviceAccountUID", "other", 500, "which differs from the running service account").await;
    check(&n1, "proofOfPossession", "AAAA", 422, "could not verify proof-of-possession signature").await;
}

#[tokio::test]
async fn only_signers_sign_and_only_once() {
    let f = start(GATES, VERSIONS).await;
    let (uids, key, bob) = (f.node_with_pod().await, KeyPair::generate().unwrap(), user("bob"));
    let (_, made, _) = f.send(&node("n1"), Method::POST, REQUESTS, request(&key, &uids)).await;
    let status = format!("{REQUESTS}/{}/status", made["metadata"]["name"].as_str().unwrap());
    let authority = authority();
    let with = |answer: Value| {
        let mut object = made.clone();
        object["status"] = answer;
        object
    };
    f.grant("status", "bob", rule(&["podcertificaterequests/status"], &[], &["*"])).await;
    let (code, why) = f.told(&bob, Method::PUT, &status, with(issued(&authority, &key))).await;
    let words = "User \"bob\" is not permitted to \"sign\" for signer \"example.com/x\"";
    assert!(code == 422 && why.contains(words), "{why}");
    f.grant("signer", "bob", rule(&["signers"], &["example.com/x"], &["sign"])).await;
    let other = with(issued(&authority, &KeyPair::generate().unwrap()));
    let (code, why) = f.told(&bob, Method::PUT, &status, other).await;
    assert!(code == 422 && why.contains("was not issued to the requested public key"), "{why}");
    assert_eq!(f.told(&bob, Method::PUT, &status, with(issued(&authority, &key))).await.0, 200);
    let mut changed = f.ok(Method::GET, status.trim_end_matches("/status"), Value::Null).await;
    assert_eq!(changed["spec"], made["spec"]);
    changed["status"]["conditions"][0]["message"] = "changed".into();
    let (code, why) = f.told(&bob, Method::PUT, &status, changed).await;
    assert!(code == 422 && why.contains("immutable after PodCertificateRequest is issued"), "{why}");
}

#[tokio::test]
async fn sources_of_pods_need_their_gates() {
    for (gates, kept) in [(&[][..], false), (GATES, true)] {
        let f = start(gates, &[]).await;
        let bundle = json!({ "clusterTrustBundle": { "name": "roots", "path": "ca.pem" } });
        let certificate =
            json!({ "podCertificate": { "signerName": "example.com/x", "keyType": "ED25519", "keyPath": "key.pem" } });
        let volumes = json!([{ "name": "v", "projected": { "sources": [bundle, certificate] } }]);
        let spec = json!({ "containers": [{ "name": "c", "image": "i" }], "volumes": volumes });
        let pod = f.ok(Method::POST, PODS, json!({ "metadata": { "name": "q" }, "spec": spec })).await;
        let sources = &pod["spec"]["volumes"][0]["projected"]["sources"];
        assert_eq!(sources[0]["clusterTrustBundle"].is_object(), kept, "{sources}");
        assert_eq!(sources[1]["podCertificate"].is_object(), kept, "{sources}");
    }
}
