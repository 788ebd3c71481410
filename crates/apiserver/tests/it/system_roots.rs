//! Webhooks and extension servers for which no authority is named: this system's vouch for them, or nobody does.
//! Each test starts its own executable again, for an environment in which the system's authorities are its own.
//! Who is not vouched for is never believed, but where the configuration says so.

use std::{path::Path, process::Command, sync::Arc, time::Duration};

use apiserver::config;
use env::Env;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{
    harness::*,
    outside::{self, json_response},
};

const FILE: &str = "SSL_CERT_FILE";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Whether this process is the one with its own authorities; else it has run `test` in one.
fn in_own_system(test: &str) -> bool {
    let mark = "MINKE_TEST_OWN_SYSTEM";
    if std::env::var_os(mark).is_some() {
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("system_roots::{test}"), "--nocapture"]).env(mark, "yes");
    // Not there yet: it is read when somebody needs it.
    again.env(FILE, folder.path().join("roots.pem")).env("SSL_CERT_DIR", folder.path().join("none"));
    assert!(again.status().unwrap().success());
    false
}

/// Answers whatever any of the tests asks for.
fn answer(path: &str, asked: &Value) -> Value {
    let uid = &asked["request"]["uid"];
    match asked["kind"].as_str() {
        Some("AdmissionReview") => json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": { "uid": uid, "allowed": false, "status": { "message": "heard", "code": 403 } } }),
        Some("TokenReview") => json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "status": { "authenticated": true, "user": { "username": "gina" } } }),
        _ => json!({ "kind": "APIResourceList", "apiVersion": "v1", "resources": [],
            "groupVersion": path.trim_start_matches("/apis/") }),
    }
}

/// The ports of a server that the system's authorities vouch for, and of one that they do not.
async fn both() -> [u16; 2] {
    let handler: outside::Handler = Arc::new(|request| {
        let asked = serde_json::from_slice(request.body()).unwrap_or_default();
        let answer = answer(request.uri().path(), &asked);
        Box::pin(async move { json_response(200, &answer) })
    });
    let (known, authority) = outside::serve("known.default.svc", None, handler.clone()).await;
    let (stranger, _) = outside::serve("stranger.default.svc", None, handler).await;
    std::fs::write(std::env::var_os(FILE).unwrap(), authority).unwrap();
    [known, stranger]
}

#[tokio::test(flavor = "multi_thread")]
async fn admission() {
    if !in_own_system("admission") {
        return;
    }
    let s = server().await;
    for (name, port) in ["known", "stranger"].into_iter().zip(both().await) {
        let hook = json!({ "metadata": { "name": name }, "webhooks": [{
            "name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/hook") },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }],
            "matchConditions": [{ "name": "own", "expression": format!("object.metadata.name == '{name}'") }],
        }] });
        s.post(HOOKS, hook).await.expect(201);
    }
    // Configurations take effect when the server's cache has them.
    let create = async |name: &str| loop {
        let answer = s.post("/api/v1/namespaces/default/configmaps?dryRun=All", config_map(name)).await;
        if answer.code != 201 {
            return answer;
        }
        env::sleep(Duration::from_millis(20)).await;
    };
    let denied = r#"admission webhook "known.example.com" denied the request: heard"#;
    create("known").await.refused(403, "", denied);
    let failed = r#"failed calling webhook "stranger.example.com": failed to call webhook: Post"#;
    create("stranger").await.refused(500, "InternalError", failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_servers() {
    if !in_own_system("extension_servers") {
        return;
    }
    let s = server().await;
    let [known, stranger] = both().await;
    for (name, port, insecure, expected) in [
        ("known", known, false, ("True", "Passed")),
        ("stranger", stranger, false, ("False", "FailedDiscoveryCheck")),
        ("believed", stranger, true, ("True", "Passed")),
    ] {
        let external =
            json!({ "metadata": { "name": name }, "spec": { "type": "ExternalName", "externalName": "localhost" } });
        s.post("/api/v1/namespaces/default/services", external).await.expect(201);
        let group = format!("{name}.example.com");
        let spec = json!({ "group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": insecure, "service": { "namespace": "default", "name": name, "port": port } });
        s.post(SERVICES, json!({ "metadata": { "name": format!("v1.{group}") }, "spec": spec })).await.expect(201);
        let said = |answer: &Answer| {
            let all = answer.value["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = all.into_iter().find(|c| c["type"] == "Available").unwrap_or_default();
            found["status"] == expected.0 && found["reason"] == expected.1
        };
        s.until(&format!("{SERVICES}/v1.{group}"), said).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn authentication() {
    if !in_own_system("authentication") {
        return;
    }
    let [known, stranger] = both().await;
    for (port, insecure, code) in [(known, false, 403), (stranger, false, 401), (stranger, true, 403)] {
        let cluster = format!("{{server: \"https://127.0.0.1:{port}/\", insecure-skip-tls-verify: {insecure}}}");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {cluster}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        let roots = std::env::var_os(FILE).unwrap();
        let kubeconfig = Path::new(&roots).with_file_name("webhook.yaml");
        std::fs::write(&kubeconfig, text).unwrap();
        let env = Env::real();
        let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
            let minute = Duration::from_secs(60);
            let hook = config::Webhook { kubeconfig, allowed_for: minute, refused_for: minute };
            config.authentication.webhook = Some(hook);
        })
        .await;
        // Who is known may not read it; who is not, is told so.
        let headers = [("authorization", "Bearer a-token")];
        let path = "/api/v1/namespaces/default/secrets";
        let answer = s.anonymous().send("GET", path, &headers, Vec::new()).await;
        assert_eq!(answer.code, code, "{port} {insecure}: {}", answer.value);
        assert!(code == 401 || answer.value["message"].as_str().unwrap().contains("\"gina\""), "{}", answer.value);
    }
}
